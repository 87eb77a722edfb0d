"""Sealed segments in a folder, and back: the same files as `baton ledger export` writes (docs/ledger-file.md), one for each.

    ledger-main-00000000000000000001-00000000000000004711.jsonl.gz

A file counts only after it was read back: it is whole, its records continue the chain up to the seal, each payload is byte for
byte what the broker has, and the next segment names its end. Only then may the segment be deleted here, and only when every
reader would go on behind it after a restart (libs.ledger.readers), which the caller tells. The last sealed segment stays: the
open one may be empty, and then its end is the head that everybody holds on to.
"""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError, BadRequestError, NotFoundError

from libs.ledger.append import WRONG_LAST_SEQUENCE
from libs.ledger.chain import GENESIS, Head, LedgerGap, LedgerStopped
from libs.ledger.export import BadLedgerFile, FileStart, LedgerFile, LedgerFileWriter
from libs.ledger.records import FiledLedger
from libs.ledger.rolling import IN_USE
from libs.ledger.segments import (
    Segment,
    SegmentState,
    as_sealed,
    messages,
    messages_of,
    name_of,
    readable,
    segments,
    stored_at,
)
from libs.ledger.tail import Stored
from libs.ports.host import failpoint
from schemas import subjects
from schemas.ids import content_hash


class NotArchived(LedgerStopped):
    """A segment is not in the archive as it is in the ledger, or an archived one does not belong to this ledger."""


class AlreadyThere(NotArchived):
    """An archived segment is in the ledger as well."""


@dataclass(frozen=True, slots=True)
class Archived:
    """One sealed segment: where it is, and why it is still here; "" when it was deleted here."""

    segment: Segment
    last: int
    path: Path
    kept: str = ""


def path_of(folder: Path, pool: str, first: int, last: int) -> Path:
    """The file of the segment with these records."""
    return folder / f"ledger-{subjects.token(pool)}-{first:020}-{last:020}.jsonl.gz"


def files_of(folder: Path, pool: str) -> list[Path]:
    """The pool's archived segments, in order."""
    return sorted(folder.glob(f"ledger-{subjects.token(pool)}-{'[0-9]' * 20}-{'[0-9]' * 20}.jsonl.gz"))


async def archive(
    js: JetStreamContext,
    pool: str,
    folder: Path,
    *,
    resumes: Callable[[], Awaitable[Mapping[str, int | None]]] | None = None,
) -> list[Archived]:
    """Writes every sealed segment that is not in `folder` yet, and verifies all that are there.

    With `resumes`, which tells of each reader the sequence that it goes on behind after a restart (None: nobody knows), those
    are deleted here that nobody needs; it is asked anew for each, since to verify what lies before may take hours. Others may
    archive at the same time.

    Raises NotArchived, BadLedgerFile, LedgerGap (a segment went, and is not in `folder`), OSError of the folder, and nats
    errors.
    """
    _make(folder)
    found = await readable(js, pool)
    done = []
    for segment, following in itertools.pairwise(found):
        last = _end_of(segment, following, folder, pool)
        path = path_of(folder, pool, segment.first, last)
        try:
            if not path.exists():
                await _write(js, pool, segment.first, last, path)
                failpoint("archive.written")
            await check(js, pool, path)
        except LedgerGap:
            if not path.exists() or segment.name in [one.name for one in await segments(js, pool)]:
                raise
            continue  # another has archived it here meanwhile, and deleted it
        kept = _needed(segment, last, found, None if resumes is None else await resumes())
        if not kept:
            failpoint("archive.checked")
            with suppress(NotFoundError):
                await js.delete_stream(segment.name)
            failpoint("archive.deleted")
        done.append(Archived(segment, last, path, kept))
    return done


def _end_of(segment: Segment, following: Segment, folder: Path, pool: str) -> int:
    """The last record of a sealed segment: the one before the next, also where some are lost; but its own last one where
    those after it were archived here and deleted, as when one that is older than they are was put back."""
    if segment.last + 1 == following.first:
        return segment.last
    archived = {int(path.name.rsplit("-", 2)[1]) for path in files_of(folder, pool)}  # by their first records
    return segment.last if segment.last + 1 in archived else following.first - 1


