"""The ledger read for an auditor: its chain, where it breaks, and its lines (`libs.core.projections.audit`)."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nats.js import JetStreamContext

from libs.core.projections.audit import AuditLine, AuditLines
from libs.ledger.chain import GENESIS, ChainLink, Head, UnknownRecord, break_before, judge
from libs.ledger.export import LedgerFile
from libs.ledger.segments import last_seq, messages, readable
from libs.ledger.tail import Stored
from schemas.audit import OperatorAction
from schemas.ledger import OperatorActed


@dataclass(slots=True)
class Audit:
    """What was read. `broken`: the first break of the chain, by position; "" when there is none. `skipped`: records before the
    first that is still on the broker."""

    pool: str = ""
    records: int = 0
    voids: int = 0
    skipped: int = 0
    head: Head = GENESIS
    broken: str = ""
    lines: int = 0
    told: list[tuple[int, OperatorAction]] = field(default_factory=list)


class AuditReader:
    """Takes the messages of one ledger, in order, and gives their lines. `audit` grows with what is read."""

    def __init__(self, pool: str, head: Head = GENESIS) -> None:
        self.audit = Audit(pool=pool, head=head)
        self._lines = AuditLines()

    def read(self, stored: Stored) -> Iterator[AuditLine]:
        """The lines of the next message. A void one has none; one that ought to go on and does not is a break."""
        audit = self.audit
        try:
            entry = judge(audit.head, audit.pool, stored.seq, stored.payload, stored.time_us)
        except UnknownRecord as e:
            self._break(str(e))
            return
        if not entry.valid:
            audit.voids += 1
            if found := break_before(audit.head, entry):
                self._break(found)
            return
        audit.records += 1
        audit.head = entry.head
        for event in entry.record.events:
            if isinstance(event, OperatorActed):
                audit.told.append((entry.seq, event.action))
        for line in self._lines.of(entry.record, entry.seq):
            audit.lines += 1
            yield line

    def _break(self, what: str) -> None:
        if not self.audit.broken:
            self.audit.broken = what


async def from_broker(js: JetStreamContext, pool: str) -> AsyncIterator[tuple[AuditReader, Stored]]:
    """Every message of the pool's ledger that is still on the broker, with the reader that is to take it."""
    first = (await readable(js, pool))[0].first
    reader: AuditReader | None = None
    async for stored in messages(js, pool, first, await last_seq(js, pool)):
        if reader is None:
            reader = AuditReader(pool, _before(stored, first))
            reader.audit.skipped = first - 1
        yield reader, stored


def _before(stored: Stored, first: int) -> Head:
    """The head that the first message of a later segment names: what is before it was archived."""
    if first == 1:
        return GENESIS
    link = ChainLink.model_validate_json(stored.payload)
    return Head(link.prev_seq, link.prev_hash)


def from_files(paths: Sequence[Path]) -> Iterator[tuple[AuditReader, Stored]]:
    """The same of files of `baton ledger export` or `archive`, in order. Raises BadLedgerFile."""
    reader: AuditReader | None = None
    for path in paths:
        file = LedgerFile(path)
        if reader is None:
            reader = AuditReader(file.start.pool, file.start.head)
            reader.audit.skipped = file.start.first_seq - 1
        for stored in file:
            yield reader, stored
