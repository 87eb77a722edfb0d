"""Whether who seals a period knew its ledger: the seal names a record by its hash, and none of the period is behind that one.

A seal is for good, and what is posted behind its record is billed later. So one that lies could never be mended, and one that
lags would move what was billed already.
"""

from nats.js import JetStreamContext

from libs.core.state.moments import text_of
from libs.ledger.chain import Head, judge
from libs.ledger.segments import stored_at
from schemas.ids import content_hash
from schemas.prices import ClosedPeriod

_MOST_VOID = 100
"""So many messages behind the record are looked at for the next record: what a writer stored that came too late is none."""
_AGAIN = "close the period with `baton bill close`, which reads this pool's ledger"


async def unknown_ledger(js: JetStreamContext, pool: str, head: Head, period: ClosedPeriod) -> str:
    """Why a seal is not of the ledger that ends with `head`; "" when it is. Raises nats errors."""
    upto = period.upto_seq
    if not 0 < upto <= head.seq:
        return (
            f"upto_seq = {upto}: the ledger's last record is {head.seq}, and a seal names one that is there; {_AGAIN}"
        )
    payload = await stored_at(js, pool, upto)
    if payload is None:
        return f"upto_seq = {upto}: the broker does not keep that record any more; {_AGAIN}"
    known = Head(upto, content_hash(payload))
    if period.head != known.hash:
        return f"head = {period.head[:16]}: record {upto} of this ledger has the hash {known.hash[:16]}; {_AGAIN}"
    for seq in range(upto + 1, min(head.seq, upto + _MOST_VOID) + 1):
        payload = await stored_at(js, pool, seq)
        entry = judge(known, pool, seq, payload, 0) if payload is not None else None
        if entry is not None and entry.valid:
            record = entry.record
            wall_us = record.wall_us if record.wall_us is not None else record.t_us
            if wall_us < period.to_us:
                return (
                    f"upto_seq = {upto}: record {seq} came after it at {text_of(wall_us)}, before the period ends at "
                    f"{text_of(period.to_us)}: the seal does not know all of the period; {_AGAIN}"
                )
            break
    return ""
