"""The placer against brute force on small fleets, and the preferences that it promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.placement.answer import Blocked, BlockReason, Placed
from libs.core.placement.find import find
from libs.core.placement.score.mix import Mix, kind_of
from libs.core.placement.score.scorer import Scorer
from libs.core.placement.throughput import Chooser, Throughputs
from libs.core.placement.view import Context, View
from libs.core.state.fleet import Fleet, Overcommitted
from libs.core.state.shape import Shape, shape_of
from schemas.jobs import JobSpec
from schemas.resources import Claim, Device, Inventory, Level, Position, Resources, Topology, TopologyPolicy
from tests.core.builders import GIB, node


def fleet_of(*inventories: Inventory) -> Fleet:
    fleet = Fleet()
    for inventory in inventories:
        fleet.join(inventory, 1)
    return fleet


def shape(**resources):
    return shape_of(JobSpec(command=("x",), resources=Resources(**resources)))


def take(fleet: Fleet, device: str, milli: int = 1000, gib: int = 80) -> None:
    row = fleet.row(device)
    owner = fleet.node_names.names[int(fleet.node[row])]
    fleet.take([Claim(device=device, node=owner, milli=milli, memory_mib=gib * GIB, epoch=int(fleet.epoch[row]) + 1)])


def names(fleet: Fleet, placed: Placed) -> list[str]:
    return [fleet.devices.names[row] for row in placed.rows.tolist()]


def test_one_device_goes_to_the_fullest_node_so_that_whole_nodes_stay_whole():
    fleet = fleet_of(node("a"), node("b"))
    take(fleet, "b-gpu0")
    assert names(fleet, find(View.of(fleet), shape(devices=1))) == ["b-gpu1"]


def test_a_share_goes_to_the_fullest_device_that_holds_it():
    fleet = fleet_of(node("a"), node("b"))
    take(fleet, "a-gpu3", 500, 40)
    take(fleet, "b-gpu2", 700, 56)
    assert names(fleet, find(View.of(fleet), shape(share_milli=300))) == ["b-gpu2"]
    assert names(fleet, find(View.of(fleet), shape(share_milli=400))) == ["a-gpu3"]


def test_a_share_needs_its_memory_too():
    fleet = fleet_of(node("a", 1), node("b", 1))
    take(fleet, "a-gpu0", 500, 79)
    assert names(fleet, find(View.of(fleet), shape(share_milli=100, memory_mib=10 * GIB))) == ["b-gpu0"]


PRICES = {"T4": 350_000, "L4": 440_000, "A10": 900_000, "H100": 2_990_000}
MEMORY_GIB = {"T4": 16, "L4": 24, "A10": 24, "H100": 80, "New": 12}


def market(*models: str, prices: dict[str, int] | None = PRICES) -> View:
    """A pool with a node of each model."""
    fleet = fleet_of(*(node(m.lower(), model=m, memory_gib=MEMORY_GIB[m]) for m in models))
    return View.of(fleet, None if prices is None else Chooser(Throughputs(), prices.get))


def model_of(view: View, **resources) -> str:
    placed = find(view, shape(**resources))
    assert isinstance(placed, Placed)
    return view.fleet.models.names[int(view.fleet.model[placed.rows[0]])]


@pytest.mark.parametrize(
    ("models", "memory_gib", "chosen"),
    [
        (("T4", "H100"), 0, "T4"),
        (("T4", "H100"), 20, "H100"),  # it does not fit the cheap one
        (("A10", "L4"), 20, "L4"),  # equal memory, half the price
        (("New", "L4"), 0, "L4"),  # what has no price comes last, however small
        (("New",), 0, "New"),
    ],
)
def test_a_job_that_names_no_type_gets_the_cheapest_that_fits(models, memory_gib, chosen):
    for devices in (1, 2):
        assert model_of(market(*models), devices=devices, memory_mib=memory_gib * GIB) == chosen


def test_memory_that_is_left_over_counts_as_cost():
    prices = {"T4": 400_000, "H100": 390_000}
    assert model_of(market("T4", "H100", prices=prices)) == "H100"
    assert model_of(market("T4", "H100", prices=prices), memory_mib=14 * GIB) == "T4"


def test_without_prices_the_smallest_memory_is_taken_and_with_types_the_jobs_order():
    assert model_of(market("A10", "T4", prices=None)) == "T4"
    assert model_of(market("A10", "New", prices={})) == "New"
    assert model_of(market("A10", "T4"), types=("A10", "T4")) == "A10"


def test_a_model_that_others_need_more_counts_as_dearer():
    view = market("T4", "L4")
    bound = Shape(devices=1, types=("T4",), cpu_milli=0)
    view.fleet.scorer = view.scorer = Scorer(Mix.expecting([(kind_of(bound), 0.95), (kind_of(Shape(devices=1)), 0.05)]))
    view.scorer.upkeep(view)
    assert model_of(view) == "L4"
    fast = find(view, shape(), context=Context(fast=True))
    assert view.fleet.models.names[int(view.fleet.model[fast.rows[0]])] == "T4"


def test_types_are_tried_in_the_jobs_order_and_a_gang_is_of_one_type():
    fleet = fleet_of(node("h", 4), node("a", 8, model="A100"))
    both = shape(devices=6, types=("H100", "A100"))
    assert {n[0] for n in names(fleet, find(View.of(fleet), both))} == {"a"}
    assert {n[0] for n in names(fleet, find(View.of(fleet), shape(devices=4, types=("H100", "A100"))))} == {"h"}
    assert isinstance(find(View.of(fleet), shape(devices=10, types=("H100", "A100"))), Blocked)


def test_without_a_type_the_smallest_device_that_fits_is_taken_and_never_a_cpu():
    cpu = Inventory(node="c", devices=(Device(id="c-cpu", index=0, kind="cpu", model="CPU", memory_mib=GIB),))
    fleet = fleet_of(node("h", 2), node("l", 2, model="L4", memory_gib=24), cpu)
    assert names(fleet, find(View.of(fleet), shape(devices=1)))[0].startswith("l-")
    assert names(fleet, find(View.of(fleet), shape(devices=1, memory_mib=40 * GIB)))[0].startswith("h-")
    assert names(fleet, find(View.of(fleet), shape(devices=1, types=("CPU",)))) == ["c-cpu"]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"types": ("TPU-v5e",)}, BlockReason.TYPE),
        ({"mig_profile": "1g.10gb"}, BlockReason.PROFILE),
        ({"memory_mib": 999 * GIB}, BlockReason.MEMORY),
        ({"labels": {"site": "moon"}}, BlockReason.LABELS),
        ({"devices": 9, "topology": Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)}, BlockReason.TOPOLOGY),
        ({"devices": 17}, BlockReason.NO_DEVICES),
    ],
)
def test_what_blocks_is_named(asked, reason):
    fleet = fleet_of(node("a"), node("b"))
    blocked = find(View.of(fleet), shape(**asked))
    assert isinstance(blocked, Blocked)
    assert blocked.reason is reason


def test_mig_instances_are_granted_by_profile_only():
    instances = tuple(
        Device(
            id=f"mig-{i}", index=i, kind="mig", model="H100", memory_mib=10 * GIB, mig_profile="1g.10gb", parent="b0"
        )
        for i in range(7)
    )
    fleet = fleet_of(Inventory(node="m", devices=instances), node("a", 1))
    assert names(fleet, find(View.of(fleet), shape(mig_profile="1g.10gb")))[0].startswith("mig-")
    assert names(fleet, find(View.of(fleet), shape())) == ["a-gpu0"]


def test_taking_more_than_there_is_is_refused_before_anything_changes():
    fleet = fleet_of(node("a", 2))
    claims = [
        Claim(device="a-gpu0", node="a", milli=1000, memory_mib=80 * GIB, epoch=1),
        Claim(device="a-gpu0", node="a", milli=1000, memory_mib=80 * GIB, epoch=2),
    ]
    fleet.take(claims[:1])
    with pytest.raises(Overcommitted, match="a-gpu0"):
        fleet.take(claims[1:])
    assert int(fleet.free_milli[fleet.row("a-gpu1")]) == 1000


LEVELS = ("node", "leaf", "spine", "zone", "pool")


@st.composite
def small_fleets(draw):
    fleet = Fleet()
    for i in range(draw(st.integers(1, 7))):
        place = Position(
            leaf=f"l{draw(st.integers(0, 2))}", spine=f"s{draw(st.integers(0, 1))}", zone=f"z{draw(st.integers(0, 1))}"
        )
        devices = tuple(
            Device(id=f"n{i}-{k}", index=k, model="H100", memory_mib=80 * GIB) for k in range(draw(st.integers(1, 4)))
        )
        fleet.join(Inventory(node=f"n{i}", position=place, devices=devices), 1)
    for device in list(fleet.devices.names):
        if draw(st.booleans()):
            take(fleet, device)
    return fleet


def best_level(fleet: Fleet, need: int) -> str | None:
    """By looking at every group of every level."""
    free = np.flatnonzero(fleet.up & (fleet.free_milli == 1000))
    of = {
        "node": fleet.node,
        "leaf": fleet.leaf[fleet.node],
        "spine": fleet.spine[fleet.node],
        "zone": fleet.zone[fleet.node],
        "pool": np.zeros(len(fleet.node), dtype=int),
    }
    for level in LEVELS:
        if any((of[level][free] == group).sum() >= need for group in set(of[level][free].tolist())):
            return level
    return None


@given(small_fleets(), st.integers(2, 12))
@settings(max_examples=300, deadline=None)
def test_a_gang_spans_the_narrowest_level_that_any_choice_could(fleet, need):
    best = best_level(fleet, need)
    found = find(View.of(fleet), shape(devices=need))
    if best is None:
        assert isinstance(found, Blocked)
        return
    assert isinstance(found, Placed)
    assert found.level == best
    assert len(set(found.rows.tolist())) == need
    assert (fleet.free_milli[found.rows] == 1000).all()


@given(small_fleets(), st.integers(2, 12), st.sampled_from(["node", "leaf", "spine", "zone"]))
@settings(max_examples=300, deadline=None)
def test_required_topology_is_met_or_nothing_is_granted(fleet, need, level):
    topology = Topology(level=Level(level), policy=TopologyPolicy.REQUIRED)
    found = find(View.of(fleet), shape(devices=need, topology=topology))
    best = best_level(fleet, need)
    possible = best is not None and LEVELS.index(best) <= LEVELS.index(level)
    assert isinstance(found, Placed) == possible
    if isinstance(found, Placed):
        codes = {"node": fleet.node, "leaf": fleet.leaf[fleet.node], "spine": fleet.spine[fleet.node]}
        codes["zone"] = fleet.zone[fleet.node]
        assert len(set(codes[level][found.rows].tolist())) == 1


@given(small_fleets(), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_the_same_fleet_gives_the_same_answer_and_is_left_alone(fleet, need):
    before = fleet.free_milli.copy()
    one, two = find(View.of(fleet), shape(devices=need)), find(View.of(fleet), shape(devices=need))
    if isinstance(one, Placed):
        assert one.rows.tolist() == two.rows.tolist()
    assert (fleet.free_milli == before).all()
