"""Metadata of a delivered message, which the broker puts into the subject of the acknowledgement."""

from typing import NamedTuple


class Delivery(NamedTuple):
    stream: str
    deliveries: int
    """This one included: 1 the first time."""
    seq: int
    """In the stream."""
    consumer_seq: int
    time_us: int
    """When the broker stored it, by its clock; what is smaller than a microsecond is cut off. nats-py's own
    `metadata.timestamp` goes through a float and is one microsecond off now and then."""
    pending: int
    """Messages still to come."""


def delivery(reply: str) -> Delivery:
    """Of `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>`; the newer form has domain
    and account before the stream (and may have a random token at the end). Raises ValueError for anything else."""
    parts = reply.split(".")
    at = 2 if len(parts) == 9 else 4
    if not reply.startswith("$JS.ACK.") or len(parts) < at + 7:
        raise ValueError(f"{reply!r} is not the acknowledgement's subject of a delivery")
    deliveries, seq, consumer_seq, ns, pending = (int(part) for part in parts[at + 2 : at + 7])
    return Delivery(parts[at], deliveries, seq, consumer_seq, ns // 1000, pending)
