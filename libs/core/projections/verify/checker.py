"""The checker: passes each event to the subjects that handle it, in order of their dependencies."""

from typing import ClassVar, Final

from libs.core.projections.verify.asked import GrantMatchesRequest
from libs.core.projections.verify.attempts import Attempts
from libs.core.projections.verify.audit_records import AuditRecords
from libs.core.projections.verify.boards import Boards
from libs.core.projections.verify.books import Books, Handler, Subject
from libs.core.projections.verify.boosts import Boosts
from libs.core.projections.verify.capacity import CapacityBooks
from libs.core.projections.verify.checkpoints import Checkpoints
from libs.core.projections.verify.clock import LedgerTime
from libs.core.projections.verify.cuts import CutsOfTeams
from libs.core.projections.verify.devices import Devices
from libs.core.projections.verify.holds import Holds
from libs.core.projections.verify.hosts import Hosts
from libs.core.projections.verify.limits import TeamLimits
from libs.core.projections.verify.lives import Ends, Lives
from libs.core.projections.verify.money import Rates
from libs.core.projections.verify.nodes import Nodes
from libs.core.projections.verify.outcomes import Outcomes
from libs.core.projections.verify.progress import AttemptsProgress
from libs.core.projections.verify.promised import PromisedStarts
from libs.core.projections.verify.records import Records
from libs.core.projections.verify.report import Verification
from libs.core.projections.verify.spending import Spending
from libs.core.projections.verify.summed import Summed
from schemas import ledger as led

SUBJECTS: Final[tuple[type[Subject], ...]] = (
    Records,
    LedgerTime,
    Lives,  # moves the job's state, which all others read
    Boosts,  # its priority
    Holds,
    GrantMatchesRequest,
    Boards,
    CutsOfTeams,
    CapacityBooks,  # these six read the attempt's row, so they come before `Attempts` removes it
    Devices,
    Hosts,
    TeamLimits,
    Spending,
    Nodes,
    Attempts,
    Outcomes,
    Checkpoints,
    AttemptsProgress,
    PromisedStarts,
    Ends,
    AuditRecords,
    Summed,
    Rates,
)
"""The order in which subjects get an event."""


class Checker:
    """Feed it every record of a ledger in stream order, void ones too; then ask for the report."""

    handled: ClassVar[frozenset[str]] = led.kinds_of({kind for subject in SUBJECTS for kind in subject.handlers})
    ignored: ClassVar[frozenset[str]] = frozenset()
    """The checker knows every kind of event."""

    def __init__(self) -> None:
        self._books = Books()
        subjects = [subject(self._books) for subject in SUBJECTS]
        self._begin = [s.begin for s in subjects if type(s).begin is not Subject.begin]
        self._end = [s.end for s in subjects if type(s).end is not Subject.end]
        self._finish = [s.finish for s in subjects if type(s).finish is not Subject.finish]
        handlers: dict[type, list[Handler]] = {}
        for subject in subjects:
            for kind, name in subject.handlers.items():
                handlers.setdefault(kind, []).append(getattr(subject, name))
        self._handlers = {kind: tuple(called) for kind, called in handlers.items()}

    @property
    def report(self) -> Verification:
        """Violations so far. Call `finish` to update the sums."""
        return self._books.report

    def step(self, seq: int, record: led.LedgerRecord, valid: bool) -> None:
        """One record at stream sequence `seq`; `valid`: whether the chain's reader rule accepts it (I10)."""
        books, report = self._books, self._books.report
        books.seq = report.last_seq = seq
        if not valid:
            report.void += 1
            return
        report.records += 1
        report.events += len(record.events)
        for begin in self._begin:
            begin(record)
        for event in record.events:
            for handle in self._handlers[type(event)]:
                handle(event)
        for end in self._end:
            end()
        report.last_t_us = books.t_us

    def finish(self) -> Verification:
        """The report up to here."""
        for finish in self._finish:
            finish()
        return self.report
