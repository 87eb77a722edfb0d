"""An admitted job that has not ended, and the key of the queue that it waits in."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Generic, NamedTuple, Self, TypeVar, overload

from libs.core.state.attempt import Attempt
from libs.core.state.boosts import Boost
from libs.core.state.forms import form_of, hash_of, kept, name_of, spec_of
from libs.core.state.lifecycle import AttemptState
from libs.core.state.shape import Shape
from schemas.attempts import Category, Cause
from schemas.ids import content_hash
from schemas.jobs import UNSAID_LEASE_S, Checkpoint, JobSpec, JobState, Latency, Network

T = TypeVar("T")
_LAST = frozenset({Cause.CANCELLED, Cause.TIME_LIMIT})
"""Causes after which no job is queued again."""


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

    @property
    def waits_for_first(self) -> bool:
        """It waits, and was never granted anything."""
        return self.current is None and self.state is JobState.QUEUED and not self.attempts

    @property
    def may_come_back(self) -> bool:
        """Its attempt is being stopped for a cause after which it may be queued again: a cancel cannot act before that."""
        attempt = self.current
        return attempt is not None and attempt.state is AttemptState.STOPPING and attempt.cause not in _LAST

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
