"""The free space of a pool for submits: in its inbox, and in its ledger, which stores their decisions."""

from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from libs.bus.stream_space import ASK_S, StreamSpace
from libs.ledger.segments import OpenSegment
from schemas.subjects import inbox_stream


def room_of(js: JetStreamContext, pool: str, every_s: float = ASK_S) -> StreamSpace:
    """Asked for every `every_s`, once it runs."""
    ledger = OpenSegment(js, pool)

    async def streams() -> list[StreamInfo]:
        """Where a submit goes, and where its decision will."""
        return [await js.stream_info(inbox_stream(pool)), await ledger.info()]

    return StreamSpace(streams, every_s)
