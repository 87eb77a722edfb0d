"""The checker's state: everything open now, as the events reported it. One subject writes each row, all read it.

    jobs, ended                lives        devices            devices
    JobRow.open, AttemptRow    attempts     nodes              nodes
    AttemptRow.cause, bad      outcomes     holds              holds
    limits, guarantees         limits

Nothing here is shared with placement's fold, since a mistake in both would stay unseen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

from libs.core.projections.verify.ended_ids import EndedIds
from libs.core.projections.verify.guarantees import Guarantees
from libs.core.projections.verify.limit_books import Kind, LimitBooks
from libs.core.projections.verify.report import Verification
from schemas import ledger as led
from schemas.attempts import Cause, KnownOfPart, Outcome
from schemas.jobs import Checkpoint, JobSpec
from schemas.resources import Claim, Device


class Stage(IntEnum):
    """State of a job in the checker. CLOSED: its attempt is closed, and its requeue or end follows."""

    WAITING = 0
    GRANTED = 1
    STARTING = 2
    RUNNING = 3
    PREEMPTING = 4
    STOPPING = 5
    CLOSED = 6
    ENDED = 7


@dataclass(slots=True)
class AttemptRow:
    """One run of a job, from grant to close."""

    number: int
    opened_us: int
    parts: dict[str, list[Claim]]
    """Node -> claims still held there; nodes in rank order."""
    nodes: tuple[str, ...]
    """All granted nodes."""
    unseen: set[str]
    """Nodes whose part has not been seen running."""
    running_us: int = 0
    ended_us: int = 0
    """When its end was first decided or observed; on a silent node, when that was last heard."""
    cause: Cause | None = None
    """The last decision to end it."""
    beneficiary: str = ""
    done: bool = True
    """All parts freed so far exited by themselves with code 0."""
    bad: KnownOfPart | None = None
    """The agent's report of the first part that ended otherwise, if no end had been decided."""
    bad_code: int | None = None
    """That part's exit code, if it exited by itself."""
    evidence: set[str] = field(default_factory=set)
    """For parts that ended otherwise: `failed` (exited by themselves), or the evidence that they are gone."""
    exits: dict[str, int | None] = field(default_factory=dict)
    """Node -> exit code of its part."""
    own_exits: bool = True


@dataclass(slots=True)
class JobRow:
    """An unfinished job, or a finished one that wrongly still holds something."""

    id: str
    team: str
    spec: JobSpec
    priority: int
    preempts: bool
    lease_s: float
    """How long its work survives silence, s; 0: until its node reports."""
    stage: Stage = Stage.WAITING
    attempts: int = 0
    open: AttemptRow | None = None
    closed: AttemptRow | None = None
    """The last attempt, between its close and the requeue or end."""
    outcome: Outcome | None = None
    """Outcome of the last closed attempt."""
    failures: int = 0
    """Attempts that count against the job's retries."""
    losses: int = 0
    """Lost attempts in total."""
    in_a_row: int = 0
    """Consecutive losses since the last good run."""
    failed_in_a_row: int = 0
    """Consecutive failures since the last good run."""
    counted: bool = False
    """The ledger reports its losses in a row, and they alone decide whether it runs again."""
    not_before_us: int = 0
    """End of its back-off."""
    resume: Checkpoint | None = None
    """Its last acknowledged checkpoint."""


@dataclass(slots=True)
class DeviceRow:
    """A device and its grants: `<job id>.<attempt>` -> claim."""

    about: Device
    memory_mib: int
    """Grantable memory."""
    node: str
    kind: Kind
    epoch: int = 0
    claims: dict[str, Claim] = field(default_factory=dict)
    held_for: str = ""
    """The job for which it is held."""
    quarantine: int | None = None
    """In quarantine, identified by the time of its start."""
    going: str = ""
    """The board whose repartition will destroy it, or may have: it may not be granted."""


@dataclass(slots=True)
class NodeRow:
    """A node in its present or last life."""

    name: str
    incarnation: int
    up: bool
    offered: frozenset[str]
    """Devices of the last inventory."""
    labels: dict[str, str]
    leaf: tuple[str, str, str]
    simulated: bool
    cpu_milli: int
    memory_mib: int
    rack_w: int
    used_cpu: int = 0
    used_mib: int = 0
    parts: int = 0
    """Number of attempts' parts on this node."""


