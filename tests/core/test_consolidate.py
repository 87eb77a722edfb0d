"""Consolidation: moves that really open the block, never cost more than it is worth, and are found when one move would do."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.placement.answer import Placed
from libs.core.placement.consolidate import Effort, Movable, Proposal, block_gain, propose
from libs.core.placement.find import find
from libs.core.placement.search.topology import span_of
from libs.core.placement.view import View
from libs.core.state.fleet import Fleet
from libs.core.state.levels import LEVELS
from libs.core.state.shape import Shape
from schemas.resources import Device, Inventory, Level
from tests.core.builders import GIB, node


def fleet_of(*nodes) -> Fleet:
    fleet = Fleet()
    for inventory in nodes:
        fleet.join(inventory, 1)
    return fleet


def running(view: View, job: str, devices: list[str], *, milli: int = 1000, cost: float = 10.0) -> Movable:
    """A job that runs on `devices` of the view from now on."""
    rows = np.array([view.fleet.row(d) for d in devices], dtype=np.int64)
    shape = Shape(devices=len(rows), milli=milli)
    view.take(rows, shape)
    return Movable(job, rows, shape, cost)


def applied(view: View, proposal: Proposal, movable: list[Movable]) -> View:
    """What is free after the moves: all stop, then each starts at its new place."""
    after, shapes = view.copy(), {m.job: m.shape for m in movable}
    for move in proposal.moves:
        after.give_back(move.rows_from, shapes[move.job])
    for move in proposal.moves:
        after.take(move.rows_to, shapes[move.job])
    return after


def within_capacity(view: View) -> bool:
    up = view.fleet.up
    return bool(
        (view.free_milli[up] >= 0).all()
        and (view.free_milli[up] <= 1000).all()
        and (view.free_mib[up] >= 0).all()
        and (view.free_mib[up] <= view.fleet.memory_mib[up]).all()
    )


def test_a_single_device_job_moves_so_that_a_whole_node_opens():
    view = View.of(fleet_of(node("a", 4), node("b", 4)))
    one, two = running(view, "one", ["a-gpu0"]), running(view, "two", ["b-gpu0", "b-gpu1"], cost=50)
    want = Shape(devices=4)
    assert not isinstance(find(view, replace(want, required=True)), Placed)
    found = propose(view, [two, one], want, gain=100)
    assert found is not None
    assert [m.job for m in found.moves] == ["one"]
    assert {view.fleet.devices.names[r] for r in found.block} == {f"a-gpu{i}" for i in range(4)}
    assert (found.cost, found.gain) == (10, 100)


def test_nothing_moves_when_the_block_is_worth_less_than_the_move():
    view = View.of(fleet_of(node("a", 4), node("b", 4)))
    movable = [running(view, "one", ["a-gpu0"], cost=100), running(view, "two", ["b-gpu0"], cost=90)]
    assert propose(view, movable, Shape(devices=4), gain=90) is None
    assert propose(view, movable, Shape(devices=4), gain=91) is not None


def test_nothing_moves_when_the_block_is_open_as_things_are():
    view = View.of(fleet_of(node("a", 4), node("b", 4)))
    assert propose(view, [running(view, "one", ["a-gpu0"])], Shape(devices=4), gain=1e9) is None


def test_the_block_is_on_one_node_also_when_the_gang_would_take_two():
    view = View.of(fleet_of(node("a", 4), node("b", 4)))
    movable = [running(view, "one", ["a-gpu0"]), running(view, "two", ["b-gpu0"])]
    assert isinstance(find(view, Shape(devices=4)), Placed), "preferred: it would fit across nodes"
    found = propose(view, movable, Shape(devices=4), gain=100)
    assert found is not None
    assert len({int(view.fleet.node[r]) for r in found.block}) == 1


def test_a_share_moves_in_beside_another_share():
    view = View.of(fleet_of(node("a", 2), node("b", 2)))
    movable = [
        running(view, "half", ["a-gpu0"], milli=500),
        running(view, "other", ["b-gpu0"], milli=400, cost=20),
        running(view, "whole", ["b-gpu1"], cost=1000),
    ]
    found = propose(view, movable, Shape(devices=2), gain=100)
    assert found is not None
    assert [(m.job, view.fleet.devices.names[m.rows_to[0]]) for m in found.moves] == [("half", "b-gpu0")]


def test_a_device_with_somebody_who_cannot_move_is_left_alone():
    view = View.of(fleet_of(node("a", 1), node("b", 2)))
    movable = [running(view, "half", ["b-gpu0"], milli=500, cost=1)]
    running(view, "pinned", ["b-gpu0"], milli=100)
    assert propose(view, movable, Shape(devices=2), gain=100) is None


def test_a_gang_is_never_torn_apart_to_make_room():
    view = View.of(fleet_of(node("a", 4), node("b", 4), node("c", 4)))
    pair = running(view, "pair", ["a-gpu0", "a-gpu1"], cost=1)
    running(view, "b", [f"b-gpu{i}" for i in range(3)])
    running(view, "c", [f"c-gpu{i}" for i in range(3)])
    assert isinstance(find(view, Shape(devices=2)), Placed)
    assert propose(view, [pair], Shape(devices=4), gain=100) is None


def test_a_job_moves_to_the_other_nvlink_island_of_its_node():
    islands = tuple(
        Device(id=f"a-gpu{i}", index=i, model="H100", memory_mib=80 * GIB, nvlink_domain=f"island-{i // 2}")
        for i in range(4)
    )
    view = View.of(fleet_of(Inventory(node="a", devices=islands)))
    movable = [running(view, "one", ["a-gpu0"], cost=2), running(view, "two", ["a-gpu3"], cost=1)]
    found = propose(view, movable, Shape(devices=2, level=Level.NVLINK), gain=100)
    assert found is not None
    assert [(m.job, view.fleet.devices.names[m.rows_to[0]]) for m in found.moves] == [("two", "a-gpu1")]
    assert found.block.tolist() == [2, 3]


def test_several_jobs_move_when_one_is_not_enough():
    view = View.of(fleet_of(node("a", 4), node("b", 4)))
    movable = [running(view, f"a{i}", [f"a-gpu{i}"], cost=5) for i in range(2)]
    movable += [running(view, f"b{i}", [f"b-gpu{i}"], cost=7) for i in range(2)]
    found = propose(view, movable, Shape(devices=4), gain=100)
    assert found is not None
    assert [m.job for m in found.moves] == ["a0", "a1"]
    assert found.cost == 10


def test_a_block_is_worth_what_waiting_jobs_would_use_of_it():
    assert block_gain(8, waiting=3, mean_run_s=100, horizon_s=3600) == 2400
    assert block_gain(8, waiting=300, mean_run_s=100, horizon_s=3600) == 8 * 3600
    assert block_gain(8, waiting=0, mean_run_s=100, horizon_s=3600) == 0


@st.composite
def pools(draw, nodes: int = 4, size: int = 4):
    """A random pool, partly filled at random with shares, single devices and gangs on one node; some cannot move."""
    sizes = draw(st.lists(st.integers(1, size), min_size=1, max_size=nodes))
    view = View.of(fleet_of(*(node(f"n{i}", k, leaf=f"leaf-{i // 2}") for i, k in enumerate(sizes))))
    movable = []
    for j in range(draw(st.integers(0, nodes * size))):
        at, milli = draw(st.integers(0, len(sizes) - 1)), draw(st.sampled_from([1000, 1000, 500, 300]))
        devices = draw(st.integers(1, 2)) if milli == 1000 else 1
        free = np.flatnonzero((view.fleet.node == at) & view.fleet.up & (view.free_milli >= milli))
        if len(free) < devices:
            continue
        rows = np.array(draw(st.permutations(free.tolist()))[:devices], dtype=np.int64)
        names = [view.fleet.devices.names[r] for r in rows]
        job = running(view, f"j{j:02}", names, milli=milli, cost=float(draw(st.integers(1, 50))))
        if draw(st.integers(0, 4)):
            movable.append(job)
    want = Shape(devices=draw(st.integers(1, size)), level=draw(st.sampled_from([Level.NODE, Level.NODE, Level.LEAF])))
    return view, movable, want, float(draw(st.integers(1, 200)))


@settings(max_examples=150, deadline=None)
@given(pools())
def test_after_the_moves_the_block_is_free_and_nothing_is_overcommitted(pool):
    view, movable, want, gain = pool
    free_before = view.free_milli.copy()
    found = propose(view, movable, want, gain)
    assert (view.free_milli == free_before).all(), "the view is read only"
    again = propose(view, list(reversed(movable)), want, gain)
    assert repr(found) == repr(again), "the order of the movers does not matter"
    if found is None:
        return
    assert not isinstance(find(view, replace(want, required=True)), Placed)
    assert found.cost == pytest.approx(sum(m.cost_gpu_s for m in movable if m.job in {x.job for x in found.moves}))
    assert found.cost < found.gain == gain
    after = applied(view, found, movable)
    assert within_capacity(after)
    assert (after.free_milli[found.block] == 1000).all(), "nobody moves onto the block"
    assert len(found.block) == want.devices
    assert isinstance(find(after, replace(want, required=True)), Placed)
    for move in found.moves:
        assert len(move.rows_to) == len(move.rows_from)
        assert LEVELS.index(span_of(view.fleet, move.rows_to)) <= LEVELS.index(span_of(view.fleet, move.rows_from))


def one_move_would_do(view: View, movable: list[Movable], want: Shape, gain: float) -> bool:
    """Brute force: some job cheaper than `gain` whose place, given up for another one, completes a block."""
    for mover in movable:
        without = view.copy()
        without.give_back(mover.rows, mover.shape)
        for at in range(len(view.fleet.nodes)):
            whole = np.flatnonzero((view.fleet.node == at) & view.fleet.up & (without.free_milli == 1000))
            if mover.cost_gpu_s >= gain or len(whole) < want.devices:
                continue
            kept = sorted(whole.tolist(), key=lambda r: r in mover.rows, reverse=True)[: want.devices]
            after = without.copy()
            after.take(np.array(kept), want)
            fits = [
                np.count_nonzero((view.fleet.node == n) & view.fleet.up & (after.free_milli >= mover.shape.milli))
                >= len(mover.rows)
                for n in range(len(view.fleet.nodes))
            ]
            if any(fits):
                return True
    return False


@settings(max_examples=300, deadline=None)
@given(pools(nodes=3, size=3))
def test_when_one_move_would_do_a_proposal_is_found(pool):
    view, movable, want, gain = pool
    want = replace(want, level=Level.NODE, required=True)
    if isinstance(find(view, want), Placed):
        assert propose(view, movable, want, gain) is None
    elif one_move_would_do(view, movable, want, gain):
        assert propose(view, movable, want, gain) is not None


def test_effort_bounds_what_is_tried():
    view = View.of(fleet_of(node("a", 4), node("b", 4)))
    movable = [running(view, "one", ["a-gpu0"]), running(view, "two", ["b-gpu0"])]
    assert propose(view, movable, Shape(devices=4), 100, Effort(tries=0)) is None
