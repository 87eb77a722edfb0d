"""Jobs: what teams ask for, and what they are told.

    submitted -> admitted | rejected
    admitted -> queued -> granted -> starting -> running -> succeeded | failed | cancelled
    running -> preempting -> queued            same job, next attempt, resumes from its checkpoint, keeps its age
    granted | starting | running -> lost -> queued | failed                            by the job's retry policy

A job is a request, an attempt is one run of it; devices and money belong to attempts. `SubmitJob` and `CancelJob`
(`schemas.requests`) are commands of teams to admission (stream REQUESTS). `JobRejected` (admission) and `JobEvent` (history)
are facts for the team (stream EVENTS).
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from schemas.base import Fact, JobId, Micros, Name, Strict, User
from schemas.ids import is_job_id
from schemas.model_shape import ModelShape
from schemas.resources import MOST_MIB, Resources

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Argument = Annotated[str, Field(max_length=4096)]


class JobState(StrEnum):
    """Where a job stands. The law of what may follow what is `libs.core.state.lifecycle`."""

    QUEUED = "queued"
    GRANTED = "granted"
    STARTING = "starting"
    RUNNING = "running"
    PREEMPTING = "preempting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.REJECTED})


class Launch(StrEnum):
    """How many processes an attempt starts on a node."""

    PER_DEVICE = "per-device"
    PER_NODE = "per-node"


class Latency(StrEnum):
    """How a class of jobs is placed. Fast: at the tightest fit at once; normal: where the jobs to come lose the least."""

    NORMAL = "normal"
    FAST = "fast"


class Network(StrEnum):
    """What of the network the jobs of a class have: their machine's, or nothing but a loopback of their own."""

    HOST = "host"
    NONE = "none"


NETWORK_SAYS = "of its class: host, the machine's; none, a loopback of its own"

DEFAULT_LEASE_S = 330.0
"""How long work goes on after its node's last renewal, where nobody says otherwise, s: five minutes without a control plane,
and half a minute for the renewal that was just due when it went, and until it grants again."""
UNSAID_LEASE_S = 300.0
"""The lease of a message or record that says none, s. Part of the format, so it never changes: teams' lines leave it out."""
LEASE_SAYS = (
    "from its class: it runs on so long after its node's last renewal, s; 0: until its node, or an operator, is heard"
)


MOST_STEPS = 10**15
LONGEST_TIME_LIMIT_S = 31_536_000
"""A year."""


class CheckpointPolicy(Strict):
    """How to ask the job to save its work (docs/checkpoint-protocol.md); without one it is stopped and starts over."""

    signal: Annotated[str, Field(pattern=r"^SIG(USR1|USR2|HUP|INT|TERM)$")] = "SIGUSR1"
    grace_s: float = Field(default=30.0, gt=0, le=3600, description="time to write a checkpoint before it is killed, s")
    interval_s: float = Field(
        default=600.0, gt=0, le=86_400, description="how often the job saves by itself, s: what a crash can lose"
    )


class RetryPolicy(Strict):
    """What happens when an attempt ends without success. A failure of the job costs `on_failure`. What it runs on may fail
    as often as it likes. From the second failure or loss in a row on, the job waits before it is started again, each time
    longer. Preemption and a node that leaves in good order cost nothing (docs/lifecycle.md)."""

    on_lost: int = Field(
        default=3,
        ge=0,
        le=100,
        description="0: it is not run again after a node was lost or refused it, or a device failed; else it is, unless that "
        "happens so many times in a row (fewer than 8 count as 8) before it ran for ten minutes",
    )
    on_failure: int = Field(
        default=0, ge=0, le=100, description="further attempts after it failed itself: exit code, memory, missing input"
    )


class Simulation(Strict):
    """Run as a timer on a node with simulated devices instead of as a process: for replays and benchmarks."""

    duration_s: float = Field(ge=0, le=10_000_000, description="how long the attempt takes, s")
    exit_code: int = Field(default=0, ge=0, le=255)


SecretName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""What a team calls a secret; also a file's name."""
MOST_SECRETS_OF_A_JOB = 16


class SecretUse(Strict):
    """A secret of the team, by name: its value reaches the job and nobody else (docs/security.md)."""

    secret: SecretName = Field(description="its name, as in `baton secret set NAME`")
    file: SecretName | None = Field(
        default=None, description="name of the file in $BATON_SECRETS_DIR; without file and env: the secret's own name"
    )
    env: EnvName | None = Field(
        default=None,
        description="environment variable that gets the value; a file is safer: children do not inherit it",
    )

    @property
    def file_name(self) -> str | None:
        """The file that is written, None when it is in the environment only."""
        return self.file or (None if self.env else self.secret)


