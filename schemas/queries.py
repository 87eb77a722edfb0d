"""Questions and answers: request-reply on `baton.qry.<entity>.v1.<what>[.<pool>].<team>.<user>`.

The service that owns the answer replies, of the pool that is named where pools differ. Team and user are the subject's
last tokens, and `operator` may see every team. A reply carries the header `Baton-Status`: `ok`, `invalid`, `not-found` or
`failed`; all but `ok` carry `QueryFailed`. A question may carry the header `Baton-At-Least`: the newest ledger sequence that
its asker has heard of, for which an answer waits a moment; and `Baton-Accept: zlib`: then a long answer comes compressed, with
the header `Baton-Encoding: zlib`. An answer to a team has 512 KiB at the most as it is sent; what is larger is `failed`.
A job of another team is `not-found`, exactly like one that does not exist.
"""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from schemas.base import Fact, JobId, Micros, Name, Strict, User
from schemas.jobs import Checkpoint, JobEvent, JobState, Reason, StartPromise, StepProgress
from schemas.known_specs import AcceptedSpec
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
