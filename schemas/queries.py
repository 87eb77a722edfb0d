"""Questions and answers: request-reply on `baton.qry.<entity>.v1.<what>[.<pool>].<team>.<user>`.

The service that owns the answer replies, of the pool that is named where pools differ. Team and user are the subject's
last tokens, and `operator` may see every team. A reply carries the header `Baton-Status`: `ok`, `invalid`, `not-found` or
`failed`; all but `ok` carry `QueryFailed`. A question may carry the header `Baton-At-Least`: the newest ledger sequence that
its asker has heard of, for which an answer waits a moment; and `Baton-Accept: zlib`: then a long answer comes compressed, with
the header `Baton-Encoding: zlib`. An answer to a team has 512 KiB at the most as it is sent; what is larger is `failed`.
A job of another team is `not-found`, exactly like one that does not exist.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from schemas.base import DeviceId, Fact, JobId, Micros, Name, Strict, User
from schemas.budgets import SpendingBudget, TimeZone
from schemas.inbox import BoostJob
from schemas.jobs import AcceptedSpec, Checkpoint, JobEvent, JobSpec, JobState, Reason, StartPromise, StepProgress
from schemas.nodes import NodeWalls
from schemas.proofs import Hash
from schemas.queues import HalfLife, PreemptionLimits, Queue, QueueOrder, QueuesVersion
from schemas.resources import Span

ANSWER_S: Final = 5.0
"""So long a client waits for an answer, unless it says else."""
LOGS_ANSWER_S: Final = 2.0
"""And for a piece of output."""
GIVES_UP: Final = 0.8
"""Of that time: then who answers says why there is no answer, while it is still waited for."""


class QueryFailed(Fact):
    """Why a question has no answer."""

    status: str = Field(description="invalid, not-found or failed")
    reasons: tuple[Reason, ...] = ()
    message: str
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")


class JobGet(Strict):
    """One job with its attempts. Answered by history (`job.get`)."""

    job_id: JobId


def _each_once(states: tuple[JobState, ...]) -> tuple[JobState, ...]:
    return tuple(dict.fromkeys(states))


class JobListQuery(Strict):
    """A team's jobs, newest first. Answered by history (`job.list`)."""

    states: Annotated[tuple[JobState, ...], AfterValidator(_each_once)] = ()
    name: str = ""
    limit: int = Field(default=100, ge=1, le=1000)
    before_us: Micros | None = Field(default=None, description="for paging: jobs submitted before this time")


class AttemptDocument(Fact):
    """One run of a job, as history keeps it."""

    attempt: int = Field(ge=1)
    granted_us: Micros
    running_us: Micros | None = None
    closed_us: Micros | None = None
    outcome: str = ""
    category: str = Field(default="", description="what kind of end it was, e.g. node-lost, out-of-memory, user-error")
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    milli: tuple[int, ...] = ()
    places: tuple[int, ...] = Field(
        default=(),
        description="of each device the place of its node in `nodes`; empty when each node has as many, one after the other",
    )
    resume: Checkpoint | None = None
    checkpoint: Checkpoint | None = None
    progress: StepProgress | None = Field(default=None, description="as it was told last")
    progress_us: Micros | None = Field(default=None, description="when that was, in ledger time")
    exit_code: int | None = None
    span: Span | None = Field(default=None, description="of a gang: how close together it is")
    preemption_cost_device_s: float | None = Field(
        default=None, ge=0, description="it gave way: what that cost it, device-seconds"
    )


class JobDocument(Fact):
    """A job's whole story. `seq` is the last ledger sequence that changed it."""

    job_id: JobId
    team: Name
    name: str
    client_key: str
    priority_class: str
    priority: int
    state: JobState
    reason: str = ""
    devices: int = Field(ge=0)
    submitted_us: Micros
    queued_us: Micros
    finished_us: Micros | None = None
    promise: StartPromise | None = Field(
        default=None, description="when it will start, as it was told last; while it waits"
    )
    promised_us: Micros | None = Field(default=None, description="the start that was promised first")
    attempts: tuple[AttemptDocument, ...] = ()
    preemptions: int = Field(default=0, ge=0)
    spec: AcceptedSpec
    spec_hash: str = Field(
        default="",
        description="of the body that was submitted, before admission filled it in; empty of an older document",
    )
    seq: int = Field(ge=0)
    user: User = Field(default="", description="who submitted it")
    pool: str = Field(default="", description="where it was admitted to")


