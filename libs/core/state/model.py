"""The state that a ledger folds into: fleet, jobs, attempts, quotas. Changed by `libs.core.state.fold` alone."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, overload

from libs.core.state.boosts import Boost, BoostsHad
from libs.core.state.budgets import Budgets
from libs.core.state.clock import BothTimes, PastJumps
from libs.core.state.cut import Cuts
from libs.core.state.early_cancels import EarlyCancels
from libs.core.state.ended import EndedJobs
from libs.core.state.fleet import Fleet
from libs.core.state.forms import form_of, hash_of, kept, name_of, spec_of
from libs.core.state.lifecycle import AttemptState
from libs.core.state.limits import Limits, Suspension
from libs.core.state.line import Line
from libs.core.state.past_use import PastUse, UsersPastUse
from libs.core.state.queue_tree import QueueTree
from libs.core.state.recent_preemptions import RecentPreemptions
from libs.core.state.shape import Shape
from libs.core.state.team_claims import TeamClaims
from schemas.attempts import Category, Cause
from schemas.ids import content_hash
from schemas.jobs import UNSAID_LEASE_S, Checkpoint, JobSpec, JobState, Latency, Network, StepProgress
from schemas.ledger import BoardRecut, LedgerEvent
from schemas.prices import RateBook
from schemas.resources import Claim, Span

T = TypeVar("T")


@dataclass(slots=True)
class NodePart:
    """The part of an attempt that runs on one node."""

    node: str
    claims: tuple[Claim, ...]
    started: bool = False
    freed: bool = False
    exit_code: int | None = None
    own_exit: bool = False


@dataclass(slots=True)
class Attempt:
    """One run of a job: it holds its claims from `granted_us` until each part was seen to be gone."""

    number: int
    claims: tuple[Claim, ...]
    parts: dict[str, NodePart]
    granted_us: int
    state: AttemptState = AttemptState.GRANTED
    """Moved by `libs.core.state.lifecycle` alone, like the job's."""
    running_us: int = 0
    ended_us: int = 0
    """When its end was decided, or a part of it ended otherwise than well; of a node that fell silent, when it was heard
    last. 0: neither yet."""
    cause: Cause | None = None
    """Why it must end, once that was decided."""
    reason: str = ""
    failed_code: int | None = None
    """Exit code of the first part that failed, if its processes ended by themselves."""
    failed_category: Category | None = None
    """What the agent of the first part that failed knows of why."""
    beneficiary: str = ""
    cost_device_s: float | None = None
    """What giving way to `beneficiary` costs, device-seconds."""
    checkpoint: Checkpoint | None = None
    checkpoint_us: int = 0
    progress: StepProgress | None = None
    """How far it was when that was told last."""
    progress_us: int = 0
    span: Span | None = None
    """Of a gang: how close together it is."""
    unstarted: int = field(init=False, compare=False)
    """Parts that were not seen to start. Kept beside the parts: each of a thousand asks whether it is the last."""
    unfreed: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.unstarted = sum(not part.started for part in self.parts.values())
        self.unfreed = sum(not part.freed for part in self.parts.values())

    @property
    def ran_us(self) -> int:
        """How long all of it ran before `ended_us`, us; 0: it never did, or it ended well."""
        return max(0, self.ended_us - self.running_us) if self.running_us else 0


class Silence(NamedTuple):
    """Of a node that is up and not heard."""

    since_us: int
    """When it was heard last."""
    kept: bool
    """It keeps work that no silence ends."""
    ended_lease_s: float = 0.0
    """Leases of at most this length have ended."""


class Quarantine(NamedTuple):
    """Of a device that something uses which is no attempt of ours."""

    node: str
    users: str
    since_us: int
    """By the node's clock: names this quarantine."""
    lifted: bool = False
    """An operator has ended it, and the node may not have heard of that yet."""


class QueueKey(NamedTuple):
    """Waiting jobs are kept in one queue for each of these: what does not fit blocks its own queue only."""

    priority: int
    team: str
    shape: Shape
    preempts: bool
    """A class that may preempt has queues of its own: a job that has to wait must not block one to which others give way,
    when two classes have the same priority."""
    user: str = ""
    """Whose jobs these are, where the users of the team share (`QueueTree.by_user`): one's jobs do not block another's."""
    limit_class: int = 0
    """Of their time limits (`limit_class_of`): what is too long to go before a gang does not block what is not."""

    def of_limit(self, limit_class: int) -> "QueueKey":
        """The same for jobs with limits of another class."""
        return self if limit_class == self.limit_class else _queue_key(*self[:-1], limit_class)


