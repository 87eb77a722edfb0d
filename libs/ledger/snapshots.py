"""Snapshots of a folded ledger, so that a restart need not read it from its beginning (an object store for each
service, `libs.bus.table.snapshots_bucket`).

A snapshot is an optimisation and never the truth: one of another version, one that cannot be read, or one whose head is
not on the chain is ignored. Each name has two slots that are written in turn, so a crash while writing leaves the other
one whole.

A state comes as *parts*: byte strings of a bounded size, which `load` gives back as they were. A state may be hundreds
of megabytes, and one call that encodes it would stop the event loop for as long. So one part after the other is made on
the loop, where the state lives, with room for other tasks between them, and compressed in a thread. (A thread that made
them would hold the interpreter's lock all the same.) Only some parts are in memory beside what is compressed already.

Object: one zlib stream of (length of the part, 4 bytes, big-endian; the part) for each part, in order. Parts that snapshots
share (`libs.core.state.parts`) are objects of their own, of the same kind, by their key. In their place the key stands as a
part, and the highest bit of its length says so. Those that no slot names for an hour are removed.
"""

import asyncio
import io
import json
import logging
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from nats.js import JetStreamContext
from nats.js.api import ObjectMeta
from nats.js.errors import BadObjectMetaError, DigestMismatchError, NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from libs.bus.retry import UNAVAILABLE
from libs.bus.table import snapshots_bucket
from libs.core.state.parts import Part, SharedParts
from libs.ledger.chain import Head
from libs.ledger.segments import readable, stored_at
from libs.ports.host import failpoint
from schemas.ids import content_hash
from schemas.subjects import token

log = logging.getLogger("baton.ledger")

_SLOTS = ("a", "b")
_READ_S = 60.0
_LOOKS = 4  # a slot that another process writes meanwhile is looked at anew, so often
_STEP_BYTES = 256 * 1024  # of parts that are packed in one go; a thread costs more than a small part
_SLICE_BYTES = 64 * 1024  # of what was packed, read in one go
_LENGTH_BYTES = 4
_SHARED = 1 << 31  # of a length
_UNNAMED_S = 3600.0  # longer than a save takes, between whose shared parts and slot another process may look

T = TypeVar("T")


class BadSnapshot(ValueError):
    """The stored bytes are not a whole snapshot."""


class _Replaced(BadSnapshot):
    """A whole one, but not the one that was meant: its slot was written meanwhile."""


@dataclass(frozen=True, slots=True)
class Restored(Generic[T]):
    """A state from a snapshot: `value` is the fold of the ledger up to `position`, whose last valid record is `head`."""

    head: Head
    position: int
    value: T


@dataclass(frozen=True, slots=True)
class _Slot:
    """What an object's description says of it. Version 0: written before versions were written here."""

    object: str
    head: Head
    position: int
    version: int
    shared: frozenset[str]
    """Keys of the shared parts that it names."""
    described: str


class PackedState(NamedTuple):
    """What is stored of a state."""

    stream: bytes
    shared: tuple[SharedParts, ...]


