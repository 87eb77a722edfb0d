"""What was decided of jobs: their attempts, the devices that they have, hold or give back, and plans to preempt them."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from schemas.attempts import Category, Evidence, KnownOfPart, Outcome, StopCause
from schemas.audit import PolicyVersion
from schemas.base import DeviceId, Fact, JobId, Micros, Name, NodeName, User
from schemas.budgets import BudgetHold
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
from schemas.resources import Claim, Span


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
        " ended but those in that promise's `stays`, or at which its team was suspended; null: others, or faults, were in its"
        " way. What is later is not credited",
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
