"""Jobs that were admitted to a pool and that its placement has not decided yet, read from the pool's inbox.

An admission process that died between storing a job in one inbox and acknowledging its request gets the request again.
The ledger does not show the job yet; without this look it could be sent to another pool as well.
"""

from nats.js import JetStreamContext

from libs.ledger.inputs import read_input
from libs.ledger.tail import Tail
from schemas.inbox import JobAdmitted
from schemas.ledger import LedgerRecord
from schemas.subjects import inbox_stream, ledger_stream

_WAIT_S = 1.0


async def undecided(js: JetStreamContext, pool: str, head_seq: int) -> list[str]:
    """Ids of the jobs in the inbox after what the ledger's record at `head_seq` (0: none) decides, in order."""
    stream = inbox_stream(pool)
    state = (await js.stream_info(stream)).state
    last, begin = state.last_seq, max(await _decided_to(js, pool, head_seq), state.first_seq - 1)
    if begin >= last:
        return []
    tail = Tail(js, stream, begin, may_expire=True)
    found: list[str] = []
    try:
        while tail.position < last:
            for stored in await tail.messages(256, _WAIT_S):
                message = read_input(stored, pool).message
                if isinstance(message, JobAdmitted):
                    found.append(message.job_id)
    finally:
        await tail.close(tail.position)
    return found


async def _decided_to(js: JetStreamContext, pool: str, head_seq: int) -> int:
    if head_seq == 0:
        return 0
    stored = await js.get_msg(ledger_stream(pool), seq=head_seq)
    return LedgerRecord.model_validate_json(stored.data or b"").inbox_seq