async def check(js: JetStreamContext, pool: str, path: Path) -> None:
    """The file is what the broker has. Raises NotArchived, BadLedgerFile."""
    file, last = LedgerFile(path), _last_of(path)
    await _same(file, messages(js, pool, file.start.first_seq, last), path)
    await _continued(js, pool, path, file.head, last)


async def _same(file: LedgerFile, there: AsyncIterator[Stored], path: Path) -> None:
    """The file has just these messages. Raises NotArchived, BadLedgerFile."""
    ours, last = iter(file), file.start.first_seq - 1
    async for stored in there:
        copy = next(ours, None)
        if copy is None or (copy.seq, copy.payload) != (stored.seq, stored.payload):
            raise NotArchived(f"{path}: message {stored.seq} is another one in the ledger of pool {file.start.pool}")
        last = stored.seq
    if next(ours, None) is not None or file.end is None or file.end.last_seq != last:
        raise NotArchived(f"{path} does not end with message {last}, as the segment does")


async def restored(
    js: JetStreamContext, pool: str, paths: Iterable[Path], passed_over: Callable[[str], object] = lambda why: None
) -> AsyncIterator[Segment]:
    """Puts these back; `passed_over` hears of those that are there already. Raises what `restore` raises of one of them."""
    for path in sorted(paths, reverse=True):  # the last first: each is held against what follows it
        try:
            yield await restore(js, pool, path)
        except AlreadyThere as there:
            passed_over(str(there))


async def restore(js: JetStreamContext, pool: str, path: Path) -> Segment:
    """Puts an archived segment back, as it was but for the broker's times: read like any sealed one.

    Raises NotArchived when it is not of this ledger (AlreadyThere when it is there), BadLedgerFile, and nats errors (no room).
    """
    whole = LedgerFile(path)
    start = whole.start
    for _ in whole:  # before anything is made
        pass
    if start.pool != pool:
        raise NotArchived(f"{path} is of pool {start.pool}, not {pool}")
    first, last = start.first_seq, _last_of(path)
    kept = await segments(js, pool)
    if any(segment.first <= last and segment.last >= first for segment in kept if segment.kept):
        raise AlreadyThere(f"records {first} to {last} of pool {pool} are in the ledger: nothing needs to be restored")
    try:
        await _load(js, pool, path)
    except NatsError:
        if (done := await _kept(js, pool, first, last)) is None:  # by another restore, beside this one
            raise
        return done
    restored = await _kept(js, pool, first, last)
    if restored is None:
        raise NotArchived(f"{path}: its segment was deleted while it was restored: try again")
    return restored


async def _load(js: JetStreamContext, pool: str, path: Path) -> None:
    """Fills the segment with what it lacks, and seals it. Several may do so at once, or go on with what one left that was
    ended: a message is stored at its place or not at all, and only a segment that has what the file has is sealed."""
    file = LedgerFile(path)
    first, last = file.start.first_seq, _last_of(path)
    name, loading = name_of(pool, first), subjects.segment(SegmentState.RESTORING.value, pool, first)
    like = (await js.stream_info((await readable(js, pool))[-1].name)).config
    try:
        await js.add_stream(like.evolve(name=name, subjects=[loading], first_seq=first, sealed=False, metadata=None))
    except BadRequestError as error:
        if error.err_code not in IN_USE:  # of another restore
            raise
    there = (await js.stream_info(name)).state.last_seq
    for stored in file:
        if stored.seq <= there:
            continue
        expected = {"Nats-Expected-Last-Sequence": str(stored.seq - 1)}
        try:
            await js.publish(loading, stored.payload, headers=stored.headers | expected)
        except APIError as error:
            if error.err_code != WRONG_LAST_SEQUENCE:
                raise
            there = (await js.stream_info(name)).state.last_seq
    end = (await js.stream_info(name)).state.last_seq
    try:
        await _same(LedgerFile(path), messages_of(js, name, first - 1, end), path)
        await _continued(js, pool, path, file.head, last)
    except NotArchived:
        await js.delete_stream(name)
        raise
    info = await js.stream_info(name)
    if not info.config.sealed:
        await js.update_stream(as_sealed(info.config, pool, first, info.state.bytes))


