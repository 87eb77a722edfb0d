"""The ledger for finance: requested part by part, and written to a file like that of `baton ledger export`."""

from collections.abc import Callable
from pathlib import Path

from libs.client import Baton
from libs.ledger.archive import before
from libs.ledger.export import FileEnd, FileStart, LedgerFileWriter
from libs.ledger.parts import messages_of
from libs.ledger.records import FiledLedger


async def ledger_by_parts(baton: Baton, archive: Path | None, rest: Path) -> FiledLedger:
    """The pool's ledger, with archived parts from the folder `archive`. Raises BadLedgerFile, client errors."""
    source = await archived_by_parts(baton, archive)
    await export_by_parts(baton, rest, FileStart(baton.place.pool, source.last_seq + 1, source.head))
    source.add(rest)
    return source


async def archived_by_parts(baton: Baton, archive: Path | None) -> FiledLedger:
    """Records in the folder's files that the broker no longer has; none without a folder."""
    if archive is None:
        return FiledLedger([])
    end = await baton.ledger_after(2**53)  # beyond the end: gives where the ledger begins and ends
    return FiledLedger(list(before(archive, baton.place.pool, end.first_seq)))


async def export_by_parts(
    baton: Baton, path: Path, start: FileStart, progress: Callable[[int, int], None] = lambda done, of: None
) -> FileEnd:
    """Writes the ledger up to its present end to `path`. Raises client errors, and OSError of the file."""
    with LedgerFileWriter(path, start) as out:
        last = (part := await baton.ledger_after(out.last_seq)).last_seq
        while out.last_seq < last:
            for stored in messages_of(part):
                out.add(stored)
            progress(out.last_seq, last)
            if out.last_seq < last:
                part = await baton.ledger_after(out.last_seq)
        return out.finish()
