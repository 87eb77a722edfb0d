"""The room that a pool has for what people submit: in its inbox, and in its ledger, where the decisions go."""

from functools import partial

from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from libs.bus.room import ASK_S, StreamRoom
from libs.ledger.segments import readable
from schemas.subjects import inbox_stream


def room_of(js: JetStreamContext, pool: str, every_s: float = ASK_S) -> StreamRoom:
    """Asked for every `every_s`, once it runs."""
    return StreamRoom(partial(_streams_of, js, pool), every_s)


async def _streams_of(js: JetStreamContext, pool: str) -> list[StreamInfo]:
    """Where a submit goes, and where its decision will."""
    names = (inbox_stream(pool), (await readable(js, pool))[-1].name)
    return [await js.stream_info(name) for name in names]