async def _kept(js: JetStreamContext, pool: str, first: int, last: int) -> Segment | None:
    """The segment of just these records, if it can be read."""
    return next((s for s in await readable(js, pool) if (s.first, s.last) == (first, last)), None)


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _needed(segment: Segment, last: int, found: list[Segment], resume: Mapping[str, int | None] | None) -> str:
    """Why a segment that is archived stays; "" when it may go."""
    if resume is None:
        return "not asked to delete"
    if segment is found[-2]:
        return "the last sealed one"
    if all(at is None for at in resume.values()):
        return "no reader is declared"
    behind = {name: at for name, at in resume.items() if at is None or at < last}
    return ", ".join(
        f"{name} is not declared" if at is None else f"{name} resumes at {at}" for name, at in sorted(behind.items())
    )


async def _write(js: JetStreamContext, pool: str, first: int, last: int, path: Path) -> None:
    start = FileStart(pool, first, await _head_before(js, pool, first))
    with LedgerFileWriter(path, start) as out:
        async for stored in messages(js, pool, first, last):
            out.add(stored)
        out.finish()


async def _head_before(js: JetStreamContext, pool: str, first: int) -> Head:
    """What the first record of a segment names: the seal before it."""
    if first == 1:
        return GENESIS
    seal = await stored_at(js, pool, first - 1)
    if seal is not None:
        return Head(first - 1, content_hash(seal))
    async for seq, payload in _from(js, pool, first):
        if seq > first + _LOOKED_AT:
            break
        link = _link(payload)
        if link is not None and link.seq == first - 1:
            return link
    raise NotArchived(f"no record after {first} of pool {pool} names {first - 1} as the one before it")


_LOOKED_AT = 1_000


async def _continued(js: JetStreamContext, pool: str, path: Path, head: Head, last: int) -> None:
    """What follows in the ledger, if anything does, names the file's end. Raises NotArchived."""
    if head.seq != last:
        raise NotArchived(f"{path} ends with message {last}, which is no seal: the chain ends with {head.seq}")
    following = await stored_at(js, pool, last + 1)
    link = _link(following) if following is not None else None
    if link is not None and link.seq == last and link != head:
        raise NotArchived(
            f"{path} ends with {head.hash[:12]}; the ledger goes on from {link.hash[:12]}: of another one"
        )


async def _from(js: JetStreamContext, pool: str, first: int) -> AsyncIterator[tuple[int, bytes]]:
    last = (await readable(js, pool))[-1].last
    async for stored in messages(js, pool, first, last):
        yield stored.seq, stored.payload


def _link(payload: bytes) -> Head | None:
    """The record that this one names; None when it is no record."""
    try:
        body = json.loads(payload)
        return Head(int(body["prev_seq"]), str(body["prev_hash"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _last_of(path: Path) -> int:
    """The last sequence, as the file's name says it. Raises BadLedgerFile."""
    try:
        return int(path.name.split(".")[0].rpartition("-")[2])
    except ValueError:
        raise BadLedgerFile(f"{path}: not named as `baton ledger archive` names its files") from None


async def archived(js: JetStreamContext, pool: str, folder: Path | None) -> FiledLedger:
    """What lies in the files of `folder` and not on the broker any more; without a folder nothing. Raises BadLedgerFile."""
    if folder is None:
        return FiledLedger([])
    return FiledLedger(list(before(folder, pool, (await readable(js, pool))[0].first)))


def before(folder: Path, pool: str, first: int) -> Iterator[Path]:
    """The archived files of what lies before the record `first`, in order."""
    return (path for path in files_of(folder, pool) if _last_of(path) < first)
