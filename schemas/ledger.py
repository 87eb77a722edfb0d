"""The ledger: what was decided, in one order, for ever (stream LEDGER-<pool>, written by placement alone).

A record names the record before it (sequence and hash) and how much of the inbox it decides, so deciding and consuming
commit together in one acknowledged publish. Its hash is the SHA-256 of its payload as stored. Every reader applies a
record if and only if it continues the chain; others are void (`libs.ledger.chain`).

Redis is the ledger's present, MongoDB its past, the bill its integral: for every claim the time from `JobGranted` to
`DevicesFreed`, times its share.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from schemas.attempts import Category, Evidence, KnownOfPart, Outcome, StopCause
from schemas.audit import OperatorAction, PolicyVersion, RefusedCommand
from schemas.base import DeviceId, Fact, JobId, Micros, Name, NodeName, User
from schemas.budgets import BudgetAmount, BudgetHold, BudgetKey, BudgetPeriod, BudgetSet
from schemas.clock import ClockMark, MeasuredBy
from schemas.jobs import (
    LEASE_SAYS,
    NETWORK_SAYS,
    UNSAID_LEASE_S,
    Checkpoint,
    JobState,
    Latency,
    Network,
    StartPromise,
    StepProgress,
)
from schemas.known_specs import AcceptedSpec
from schemas.prices import ClosedPeriod, RateBook
from schemas.proofs import Hash, Sum
from schemas.queues import HalfLife, PreemptionLimits, QueueOrder, Queues, QueuesVersion
from schemas.resources import Claim, Inventory, LimitsByType, Recut, Span

LEDGER_VERSION: Final = 1


class NodeJoined(Fact):
    """A node offers its devices. A later incarnation replaces an earlier one."""

    kind: Literal["node.joined"] = "node.joined"
    incarnation: int = Field(ge=1)
    inventory: Inventory


class NodeLeft(Fact):
    """A node's lease has ended; its devices are gone until it registers again."""

    kind: Literal["node.left"] = "node.left"
    node: NodeName
    incarnation: int = Field(ge=1)
    reason: str


class QuotaSet(Fact):
    """From here on the team holds at most so much at once: all of its limits, also those that are as before."""

    kind: Literal["quota.set"] = "quota.set"
    team: Name
    limit_milli: int | None
    by_type: LimitsByType = Field(
        default_factory=dict, description="limits by device type and MIG profile, thousandths of what the key names"
    )
    user: User = Field(default="", description="the operator who set it; empty: the teams' file")
    cause: str = Field(default="", max_length=128, description="the command, by stream and sequence, or the file")
    policy: PolicyVersion = Field(default="", description="of the teams' file, when that is where it is from")
    reason: str = Field(default="", max_length=1024, description="in the operator's words")