class JobLimits(Strict):
    """What an attempt may take of each of its nodes beside devices, processors and memory. What is left out is the class's,
    or else the node's affair; a node that allows less keeps to that."""

    processes: int | None = Field(default=None, ge=8, le=4_000_000, description="processes and threads together")
    open_files: int | None = Field(default=None, ge=64, le=1_048_576, description="open files of each process")
    scratch_mib: int | None = Field(
        default=None, ge=1, le=MOST_MIB, description="size of its /tmp, and of its /dev/shm, MiB: memory of the node"
    )
    disk_mib: int | None = Field(
        default=None, ge=1, le=MOST_MIB, description="what its folder and its checkpoints may hold together, MiB"
    )

    def or_else(self, other: "JobLimits | None") -> "JobLimits":
        """These, and where they say nothing the other's."""
        if other is None:
            return self
        return JobLimits(**{**other.model_dump(exclude_none=True), **self.model_dump(exclude_none=True)})


class JobSpec(Strict):
    """One job as its team describes it: what to run, on what, how important, and what to do when it is interrupted."""

    name: str = Field(default="job", min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/-]*$")
    command: tuple[Argument, ...] = Field(
        default=(), max_length=256, description="argv list; never given to a shell", examples=[["python", "train.py"]]
    )
    env: dict[EnvName, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict, max_length=64, description="environment; names that Baton or the loader owns are refused"
    )
    secrets: tuple[SecretUse, ...] = Field(
        default=(),
        max_length=MOST_SECRETS_OF_A_JOB,
        description="secrets of the team that the job needs, by name",
        exclude_if=lambda secrets: not secrets,  # so a body without them is the body that it was before they came
    )
    workdir: str = Field(default="", max_length=1024, description="working directory on the node; empty: a fresh one")
    priority_class: Name = Field(default="experiment", description="serving, production, experiment or one of yours")
    pool: Name | None = Field(
        default=None, description="the pool it must run in; without one admission chooses a pool that can hold it"
    )
    resources: Resources = Field(default_factory=Resources)
    launch: Launch = Field(default=Launch.PER_DEVICE, description="one process per device, or one per node")
    checkpoint: CheckpointPolicy | None = None
    retry: RetryPolicy = Field(default_factory=RetryPolicy)
    limits: JobLimits | None = Field(
        default=None,
        description="what it may take of a node beside its resources",
        exclude_if=lambda limits: limits is None,  # as with secrets
    )
    stop_grace_s: float = Field(default=5.0, ge=0, le=3600, description="SIGTERM to SIGKILL when it is cancelled, s")
    time_limit_s: float = Field(
        default=0,
        ge=0,
        le=LONGEST_TIME_LIMIT_S,
        description="running longer is stopped, s; 0: what its class or queue says for such jobs, and without that no limit",
    )
    model: ModelShape | None = None
    simulation: Simulation | None = None

    @model_validator(mode="after")
    def _has_something_to_run(self) -> "JobSpec":
        if not self.command and self.simulation is None:
            raise ValueError("command is empty: give the argv list to run, e.g. [python, train.py]")
        return self


class Checkpoint(Fact):
    """What a job acknowledged: it can resume from here."""

    step: int = Field(ge=0, description="the job's own progress counter")
    reference: str = Field(max_length=4096, description="where it is stored, as the job named it; opaque to Baton")


def unusable(checkpoint: Checkpoint) -> str:
    """Why no attempt can go on from it, and what to write instead; "" when one can."""
    if checkpoint.step > MOST_STEPS:
        return f"step: is larger than any job has; write at most {MOST_STEPS}"
    if "\0" in checkpoint.reference:
        return "reference: has a NUL, which no environment variable can hold; write it without"
    return ""


class ProgressDoubt(StrEnum):
    """Why an attempt's progress reports are not believed any more: what is left of it is learned from others, as of any job."""

    WENT_BACK = "went-back"
    """A step that is lower than one before it."""
    JUMPED = "jumped"
    """Far more steps at once than its measured rate allows."""
    BEYOND_TOTAL = "beyond-total"
    """A step above the number of steps in all."""
    TOTAL_CHANGED = "total-changed"
    """Another number of steps in all than before."""
    NOT_A_NUMBER = "not-a-number"
    """A step or a total that is no whole number, below zero, or larger than any job has."""
    RUNS_ON = "runs-on"
    """All steps are done, and it does not end."""