@dataclass(frozen=True, slots=True)
class SilentRow:
    """The silence of a node."""

    since_us: int
    """When it was last heard, us of ledger time."""
    kept: bool
    """Only work that is kept in silence is left."""
    ended_lease_s: float
    """Leases up to this length are recorded as ended."""


class Books:
    """All rows, the report, and the position in the ledger."""

    def __init__(self) -> None:
        self.report = Verification()
        self.seq = 0
        self.t_us = 0
        self.format: int | None = None
        """Format that the present record declares; None: written by a version that declared none."""
        self.more = False
        """The decision continues in the next record."""
        self.ticked_us = 0
        """A lower bound of the time, us of ledger time, from the last tick (see `clock`)."""
        self.inbox_seq = 0
        """The last inbox message decided up to the present record."""
        self.jobs: dict[str, JobRow] = {}
        self.ended = EndedIds()
        self.devices: dict[str, DeviceRow] = {}
        self.nodes: dict[str, NodeRow] = {}
        self.silent: dict[str, SilentRow] = {}
        """Silent nodes."""
        self.cordoned: set[str] = set()
        """Cordoned nodes."""
        self.suspended: set[str] = set()
        """Suspended teams."""
        self.holds: dict[str, tuple[str, ...]] = {}
        """Job -> devices held for it."""
        self.limits = LimitBooks()
        self.guarantees = Guarantees()
        self.covers: Callable[[JobRow, Sequence[str]], bool] = lambda job, devices: True
        """Whether budgets cover these devices for a waiting job now; set by `Spending`."""

    def broken(self, invariant: str, what: str) -> None:
        """Reports a violation by the present record."""
        self.report.violated(invariant, self.seq, what)

    def offered(self, device_id: str, node: str) -> bool:
        """Whether a node that is up offers the device now."""
        row, owner = self.devices.get(device_id), self.nodes.get(node)
        return row is not None and row.node == node and owner is not None and owner.up and device_id in owner.offered

    def kind(self, device_id: str) -> Kind | None:
        """None for a device of no node, which is reported elsewhere and counts for nothing."""
        row = self.devices.get(device_id)
        return None if row is None else row.kind

    def attempt(self, job_id: str, number: int) -> tuple[JobRow, AttemptRow] | None:
        """The job and its open attempt, if its number matches. `lives` reports mismatches."""
        job = self.jobs.get(job_id)
        if job is None or job.open is None or job.open.number != number:
            return None
        return job, job.open


class Promises(dict[str, int]):
    """Follow-ups that an event requires within the same decision.

    They must come in the same record or, if the decision takes several (`LedgerRecord.more`), by the record that
    completes the input that caused it. All follow from what the inbox held before.
    """

    def __init__(self, books: Books, otherwise: str) -> None:
        """`otherwise`: the violation if a follow-up is missing, with `{}` for its subject."""
        super().__init__()
        self._books = books
        self._otherwise = otherwise

    def make(self, about: str) -> None:
        self[about] = self._books.inbox_seq

    def keep(self, about: str) -> bool:
        """Whether the follow-up was required."""
        kept = about in self
        self.pop(about, None)
        return kept

    def check(self, invariant: str) -> None:
        """Reports follow-ups that are missing; call it at the end of each record."""
        if not self:
            return
        books = self._books
        for about in [about for about, decided in self.items() if not books.more or decided < books.inbox_seq]:
            books.broken(invariant, self._otherwise.format(about))
            del self[about]


class Subject:
    """The checks of one subject. `handlers`: event type -> name of the method to call."""

    handlers: ClassVar[dict[type, str]] = {}

    def __init__(self, books: Books) -> None:
        self.books = books

    def begin(self, record: led.LedgerRecord) -> None:
        """Called before the record's events."""

    def end(self) -> None:
        """Called after the record's events: checks of the record as a whole."""

    def finish(self) -> None:
        """Called after the last record so far; more records may follow."""


Handler = Callable[[Any], None]
