"""What a reaction works on: the state, and the events decided so far."""

from libs.core.scheduling.allowances import NodeAllowances
from libs.core.scheduling.changes import Changes
from libs.core.scheduling.failing import FailingNodes
from libs.core.scheduling.precedence import Precedence
from libs.core.state import fold
from libs.core.state.clock import NOTABLE_US, BothTimes
from libs.core.state.decided import RecordEnd
from libs.core.state.formats import (
    BACK_OFF,
    BACK_OFF_FAILURES,
    CREDITED,
    CUTS_COUNTED,
    DISK_LIMIT,
    NEWEST,
    OWN_DELAY,
    OWN_UNCOUNTED,
    UNCREDITED,
    may_emit,
)
from libs.core.state.model import State
from schemas.ledger import LedgerEvent


class InputRefused(ValueError):
    """The message cannot be applied; the text says why."""


def check_version(said: int, applied: int, look: str = "`baton diff`") -> None:
    """Whether an operator's file may take the place of the applied one: so no two undo each other's work unseen. `look`: the
    command that shows what is applied. Raises InputRefused."""
    if said <= applied:
        raise InputRefused(
            f"version {said} is not above {applied}, which was applied already: look at {look}, "
            f"then raise the file's version to {applied + 1}"
        )


class Decision:
    """Events decided at `t_us`, each already applied to `state`; `changes` tell what of it may help who waits.

    `record_ends` are the places in `events` where a record may end.
    """

    def __init__(
        self,
        state: State,
        t_us: int,
        changes: Changes | None = None,
        wall_us: int = 0,
        allowed: int = NEWEST,
        precedence: Precedence | None = None,
        *,
        nodes: NodeAllowances | None = None,
        failing: FailingNodes | None = None,
    ) -> None:
        """`precedence`: by which jobs of one class give way to each other. `wall_us`: the broker's clock at `t_us`, where it is
        known; 0: ledger time is its time. `allowed`: the newest format that events may be of. `nodes`: what nodes have used up
        of what they may say. `failing`: what jobs on them came to."""
        self.state = state
        self._allowed = allowed
        self.t_us = t_us
        self.precedence = precedence
        self.nodes = nodes if nodes is not None else NodeAllowances()
        self.failing = failing if failing is not None else FailingNodes()
        self.wall_us = wall_us or t_us
        shift_us = t_us - wall_us if wall_us else 0
        self._shift_us = shift_us if abs(shift_us) >= NOTABLE_US else 0
        self.events: list[LedgerEvent] = []
        self.changes = changes if changes is not None else Changes()
        self.decided_to = state.inbox_seq
        """The last input that is decided by the events so far."""
        self.record_ends: list[RecordEnd] = []
        self.whole = True
        """Every event that the state has begun to take in is taken in, and listed."""

    def ledger_time(self, wall_us: int) -> int:
        """When that was in ledger time: a moment of the broker's clock a short while ago, never one to come."""
        return min(max(0, self._mapped(wall_us)), self.t_us)

    def is_stamped_before(self, stamp_us: int, other_us: int) -> bool:
        """Whether the broker stored the one of these stamps before the other, whoever has set its clock in between."""
        return self._mapped(stamp_us) < self._mapped(other_us)

    def is_before(self, stamp_us: int, at: BothTimes) -> bool:
        """Whether the broker stamped it before that moment. Its clock itself says so while nobody has set it since. Ledger time
        differs from it by less before a tick than after, where one of them stood still."""
        if at.wall_us is None or self.wall_us < at.wall_us or self.state.jumps.since(at.t_us):
            return self.ledger_time(stamp_us) < at.t_us
        return stamp_us < at.wall_us

    def _mapped(self, stamp_us: int) -> int:
        return self.state.jumps.ledger_time(stamp_us, self.wall_us, self._shift_us)

    def may(self, event: LedgerEvent) -> bool:
        """Whether all readers of the ledger understand this kind of event: else the decision must do without it."""
        return may_emit(event.kind, self._allowed)

    @property
    def names_disk_limit(self) -> bool:
        """The same of the category `disk-limit`."""
        return self._allowed >= DISK_LIMIT

    @property
    def backs_off(self) -> bool:
        """Whether all readers of the ledger understand that a queued job may have to wait for a time."""
        return self._allowed >= BACK_OFF

    @property
    def backs_off_failures(self) -> bool:
        """The same of a job that has failed by itself."""
        return self._allowed >= BACK_OFF_FAILURES

    @property
    def credits(self) -> bool:
        """Whether all readers of the ledger understand that a price book says what bills give back."""
        return self._allowed >= CREDITED

    @property
    def may_withhold_credits(self) -> bool:
        """The same of what ends or preempts an attempt, that nothing is credited for it."""
        return self._allowed >= UNCREDITED

    @property
    def may_tell_own_delays(self) -> bool:
        """The same of a promised start, whose jobs may put it off."""
        return self._allowed >= OWN_DELAY

    @property
    def counts_others_alone(self) -> bool:
        """The same of what gives way, that it does so for its own team and counts for no rate."""
        return self._allowed >= OWN_UNCOUNTED

    @property
    def counts_cuts(self) -> bool:
        """The same of a board that is cut, for which job it is."""
        return self._allowed >= CUTS_COUNTED

    def emit(self, event: LedgerEvent) -> None:
        self.whole = False
        self.changes.note(self.state, event)
        fold.apply(self.state, event, self.t_us)
        self.events.append(event)
        self.whole = True

    def may_end_here(self) -> None:
        """A record may end after the events so far."""
        end = RecordEnd(len(self.events), self.decided_to)
        if self.record_ends and self.record_ends[-1].events == end.events:
            self.record_ends[-1] = end
        else:
            self.record_ends.append(end)
