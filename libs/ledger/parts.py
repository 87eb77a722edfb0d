"""Parts of a ledger as answers to requests: for finance, which may read the ledger but not the broker's streams.

part = await part_after(js, "main", 0)     LedgerPart: messages as they are stored, compressed
for stored in messages_of(part): ...
"""

import base64
import json
import zlib
from collections.abc import Iterator
from contextlib import aclosing
from typing import Final

from nats.js import JetStreamContext

from libs.ledger.export import line_of
from libs.ledger.segments import messages, readable
from libs.ledger.tail import Stored
from schemas.proofs import LedgerPart

MOST_BYTES: Final = 450_000
"""Compressed, but for the last message: base64 makes a third more of it, and the broker carries 1 MiB in one answer."""
MOST_MESSAGES: Final = 5_000


async def part_after(js: JetStreamContext, pool: str, seq: int) -> LedgerPart:
    """The messages that follow `seq`, as many as go into one answer. Raises LedgerStopped: RecordsArchived when they are not
    on the broker any more."""
    found = await readable(js, pool)
    last, squeeze, size, count = found[-1].last, zlib.compressobj(), 0, 0
    chunks: list[bytes] = []
    if seq < last:
        async with aclosing(messages(js, pool, seq + 1, last)) as stored_ones:  # type: ignore[type-var]
            async for stored in stored_ones:
                chunks.append(squeeze.compress(json.dumps(line_of(stored)).encode() + b"\n"))
                size, count, seq = size + len(chunks[-1]), count + 1, stored.seq
                if size >= MOST_BYTES or count == MOST_MESSAGES:
                    break
    chunks.append(squeeze.flush())
    packed = base64.b64encode(b"".join(chunks)).decode()
    return LedgerPart(first_seq=found[0].first, last_seq=last, messages=packed)


def messages_of(part: LedgerPart) -> Iterator[Stored]:
    """As they are stored. Raises ValueError for what is no part."""
    for line in zlib.decompress(base64.b64decode(part.messages)).splitlines():
        one = json.loads(line)
        payload = one["payload"].encode() if "payload" in one else base64.b64decode(one["payload_base64"])
        yield Stored(one["seq"], "", one.get("headers", {}), payload, one["time_us"])