class StepProgress(Fact):
    """How far an attempt is: its own word for the steps, its agent's measure for the time."""

    step: int = Field(ge=0, le=MOST_STEPS, description="steps that are done")
    steps: int = Field(ge=1, le=MOST_STEPS, description="steps in all")
    loss: float | None = Field(default=None, allow_inf_nan=False)
    left_s: float | None = Field(
        default=None,
        ge=0,
        le=1e10,
        description="what is left at the measured rate, s, as likely more as less; null: unknown",
    )
    left_p90_s: float | None = Field(
        default=None, ge=0, le=1e10, description="nine of ten attempts with such a spread of rates end within this, s"
    )
    doubt: ProgressDoubt | None = Field(default=None, description="why it is not believed; then nothing is left to say")


class PromiseCause(StrEnum):
    """Why a promised start moved to a later time. Nothing else moves it."""

    FAULT = "fault"
    """Devices were lost: a node fell silent or began anew, or a device is in quarantine."""
    HIGHER_CLASS = "higher-class"
    """Jobs of a higher class came."""
    DRAIN = "drain"
    """A node left in good order, or an operator took it out of use."""


class StartPromise(Fact):
    """When a gang that waits will start. Kept: it starts no later than was promised first."""

    start_us: Micros = Field(description="it starts by then, in ledger time")
    p50_us: Micros = Field(description="expected: as likely before as after")
    p90_us: Micros = Field(description="expected: in nine of ten cases before")
    cause: PromiseCause | None = Field(default=None, description="why this is later than what was promised before")


class Reason(Fact):
    """Why a request was refused: what is wrong, with which value, and what to do instead."""

    field: str = Field(description="dotted path in the request, e.g. job.resources.devices")
    value: str = Field(description="the value that was given, shortened to 200 characters")
    problem: str
    fix: str


class JobRejected(Fact):
    """Admission refused a request; every reason at once. Sent by admission to the team."""

    job_id: str  # empty unless this is that job's end: not when another request has the id, nor for a cancel
    team: Name
    user: User = ""
    client_key: str
    reasons: tuple[Reason, ...] = Field(min_length=1)
    at_us: Micros
    stored_us: Micros = Field(default=0, description="when the broker stored the request, by its clock")
    retry_after_s: float | None = Field(
        default=None, description="nothing is wrong with it, there is no room now: send it again after so long, s"
    )


class JobEvent(Fact):
    """Something happened to a job. Sent by history (from the ledger) to the job's team, in ledger order per job.

    `what` is also the subject's and the type's last part: queued, granted, starting, running, preempting, checkpointed,
    progress, promised, boosted, boost-ended, requeued, stopping, succeeded, failed, cancelled.
    """

    job_id: JobId
    team: Name
    name: str
    what: str
    state: JobState
    attempt: int = Field(default=0, ge=0, description="0 before the first grant")
    at_us: Micros
    reason: str = ""
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    progress: StepProgress | None = None
    promise: StartPromise | None = None
    exit_code: int | None = None
    pool: str = Field(default="", description="which pool's ledger told it")
    number: int = Field(
        default=0, ge=0, description="of the team's events of that pool, from 1 on without gaps; 0: not numbered"
    )
    previous_us: Micros | None = Field(
        default=None, description="when the event with the number before it happened; null: there is none, or not known"
    )


class TeamEvent(Fact):
    """Something was decided about a team as a whole. Sent by history (from the ledger) to the team.

    `what` is also the subject's and the type's last part: suspended, resumed, budget-warning,
    budget-spent.
    """

    team: Name
    what: str
    reason: str = ""
    at_us: Micros
    pool: str = Field(default="", description="which pool's ledger told it")


def rejection_event(told: JobRejected) -> JobEvent | None:
    """A rejection in the form of the other events, so that following a job always ends with its terminal event; None
    when it is no job's end."""
    if not is_job_id(told.job_id):
        return None
    return JobEvent(
        job_id=told.job_id,
        team=told.team,
        name="",
        what="rejected",
        state=JobState.REJECTED,
        at_us=told.at_us,
        reason="; ".join(f"{r.field}: {r.problem}" for r in told.reasons),
    )
