"""Samples of devices, as the broker keeps them (stream TELEMETRY). One of another node, or that cannot be read, counts for
nothing; nor does what a node sends beyond what agents do, as each sample is kept in memory until its time has settled."""

from collections.abc import Iterable, Iterator
from typing import Final

from libs.bus.messages import Malformed, decode_bare
from libs.core.admission.intake import Buckets
from libs.ledger.tail import Stored
from schemas.nodes import NodeSampled
from schemas.subjects import node_of, sample

SAMPLES_AT_ONCE: Final = 16.0
SAMPLES_PER_S: Final = 0.1
"""Of a node. Agents send one in 15 s; of one that sends more, some count, and each speaks for the time since the last."""


class SampleAllowance:
    """What is left of it to each node, by the broker's clock."""

    def __init__(self) -> None:
        self._left: Buckets[str] = Buckets()

    def take(self, stored: Stored) -> bool:
        """Whether this sample of a node counts."""
        left = self._left.of(stored.subject, SAMPLES_AT_ONCE, stored.time_us)
        return not left.take(SAMPLES_AT_ONCE, SAMPLES_PER_S, stored.time_us)


def told_by(found: Iterable[Stored], pool: str, allowance: SampleAllowance) -> Iterator[tuple[int, NodeSampled]]:
    """(the broker's time, sample), of one pool."""
    own = sample(pool).rpartition(".")[0] + "."
    for stored in found:
        told = _told(stored) if stored.subject.startswith(own) and allowance.take(stored) else None
        if told is not None:
            yield stored.time_us, told


def _told(stored: Stored) -> NodeSampled | None:
    try:
        _, told = decode_bare(NodeSampled, stored.subject, stored.headers, stored.payload)
    except Malformed:
        return None
    return told if told.node == node_of(stored.subject) else None