def limit_class_of(time_limit_s: float) -> int:
    """0: no time limit; 1: a minute at the most; each further class has limits up to four times as long."""
    if not time_limit_s:
        return 0
    found, most_s = 1, 60
    while time_limit_s > most_s:
        found, most_s = found + 1, most_s * 4
    return found


class JobTerms(NamedTuple):
    """What a job has of its class, and whose it is: of many jobs the same."""

    network: Network
    lease_s: float
    latency: Latency
    user: str
    by_user: bool


@lru_cache(maxsize=4096)
def _queue_key(priority: int, team: str, shape: Shape, preempts: bool, user: str, limit_class: int) -> QueueKey:
    return QueueKey(priority, team, shape, preempts, user, limit_class)


@lru_cache(maxsize=4096)
def _terms(network: Network, lease_s: float, latency: Latency, user: str, by_user: bool) -> JobTerms:
    return JobTerms(network, lease_s, latency, user, by_user)


@dataclass(slots=True)
class Past:
    """What has become of a job so far. One that has only waited has the one of all such jobs."""

    attempts: int = 0
    resume: Checkpoint | None = None
    endings: Mapping[Category, int] = field(default_factory=dict)
    losses: int = 0
    failures: int = 0
    not_before_us: int = 0
    preemptions: int = 0
    preempted_us: tuple[int, ...] = ()
    counted_us: tuple[int, ...] = ()
    first_grant_us: int = 0
    boost: Boost | None = None
    written: tuple[str, int] = field(default=("", 0), compare=False)
    """Its spec's digest, and the bytes that it takes, once it was told."""


_NOTHING = Past()