class JobList(Fact):
    """A team's jobs, newest first. Sent by history as the answer to `JobListQuery`. No more than 256 KiB of them: the next
    question goes on `before_us`."""

    jobs: tuple[JobDocument, ...]


class EventListQuery(Strict):
    """What happened to a team's jobs, in ledger order. Answered by history (`event.list`): the first events after `after_us`;
    without that, the first after the numbers of `seen`, some of before that among them; without either, the last ones."""

    job_id: JobId | None = None
    after_us: Micros | None = None
    limit: int = Field(default=1000, ge=1, le=10_000)
    seen: dict[Name, Annotated[int, Field(ge=0)]] | None = Field(
        default=None,
        max_length=1000,
        description="pool -> number of the last event that the asker has; what was dropped after it is told as `lost`",
    )


class EventsLost(Fact):
    """Events of a team that were dropped before they were asked for: each from `first` to `last`, by number."""

    what: Literal["events.lost"] = "events.lost"
    pool: Name
    first: int = Field(
        ge=1, description="asked by a time: 1, for which numbers are from before that time is not known any more"
    )
    last: int = Field(ge=1)
    before_us: Micros = Field(description="all of them are older than the event of this time")
    team: str = Field(default="", description="whose they were; told to the operator, who hears of all teams")


class EventList(Fact):
    """Events in ledger order. Sent by history as the answer to `EventListQuery`."""

    events: tuple[JobEvent, ...]
    lost: tuple[EventsLost, ...] = ()
    more: bool = Field(
        default=False, description="asked with `after_us`: an answer holds no more of those that there are"
    )


class ExplainQuery(Strict):
    """Why is this job where it is? Answered by queries (`job.explain`)."""

    job_id: JobId


class Removed(Fact):
    """How many devices one constraint takes out of consideration, in the order in which constraints are applied. What other
    jobs take out, in whatever way, is one number (`busy`) for a team."""

    constraint: str
    devices: int = Field(ge=0)


class HeldBy(Fact):
    """A running job that holds what another one waits for."""

    job_id: JobId
    team: Name
    name: str
    devices: int = Field(ge=0, description="that the waiting job could use, too")
    since_us: Micros = Field(description="when it was granted them")
    p50_us: Micros | None = Field(default=None, description="its end, as likely before as after; null: nobody knows")
    p90_us: Micros | None = Field(default=None, description="its end in nine of ten cases")
    basis: str = Field(
        default="", description="stopping, timer, progress, history or limit: what the end is known from"
    )


class ExpectedStart(Fact):
    """When a job that waits is expected to start."""

    p50_us: Micros
    p90_us: Micros | None = Field(default=None, description="in nine of ten cases before this; null: unknown even so")
    basis: str = Field(description="in words: what has to happen first")


class Explanation(Fact):
    """The dominant reason, what each constraint removes, and the smallest change that would let the job run."""

    job_id: JobId
    state: JobState
    reason: str = Field(
        description="of a waiting job the constraint that keeps it out (no-devices, type, mig-profile, labels, memory, "
        "runtime, precision, cpu, host-memory, simulation, held, reserved, busy, parts, spread, power, topology, "
        "quota, budget), preempting while lower classes make room for it, backing-off while it waits because it was lost "
        "several times in a row, next when it fits; else its state"
    )
    text: str
    ahead: int = Field(
        default=0, ge=0, description="jobs of its own team that are considered before it; told to the operator: of all"
    )
    position: int = Field(
        default=0,
        ge=0,
        description="of a job that waits: its place among those of its team, or of all for the operator",
    )
    behind: tuple[HeldBy, ...] = Field(
        default=(), description="who holds what it waits for, the first to end first; a team is told its own jobs"
    )
    behind_more: int = Field(
        default=0, ge=0, description="further ones; of other teams they are not counted for a team"
    )
    behind_others_devices: int = Field(
        default=0, ge=0, description="devices that it could use and that jobs of other teams hold; told to teams"
    )
    start: ExpectedStart | None = Field(default=None, description="when it is expected to start; null: unknown")
    promise: StartPromise | None = Field(default=None, description="of a gang: what it was promised last")
    user: "UserShare | None" = Field(
        default=None, description="who submitted it, beside the other users of the team; null: they do not share"
    )
    users: int = Field(default=0, ge=0, description="so many users of the team are compared")
    removed: tuple[Removed, ...] = ()
    suggestion: str = ""
    span: Span | None = Field(default=None, description="of a gang that runs: how close together it is")
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")


