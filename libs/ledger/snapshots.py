"""Snapshots of a folded ledger, so that a restart need not read it from its beginning (object store `baton-snapshots`).

A snapshot is an optimisation and never the truth: one that cannot be read, or whose head is not on the chain, is
ignored. Each name has two slots that are written in turn, so a crash while writing leaves the other one whole.
"""

import asyncio
import json
import logging
import zlib
from dataclasses import dataclass

from nats.js import JetStreamContext
from nats.js.api import ObjectMeta
from nats.js.errors import BadObjectMetaError, DigestMismatchError, NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from libs.ledger.chain import Head
from schemas.ids import content_hash
from schemas.subjects import ledger_stream, token

log = logging.getLogger("baton.ledger")

BUCKET = "baton-snapshots"
_SLOTS = ("a", "b")
_READ_S = 60.0


@dataclass(frozen=True, slots=True)
class _Slot:
    """What an object's description says of it."""

    object: str
    head: Head
    position: int


class Snapshots:
    """A pool's snapshots. The bucket is provisioned with the streams (`libs.bus.streams`)."""

    def __init__(self, js: JetStreamContext, pool: str) -> None:
        self._js = js
        self._pool = token(pool)

    async def save(self, name: str, head: Head, position: int, data: bytes) -> None:
        """Keep `data`, the state after folding the ledger up to `position` with its last valid record `head`.

        Raises nats errors when the broker cannot store it; what was kept before is then still there.
        """
        store = await self._js.object_store(BUCKET)
        used = {slot.object: slot.position for slot in await self._slots(store, name)}
        oldest = min(self._objects(name), key=lambda key: used.get(key, -1))
        about = json.dumps({"seq": head.seq, "hash": head.hash, "position": position})
        packed = await asyncio.to_thread(zlib.compress, data, 1)
        await store.put(oldest, packed, ObjectMeta(name=oldest, description=about))

    async def load(self, name: str) -> tuple[Head, int, bytes] | None:
        """The newest usable snapshot: (head, position, data); None when there is none.

        Raises nats errors when the broker does not answer: starting from the beginning is then not the remedy.
        """
        store = await self._js.object_store(BUCKET)
        for slot in sorted(await self._slots(store, name), key=lambda slot: slot.position, reverse=True):
            if (why := await self._off_chain(slot)) or (data := await _read(store, slot.object)) is None:
                log.error("snapshot %s at %d is ignored: %s", slot.object, slot.position, why or "it cannot be read")
                continue
            return slot.head, slot.position, data
        return None

    def _objects(self, name: str) -> list[str]:
        return [f"{self._pool}/{name}/{slot}" for slot in _SLOTS]

    async def _slots(self, store: ObjectStore, name: str) -> list[_Slot]:
        found = []
        for key in self._objects(name):
            try:
                about = json.loads((await store.get_info(key)).description or "")
                found.append(_Slot(key, Head(int(about["seq"]), str(about["hash"])), int(about["position"])))
            except (ObjectNotFoundError, BadObjectMetaError, ValueError, KeyError, TypeError):
                continue  # empty, or nothing of ours: the slot to write next
        return found

    async def _off_chain(self, slot: _Slot) -> str:
        """Why the snapshot does not belong to the ledger as it is now; "" when it does."""
        state = (await self._js.stream_info(ledger_stream(self._pool))).state
        if slot.position > state.last_seq:
            return f"the ledger ends at {state.last_seq}"
        if slot.head.seq == 0:
            return ""
        try:
            stored = await self._js.get_msg(ledger_stream(self._pool), seq=slot.head.seq)
        except NotFoundError:
            # Archived. The next record names our head, or it is void for us and the reader's check says so.
            return "" if slot.head.seq < state.first_seq <= slot.position + 1 else "its head is not in the ledger"
        return "" if content_hash(stored.data or b"") == slot.head.hash else "its head is another record in the ledger"


async def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        # Chunks that vanish while they are read (the slot is being written) would be waited for without end.
        async with asyncio.timeout(_READ_S):
            packed = (await store.get(key)).data
        return await asyncio.to_thread(zlib.decompress, packed or b"")
    except (DigestMismatchError, ObjectNotFoundError, zlib.error, TimeoutError) as error:
        log.warning("snapshot %s: %r", key, error)
        return None
