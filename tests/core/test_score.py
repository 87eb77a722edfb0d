"""Scores: the compiled walk against a plain one, caching that changes nothing, prices that follow the stock."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.placement.answer import Blocked, Placed
from libs.core.placement.find import find
from libs.core.placement.score import weights
from libs.core.placement.score.arrays import Buyers
from libs.core.placement.score.kernels import clear
from libs.core.placement.score.mix import Mix, RequestKind, kind_of, sample
from libs.core.placement.score.scorer import MARKET, Scorer, Settings
from libs.core.placement.view import Context, View
from libs.core.state.fleet import Fleet
from libs.core.state.shape import Shape
from schemas.resources import Device, Inventory

SMALL = Settings(streams=16, length=12, memo=1 << 10, first_build=4, thinnings=0)


def fleet_of(*nodes: tuple[str, int, int]) -> Fleet:
    """A node per (model, devices, processors)."""
    fleet = Fleet()
    for i, (model, count, cpus) in enumerate(nodes):
        devices = tuple(Device(id=f"d{i}-{j}", index=j, model=model, memory_mib=1000) for j in range(count))
        fleet.join(Inventory(node=f"n{i}", devices=devices, cpus=cpus, memory_mib=100_000), 1)
    return fleet


def request(devices: int = 1, milli: int = 1000, cpu: int = 1000, types: tuple[str, ...] = ()) -> Shape:
    return Shape(devices=devices, milli=milli, cpu_milli=cpu, types=types, objective="any")


def scored(fleet: Fleet, *prior: tuple[Shape, float]) -> tuple[View, Scorer]:
    scorer = Scorer(Mix.expecting((kind_of(shape), share) for shape, share in prior), SMALL)
    fleet.scorer = scorer
    view = View.of(fleet)
    scorer.upkeep(view)
    return view, scorer


def test_a_sample_has_each_kind_as_often_as_its_share_says() -> None:
    drawn = sample([0.5, 0.3, 0.2], 1000)
    assert np.bincount(drawn).tolist() == [500, 300, 200]
    assert drawn[:20].tolist() != sorted(drawn[:20].tolist())


def test_what_arrives_outweighs_the_prior_in_time() -> None:
    a, b = kind_of(request(1)), kind_of(request(8))
    mix = Mix.expecting([(a, 1.0)])
    for _ in range(weights.PRIOR_ARRIVALS):
        mix.observe(b)
    assert mix.shares() == {a: 0.5, b: 0.5}


def test_nothing_is_scored_before_something_is_known() -> None:
    fleet = fleet_of(("G", 2, 8))
    fleet.scorer = scorer = Scorer(settings=SMALL)
    view = View.of(fleet)
    for _ in range(SMALL.first_build):
        scorer.upkeep(view)
        assert scorer.costs(view, request()) is None
        assert isinstance(find(view, request()), Placed)
        scorer.observe(request())
    scorer.upkeep(view)
    assert scorer.costs(view, request()) is not None


def test_a_share_goes_where_the_rest_is_still_of_use() -> None:
    """Beside 600 used, a share of 400 fills the device; on the empty one it would spoil it for whole requests."""
    fleet = fleet_of(("G", 1, 8), ("G", 1, 8))
    view, _ = scored(fleet, (request(milli=400), 0.5), (request(), 0.5))
    view.take(np.array([1]), request(milli=600))
    found = find(view, request(milli=400))
    assert isinstance(found, Placed)
    assert found.rows.tolist() == [1]


def test_requests_for_processors_alone_leave_them_beside_devices() -> None:
    fleet = fleet_of(("G", 4, 16), ("T", 1, 16))
    view, _ = scored(fleet, (request(cpu=4000), 0.9), (request(0, 0, 8000), 0.1))
    found = find(view, request(0, 0, 8000))
    assert isinstance(found, Placed)
    assert found.node == 1
    assert len(found.rows) == 0


def test_a_kind_that_only_one_class_serves_makes_that_class_dear() -> None:
    room = np.array([10_000.0, 10_000.0])
    access = np.array([[True, True], [True, False]])
    rho = clear(room, Buyers(access, np.array([0.2, 0.8])), np.zeros(2), 1.05, MARKET)
    assert rho[0] > 0.2
    assert rho[1] == 0


def test_an_indifferent_request_leaves_the_scarce_class_alone() -> None:
    fleet = fleet_of(*[("SCARCE", 4, 64)] * 2, *[("PLENTY", 4, 64)] * 4)
    view, _ = scored(fleet, (request(types=("SCARCE",)), 0.7), (request(), 0.3))
    found = find(view, request())
    assert isinstance(found, Placed)
    assert fleet.models.names[int(fleet.model[found.rows[0]])] == "PLENTY"


def test_where_places_come_back_a_class_that_some_are_bound_to_is_left_to_them() -> None:
    """They will not need all of it, and its node has the processors to spare; but a job may stay there for weeks."""
    fleet = fleet_of(("BOUND", 4, 64), *[("OTHER", 4, 32)] * 3)
    wanted = (request(cpu=8000, types=("BOUND",)), 0.2), (request(cpu=8000), 0.8)
    view, scorer = scored(fleet, *wanted)
    for left, model in ((1_000_000, "OTHER"), (0, "BOUND")):
        scorer.restore({**scorer.dump(), "arrived": 1_000_000, "left": left})
        scorer.upkeep(view)
        found = find(view, request(cpu=12_000))
        assert isinstance(found, Placed)
        assert fleet.models.names[int(fleet.model[found.rows[0]])] == model


def test_a_mix_is_the_same_after_a_snapshot_and_forgets_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.core.placement.score.weights.MIX_HORIZON", 100)
    mix = Mix.expecting([(kind_of(request(types=("A", "B"))), 1.0)])
    for i in range(170):
        mix.observe(kind_of(request(1 if i < 90 else 2)))
    again = Mix.load(json.loads(json.dumps(mix.dump())))
    assert again == mix
    assert again.arrived == 170
    assert again.counts == {kind_of(request(1)): 22, kind_of(request(2)): 47}


def test_a_latency_critical_request_asks_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of(("G", 2, 8))
    view, scorer = scored(fleet, (request(), 1.0))

    def refuse(*_: Any) -> None:
        raise AssertionError("the fast path asked for scores")

    monkeypatch.setattr(scorer, "costs", refuse)
    assert isinstance(find(view, request(), context=Context(fast=True)), Placed)


requests = st.builds(
    lambda kind, cpu: request(*kind, cpu=cpu),
    st.sampled_from([(1, 1000), (2, 1000), (4, 1000), (1, 500), (1, 810), (1, 160), (0, 0)]),
    st.sampled_from([0, 500, 3000, 8000]),
)
nodes = st.tuples(st.sampled_from(["A", "B"]), st.sampled_from([1, 2, 4]), st.sampled_from([4, 16]))


@settings(max_examples=40, deadline=None)
@given(st.lists(nodes, min_size=1, max_size=5), st.lists(requests, min_size=1, max_size=25), st.data())
def test_scored_placements_are_feasible_and_depend_on_the_state_alone(
    shapes: list[tuple[str, int, int]], arrivals: list[Shape], data: st.DataObject
) -> None:
    """Nothing is over-committed; nothing that fits is refused; a scorer without memory answers the same."""
    prior = [(request(), 0.4), (request(milli=500), 0.3), (request(4), 0.1), (request(0, 0, 3000), 0.2)]
    view, scorer = scored(fleet_of(*shapes), *prior)
    placed: list[tuple[Shape, Placed]] = []
    for shape in arrivals:
        if placed and data.draw(st.booleans(), label="one leaves"):
            old, where = placed.pop(data.draw(st.integers(0, len(placed) - 1)))
            if old.devices:
                view.give_back(where.rows, old)
            else:
                view.take_processors(where.node, -old.cpu_milli, 0)
        found = find(view, shape)
        if isinstance(found, Blocked):
            assert not _fits_somewhere(view, shape)
            continue
        placed.append((shape, found))
        if shape.devices:
            assert len(set(found.rows.tolist())) == shape.devices
            view.take(found.rows, shape)
        else:
            view.take_processors(found.node, shape.cpu_milli, 0)
        assert view.free_milli.min() >= 0
        assert view.free_cpu.min() >= 0
    fresh = Scorer(scorer.mix, SMALL)
    fresh.upkeep(view)
    fresh._rho, fresh._beta = scorer._rho, scorer._beta
    remembered, anew = scorer.costs(view, arrivals[-1]), fresh.costs(view, arrivals[-1])
    assert remembered is not None
    assert anew is not None
    assert np.allclose(remembered[0], anew[0])


def _fits_somewhere(view: View, shape: Shape) -> bool:
    """Plainly: one model, enough devices in the pool that their nodes can serve."""
    fleet = view.fleet
    if not shape.devices:
        return any(view.free_cpu[fleet.node_names.find(n)] >= shape.cpu_milli for n in fleet.nodes)
    by_model: dict[int, int] = {}
    for name, node in fleet.nodes.items():
        rows = np.array(node.rows)
        fits = int(np.count_nonzero(view.free_milli[rows] >= shape.milli))
        cpu = int(view.free_cpu[fleet.node_names.find(name)])
        able = min(fits, cpu // shape.cpu_milli) if shape.cpu_milli else fits
        model = int(fleet.model[rows[0]])
        by_model[model] = by_model.get(model, 0) + able
    return any(total >= shape.devices for total in by_model.values())


def test_the_compiled_value_is_what_a_plain_walk_gives() -> None:
    fleet = fleet_of(("A", 2, 8), ("B", 4, 8))
    mix = [(request(), 0.4), (request(milli=300, cpu=700), 0.4), (request(2, cpu=2000, types=("B",)), 0.2)]
    view, scorer = scored(fleet, *mix)
    view.take(np.array([0]), request(milli=300, cpu=700))
    shape = request(milli=300, cpu=700)
    scorer._rho[:], scorer._beta[:] = 0, 0  # prices come on top, and have tests of their own
    cost = scorer.costs(view, shape)
    assert cost is not None
    for node in range(2):
        rows = fleet.nodes[f"n{node}"].rows
        free, cpu = view.free_milli[rows].tolist(), int(view.free_cpu[node])
        before = _plain_value(scorer, ("A", "B")[node], cpu, free)
        after = [
            _plain_value(scorer, ("A", "B")[node], cpu - 700, [*free[:i], f - 300, *free[i + 1 :]])
            for i, f in enumerate(free)
        ]
        assert cost[0][node] == pytest.approx(before - max(after), abs=1.0)


def _plain_value(scorer: Scorer, model: str, cpu: int, free: list[int]) -> float:
    """V by its definition, over the same streams, in plain Python."""
    shares = scorer.mix.shares()
    kinds: list[RequestKind] = list(shares)
    drawn = sample(shares.values(), SMALL.streams * SMALL.length).reshape(SMALL.streams, -1)
    total = 0
    for stream in drawn:
        left, c, served = list(free), cpu, 0
        for kind in (kinds[i] for i in stream):
            if kind.cpu > c or (kind.types and model not in kind.types):
                continue
            fitting = sorted((f, i) for i, f in enumerate(left) if f >= kind.milli)
            if len(fitting) < kind.num:
                continue
            for _, i in fitting[: kind.num]:
                left[i] -= kind.milli
            c -= kind.cpu
            served += kind.num * kind.milli
        total += served
    fragmented = sum(share * _unusable(kind, model, cpu, free) for kind, share in shares.items())
    return total / SMALL.streams - weights.FRAGMENTATION * fragmented


def _unusable(kind: RequestKind, model: str, cpu: int, free: list[int]) -> int:
    fits = [f for f in free if f >= kind.milli]
    served = kind.num and kind.cpu <= cpu and (not kind.types or model in kind.types) and len(fits) >= kind.num
    return sum(free) - (sum(fits) if served else 0)


def test_a_scored_gang_is_whole_although_its_node_lies_in_two_fabrics() -> None:
    fleet = Fleet()
    devices = tuple(Device(id=f"d{i}", index=i, model="GB200", memory_mib=1, fabric=f"f{i // 4}") for i in range(8))
    fleet.join(Inventory(node="n", devices=devices, cpus=64), 1)
    view, _ = scored(fleet, (request(4), 1.0))
    found = find(view, request(6))
    assert isinstance(found, Placed)
    assert (len(found.rows), found.level) == (6, "node")


def test_a_node_that_has_the_data_is_chosen_with_and_without_scores() -> None:
    def nodes() -> Fleet:
        fleet = Fleet()
        for i, contents in enumerate([(), ("data",), ()]):
            devices = tuple(Device(id=f"d{i}-{j}", index=j, model="G", memory_mib=1000) for j in range(2))
            fleet.join(Inventory(node=f"n{i}", devices=devices, cpus=8, contents=contents, fetch_mib_s=100), 1)
        return fleet

    for devices in (1, 2):
        shape = Shape(devices=devices, contents=(("data", 50_000),))
        bare = find(View.of(nodes()), shape)
        view, _ = scored(nodes(), (request(), 0.7), (request(2), 0.3))
        for found in (bare, find(view, shape)):
            assert isinstance(found, Placed)
            assert found.rows.tolist() == [2, 3][:devices]
