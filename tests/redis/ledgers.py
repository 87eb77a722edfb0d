"""Random valid ledgers as real chains: records of a world, linked, and stored in a pool's stream."""

from collections.abc import Iterable
from dataclasses import dataclass

from nats.js import JetStreamContext

from libs.core.projections.hot_state import Delta, HotState, encode
from libs.ledger.chain import encode as encode_record
from schemas import subjects
from schemas.ledger import LedgerRecord


@dataclass(frozen=True)
class Stored:
    seq: int
    record: LedgerRecord
    payload: bytes
    hash: str


def chain(pool: str, records: Iterable[LedgerRecord], head: tuple[int, str] = (0, "")) -> list[Stored]:
    """The records as they would be stored one after the other behind `head`."""
    out = []
    for record in records:
        linked = record.model_copy(update={"pool": pool, "prev_seq": head[0], "prev_hash": head[1]})
        payload, digest = encode_record(linked)
        head = (head[0] + 1, digest)
        out.append(Stored(head[0], linked, payload, digest))
    return out


def batches(ledger: list[Stored], state: HotState) -> list[tuple[int, str, list[Delta]]]:
    """What `Projection.apply` takes, one entry per record; `state` is folded on the way."""
    return [(s.seq, s.hash, state.apply(s.record, s.seq)) for s in ledger]


async def store(js: JetStreamContext, pool: str, ledger: Iterable[Stored]) -> None:
    for stored in ledger:
        ack = await js.publish(subjects.ledger(pool), stored.payload)
        assert ack.seq == stored.seq


def tables(state: HotState) -> dict[str, dict[str, str]]:
    """The fold as Redis should hold it."""
    out: dict[str, dict[str, str]] = {"nodes": {}, "devices": {}, "teams": {}, "jobs": {}}
    for table, key, row in state.rows():
        assert row is not None
        out[table][key] = encode(row)
    return out
