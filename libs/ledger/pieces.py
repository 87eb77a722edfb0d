"""A decision that is larger than one record is written as several, each of which leaves a state to go on from. Pure.

The naive way is to decide fewer inputs at once. But one input alone may lead to more than the broker takes: a node is lost on
which 1,600 jobs ran. So the decider marks in its events where a record may end. A record says which inputs it has
decided; in the midst of one input's events that is still the input before. Whoever dies between two records, or takes over,
decides that input again, in a state that knows what was done.
"""

from collections.abc import Sequence
from typing import NamedTuple

from libs.bus.messages import payload_room
from schemas.ledger import LedgerEvent

RECORD_BYTES = 2048
"""Of a record beside its events: what its clock says, mostly."""
_BESIDE_EVENT_BYTES = 1024
"""Of what is decided with an event before a record may end, e.g. the end of a hold."""


def largest_event(max_payload: int) -> int:
    """Bytes of one event, if the broker takes messages of `max_payload` bytes: an event is not taken apart."""
    return payload_room(max_payload) - RECORD_BYTES - _BESIDE_EVENT_BYTES


class InputTooLarge(RuntimeError):
    """What one input leads to cannot be taken apart and is more than the broker takes. `inbox_seq` is that input, 0 when it
    was none."""

    def __init__(self, inbox_seq: int, size: int, most: int) -> None:
        super().__init__(f"it leads to a record of {size} bytes, and the broker takes {most}: raise its max_payload")
        self.inbox_seq = inbox_seq


class Piece(NamedTuple):
    """What one record says: events, and the last input that is decided then."""

    events: tuple[LedgerEvent, ...]
    inbox_seq: int
    more: bool = False
    """Another piece of the decision follows."""


def pieces(
    events: Sequence[LedgerEvent],
    record_ends: Sequence[tuple[int, int]],
    inputs: Sequence[int],
    *,
    decided_to: int,
    wanted: int,
    most: int,
) -> list[Piece]:
    """`events` in pieces of up to `wanted` bytes that end at `record_ends`; where two of those are further apart, of up to
    `most`.

    `record_ends` are pairs (`RecordEnd`): after so many events, the inputs up to that sequence are decided. `inputs` are
    the sequences of what was decided, `decided_to` the last one before them. Raises InputTooLarge.
    """
    sizes = [len(event.__pydantic_serializer__.to_json(event)) + 1 for event in events]
    out: list[Piece] = []
    begin = end = size = 0
    decided = decided_to
    for at, inbox_seq in record_ends:
        extra = sum(sizes[end:at])
        if extra > most:
            raise InputTooLarge(next((seq for seq in inputs if seq > decided), 0), extra, most)
        if end > begin and size + extra > wanted:
            out.append(Piece(tuple(events[begin:end]), decided, more=True))
            begin, size = end, 0
        end, size, decided = at, size + extra, inbox_seq
    last = sum(sizes[end:])
    if last > most:
        raise InputTooLarge(next((seq for seq in inputs if seq > decided), 0), last, most)
    if last and end > begin and size + last > wanted:
        out.append(Piece(tuple(events[begin:end]), decided, more=True))
        begin = end
    out.append(Piece(tuple(events[begin:]), inputs[-1]))
    return out
