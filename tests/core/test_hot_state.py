"""Rows of the present, as they are told with each record."""

from libs.core.projections.hot_state import HotState, encode
from schemas import inbox
from tests.core.builders import World, job, node


def test_what_a_record_told_stays_as_it_was_told() -> None:
    """Later records change the same rows; what was told may be written into Redis long after."""
    world, state = World(node("a", 2), node("b", 2)), HotState()
    gang = world.submit(job("gang", 3))
    world.started(gang)
    world.released(gang)
    world.send(inbox.QuotaChanged(team="research", limit_milli=9000))
    world.submit(job("after", 4))
    told = [state.apply(record, seq) for seq, record in enumerate(world.records, 1)]
    state = HotState()
    for seq, (record, deltas) in enumerate(zip(world.records, told, strict=True), 1):
        anew = [(d.table, d.key, d.value and encode(d.value)) for d in state.apply(record, seq)]
        assert [(d.table, d.key, d.value and encode(d.value)) for d in deltas] == anew
