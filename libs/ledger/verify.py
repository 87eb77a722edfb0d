"""Audits a pool's ledger: every record from the first, through the independent checker."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from nats.js import JetStreamContext

from libs.core.projections.verify import Verification
from libs.ledger.archive import before
from libs.ledger.audited import AuditedLedger
from libs.ledger.chain import GENESIS, ChainEntry, Head, break_before, judge
from libs.ledger.export import BadLedgerFile, FileEnd, FileStart, LedgerFile, LedgerFileWriter
from libs.ledger.reader import LedgerReader
from libs.ledger.seals import wrong_seals
from libs.ledger.segments import last_seq, messages, readable
from libs.ledger.states import SavedStates
from schemas.ledger import LedgerRecord

Progress = Callable[[int, int], None]
"""Called at intervals with (messages done, total); total 0: unknown."""

_TOLD_EVERY = 4096


async def verify(
    js: JetStreamContext,
    pool: str,
    archive: Path | None = None,
    *,
    also: Callable[[LedgerRecord], None] = lambda r: None,
    audited: AuditedLedger | None = None,
    states: bool = False,
) -> Verification:
    """Checks the ledger up to its present end. Memory depends on open things, not on the ledger's length. Archived
    segments that are no longer in the broker are read from the folder `archive`. `also` gets each valid record that is
    in the broker. `audited`: a fresh one, for more than the report. `states`: also check placement's saved states.

    Raises LedgerStopped (see libs.ledger.chain) when the ledger cannot be read from its beginning.
    """
    checker, head, position = audited or AuditedLedger(), GENESIS, 0
    saved = await SavedStates.of(js, pool) if states else SavedStates([])
    files: list[Path] = []
    if archive is not None:
        files = list(before(archive, pool, (await readable(js, pool))[0].first))
        head, position = _read_files(checker, files, lambda done, of: None, saved)
    begins = FileStart(pool, position + 1, head)
    reader = LedgerReader(js, pool, head, position)
    try:
        async for entries in reader.read_to(await reader.last_seq()):
            for entry in entries:
                head = _step(checker, entry, head)
                saved.step(entry, checker.report)
                if entry.valid:
                    also(entry.record)
    finally:
        await reader.close()
    report = _finished(checker, head)
    if report.closed_periods:
        with TemporaryDirectory() as folder:
            rest = Path(folder) / "ledger.jsonl"
            await export(js, pool, rest, start=begins)
            _look_at_seals(report, [*files, rest])
    return report


def verify_files(
    paths: Sequence[Path], progress: Progress = lambda done, of: None, audited: AuditedLedger | None = None
) -> Verification:
    """The same for files of `baton ledger export`, without a server: a ledger from its first record, in one file or
    several consecutive ones.

    Raises BadLedgerFile when a file is damaged or does not follow the one before it; LedgerStopped as `verify` does.
    """
    checker = audited or AuditedLedger()
    head, _ = _read_files(checker, paths, progress)
    report = _finished(checker, head)
    if report.closed_periods:
        _look_at_seals(report, paths)
    return report


def _read_files(
    checker: AuditedLedger, paths: Sequence[Path], progress: Progress, saved: SavedStates | None = None
) -> tuple[Head, int]:
    """The head after the files, and their last message's sequence."""
    head, last_seq, pool = GENESIS, 0, ""
    for path in paths:
        file = LedgerFile(path)
        start = file.start
        if (start.first_seq, start.head) != (last_seq + 1, head) or pool not in ("", start.pool):
            begins = f"begins with message {start.first_seq} of pool {start.pool}, after record {start.head.seq}"
            wanted = (
                f"message {last_seq + 1}{f' of pool {pool}' if pool else ''}, after record {head.seq} {head.hash[:12]}"
            )
            raise BadLedgerFile(f"{path}: {begins}; wanted is {wanted}: give all files of one ledger, in order")
        pool = start.pool
        for stored in file:
            entry = judge(head, pool, stored.seq, stored.payload, stored.time_us)
            head = _step(checker, entry, head)
            if saved is not None:
                saved.step(entry, checker.report)
            last_seq = stored.seq
            if last_seq % _TOLD_EVERY == 0:
                progress(last_seq, 0)
    return head, last_seq


async def export(
    js: JetStreamContext,
    pool: str,
    path: Path,
    progress: Progress = lambda done, of: None,
    *,
    start: FileStart | None = None,
) -> FileEnd:
    """Writes the ledger up to its present end to `path`, message by message as stored. The file appears when complete.
    `start`: continue after an earlier part.

    Raises LedgerStopped when the ledger cannot be read from its beginning, and OSError of the file.
    """
    last = await last_seq(js, pool)
    begins = start or FileStart(pool)
    with LedgerFileWriter(path, begins) as out:
        async for stored in messages(js, pool, begins.first_seq, last):
            out.add(stored)
            if out.last_seq % _TOLD_EVERY == 0:
                progress(out.last_seq, last)
        return out.finish()


def _step(checker: AuditedLedger, entry: ChainEntry, head: Head) -> Head:
    checker.step(entry.seq, entry.record, entry.valid)
    if entry.valid:
        return entry.head
    if found := break_before(head, entry):
        checker.report.violated("I10", entry.seq, found)
    return head


def _look_at_seals(report: Verification, files: Sequence[Path]) -> None:
    for seq, what in wrong_seals(files):
        report.violated("I17", seq, what)


def _finished(checker: AuditedLedger, head: Head) -> Verification:
    report = checker.finish()
    report.head_seq, report.head_hash = head.seq, head.hash
    return report
