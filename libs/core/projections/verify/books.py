"""The checker's own books: what is open now, as the events said it. Each row is written by one subject and read by all.

    jobs, ended                lives        devices            devices
    JobRow.open, AttemptRow    attempts     nodes              nodes
    AttemptRow.cause, bad      outcomes     holds              holds
                                            limits, guarantees limits

Nothing here is taken from the fold that placement runs on: a mistake that both made would be seen by nobody.
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
    """How far a job is, in the checker's words. CLOSED: its attempt was closed, and what becomes of it comes next."""

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
    """One run of a job, from its grant to its close."""

    number: int
    opened_us: int
    parts: dict[str, list[Claim]]
    """Node -> what it holds there still, nodes in the order of their ranks."""
    nodes: tuple[str, ...]
    """All nodes that it was granted on."""
    unseen: set[str]
    """Nodes whose part was not seen running yet."""
    running_us: int = 0
    ended_us: int = 0
    """When its end was decided or shown first; on a silent node, when that was heard last."""
    cause: Cause | None = None
    """What was decided of its end, last."""
    beneficiary: str = ""
    done: bool = True
    """Every part that is free so far ended by itself with exit code 0."""
    bad: KnownOfPart | None = None
    """What the agent said of the first part that ended otherwise, if nothing had been decided before."""
    bad_code: int | None = None
    """Its exit code, if it ended by itself."""
    evidence: set[str] = field(default_factory=set)
    """Of the parts that ended otherwise: `failed` (by themselves), or the evidence that they are gone."""
    exits: dict[str, int | None] = field(default_factory=dict)
    """Node -> exit code of its part."""
    own_exits: bool = True


@dataclass(slots=True)
class JobRow:
    """A job that has not ended; or one that ended although it held something, until it does not."""

    id: str
    team: str
    spec: JobSpec
    priority: int
    preempts: bool
    lease_s: float
    """How long its work survives silence, s; 0: until its node speaks."""
    stage: Stage = Stage.WAITING
    attempts: int = 0
    open: AttemptRow | None = None
    closed: AttemptRow | None = None
    """The last attempt, between its close and what becomes of the job."""
    outcome: Outcome | None = None
    """Of the last attempt that was closed."""
    failures: int = 0
    """Attempts that the job's own budget of retries has to pay for."""
    losses: int = 0
    """Attempts that were lost, in all."""
    in_a_row: int = 0
    """Of these the last ones, none after a good run."""
    failed_in_a_row: int = 0
    """The same of those that failed by themselves."""
    counted: bool = False
    """Its losses in a row are told: they alone decide whether it runs again."""
    not_before_us: int = 0
    """It waits until then."""
    resume: Checkpoint | None = None
    """The last checkpoint that it acknowledged."""


@dataclass(slots=True)
class DeviceRow:
    """A device, and what is granted of it: `<job id>.<attempt>` -> claim."""

    about: Device
    memory_mib: int
    """What of it can be granted."""
    node: str
    kind: Kind
    epoch: int = 0
    claims: dict[str, Claim] = field(default_factory=dict)
    held_for: str = ""
    """The job that it is held for."""
    quarantine: int | None = None
    """It is in quarantine; when that began names it."""
    going: str = ""
    """The board whose repartition is to destroy it, or may have: nobody may be granted it."""


@dataclass(slots=True)
class NodeRow:
    """A node in its present life, or its last one."""

    name: str
    incarnation: int
    up: bool
    offered: frozenset[str]
    """Its devices, by the last inventory."""
    labels: dict[str, str]
    leaf: tuple[str, str, str]
    simulated: bool
    cpu_milli: int
    memory_mib: int
    rack_w: int
    used_cpu: int = 0
    used_mib: int = 0
    parts: int = 0
    """Of attempts, on this node."""