class QueuesApplied(Fact):
    """From here on these are the pool's queues, all of them. What runs is left alone. Never `skippable`: whoever grants without
    it grants to others."""

    kind: Literal["queues.applied"] = "queues.applied"
    version: QueuesVersion
    queues: Queues
    order: QueueOrder | None = Field(default=None, description="of queues that say none; null: fair-share")
    half_life_s: HalfLife = None
    preemption: PreemptionLimits | None = Field(default=None, description="against thrash; null: the defaults")
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class PricesApplied(Fact):
    """From here on this is the pool's price book, all of it. What was posted before keeps its price; where the book changes the
    price of a time that was billed, the difference is posted as a correction by this record."""

    kind: Literal["prices.applied"] = "prices.applied"
    book: RateBook
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class PeriodClosed(Fact):
    """A period of bills is closed: whatever changes it later is a row of the open period."""

    kind: Literal["period.closed"] = "period.closed"
    period: ClosedPeriod
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class BudgetsApplied(Fact):
    """From here on these are the pool's budgets, all of them. What was spent of one that stays is kept; of a new one it is
    what is spent from now on. Attempts that run are counted from now on, and their holds fall due at once. Never `skippable`:
    whoever
    grants without it overspends."""

    kind: Literal["budgets.applied"] = "budgets.applied"
    budgets: BudgetSet
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class BudgetToppedUp(Fact):
    """A budget has more, until its present period ends."""

    kind: Literal["budget.topped-up"] = "budget.topped-up"
    budget: BudgetKey
    amount: BudgetAmount
    reason: str = Field(min_length=1, max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class BudgetPeriodBegan(Fact):
    """Budgets of this kind of period begin a new one. What is spent up to `at_us` is of the period before."""

    kind: Literal["budget.period-began"] = "budget.period-began"
    period: BudgetPeriod
    from_us: int = Field(description="when it began by the calendar")
    to_us: Micros = Field(description="when it ends by the calendar")
    at_us: Micros = Field(description="when it began, in ledger time")
    wall_us: Micros = Field(
        description="what the calendar showed when this was decided: budgets whose period ends later stay"
    )


class BudgetHoldsRenewed(Fact):
    """Attempts that are still running are covered up to a later time; of those whose budgets go on when they are spent, also
    when nothing covers them."""

    kind: Literal["budget.holds-renewed"] = "budget.holds-renewed"
    hold: BudgetHold
    jobs: tuple[JobId, ...] = Field(min_length=1, max_length=1000)


class BudgetReached(Fact):
    """So much of a budget is spent that its soft limit is reached, or its hard one, which is also when it does not cover
    another renewal. Told once in each period."""

    kind: Literal["budget.reached"] = "budget.reached"
    budget: BudgetKey
    level: Literal["soft", "hard"]
    limit: int = Field(ge=0, description="of that level, millionths")
    spent: int = Field(ge=0, description="millionths, rounded down")
    teams: tuple[Name, ...] = Field(default=(), max_length=1000, description="whose budget it is: they are told")


class TeamSuspended(Fact):
    """From here on the team submits nothing and none of its waiting jobs is granted anything, until it is resumed. What runs
    goes on, unless it is stopped as well. A writer that does not know it would grant, so it must stop: never `skippable`."""

    kind: Literal["team.suspended"] = "team.suspended"
    team: Name
    reason: str = Field(min_length=1, max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class TeamLeft(Fact):
    """A suspended team, of which nothing waits or runs, has left: nodes remove what they keep of it. It stays suspended;
    that it is resumed takes this back."""

    kind: Literal["team.left"] = "team.left"
    team: Name
    reason: str = Field(default="", max_length=1024, description="in the operator's words")
    user: User = Field(default="", description="the operator who said it")


class TeamResumed(Fact):
    """The team's suspension is over: its waiting jobs stand in their queues again, with their age. If it left, it is back."""

    kind: Literal["team.resumed"] = "team.resumed"
    team: Name
    reason: str = Field(default="", max_length=1024)
    user: User = Field(default="", description="the operator who said it")


class JobQueued(Fact):
    """An admitted job entered the queue."""

    kind: Literal["job.queued"] = "job.queued"
    job_id: JobId
    team: Name
    spec: AcceptedSpec
    spec_hash: str
    client_key: str
    priority: int
    preempts: bool
    submitted_us: Micros
    latency: Latency = Latency.NORMAL
    user: User = Field(default="", description="who submitted it")
    lease_s: float = Field(default=UNSAID_LEASE_S, ge=0, description=LEASE_SAYS)
    network: Network = Field(default=Network.HOST, description=NETWORK_SAYS)
    cause: str = Field(default="", max_length=128, description="the request, by stream and sequence")
    policy: PolicyVersion = Field(default="", description="of the classes and limits by which it was let in")


class JobBoosted(Fact):
    """An operator, or an admin of its team, raised the job above its class, until then. It counts against its team's budget.
    Never `skippable`: whoever grants without it grants to others."""

    kind: Literal["job.boosted"] = "job.boosted"
    job_id: JobId
    priority: int = Field(description="of the job from here on")
    until_us: Micros = Field(description="ledger time; no later record sees it raised")
    reason: str = Field(max_length=1024, description="in the words of who said it")
    user: User = Field(default="", description="who said it: an operator, or an admin of `team`")
    team: Name | Literal[""] = Field(default="", description="whose admin said it; empty: an operator did")


class BoostEnded(Fact):
    """The job's time above its class is over, or an operator ended it."""

    kind: Literal["job.boost-ended"] = "job.boost-ended"
    job_id: JobId
    priority: int = Field(description="of the job from here on: that of its class")
    reason: str = Field(max_length=1024)
    user: User = Field(default="", description="who ended it, an operator or an admin of `team`; empty: its time did")
    team: Name | Literal[""] = Field(
        default="", description="whose admin ended it; empty: an operator, or its time, did"
    )


class JobGranted(Fact):
    """A gang's whole grant: exactly its devices, in rank order, or there is no such record. Money starts here."""

    kind: Literal["job.granted"] = "job.granted"
    job_id: JobId
    attempt: int = Field(ge=1)
    claims: tuple[Claim, ...] = Field(min_length=1)
    resume: Checkpoint | None = None
    span: Span | None = Field(default=None, description="of a gang: how close together it is")
    hold: BudgetHold | None = Field(default=None, description="of the budgets that its team is under; null: under none")
    own_delay_us: Micros | None = Field(
        default=None,
        description="of a gang that is late: the promised start after which it would have had room, had all jobs of its team"
        " ended but those in that promise's `stays`; null: others, or faults, were in its way. What is later is not credited",
    )


class AttemptRunning(Fact):
    """Every part of the attempt was seen running."""

    kind: Literal["attempt.running"] = "attempt.running"
    job_id: JobId
    attempt: int = Field(ge=1)


class AttemptStarting(Fact):
    """One node's part of a gang was seen running; `AttemptRunning` follows when all are."""

    kind: Literal["attempt.starting"] = "attempt.starting"
    job_id: JobId
    attempt: int = Field(ge=1)
    node: NodeName


class AttemptCheckpointed(Fact):
    """The job acknowledged a checkpoint; the next attempt resumes from it."""

    kind: Literal["attempt.checkpointed"] = "attempt.checkpointed"
    job_id: JobId
    attempt: int = Field(ge=1)
    checkpoint: Checkpoint


class AttemptProgress(Fact):
    """How far the attempt is, and how long it still takes: told when that changed by much, and now and then. It orders jobs of
    one team, and is shown; no reader's books depend on it."""

    kind: Literal["attempt.progress"] = "attempt.progress"
    job_id: JobId
    attempt: int = Field(ge=1)
    progress: StepProgress
    skippable: Literal[True] = True


class AttemptPreempting(Fact):
    """The attempt must save its work and give way within its grace."""

    kind: Literal["attempt.preempting"] = "attempt.preempting"
    job_id: JobId
    attempt: int = Field(ge=1)
    beneficiary: JobId
    plan_id: str
    reason: str
    cost_device_s: float | None = Field(
        default=None, ge=0, description="what giving way costs this attempt, device-seconds: the figure that decided"
    )
    for_own_team: bool = Field(
        default=False, description="the beneficiary is of the same team: nothing is credited for giving way to it"
    )
    counts: bool = Field(
        default=True,
        description="for the rates at which it, and the pool, give way; false: it does so for its own team",
    )


class AttemptStopping(Fact):
    """The attempt must end everywhere: cancelled, over its time, or a part of the gang failed or was lost."""

    kind: Literal["attempt.stopping"] = "attempt.stopping"
    job_id: JobId
    attempt: int = Field(ge=1)
    cause: StopCause
    reason: str
    user: User = Field(default="", description="who cancelled it, when that is the cause")


class DevicesFreed(Fact):
    """A node's part of an attempt is gone, by that node's evidence. Money for these claims stops here."""

    kind: Literal["devices.freed"] = "devices.freed"
    job_id: JobId
    attempt: int = Field(ge=1)
    node: NodeName
    devices: tuple[DeviceId, ...] = Field(min_length=1)
    evidence: Evidence
    exit_code: int | None = None
    own_exit: bool = Field(default=False, description="its processes ended by themselves")
    reason: str = ""
    category: KnownOfPart | None = Field(default=None, description="what the agent knows of why it failed")
    unproven: bool = Field(
        default=False,
        description="nothing bears the category out but what teams can bring about: nothing is credited for it",
    )
    silent_s: float | None = Field(
        default=None, ge=0, description="how long its node was silent, s, where that alone ended the lease"
    )


class AttemptClosed(Fact):
    """The attempt's last part is gone. Each attempt is closed, and billed, once."""

    kind: Literal["attempt.closed"] = "attempt.closed"
    job_id: JobId
    attempt: int = Field(ge=1)
    outcome: Outcome
    category: Category | None = Field(
        default=None, description="what kind of end it was, and so which budget of retries pays; null in older records"
    )


class JobRequeued(Fact):
    """The job waits again, with its age kept; `resume` is where its next attempt starts."""

    kind: Literal["job.requeued"] = "job.requeued"
    job_id: JobId
    reason: str
    resume: Checkpoint | None = None
    losses: int = Field(default=0, ge=0, description="attempts that were lost in a row, none of them after a good run")
    failures: int = Field(
        default=0, ge=0, description="attempts that failed by themselves in a row, none of them after a good run"
    )
    not_before_us: Micros | None = Field(
        default=None,
        description="it is granted nothing before, in ledger time: it was lost or failed several times in a row",
    )


class JobFinished(Fact):
    """The job's one terminal state. Nothing follows it."""

    kind: Literal["job.finished"] = "job.finished"
    job_id: JobId
    state: JobState
    reason: str = ""
    exit_code: int | None = None
    user: User = Field(default="", description="who cancelled it while it waited")


class DevicesHeld(Fact):
    """Devices that are being freed for a beneficiary: nobody else is granted them until it has started or ended."""

    kind: Literal["devices.held"] = "devices.held"
    job_id: JobId
    devices: tuple[DeviceId, ...] = Field(min_length=1)
    plan_id: str = Field(default="", description="the plan that this accepts")
    cost_device_s: float | None = Field(default=None, ge=0, description="of all its victims together, device-seconds")


MOST_STAYING = 100
"""Jobs that `GangPromised.stays` names at the most."""
OWN_DELAY_US = 10_000_000
"""Who keeps a late gang waiting is looked at so often at the most: what lasts as long is seen."""
MOST_COUNTED_ON = 8
"""Promises of one gang that `JobGranted.own_delay_us` can be of: the first seven, and the last. Else a fault anywhere would
hide that its team's job, whose end had been counted on, runs on."""


class GangPromised(Fact):
    """A gang that waits is told when it starts: the first of its class and team that does not fit. Told again when the time
    moves, later only for a cause. Until then others use the hole; devices are kept for it in time."""

    kind: Literal["gang.promised"] = "gang.promised"
    job_id: JobId
    promise: StartPromise
    stays: tuple[JobId, ...] | None = Field(
        default=None,
        max_length=MOST_STAYING,
        description="jobs of its own team that are on such devices, and expected to run on beyond that start; null: not told",
    )
    skippable: Literal[True] = True


class HoldReleased(Fact):
    """The beneficiary no longer needs the hold: it was granted, ended, or the plan failed."""

    kind: Literal["hold.released"] = "hold.released"
    job_id: JobId


class PlanDeclineReason(StrEnum):
    """Why a plan was declined. Most mean that the plan was made on an older state: its author plans again."""

    BENEFICIARY_GONE = "beneficiary-gone"
    """The beneficiary does not wait any more."""
    ALREADY_HELD = "already-held"
    """Devices are held for the beneficiary already."""
    MAY_NOT_PREEMPT = "may-not-preempt"
    """The beneficiary's class may not preempt."""
    VICTIM_GONE = "victim-gone"
    """A victim runs no more, or gives way or stops already."""
    VICTIM_NOT_LOWER = "victim-not-lower"
    """A victim is not of a lower class than the beneficiary."""
    NO_SUCH_DEVICE = "no-such-device"
    """A planned device is unknown to the pool."""
    BAD_SIZE = "bad-size"
    """The beneficiary cannot run on so many devices."""
    DOES_NOT_FIT = "does-not-fit"
    """The beneficiary would not fit on the planned devices, even without the victims."""
    OVER_LIMIT = "over-limit"
    """The beneficiary's team would have more than its limit."""
    VICTIM_SPARED = "victim-spared"
    """A victim has not run its minimum yet, or gave way too often lately."""
    TOO_MANY = "too-many"
    """So many jobs gave way lately that no more may for a while."""


class PlanDeclined(Fact):
    """A preemption plan that does not fit the present: nobody gives way. A normal answer, not an error."""

    kind: Literal["plan.declined"] = "plan.declined"
    plan_id: str
    beneficiary: JobId
    reason: PlanDeclineReason
    text: str = Field(default="", max_length=2048, description="the reason in a sentence, with the names that matter")
    skippable: Literal[True] = True


class BoardRecut(Fact):
    """A MIG board is to be repartitioned for a request that waits: nobody is granted the instances that go any more."""

    kind: Literal["board.recut"] = "board.recut"
    node: NodeName
    incarnation: int = Field(ge=1)
    recut: Recut
    why: str = Field(default="", max_length=1024)


class BoardCutDone(Fact):
    """The node has repartitioned the board, or put it back as it was; `inventory` is what it offers from here on."""

    kind: Literal["board.cut"] = "board.cut"
    node: NodeName
    incarnation: int = Field(ge=1)
    board: DeviceId
    number: int = Field(ge=1)
    ok: bool
    reason: str = Field(default="", max_length=1024, description="why it failed")
    inventory: Inventory


class BoardRecutWithdrawn(Fact):
    """A node that is up did not answer a repartition in time: it is asked to drop it and to say what the board is now.

    Until its answer (`BoardCutDone`) nobody is granted the instances that were to go: the node may have destroyed them.
    """

    kind: Literal["board.recut-withdrawn"] = "board.recut-withdrawn"
    node: NodeName
    incarnation: int = Field(ge=1)
    board: DeviceId
    number: int = Field(ge=1, description="of the repartition that is withdrawn")
    reason: str = Field(default="", max_length=1024)


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


class GranterNamed(Fact):
    """From here on this process grants leases, and nobody of an earlier epoch. A successor of it reports no node lost before
    its term, its longest lease and the kill bound have passed."""

    kind: Literal["lease.granter"] = "lease.granter"
    epoch: int = Field(ge=1)
    holder: str = Field(max_length=128, description="the process")
    term_s: float = Field(gt=0, description="it grants so long after it last saw the ledger name it, s")
    max_lease_s: float = Field(gt=0, description="no longer lease is granted, s")
    skippable: Literal[True] = True


class NodeSilence(Fact):
    """A node is not heard. Nothing new is granted there until it is; what runs there goes on until its lease ends. Told again,
    with the same beginning, as more of its leases have ended."""

    kind: Literal["node.silent"] = "node.silent"
    node: NodeName
    incarnation: int = Field(ge=1)
    silent_s: float = Field(ge=0, description="time since the last renewal, s")
    kept: bool = Field(
        default=False,
        description="all leases have ended but of work that is kept: only the node, or an operator, can say that it is over",
    )
    ended_lease_s: float = Field(default=0, ge=0, description="leases of at most this length have surely ended, s")
    skippable: Literal[True] = True


class NodeHeard(Fact):
    """A silent node is heard again, in the same life."""

    kind: Literal["node.heard"] = "node.heard"
    node: NodeName
    incarnation: int = Field(ge=1)
    skippable: Literal[True] = True


DECLARED_DEAD = "declared dead by "
"""Begins the reason of all that an operator's word ended: while an older reader reads along, nothing else says it."""


class NodeDeclaredDead(Fact):
    """An operator says that nothing runs on a node any more, and how that was made sure of. What it held is freed in the same
    record, work that is kept too. A life of it can only begin with a higher incarnation: its agent kills everything first."""

    kind: Literal["node.declared-dead"] = "node.declared-dead"
    node: NodeName
    incarnation: int = Field(ge=1, description="the life that is over")
    fenced_by: str = Field(min_length=1, max_length=1024, description="power off, BMC, ... in the operator's words")
    user: User = ""
    skippable: Literal[True] = True


class DeviceQuarantined(Fact):
    """Something uses a device that is no attempt of ours: nobody is granted it until it is returned."""

    kind: Literal["device.quarantined"] = "device.quarantined"
    node: NodeName
    incarnation: int = Field(ge=1)
    device: DeviceId
    users: str = Field(description="who: name and process id of each")
    since_us: Micros = Field(description="by the node's clock: names this quarantine")
    skippable: Literal[True] = True


class DeviceReturned(Fact):
    """A device's quarantine is over: it is free, or an operator says that it may be used all the same."""

    kind: Literal["device.returned"] = "device.returned"
    node: NodeName
    device: DeviceId
    since_us: Micros = Field(description="names the quarantine")
    user: User = Field(default="", description="the operator; empty: the node saw that it is free")
    reason: str = ""
    skippable: Literal[True] = True


class NodeCordoned(Fact):
    """An operator takes a node out of use, or placement does, because every job failed there: nothing new is granted there,
    what runs goes on. It holds over the node's lives."""

    kind: Literal["node.cordoned"] = "node.cordoned"
    node: NodeName
    user: User = Field(default="", description="the operator; empty: nobody, it was placement")
    reason: str = ""
    skippable: Literal[True] = True


class NodeUncordoned(Fact):
    """An operator puts a node into use again."""

    kind: Literal["node.uncordoned"] = "node.uncordoned"
    node: NodeName
    user: User = Field(default="", description="the operator")
    reason: str = ""
    skippable: Literal[True] = True


class DevicesReserved(Fact):
    """Which devices are kept free for a gang whose reservation is due, or for a job of one that comes before all for its age,
    from now on: all of them, those in use as well. Told with ticks, when it is not what was told last. It is over when the job
    is granted or ends, too."""

    kind: Literal["devices.reserved"] = "devices.reserved"
    gang: JobId = Field(description="for which job; the event is of the pool, and no team's")
    devices: tuple[DeviceId, ...] = Field(description="in the fleet's order; empty: none any more")
    skippable: Literal[True] = True


class DevicesFragmented(Fact):
    """What is free, and of no use to any job that waits for devices, from now on: all of it. Told with ticks, when it is not
    what was told last. A split of what is idle, and no account: nobody but the cycle knows what it could not place."""

    kind: Literal["devices.fragmented"] = "devices.fragmented"
    units: dict[str, Annotated[int, Field(gt=0)]] = Field(
        description="kind of device -> capacity units (7,000 a device); empty: nothing is"
    )
    skippable: Literal[True] = True


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
