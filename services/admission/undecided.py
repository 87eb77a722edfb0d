"""Jobs that were admitted to a pool and that its placement has not decided yet, read from the pool's inbox.

An admission process that died between storing a job in one inbox and acknowledging its request gets the request again.
The ledger does not show the job yet; without this look it could be sent to another pool as well.
"""

import logging
from functools import partial

from nats.js import JetStreamContext
from nats.js.api import StreamState

from libs.bus.patience import patiently
from libs.ledger.inputs import read_input
from libs.ledger.tail import Tail
from schemas.inbox import JobAdmitted
from schemas.subjects import inbox_stream

log = logging.getLogger("baton.admission")

_WAIT_S = 1.0


async def undecided(js: JetStreamContext, pool: str, decided: int) -> list[str]:
    """Ids of the jobs in the pool's inbox after the message `decided` (0: none), in order. A broker that is away or slow is
    waited for; a message that cannot be read names no job."""
    stream = inbox_stream(pool)
    state = await _state(js, stream)
    begin = max(decided, state.first_seq - 1)
    if begin >= state.last_seq:
        return []
    tail = Tail(js, stream, begin, may_expire=True)
    found: list[str] = []
    try:
        while tail.position < state.last_seq:
            batch = await tail.messages(256, _WAIT_S)
            for stored in batch:
                message = read_input(stored, pool).message
                if isinstance(message, JobAdmitted):
                    found.append(message.job_id)
            if not batch and (await _state(js, stream)).first_seq > state.last_seq:
                break  # all of them were decided and taken out of the inbox meanwhile
    finally:
        await tail.close(tail.position)
    return found


async def _state(js: JetStreamContext, stream: str) -> StreamState:
    def away(error: Exception, failures: int) -> None:
        log.warning("stream %s cannot be read: %r", stream, error)

    return (await patiently(partial(js.stream_info, stream), away)).state