class PlanVerdict(StrEnum):
    """What would become of a job if it were submitted now."""

    NOW = "now"
    AFTER_PREEMPTION = "after-preemption"
    LATER = "later"
    UNKNOWN = "unknown"
    NEVER = "never"
    REFUSED = "refused"


class PlanQuery(Strict):
    """What would become of this job? Nothing is submitted. Answered by queries (`job.plan`)."""

    job: JobSpec
    steps: float | None = Field(default=None, gt=0, description="training steps that it has to do, for time and cost")


class PlannedNode(Fact):
    """A node of the would-be placement, with its devices in rank order."""

    node: str
    model: str
    devices: tuple[DeviceId, ...]


class PlannedVictim(Fact):
    """A running job that would give way. Another team's is told to the operator alone."""

    job_id: str = ""
    team: str = ""
    priority_class: str
    devices: int = Field(ge=0)
    lost_device_s: float = Field(ge=0, description="work since its last checkpoint, and its restart, device-seconds")


class PlannedCost(Fact):
    """Prices of the price book; money in millionths of the currency unit. null: unknown."""

    currency: str
    micros_per_device_hour: int = Field(ge=0)
    micros_per_hour: int = Field(ge=0, description="of all its devices")
    run_s: float | None = Field(default=None, ge=0, description="how long it runs, s")
    run_basis: str = Field(default="", description="where run_s comes from: steps, simulation or time-limit (at most)")
    total_micros: int | None = Field(default=None, ge=0)
    micros_per_step: float | None = Field(default=None, ge=0)


class RightSize(Fact):
    """A cheaper request that does the same. Savings in millionths of the currency unit."""

    change: str = Field(description="what to write instead, e.g. devices: 4")
    why: str
    saves_micros_per_hour: int
    saves_micros_per_step: float | None = None


class PlanReply(Fact):
    """Whether, where, when and at what price a job would run, and what would change that. Sent by queries."""

    verdict: PlanVerdict
    reason: str = Field(default="", description="the dominant reason when it would not run now, as in Explanation")
    text: str
    nodes: tuple[PlannedNode, ...] = ()
    level: str = Field(default="", description="the widest topology level that it would span")
    link_gb_s: float = Field(default=0.0, ge=0, description="slowest link inside it, GB/s one way; 0: none or unknown")
    start_s: float | None = Field(default=None, ge=0, description="guessed start, s from now; null: unknown")
    latest_s: float | None = Field(default=None, ge=0, description="start if all run to their time limits, s from now")
    start_basis: str = ""
    ahead: int = Field(
        default=0, ge=0, description="waiting jobs of its own team before it; told to the operator: of all"
    )
    victims: tuple[PlannedVictim, ...] = ()
    cost: PlannedCost | None = None
    removed: tuple[Removed, ...] = ()
    suggestion: str = Field(default="", description="the smallest change with which it would run now")
    alternatives: tuple[str, ...] = Field(default=(), description="other changes with which it would run now")
    right_size: tuple[RightSize, ...] = ()
    memory_mib: int = Field(default=0, ge=0, description="memory that each device must have, MiB")
    memory_text: str = Field(default="", description="the estimate's arithmetic, where the job describes its model")
    reasons: tuple[Reason, ...] = Field(default=(), description="why admission would refuse it")
    took_ms: float = Field(default=0.0, ge=0, description="how long the answer was thought about, ms")
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")


class QueueListQuery(Strict):
    """The waiting jobs in the order in which they are considered. Answered by queries (`queue.list`)."""

    limit: int = Field(default=200, ge=1, le=5000)


class QueuedJob(Fact):
    """One waiting job and the reason why it still waits."""

    job_id: JobId
    team: Name
    name: str
    priority_class: str
    priority: int
    devices: int
    waiting_since_us: Micros
    reason: str = ""
    position: int = Field(default=0, ge=0, description="among those that the asker may see; 0: not told")
    start: ExpectedStart | None = Field(default=None, description="of the first ones: when they are expected to start")


class QueueList(Fact):
    """The head of the queue. Sent by queries as the answer to `QueueListQuery`."""

    jobs: tuple[QueuedJob, ...]
    total: int = Field(ge=0, description="of what the asker may see, 5000 at the most")
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")


