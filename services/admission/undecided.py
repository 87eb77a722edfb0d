"""Jobs that were admitted to a pool and that its placement has not decided yet, read from the pool's inbox.

An admission process that died between storing a job in an inbox and acknowledging its request gets the request again. The
ledger does not show the job yet; without this look-up it could be sent to another pool as well.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from nats.js import JetStreamContext
from nats.js.api import StreamState

from libs.bus.retry import retry_while_away
from libs.ledger.inputs import read_input
from libs.ledger.tail import Stored, Tail
from schemas import ids
from schemas.inbox import CancelRequested, JobAdmitted
from schemas.subjects import inbox_stream, is_of_a_node

log = logging.getLogger("baton.admission")

_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Undecided:
    """`answer` names the request's place (`schemas.ids.answer_id`); `job` is the job that was admitted, "" of a cancel."""

    answer: str
    job: str = ""


async def undecided(js: JetStreamContext, pool: str, decided: int) -> tuple[list[Undecided], int]:
    """What was passed on to the pool after the message `decided` of its inbox (0: none), in order; and up to where the inbox
    was read. A broker that is away or slow is waited for; a message that cannot be read is none of them."""
    stream = inbox_stream(pool)
    state = await _state(js, stream)
    begin = max(decided, state.first_seq - 1)
    found: list[Undecided] = []
    if begin >= state.last_seq:
        return found, state.last_seq
    tail = Tail(js, stream, begin, may_expire=True)
    try:
        while tail.position < state.last_seq:
            batch = await tail.messages(256, _WAIT_S)
            found += [one for stored in batch if (one := _passed_on(stored, pool)) is not None]
            if not batch and (await _state(js, stream)).first_seq > state.last_seq:
                break  # all of them were decided and taken out of the inbox meanwhile
    finally:
        await tail.close(tail.position)
    return found, max(state.last_seq, tail.position)


async def read(js: JetStreamContext, pool: str, seqs: Collection[int]) -> dict[int, Stored]:
    """Those messages of the pool's inbox, by their sequences, of which there is at least one. What is gone, or is not to be had
    at once, is not among them. Raises nats errors."""
    tail = Tail(js, inbox_stream(pool), min(seqs) - 1, may_expire=True)
    found: dict[int, Stored] = {}
    try:
        while tail.position < max(seqs) and (batch := await tail.messages(256, _WAIT_S)):
            found |= {stored.seq: stored for stored in batch if stored.seq in seqs}
    finally:
        await tail.close(tail.position)
    return found


def _passed_on(stored: Stored, pool: str) -> Undecided | None:
    if is_of_a_node(stored.subject):
        return None  # what nodes say may be large
    match read_input(stored, pool).message:
        case JobAdmitted() as m:
            return Undecided(ids.answer_id(m.cause, m.submitted_us), m.job_id)
        case CancelRequested() as m:
            return Undecided(ids.answer_id(stored.headers.get("ce-causationid", ""), m.requested_us))
        case _:
            return None


async def _state(js: JetStreamContext, stream: str) -> StreamState:
    def away(error: Exception, failures: int) -> None:
        log.warning("stream %s cannot be read: %r", stream, error)

    return (await retry_while_away(partial(js.stream_info, stream), away)).state