class _OfPast(Generic[T]):
    """A field of a job's past."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, job: None, owner: type) -> Self: ...
    @overload
    def __get__(self, job: "Job", owner: type) -> T: ...
    def __get__(self, job: "Job | None", owner: type) -> T | Self:
        return self if job is None else getattr(job.past, self._name)

    def __set__(self, job: "Job", value: T) -> None:
        if job.past is _NOTHING:
            if value == getattr(_NOTHING, self._name):
                return
            job.past = Past()
        setattr(job.past, self._name, value)


class Job:
    """An admitted job that has not ended.

    Hundreds of thousands may wait, so one that only waits is small: what it shares with others is kept once (its queue, its
    terms, the form of its spec), what has become of it is kept once something has, and its spec is made when it is asked for.
    """

    __slots__ = (
        "_spec",
        "current",
        "form",
        "id",
        "own",
        "past",
        "queue",
        "queued_us",
        "state",
        "submitted_us",
        "terms",
    )

    def __init__(
        self,
        id: str,
        team: str,
        spec: JobSpec,
        spec_hash: str,
        priority: int,
        preempts: bool,
        *,
        submitted_us: int,
        queued_us: int,
        shape: Shape,
        state: JobState = JobState.QUEUED,
        network: Network = Network.HOST,
        lease_s: float = UNSAID_LEASE_S,
        latency: Latency = Latency.NORMAL,
        user: str = "",
        by_user: bool = False,
    ) -> None:
        """`network`, `lease_s` (how long it runs on after its node's last renewal, s; 0: no silence ends it) and `latency` (a
        job of a fast class skips the placement score) are of its class. `user` is who submitted it, as the subject said;
        empty: not known. `by_user`: the users of its team share (`QueueTree.by_user`)."""
        self.id, self.submitted_us, self.queued_us, self.state = id, submitted_us, queued_us, state
        self.form = form_of(spec)
        self.own = kept(self.form, spec, spec_hash)
        self.terms = _terms(network, lease_s, latency, user, by_user)
        limit_class = limit_class_of(spec.time_limit_s)
        self.queue = _queue_key(priority, team, shape, preempts, user if by_user else "", limit_class)
        """Where it stands while it waits."""
        self.current: Attempt | None = None
        self.past = _NOTHING
        self._spec: JobSpec | None = None

    def like(self, id: str, own: bytes, limit_class: int, submitted_us: int, queued_us: int) -> "Job":
        """Another one with the same form, terms, and queue but for its `limit_class`, that waits and has not run."""
        job = Job.__new__(Job)
        job.id, job.form, job.own, job.terms = id, self.form, own, self.terms
        job.queue = self.queue.of_limit(limit_class)
        job.submitted_us, job.queued_us, job.state = submitted_us, queued_us, JobState.QUEUED
        job.current, job.past, job._spec = None, _NOTHING, None
        return job

    team: str = property(attrgetter("queue.team"))  # type: ignore[assignment]
    priority: int = property(attrgetter("queue.priority"))  # type: ignore[assignment]
    preempts: bool = property(attrgetter("queue.preempts"))  # type: ignore[assignment]
    shape: Shape = property(attrgetter("queue.shape"))  # type: ignore[assignment]
    network: Network = property(attrgetter("terms.network"))  # type: ignore[assignment]
    lease_s: float = property(attrgetter("terms.lease_s"))  # type: ignore[assignment]
    latency: Latency = property(attrgetter("terms.latency"))  # type: ignore[assignment]
    user: str = property(attrgetter("terms.user"))  # type: ignore[assignment]
    by_user: bool = property(attrgetter("terms.by_user"))  # type: ignore[assignment]

    attempts = _OfPast[int]()
    resume = _OfPast[Checkpoint | None]()
    endings = _OfPast[Mapping[Category, int]]()
    """How many of its attempts came to each kind of end: what the retry budgets count."""
    losses = _OfPast[int]()
    """Attempts that were lost in a row, none of them after a good run."""
    failures = _OfPast[int]()
    """Attempts that failed by themselves in a row, none of them after a good run."""
    not_before_us = _OfPast[int]()
    """It is not granted anything before: it was lost, or failed, several times in a row."""
    preemptions = _OfPast[int]()
    preempted_us = _OfPast[tuple[int, ...]]()
    """When it was made to give way, the last times."""
    counted_us = _OfPast[tuple[int, ...]]()
    """Of these, when that was for another team."""
    first_grant_us = _OfPast[int]()
    boost = _OfPast[Boost | None]()
    """`priority` is raised by it."""

    @property
    def spec(self) -> JobSpec:
        """What its team asked for: of a job that runs the same object each time."""
        spec = self._spec
        if spec is None:
            spec = spec_of(self.form, self.own)
            if self.current is not None:
                self._spec = spec
        return spec

    @property
    def name(self) -> str:
        return name_of(self.own)

    @property
    def spec_hash(self) -> str:
        return hash_of(self.own)

    @property
    def waits_only(self) -> bool:
        """It waits, and nothing has become of it."""
        if self.current is not None or self.state is not JobState.QUEUED:
            return False
        return self.past is _NOTHING or self.past == _NOTHING

    def closed(self) -> None:
        """Its attempt is over."""
        self.current = self._spec = None

    def ranks(self, priority: int) -> None:
        """From here on it is of this priority. It must stand in no queue meanwhile."""
        self.queue = _queue_key(priority, *self.queue[1:])

    def shares(self, by_user: bool) -> None:
        """From here on the users of its team share, or not. It must stand in no queue meanwhile."""
        self.terms = _terms(*self.terms[:-1], by_user)
        self.queue = _queue_key(*self.queue[:-2], self.user if by_user else "", self.queue.limit_class)

    def but(self, *, shape: Shape | None = None, spec: JobSpec | None = None) -> "Job":
        """A copy of another shape, or with another spec."""
        job = copy(self)
        if shape is not None:
            job.queue = self.queue._replace(shape=shape)
        if spec is not None:
            job.form, job._spec = form_of(spec), None
            job.queue = job.queue.of_limit(limit_class_of(spec.time_limit_s))
            job.own = kept(job.form, spec, self.spec_hash)
        return job

    def spec_digest(self) -> str:
        """Names the spec where it is told by reference; worked out once, when it is told first."""
        return self._written()[0]

    def spec_bytes(self) -> int:
        """What the spec takes where it is told."""
        return self._written()[1]

    def _written(self) -> tuple[str, int]:
        if not self.past.written[0]:
            written = self.spec.__pydantic_serializer__.to_json(self.spec)
            self.past = replace(self.past, written=(content_hash(written), len(written)))
        return self.past.written

    @property
    def states(self) -> tuple[JobState, AttemptState | None]:
        """The job's state, and that of its open attempt."""
        return self.state, self.current.state if self.current is not None else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and _SAME(self) == _SAME(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Job({self.id!r}, {self.team!r}, {self.state.value}, {self.shape.devices} devices)"


_SAME = attrgetter("id", "queue", "terms", "spec", "spec_hash", "submitted_us", "queued_us", "state", "current", "past")
"""What makes two jobs equal."""


def grant_order(job: Job) -> tuple[int, int, str]:
    """Agents start parts in this order, and of two shares of one device the older epoch must come first."""
    attempt = job.current
    return (attempt.granted_us, attempt.claims[0].epoch, job.id) if attempt is not None else (0, 0, job.id)


class Following(Protocol):
    """What is learned beside the state, and follows each step of its fold (`libs.core.scheduling.precedence`)."""

    def begin(self, state: "State", t_us: int, back: Sequence[Job]) -> Any: ...
    def note(self, state: "State", event: LedgerEvent, t_us: int) -> None: ...
    def dump(self) -> Iterator[bytes]: ...


@dataclass(slots=True)
class State:
    """Everything placement knows. Two states folded from the same ledger are equal (`libs.core.state.snapshot.dump`)."""

    fleet: Fleet = field(default_factory=Fleet)
    jobs: dict[str, Job] = field(default_factory=dict)
    finished: EndedJobs = field(default_factory=EndedJobs)
    """Ids of jobs that ended lately: what deduplicates client keys. Nothing else is kept of an ended job."""
    early_cancels: EarlyCancels = field(default_factory=EarlyCancels)
    """Cancels whose jobs have not come yet."""
    queues: dict[QueueKey, Line] = field(default_factory=dict)
    """Each queue, by age. None is empty."""
    backing_off: dict[str, int] = field(default_factory=dict)
    """Queued jobs that are in no queue yet: id -> when they come into theirs, us (`Job.not_before_us`)."""
    next_back_us: int = 0
    """The soonest of these."""
    on_node: dict[str, dict[str, None]] = field(default_factory=dict)
    """Node -> ids of the jobs that hold devices there, in order of grant."""
    quotas: dict[str, Limits] = field(default_factory=dict)
    """Team -> its limits; a team without any is not in it."""
    tree: QueueTree = field(default_factory=QueueTree)
    """Who is guaranteed what; empty until an operator has said so."""
    book: RateBook | None = None
    """The pool's prices; None until an operator has given a book."""
    closed_us: tuple[int, int] | None = None
    """From when to when bills are closed, by the wall; None: no period is."""
    budgets: Budgets = field(default_factory=Budgets)
    """Who may spend how much in a period, and what is spent and held of it."""
    wall_us: int = 0
    """What the broker's clock showed at the last record."""
    jumps: PastJumps = field(default_factory=PastJumps)
    """How that clock was set lately: by it, stamps of requests are compared with ledger time."""
    suspended: dict[str, Suspension] = field(default_factory=dict)
    """Teams that an operator has paused."""
    left: dict[str, int] = field(default_factory=dict)
    """Those of them that have left, and since when, us: nodes remove what they keep of them."""
    resumed: dict[str, BothTimes] = field(default_factory=dict)
    """Team -> when it was resumed last: what it sent before was refused, or would have been. Forgotten as client keys are."""
    parked: dict[QueueKey, Line] = field(default_factory=dict)
    """The queues of these teams: in no cycle, no plan of preemption and no repartition until the team is resumed."""
    past_use: PastUse = field(default_factory=PastUse)
    """What teams held lately, where the tree of queues has a half-life."""
    used: dict[str, dict[str, int]] = field(default_factory=dict)
    """Team -> kind of device -> thousandths of devices that its attempts hold. No entry is zero."""
    used_by: dict[str, dict[str, int]] = field(default_factory=dict)
    """The same of each user (`user_of`)."""
    team_claims: TeamClaims = field(default_factory=TeamClaims)
    """The same of each team, device by device."""
    past_use_by: UsersPastUse = field(default_factory=UsersPastUse)
    """What users held lately, where the tree of queues has a half-life."""
    spread_peers: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)
    """(team, spread key) -> ids of the jobs with an open attempt: the next job of that key must stay away from these."""
    holds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Beneficiary -> devices that are held for it."""
    silent: dict[str, Silence] = field(default_factory=dict)
    """Nodes that are up and not heard. Nothing new is granted there."""
    quarantined: dict[str, Quarantine] = field(default_factory=dict)
    """Devices in quarantine, and those whose quarantine an operator has lifted. Nothing new is granted on the former."""
    cordoned: dict[str, str] = field(default_factory=dict)
    """Nodes that an operator has taken out of use, and why. Nothing new is granted there."""
    reserved: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Gangs that wait -> the devices that are told to be kept free for them. What keeps them is the cycle."""
    fragmented: dict[str, int] = field(default_factory=dict)
    """Kind of device -> capacity units that are told to be free and of no use to what waits."""
    granter_epoch: int = 0
    """Of the last process that got the right to grant leases."""
    limited: dict[str, int] = field(default_factory=dict)
    """Running jobs with a time limit: id -> when they must end, us."""
    repartitions: dict[str, BoardRecut] = field(default_factory=dict)
    """MIG boards that are being repartitioned: board id -> what its node was asked for."""
    withdrawn: set[str] = field(default_factory=set)
    """Those of `repartitions` that were withdrawn. The node is asked what the board is now, no longer to repartition it. The
    instances that were to go stay out of placement until it answers."""
    repartition_number: dict[str, int] = field(default_factory=dict)
    """Board id -> number of its last repartition, done or under way."""
    repartition_us: dict[str, int] = field(default_factory=dict)
    """Board id -> when its last repartition was decided, us: a board rests between two."""
    t_us: int = 0
    inbox_seq: int = 0
    grants: int = 0
    preemptions: int = 0
    boosted: dict[str, int] = field(default_factory=dict)
    """Jobs that are raised above their class: id -> until when, us."""
    boosts_had: BoostsHad = field(default_factory=BoostsHad)
    preempted: RecentPreemptions = field(default_factory=RecentPreemptions)
    """When jobs were made to give way lately."""
    finished_by_state: dict[str, int] = field(default_factory=dict)
    turns: Following | None = field(default=None, compare=False, repr=False)
    """Told of every event, after it."""
    cuts: "Cuts[Job]" = field(default_factory=Cuts, compare=False)
    """Snapshots of `jobs` that are being written: each job is shown to them before it changes."""

    def committed(self, team: str) -> dict[str, int]:
        """What a team's attempts hold, and what is kept for its beneficiaries, kind -> thousandths of devices. While those who
        give way for one of them have not gone, what they leave is in both; `libs.core.scheduling.limits` counts it once."""
        total = dict(self.used.get(team, ()))
        for beneficiary in self.holds:
            job = self.jobs.get(beneficiary)
            if job is not None and job.team == team:
                for kind, milli in self.kept(beneficiary).items():
                    total[kind] = total.get(kind, 0) + milli
        return total

    def all_committed(self) -> dict[str, dict[str, int]]:
        """`committed` of every team that holds anything, or for which anything is kept."""
        teams = {*self.used, *(self.jobs[job].team for job in self.holds if job in self.jobs)}
        return {team: self.committed(team) for team in sorted(teams)}

    def kept(self, job_id: str) -> dict[str, int]:
        """The devices that are kept for a job, kind -> thousandths: an elastic one may get fewer than it asked for."""
        total: dict[str, int] = {}
        for device in self.holds.get(job_id, ()):
            kind = self.fleet.kind(self.fleet.row(device))
            total[kind] = total.get(kind, 0) + self.jobs[job_id].shape.milli
        return total

    def devices_of(self, attempt: Attempt) -> list[tuple[str, int]]:
        """(kind, thousandths) of each device that an attempt holds still."""
        kind = self.fleet.kind
        return [
            (kind(self.fleet.row(claim.device)), claim.milli)
            for part in attempt.parts.values()
            if not part.freed
            for claim in part.claims
        ]


def running(state: State) -> list[Job]:
    """The jobs with an open attempt: those that hold devices, found by node, however many jobs wait."""
    ids = dict.fromkeys(job_id for jobs in state.on_node.values() for job_id in jobs)
    return [state.jobs[job_id] for job_id in ids]
