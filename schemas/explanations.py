"""Why a job waits, and what would become of a job that is not submitted yet. Answered by queries."""

from enum import StrEnum

from pydantic import Field

from schemas.base import DeviceId, Fact, JobId, Micros, Name, Strict
from schemas.jobs import JobSpec, JobState, Reason, StartPromise
from schemas.queue_status import ExpectedStart, UserShare
from schemas.resources import Span


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


class Explanation(Fact):
    """The dominant reason, what each constraint removes, and the smallest change that would let the job run."""

    job_id: JobId
    state: JobState
    reason: str = Field(
        description="of a waiting job the constraint that keeps it out (no-devices, type, mig-profile, labels, memory, "
        "runtime, precision, cpu, host-memory, simulation, held, reserved, busy, parts, spread, power, topology, "
        "quota, budget), preempting while lower classes make room for it, backing-off while it waits because it was lost "
        "several times in a row, cuts-used-up while its team may have no MIG board cut, next when it fits; else its state"
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
    user: UserShare | None = Field(
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
