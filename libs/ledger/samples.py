"""Samples of devices, as the broker keeps them (stream TELEMETRY). One of another node, or that cannot be read, counts for
nothing."""

from collections.abc import Iterable, Iterator

from libs.bus.messages import Malformed, decode_bare
from libs.ledger.tail import Stored
from schemas.nodes import NodeSampled
from schemas.subjects import node_of, sample


def told_by(found: Iterable[Stored], pool: str) -> Iterator[tuple[int, NodeSampled]]:
    """(the broker's time, sample), of one pool."""
    own = sample(pool).rpartition(".")[0] + "."
    for stored in found:
        told = _told(stored) if stored.subject.startswith(own) else None
        if told is not None:
            yield stored.time_us, told


def _told(stored: Stored) -> NodeSampled | None:
    try:
        _, told = decode_bare(NodeSampled, stored.subject, stored.headers, stored.payload)
    except Malformed:
        return None
    return told if told.node == node_of(stored.subject) else None