class QueuesQuery(Strict):
    """How the pool is shared: what each queue is guaranteed, holds and should have. Answered by queries (`queues.list`)."""


class UserShare(Fact):
    """One user of a team whose order is fair share, beside the others of whom jobs run or wait. Amounts are thousandths of
    accelerators."""

    user: User = Field(description="as the subject said; empty: jobs of whom it is not known")
    place: int = Field(ge=1, description="who is next: 1 has the least, now and lately, as a part of the pool")
    held_milli: int = Field(default=0, ge=0)
    recent_milli: int = Field(default=0, ge=0, description="held in the mean of the last time; 0 without a half-life")
    share_milli: int = Field(default=0, ge=0, description="its part of the team's fair share, divided evenly")
    waiting_jobs: int = Field(default=0, ge=0)


class QueueShare(Fact):
    """One queue: what is said of it, and how it stands. Amounts are thousandths; without a key they are of accelerators."""

    queue: Queue
    applied: bool = Field(default=True, description="false: a team that no queue was given; it has weight 1")
    holds: dict[str, int] = Field(default_factory=dict, description="kind of device -> what its jobs hold")
    held_milli: int = Field(default=0, ge=0, description="of whole accelerators; a MIG slice is its part of one")
    borrowed_milli: int = Field(default=0, ge=0, description="of it, what is above the guarantee of `*`")
    share_milli: int = Field(
        default=0,
        ge=0,
        description="its fair share now: guarantees first, the rest by weight; to a team: as if all others wanted all, "
        "and 0 while it is not applied",
    )
    recent_milli: int = Field(
        default=0, ge=0, description="what it held in the mean of the last time, by the half-life; 0 without one"
    )
    boosts_left: int | None = Field(default=None, ge=0, description="of its budget for now; null: not told")
    waiting_jobs: int = Field(default=0, ge=0)
    waiting_milli: int = Field(default=0, ge=0, description="accelerators that they ask for")
    next_start: ExpectedStart | None = Field(
        default=None,
        description="of the first gang of it that was promised a start; null: none waits, or none was told yet",
    )
    users: tuple[UserShare, ...] = Field(
        default=(), description="where its users share: who is next, the first; at most 64"
    )


class QueuesReply(Fact):
    """The queues in order, each right before those below it. The operator sees all, a team its own and those below it. Sent by
    queries."""

    version: QueuesVersion = Field(default=0, description="of the queues that were applied last; 0: none were")
    order: QueueOrder | None = Field(default=None, description="of queues that say none; null: fair-share")
    half_life_s: HalfLife = None
    preemption: PreemptionLimits | None = Field(default=None, description="against thrash; null: the defaults")
    shares: tuple[QueueShare, ...] = ()
    classes: tuple[str, ...] = Field(
        default=(), description="priority classes that a queue may name; told to operators"
    )
    priorities: dict[str, int] = Field(
        default_factory=dict, description="class -> its priority, the higher first; told to operators"
    )
    kinds: tuple[str, ...] = Field(default=(), description="kinds of device that the pool has; told to operators")
    book: Hash | None = Field(
        default=None, description="digest of the price book that is applied; null: there is none; told to operators"
    )
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")


class BudgetsQuery(Strict):
    """What was given to budgets, and what is spent and held of them. Answered by queries (`budgets.list`)."""


class BudgetStanding(Fact):
    """One budget in its present period. Amounts are millionths of a GPU-hour or of the currency unit; what is counted is exact,
    and rounded down here, but what is held, which is rounded up."""

    budget: SpendingBudget
    from_us: int = Field(default=0, description="when the period began, by the calendar")
    to_us: Micros = Field(default=0, description="when it ends")
    carried: int = Field(default=0, description="from the period before; negative: it was overdrawn")
    topped_up: int = Field(default=0, ge=0)
    spent: int = Field(default=0, ge=0, description="up to now, by what runs as well")
    held: int = Field(default=0, ge=0, description="of what runs, beside what it has spent")
    available: int | None = Field(
        default=None, description="what a new grant may hold; negative: overdrawn; null: without limit"
    )
    soft_reached: bool = False
    jobs: int = Field(default=0, ge=0, description="that hold something of it")


