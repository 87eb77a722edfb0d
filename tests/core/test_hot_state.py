"""Rows of the present, as they are told with each record."""

from libs.core.projections.hot_state import HotState, encode
from schemas import inbox
from tests.core.builders import World, job, node
from tests.core.test_repartition import THREE, ask, carry_out, one_busy, tick


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


def test_a_board_that_a_silent_node_has_cut_makes_it_no_less_silent() -> None:
    """Its agent may report to the pool while leases does not hear it. Seen: it was shown as up."""
    world, _ = one_busy()
    world.submit(ask("waits", THREE))
    (recut,) = tick(world, 31)
    world.send(inbox.NodeSilent(node=recut.node, incarnation=1, silent_s=16))
    since_us = world.now_us
    carry_out(world, recut)
    state = HotState()
    for seq, record in enumerate(world.records, 1):
        state.apply(record, seq)
    row = state.nodes[recut.node]
    assert recut.node in world.decider.state.silent
    assert (row["status"], row["since_us"]) == ("silent", since_us)
    assert row["devices"] == [device.id for device in world.decider.state.fleet.nodes[recut.node].inventory.devices]