@dataclass(frozen=True, slots=True)
class SilentRow:
    """A node's silence."""

    since_us: int
    """When it was heard last, us of ledger time."""
    kept: bool
    """Only kept work is left."""
    ended_lease_s: float
    """Leases of at most this length are told to have ended."""


class Books:
    """All rows, the report, and where in the ledger we are."""

    def __init__(self) -> None:
        self.report = Verification()
        self.seq = 0
        self.t_us = 0
        self.format: int | None = None
        """What the present record declares; None: it was written by a version that did not."""
        self.more = False
        """The decision goes on in the next record."""
        self.ticked_us = 0
        """So late it is at least, us of ledger time: what the last tick said, see `clock`."""
        self.inbox_seq = 0
        """The last inbox message that is decided with the present record."""
        self.jobs: dict[str, JobRow] = {}
        self.ended = EndedIds()
        self.devices: dict[str, DeviceRow] = {}
        self.nodes: dict[str, NodeRow] = {}
        self.silent: dict[str, SilentRow] = {}
        """Nodes that are not heard."""
        self.cordoned: set[str] = set()
        """Nodes that an operator has taken out of use."""
        self.suspended: set[str] = set()
        """Teams that an operator has paused."""
        self.holds: dict[str, tuple[str, ...]] = {}
        """Job -> devices that are held for it."""
        self.limits = LimitBooks()
        self.guarantees = Guarantees()
        self.covers: Callable[[JobRow, Sequence[str]], bool] = lambda job, devices: True
        """Whether the budgets of a job that waits cover these devices now; `Spending` knows."""

    def broken(self, invariant: str, what: str) -> None:
        """The present record says something that cannot be."""
        self.report.violated(invariant, self.seq, what)

    def offered(self, device_id: str, node: str) -> bool:
        """Whether a node that is up offers the device now."""
        row, owner = self.devices.get(device_id), self.nodes.get(node)
        return row is not None and row.node == node and owner is not None and owner.up and device_id in owner.offered

    def kind(self, device_id: str) -> Kind | None:
        """None for a device that no node brought, which is a violation of its own and counts for nothing."""
        row = self.devices.get(device_id)
        return None if row is None else row.kind

    def attempt(self, job_id: str, number: int) -> tuple[JobRow, AttemptRow] | None:
        """The job and its open attempt, if that has this number. What is wrong otherwise is said by `lives`."""
        job = self.jobs.get(job_id)
        if job is None or job.open is None or job.open.number != number:
            return None
        return job, job.open


class Promises(dict[str, int]):
    """What an event says that a later one of the same decision must follow up on.

    That is in the same record, or, of a decision that takes several records (`LedgerRecord.more`), in one of the others: at
    the latest in the one by which the input is decided that led to it. Each goes with what was decided of the inbox before.
    """

    def __init__(self, books: Books, otherwise: str) -> None:
        """`otherwise`: what is wrong if it is not kept, with `{}` for what it is about."""
        super().__init__()
        self._books = books
        self._otherwise = otherwise

    def make(self, about: str) -> None:
        self[about] = self._books.inbox_seq

    def keep(self, about: str) -> bool:
        """Whether there was such a promise."""
        kept = about in self
        self.pop(about, None)
        return kept

    def check(self, invariant: str) -> None:
        """At the end of each record: what should have been kept by now."""
        if not self:
            return
        books = self._books
        for about in [about for about, decided in self.items() if not books.more or decided < books.inbox_seq]:
            books.broken(invariant, self._otherwise.format(about))
            del self[about]


class Subject:
    """The checks of one subject. `handlers`: event type -> name of the method that is called with each such event."""

    handlers: ClassVar[dict[type, str]] = {}

    def __init__(self, books: Books) -> None:
        self.books = books

    def begin(self, record: led.LedgerRecord) -> None:
        """Before the record's events."""

    def end(self) -> None:
        """After the record's events: what one record must say as a whole."""

    def finish(self) -> None:
        """After the last record that there is now. May be called again after more of them."""


Handler = Callable[[Any], None]
