"""Records, and what is decided of the ledger itself and of what was asked."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from schemas.audit import OperatorAction, RefusedCommand
from schemas.base import Fact, JobId, Micros, Name, User
from schemas.clock import ClockMark, MeasuredBy
from schemas.ledger.jobs import (
    AttemptCheckpointed,
    AttemptClosed,
    AttemptPreempting,
    AttemptProgress,
    AttemptRunning,
    AttemptStarting,
    AttemptStopping,
    BoostEnded,
    DevicesFreed,
    DevicesHeld,
    GangPromised,
    HoldReleased,
    JobBoosted,
    JobFinished,
    JobGranted,
    JobQueued,
    JobRequeued,
    PlanDeclined,
)
from schemas.ledger.nodes import (
    BoardCutDone,
    BoardRecut,
    BoardRecutWithdrawn,
    DeviceQuarantined,
    DeviceReturned,
    DevicesFragmented,
    DevicesReserved,
    GranterNamed,
    NodeCordoned,
    NodeDeclaredDead,
    NodeHeard,
    NodeJoined,
    NodeLeft,
    NodeSilence,
    NodeUncordoned,
)
from schemas.ledger.teams import (
    BudgetHoldsRenewed,
    BudgetPeriodBegan,
    BudgetReached,
    BudgetsApplied,
    BudgetToppedUp,
    PeriodClosed,
    PricesApplied,
    QueuesApplied,
    QuotaSet,
    TeamLeft,
    TeamResumed,
    TeamSuspended,
)
from schemas.proofs import Hash, Sum

LEDGER_VERSION: Final = 1


class RefusedRequest(Fact):
    """The request of a team that a rejected input carried: history tells the team. Each submit has one answer: its job's
    events, or this."""

    what: Literal["submit", "cancel"]
    job_id: JobId
    team: Name
    user: User = ""
    client_key: str = ""
    stored_us: Micros = Field(default=0, description="when the broker stored the request, by its clock")
    known: bool = Field(default=True, description="a job of this id waits, runs, or ended lately")
    text: str = Field(default="", max_length=512, description="of a cancel: the reason that was given")


class InputRejected(Fact):
    """An inbox message that cannot be applied, with the reason. It never blocks the next; a copy goes to DEAD."""

    kind: Literal["input.rejected"] = "input.rejected"
    inbox_seq: int = Field(ge=1)
    subject: str
    reason: str = Field(max_length=2048)
    request: RefusedRequest | None = None


class ClockJumped(Fact):
    """The broker's wall clock was set, or stood still for us: between two ticks it went elsewhere than time did. Limits and
    bills do not move with it. Calendars do, from this record on."""

    kind: Literal["clock.jumped"] = "clock.jumped"
    from_us: Micros = Field(description="what the wall clock should have shown")
    to_us: Micros = Field(description="what it showed")
    elapsed_us: int = Field(ge=0, description="ledger time between the two ticks")
    measured: MeasuredBy
    estimated: bool = Field(default=False, description="no clock ran through: the wall clock's word was taken")
    skippable: Literal[True] = True


class SegmentSealed(Fact):
    """The ledger goes on in another stream, whose first record names this one as the record before it. A reader that does not
    know it would wait for ever at the end of a stream that nothing is written to, so it must stop: never `skippable`."""

    kind: Literal["segment.sealed"] = "segment.sealed"
    first_seq: int = Field(ge=1, description="of the segment that ends with this record")
    next: str = Field(description="the stream of the segment that begins behind it")


class OperatorActed(Fact):
    """Somebody did something that changes no job: an operator a credential, a segment, a format, told by the tool that did
    it; a team or an operator a secret, told by vault."""

    kind: Literal["operator.acted"] = "operator.acted"
    action: OperatorAction
    user: User = Field(default="", description="who told it, as the subject said")
    team: Name | Literal[""] = Field(
        default="", description="whose user that is, when a team changed a secret of its own; empty: an operator"
    )
    skippable: Literal[True] = True


class CommandRefused(Fact):
    """A command was refused before it reached the inbox. Told by the service that refused it."""

    kind: Literal["command.refused"] = "command.refused"
    command: RefusedCommand
    skippable: Literal[True] = True


class LedgerSummed(Fact):
    """Every team's part of the ledger up to a record, under one root: with it a team checks what it is told is its own. Worked
    out by history, checked by whoever reads the ledger whole. A number that was summed before counts for nothing."""

    kind: Literal["ledger.summed"] = "ledger.summed"
    sum: Sum
    nonce: Hash = Field(description="what salts are made of; teams are not told it")
    skippable: Literal[True] = True


EventOfJob = (
    JobQueued
    | JobGranted
    | AttemptStarting
    | AttemptRunning
    | AttemptCheckpointed
    | AttemptProgress
    | AttemptPreempting
    | AttemptStopping
    | DevicesFreed
    | AttemptClosed
    | JobRequeued
    | JobFinished
    | DevicesHeld
    | HoldReleased
    | GangPromised
    | JobBoosted
    | BoostEnded
)
"""The variants that are about a job."""

LedgerEvent = Annotated[
    NodeJoined
    | NodeLeft
    | QuotaSet
    | QueuesApplied
    | PricesApplied
    | PeriodClosed
    | BudgetsApplied
    | BudgetToppedUp
    | BudgetPeriodBegan
    | BudgetHoldsRenewed
    | BudgetReached
    | TeamSuspended
    | TeamLeft
    | TeamResumed
    | EventOfJob
    | BoardRecut
    | BoardCutDone
    | InputRejected
    | PlanDeclined
    | BoardRecutWithdrawn
    | ClockJumped
    | SegmentSealed
    | GranterNamed
    | NodeSilence
    | NodeHeard
    | NodeDeclaredDead
    | NodeCordoned
    | NodeUncordoned
    | DevicesReserved
    | DevicesFragmented
    | DeviceQuarantined
    | DeviceReturned
    | OperatorActed
    | CommandRefused
    | LedgerSummed,
    Field(discriminator="kind"),
]
"""One decided event: a variant per kind."""

EVENT_KINDS: Final[dict[str, type[Fact]]] = {
    event.model_fields["kind"].default: event for event in get_args(get_args(LedgerEvent)[0])
}
"""Every kind of event that this version knows, with its model."""


def kinds_of(events: Iterable[type[Any]]) -> frozenset[str]:
    """The kinds of these event models."""
    return frozenset(event.model_fields["kind"].default for event in events)


class UnknownEvent(Fact):
    """An event of a kind that this version does not know, written by a later one that marked it `skippable`.

    A kind whose meaning no present reader needs (a note, a reason, a figure) has the field
    `skippable: Literal[True] = True`; an event without it must be understood, or the reader stops. The mark is for good:
    a kind that was skippable once is never given a meaning that a reader must not miss.
    """

    kind: str
    skippable: Literal[True]


class LedgerRecord(Fact):
    """One committed decision. Sent by placement; read by every other service.

    An event whose `kind` a reader does not know is passed over when it says `"skippable": true`; without that the reader
    must stop, and a version that knows the kind takes its place.

    `prev_seq` and `prev_hash` are those of the last valid record (0 and "" for the first), `inbox_seq` the last inbox
    message it decides; a decision that is larger than a record takes several (`more`), and `inbox_seq` may stay where it
    was until the last of them. `t_us` is ledger time (`libs.core.state.clock`): it never goes back, is the broker's clock as
    long as nobody sets that clock, and is what limits and bills are measured in.
    """

    v: Literal[1] = LEDGER_VERSION
    pool: Name
    prev_seq: int = Field(ge=0)
    prev_hash: str
    inbox_seq: int = Field(ge=0)
    t_us: Micros
    wall_us: Micros | None = Field(default=None, description="the broker's timestamp of that message: calendar time")
    clock: ClockMark | None = Field(default=None, description="the last tick that told boot clocks")
    format: int | None = Field(
        default=None,
        ge=1,
        description="what it may say: the newest format that all readers understood when it was decided, which never goes"
        " back; null: written by a version that did not declare it",
    )
    more: bool = Field(default=False, description="the decision is larger than a record: the next one goes on with it")
    writer: str = Field(description="which process wrote it, for operators")
    events: tuple[LedgerEvent, ...]