class SnapshotStore:
    """A pool's snapshots. The buckets are provisioned with the streams (`libs.bus.streams`)."""

    def __init__(self, js: JetStreamContext, pool: str) -> None:
        self._js = js
        self._pool = token(pool)
        self._unnamed: dict[str, dict[tuple[str, str], float]] = {}
        """Name -> object with shared parts that no slot names, as it was stored (anew: by another id) -> since when (by the
        loop's clock) this process knows."""

    async def save(self, name: str, version: int, head: Head, position: int, parts: Iterable[Part]) -> None:
        """Keep `parts`, the state after folding the ledger up to `position` with its last valid record `head`.

        `version` says how the parts are to be read. They are taken on the event loop, between other tasks: either nobody
        changes the state meanwhile, or they are of the state as it was when `dump` was called. Whoever cannot wait for
        the broker takes the two steps `pack` and `put` apart.

        Raises what `parts` raises, and nats errors when the broker cannot store it; what was kept before is still there.
        """
        await self.put(name, version, head, position, await pack(parts))

    async def put(self, name: str, version: int, head: Head, position: int, packed: PackedState) -> None:
        """The second half of `save`: store what `pack` made."""
        store = await self._js.object_store(snapshots_bucket(name))
        slots = await self._slots(store, name)
        shares = bool(packed.shared) or any(slot.shared for slot in slots)
        if shares:
            await self._look_after_shared(store, name, version, packed.shared)
        used = {slot.object: slot.position for slot in slots}
        oldest = min(self._objects(name), key=lambda key: used.get(key, -1))
        about: dict[str, Any] = {"seq": head.seq, "hash": head.hash, "position": position, "version": version}
        if packed.shared:
            about["shared"] = [shared.key for shared in packed.shared]
        await store.put(oldest, packed.stream, ObjectMeta(name=oldest, description=json.dumps(about)))
        if shares:  # another process may have removed some before the slot named them
            await self._look_after_shared(store, name, version, packed.shared)

    async def _look_after_shared(
        self, store: ObjectStore, name: str, version: int, wanted: Iterable[SharedParts]
    ) -> None:
        """Removes those that neither a slot names nor is wanted, and has not for long; then there is room to store what is
        wanted and is not there. What an earlier try has stored, which a full bucket or its time limit ended, is there."""
        try:
            infos = await store.list(ignore_deletes=True)
        except NotFoundError:
            infos = []
        there = {info.name: str(info.nuid) for info in infos if info.name.startswith(self._shared(name))}
        named = {
            self._shared(name, slot.version, key) for slot in await self._slots(store, name) for key in slot.shared
        }
        by_object = {self._shared(name, version, shared.key): shared for shared in wanted}
        now, known = asyncio.get_running_loop().time(), self._unnamed.get(name, {})
        unnamed = {one for one in there.items() if one[0] not in named and one[0] not in by_object}
        self._unnamed[name] = {one: known.get(one, now) for one in unnamed}
        for (one, _), since in self._unnamed[name].items():
            if now - since >= _UNNAMED_S:
                await self._remove(store, name, one)
        for one, shared in by_object.items():
            if one not in there:
                await store.put(one, (await pack(shared.make())).stream)

    async def _remove(self, store: ObjectStore, name: str, one: str) -> None:
        """And what the store keeps to say that it was there: each look reads it, and there is no end of them."""
        with suppress(ObjectNotFoundError):  # another process was faster
            await store.delete(one)
        bucket, said = snapshots_bucket(name), urlsafe_b64encode(one.encode()).decode()
        await self._js.purge_stream(f"OBJ_{bucket}", subject=f"$O.{bucket}.M.{said}")

    async def load(self, name: str, version: int, build: Callable[[Iterable[bytes]], T]) -> Restored[T] | None:
        """The state from the newest usable snapshot of this version; None when there is none: fold from the beginning.

        `build` makes the state from the parts, in a thread. Whatever it raises makes the snapshot one that cannot be
        read: logged, and the other slot is tried.

        Raises nats errors when the broker does not answer: starting from the beginning is then not the remedy.
        """
        store = await self._js.object_store(snapshots_bucket(name))
        for _ in range(_LOOKS):
            replaced = False
            for slot in sorted(await self._slots(store, name), key=lambda slot: slot.position, reverse=True):
                if slot.version != version:
                    why = f"it is of version {slot.version}, this code reads {version}"
                elif not (why := await self._off_chain(slot)):
                    failpoint("snapshots.found")
                    try:
                        packed, shared = await _read(store, slot), await self._read_shared(store, name, slot)
                        value = await asyncio.to_thread(_build, build, packed, shared)
                        return Restored(slot.head, slot.position, value)
                    except BadSnapshot as error:
                        why = f"it cannot be read: {error}"
                        replaced |= isinstance(error, _Replaced)
                log.error("snapshot %s at %d is ignored: %s", slot.object, slot.position, why)
            if not replaced:
                break
        return None

    async def newest(self, name: str, version: int) -> int:
        """The position of the newest one of this version, which nobody has looked into; 0: none. Raises nats errors."""
        store = await self._js.object_store(snapshots_bucket(name))
        return max((slot.position for slot in await self._slots(store, name) if slot.version == version), default=0)

    async def kept(self, name: str, version: int) -> list[Restored[bytes]]:
        """The snapshots of this version that are whole and of this ledger, each packed as it is stored. Raises nats errors."""
        store, found = await self._js.object_store(snapshots_bucket(name)), []
        for slot in await self._slots(store, name):
            if slot.version == version and not await self._off_chain(slot):
                try:
                    found.append(Restored(slot.head, slot.position, await _read(store, slot)))
                except BadSnapshot as error:
                    log.warning("snapshot %s at %d is passed over: %s", slot.object, slot.position, error)
        return found

    async def forget(self, name: str, version: int) -> None:
        """Drop the snapshots of this version. Raises nats errors; some may then be gone and others not."""
        store = await self._js.object_store(snapshots_bucket(name))
        for slot in await self._slots(store, name):
            if slot.version == version:
                await store.delete(slot.object)

    async def ledger_answers(self) -> bool:
        """Whether the pool's ledger can be asked now."""
        try:
            await readable(self._js, self._pool)
        except UNAVAILABLE:
            return False
        return True

    def _objects(self, name: str) -> list[str]:
        return [f"{self._pool}/{name}/{slot}" for slot in _SLOTS]

    def _shared(self, name: str, *version_and_key: int | str) -> str:
        return "/".join((self._pool, name, "shared", *map(str, version_and_key)))

    async def _read_shared(self, store: ObjectStore, name: str, slot: _Slot) -> dict[str, bytes]:
        """By their keys. Raises BadSnapshot when some are not there."""
        return {key: await _read_object(store, self._shared(name, slot.version, key)) for key in sorted(slot.shared)}

    async def _slots(self, store: ObjectStore, name: str) -> list[_Slot]:
        found = []
        for key in self._objects(name):
            try:
                described = (await store.get_info(key)).description or ""
                about = json.loads(described)
                head, version = Head(int(about["seq"]), str(about["hash"])), int(about.get("version", 0))
                shared = frozenset(map(str, about.get("shared", ())))
                found.append(_Slot(key, head, int(about["position"]), version, shared, described))
            except (ObjectNotFoundError, BadObjectMetaError, ValueError, KeyError, TypeError):
                continue  # empty, or nothing of ours: the slot to write next
        return found

    async def _off_chain(self, slot: _Slot) -> str:
        """Why the snapshot does not belong to the ledger as it is now; "" when it does."""
        kept = await readable(self._js, self._pool)
        if slot.position > kept[-1].last:
            return f"the ledger ends at {kept[-1].last}"
        if slot.head.seq == 0:
            return (
                ""
                if kept[0].first <= slot.position + 1
                else f"the ledger begins with {kept[0].first}, and no head is known"
            )
        stored = await stored_at(self._js, self._pool, slot.head.seq)
        if stored is None:
            # Archived. The next record names our head, or it is void for us and the reader's check says so.
            return "" if slot.head.seq < kept[0].first <= slot.position + 1 else "its head is not in the ledger"
        return "" if content_hash(stored) == slot.head.hash else "its head is another record in the ledger"