class BudgetsReply(Fact):
    """Budgets by their keys. The operator sees all, a team those that count what it spends. Sent by queries."""

    version: int = Field(default=0, ge=0, description="of those that were applied last; 0: none were")
    time_zone: TimeZone = "UTC"
    renewal_s: int = Field(default=0, ge=0)
    budgets: tuple[BudgetStanding, ...] = ()
    currency: str = Field(default="", description="of the price book; empty: there is none")
    queues: tuple[str, ...] = Field(default=(), description="names of the pool's queues; told to operators")
    ledger_seq: int = Field(default=0, ge=0, description="the ledger record that the answer is of; 0: not told")


class PoolStatusQuery(Strict):
    """A pool's figures at a glance: its jobs, devices and latencies (`pool.status`, answered by queries), or its
    teams' quotas and use (`quota.list`, answered by quota_billing)."""


class Quantiles(Fact):
    """Of the last observations, in the unit of the field's name."""

    count: int = Field(ge=0)
    p50: float = 0
    p99: float = 0
    max: float = 0


class ManageTeam(Strict):
    """An admin of a team about users of that team, or about a job of it. Answered by who holds the keys (`baton up`,
    `baton team serve`)."""

    what: Literal["list", "add", "rotate", "revoke", "boost"]
    user: User = Field(default="", description="which user of the own team, or the person behind a pseudonym")
    pseudonym: bool | None = Field(
        default=None,
        description="of a new user: a person, whose name stays with the keys and can be erased; null: as the instance does it",
    )
    public_key: str = Field(
        default="",
        pattern=r"^(U[A-Z2-7]{55})?$",
        description="of the key that the user made: an nkey, as NATS writes it",
    )
    pool: Name | Literal[""] = Field(default="", description="to boost: where the job is")
    boost: BoostJob | None = Field(default=None, description="to boost: which job, and for how long")
    to: Name | Literal[""] = Field(
        default="", description="to boost: the class whose priority it gets; empty: its boost ends"
    )


class TeamUser(Fact):
    """Who of a team has a credential."""

    name: str = Field(description="<team>.<user>")
    admin: bool = False
    person: str = Field(default="", description="who that is, of a pseudonym")


class TeamManaged(Fact):
    """What became of a request of an admin. `token` is the signed claim of the user, which with the user's own seed is a
    credential."""

    team: Name
    token: str = ""
    users: tuple[TeamUser, ...] = ()
    ledger_seq: int | None = Field(
        default=None, description="of a boost: the record of the pool's ledger that decided it; null: none did"
    )


class SuspendedTeam(Fact):
    """A team that an operator has paused: it submits nothing and is granted nothing, and its questions are answered."""

    team: Name
    since_us: int
    reason: str = ""
    user: str = Field(default="", description="the operator who said it")
    left_us: Micros | None = Field(default=None, description="since when it has left; null: it has not")


MOST_SUSPENDED = 256
"""Teams in one answer."""


class PoolStatus(Fact):
    """How far the pool has come, what it holds, how fast it decides.

    The operator sees the pool. A team sees what the pool has, since it asks for that, and of jobs, of what is held and of waits
    its own share alone.
    """

    pool: Name
    ledger_seq: int
    inbox_seq: int = Field(description="told to a team: 0")
    jobs: dict[str, int] = Field(description="jobs per state; told to a team: its own that have not ended")
    nodes_up: int
    devices: int = Field(description="of nodes that are up, and not in quarantine")
    devices_quarantined: int = Field(
        default=0, description="something that is no job uses them: nobody is granted them"
    )
    milli_used: int = Field(
        description="of all devices that are up; an instance counts as one, see accelerators_used_milli. Told to a team: by "
        "its own jobs"
    )
    milli_total: int
    accelerators_used_milli: int = Field(
        default=0, description="in whole accelerators: an instance is its part of its board, a processor is none"
    )
    accelerators_milli: int = 0
    processors_used_milli: int = Field(default=0, description="of the CPU devices that are up")
    processors_milli: int = 0
    grants: int = Field(description="told to a team: of its jobs that have not ended")
    preemptions: int = Field(description="told to a team: of its jobs that have not ended")
    scheduling_latency_ms: Quantiles = Field(description="inbox arrival of a job that fitted at once, to its grant")
    queue_wait_ms: Quantiles = Field(description="submit to first grant")
    busy: str = Field(default="", description="why the pool takes no submits now, which stream is full; empty: it does")
    team: str = Field(default="", description="whose share the figures are; empty: all of the pool")
    kinds: dict[str, int] = Field(default_factory=dict, description="devices that are up, per kind")
    waiting_devices: int = Field(default=0, ge=0, description="that waiting jobs ask for")
    limit_milli: int | None = Field(default=None, description="the team's quota; null: no such limit")
    limits_by_type: dict[str, int] = Field(default_factory=dict, description="the team's quota per kind")
    suspended: tuple[SuspendedTeam, ...] = Field(
        default=(),
        description=f"told to a team: itself, if it is; to the operator: of all that are the last {MOST_SUSPENDED}, those that "
        "have left after all others",
    )