async def pack(parts: Iterable[Part]) -> PackedState:
    """The parts as the bytes of one object, and those that are shared. Raises what `parts` raises."""
    stream, out = zlib.compressobj(1), bytearray()
    some: list[bytes] = []
    shared: list[SharedParts] = []
    size = 0
    for part in parts:
        if isinstance(part, SharedParts):
            shared.append(part)
            data, flag = part.key.encode(), _SHARED
        else:
            data, flag = part, 0
        some += ((len(data) | flag).to_bytes(_LENGTH_BYTES, "big"), data)
        size += len(data)
        if size >= _STEP_BYTES:
            out += await asyncio.to_thread(stream.compress, b"".join(some))
            some, size = [], 0
        else:
            await asyncio.sleep(0)
    out += stream.compress(b"".join(some)) + stream.flush()
    return PackedState(bytes(out), tuple(shared))


def unpack(packed: bytes, shared: dict[str, bytes] | None = None) -> Iterator[bytes]:
    """The parts, one after the other. `shared`: what was packed of those that are shared, by key. Raises BadSnapshot where the
    bytes are not what `pack` made, or what is shared is not there."""
    for part in _unpacked(packed):
        if isinstance(part, bytes):
            yield part
        elif shared is not None and part in shared:
            yield from unpack(shared[part])
        else:
            raise BadSnapshot(f"the shared parts {part} are not there")


def _unpacked(packed: bytes) -> Iterator[bytes | str]:
    """Parts, and keys of shared ones."""
    stream = zlib.decompressobj()
    have, taken = bytearray(), 0
    try:
        while not stream.eof:
            # A copy of what is left of the slice: one of all that is left would take longer than the rest.
            rest = stream.unconsumed_tail
            if not rest:
                rest = packed[taken : taken + _SLICE_BYTES]
                taken += len(rest)
            more = stream.decompress(rest, _STEP_BYTES)
            if not more and not rest:
                raise BadSnapshot("it ends too early")
            have += more
            while len(have) >= _LENGTH_BYTES:
                told = int.from_bytes(have[:_LENGTH_BYTES], "big")
                end = _LENGTH_BYTES + (told & ~_SHARED)
                if len(have) < end:
                    break
                part = bytes(have[_LENGTH_BYTES:end])
                yield part.decode() if told & _SHARED else part
                del have[:end]
    except zlib.error as error:
        raise BadSnapshot(str(error)) from error
    if have:
        raise BadSnapshot("it ends in the midst of a part")


def _build(build: Callable[[Iterable[bytes]], T], packed: bytes, shared: dict[str, bytes]) -> T:
    """Raises BadSnapshot for everything that `build` raises: no snapshot may keep a service from starting."""
    try:
        return build(unpack(packed, shared))
    except BadSnapshot:
        raise
    except Exception as error:
        raise BadSnapshot(repr(error)) from error


async def _read(store: ObjectStore, slot: _Slot) -> bytes:
    """Raises BadSnapshot when the object is not whole, or not the one that `slot` describes: another process may have saved
    since, and its state is of another record."""
    return await _read_object(store, slot.object, slot.described)


async def _read_object(store: ObjectStore, name: str, described: str | None = None) -> bytes:
    into = io.BytesIO()
    try:
        # Chunks that vanish while they are read (the slot is being written) would be waited for without end.
        async with asyncio.timeout(_READ_S):
            got = await store.get(name, into)
    except (DigestMismatchError, ObjectNotFoundError, TimeoutError) as error:
        raise BadSnapshot(f"{name}: {error!r}") from error
    if described is not None and got.info.description != described:
        raise _Replaced("it was replaced while it was looked at")
    return into.getvalue()