class NodeListQuery(Strict):
    """The pool's nodes. Answered by telemetry (`node.list`) from the Redis projection and its samples."""


class NodeView(Fact):
    """One node: what it offers, what of it is held (told to a team: by its own jobs), and how long ago it was last heard."""

    node: str
    status: str = Field(
        description="up, maintenance (it was taken out of use), silent (not heard: nothing new there) or lost"
    )
    out_of_use: str = Field(default="", description="why it was taken out of use; told to operators")
    leaf: str
    spine: str
    zone: str
    incarnation: int
    models: dict[str, int] = Field(description="devices per model")
    devices: int
    milli_used: int
    milli_total: int
    utilization_pct: float | None = Field(
        default=None, description="mean of its devices; told to a team: of those that it alone holds"
    )
    heartbeat_age_s: float | None = None
    cpus: int = 0
    memory_mib: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    simulated: bool = False
    walls: NodeWalls | None = Field(
        default=None,
        description="what keeps jobs apart there; none: no processes run there, or its agent has not told yet",
    )
    cleared_seq: int | None = Field(
        default=None,
        description="ledger sequence as of which nothing of a team that has left is kept there; told to operators",
    )


class NodeList(Fact):
    """The pool's nodes. Sent by telemetry as the answer to `NodeListQuery`."""

    nodes: tuple[NodeView, ...]


class DeviceListQuery(Strict):
    """The pool's devices; who holds one is shown to its own team and the operator. Answered by telemetry."""

    node: str = ""


class DeviceView(Fact):
    """One device: how much of it is held, by which jobs, and its newest sample. A team is told what its own jobs hold; the
    sample where no other team's job is on the device."""

    device: DeviceId
    node: str
    index: int
    kind: str
    model: str
    mig_profile: str = Field(default="", description="of a MIG instance; empty: a whole device")
    memory_mib: int
    milli_used: int
    jobs: tuple[str, ...] = ()
    quarantine: str = Field(
        default="", description="who uses it that is no job (told to the operator): nobody is granted it; empty: nobody"
    )
    quarantine_since_us: Micros = Field(
        default=0, description="names the quarantine (told to the operator): when its agent saw it first; 0: none"
    )
    utilization_pct: float | None = None
    memory_used_mib: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class DeviceList(Fact):
    """The pool's devices. Sent by telemetry as the answer to `DeviceListQuery`."""

    devices: tuple[DeviceView, ...]


class LogQuery(Strict):
    """A piece of a job's output. Answered by history (`log.read`), which asks the node that has it."""

    job_id: JobId
    attempt: int = Field(default=0, ge=0, description="0: the latest")
    rank: int = Field(default=0, ge=0)
    offset: int = Field(default=0, ge=0, description="byte to start from")
    limit: int = Field(default=65_536, ge=1, le=262_144, description="bytes at the most")


class NodeLogQuery(LogQuery):
    """The same, of the node that ran the rank. Asked by history, answered by the node's agent (`log.piece`)."""

    team: Name = Field(description="who asks: whose job it must be, unless it is the operator")


class LogPiece(Fact):
    """Bytes as text (undecodable ones replaced, control bytes left as they are: strip before showing)."""

    job_id: JobId
    attempt: int
    rank: int
    text: str
    next_offset: int = Field(description="where the next piece begins")
    ended: bool = Field(description="true when the process has ended and nothing follows next_offset")


class AdmissionPoolsQuery(Strict):
    """Which pools the admission processes of this broker route jobs to. Asked and answered by admission
    (`admission.pools`): all of them must judge for the same pools."""


class AdmissionPools(Fact):
    """The pools of one admission process, in the order of its settings: the first of equals gets a job."""

    pools: tuple[Name, ...] = Field(min_length=1)
