"""Gangs against exhaustive search on small fleets: no choice of devices has a faster slowest link, none is partial."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.placement.answer import Blocked, BlockReason, Placed
from libs.core.placement.find import find
from libs.core.placement.search.gang import gap
from libs.core.placement.search.links import link_gb_s
from libs.core.placement.view import Context, View
from libs.core.state.fleet import Fleet
from libs.core.state.levels import LEVELS
from libs.core.state.shape import Shape, shape_of
from schemas.jobs import JobSpec
from schemas.resources import Claim, Device, Inventory, Level, Position, Resources, Role, Topology, TopologyPolicy

GIB = 1024
MODELS = ("H100", "A100", "MI300X", "L4")
REQUIRABLE = ("nvlink", "node", "leaf", "spine", "zone")


@st.composite
def fleets(draw, models=MODELS[:2], devices=10):
    """At most `devices` devices on at most 5 nodes: islands within nodes, fabrics over nodes, or no NVLink; some busy."""
    fleet, left = Fleet(), devices
    for i in range(draw(st.integers(1, 5))):
        count = draw(st.integers(1, 4))
        if count > left:
            break
        left -= count
        place = Position(
            leaf=f"l{draw(st.integers(0, 1))}", spine=f"s{draw(st.integers(0, 1))}", zone=f"z{draw(st.integers(0, 1))}"
        )
        model = draw(st.sampled_from(models))
        islands, fabric = draw(st.integers(0, 2)), draw(st.sampled_from(["", "", f"rack-{model}"]))
        found = tuple(
            Device(
                id=f"n{i}-{k}", index=k, model=model, memory_mib=80 * GIB, fabric=fabric,
                nvlink_domain=f"nvl{k % islands}" if islands else "",
            )
            for k in range(count)
        )  # fmt: skip
        fleet.join(Inventory(node=f"n{i}", position=place, devices=found), 1)
    for device in list(fleet.devices.names):
        if draw(st.integers(0, 2)) == 0:
            owner = fleet.node_names.names[int(fleet.node[fleet.row(device)])]
            fleet.take([Claim(device=device, node=owner, milli=1000, memory_mib=80 * GIB, epoch=1)])
    return fleet


def levels_of(fleet: Fleet) -> dict[str, list[int]]:
    """The group of each device at each level, written down anew; a device without NVLink is an island of its own."""
    node = fleet.node.tolist()
    return {
        "nvlink": [int(d) if d >= 0 else -1 - row for row, d in enumerate(fleet.domain.tolist())],
        "node": node,
        "leaf": [int(fleet.leaf[n]) for n in node],
        "spine": [int(fleet.spine[n]) for n in node],
        "zone": [int(fleet.zone[n]) for n in node],
        "pool": [0] * len(node),
    }


def pair_gb_s(fleet: Fleet, of: dict[str, list[int]], a: int, b: int) -> float:
    level = next(level for level in LEVELS if of[level][a] == of[level][b])
    return min(link_gb_s(fleet.models.names[int(fleet.model[row])], level) for row in (a, b))


def slowest_pair(fleet: Fleet, of: dict[str, list[int]], rows) -> float:
    return min((pair_gb_s(fleet, of, a, b) for a, b in combinations(rows, 2)), default=0.0)


def within(of: dict[str, list[int]], rows, level: str) -> bool:
    return len({of[level][row] for row in rows}) == 1


def free_rows(fleet: Fleet) -> list[int]:
    return np.flatnonzero(fleet.up & (fleet.free_milli == 1000)).tolist()


def gangs(fleet: Fleet, size: int, level: str):
    """All gangs of one model of `size` free devices within one group of `level`."""
    of = levels_of(fleet)
    for rows in combinations(free_rows(fleet), size):
        if len({int(fleet.model[row]) for row in rows}) == 1 and within(of, rows, level):
            yield rows


def gang(devices: int, level: str = "node", *, required: bool = False, widen_after_s: float = 0, **kw) -> Shape:
    policy = TopologyPolicy.REQUIRED if required else TopologyPolicy.PREFERRED
    topology = Topology(level=Level(level), policy=policy, widen_after_s=widen_after_s)
    return shape_of(JobSpec(command=("x",), resources=Resources(devices=devices, topology=topology, **kw)))


def best_of(fleet: Fleet, size: int, level: str) -> float | None:
    of = levels_of(fleet)
    return max((slowest_pair(fleet, of, rows) for rows in gangs(fleet, size, level)), default=None)


@given(fleets(), st.integers(2, 6), st.sampled_from(REQUIRABLE))
@settings(max_examples=100, deadline=None)
def test_required_no_choice_of_devices_has_a_faster_slowest_link(fleet, size, level):
    found = find(View.of(fleet), gang(size, level, required=True))
    by_model = {
        model: best
        for model in fleet.models.names
        if (best := best_of_model(fleet, size, level, model)) is not None
    }  # fmt: skip
    if not by_model:
        assert isinstance(found, Blocked)
        return
    assert isinstance(found, Placed)
    rows, of = found.rows.tolist(), levels_of(fleet)
    assert len(set(rows)) == size
    assert set(rows) <= set(free_rows(fleet))
    assert within(of, rows, level)
    assert found.link_gb_s == slowest_pair(fleet, of, rows) == by_model[fleet.models.names[int(fleet.model[rows[0]])]]


def best_of_model(fleet: Fleet, size: int, level: str, model: str) -> float | None:
    of, code = levels_of(fleet), fleet.models.find(model)
    rates = [slowest_pair(fleet, of, rows) for rows in gangs(fleet, size, level) if int(fleet.model[rows[0]]) == code]
    return max(rates, default=None)


@given(fleets(models=("MI300X",)), st.integers(2, 6), st.sampled_from(REQUIRABLE), st.booleans())
@settings(max_examples=100, deadline=None)
def test_preferred_waits_for_its_level_and_then_takes_the_best_there_is(fleet, size, level, patient):
    shape = gang(size, level, widen_after_s=10)
    found = find(View.of(fleet), shape, context=Context(waited_us=9_999_999 if patient else 10_000_000))
    best = best_of(fleet, size, level if patient else "pool")
    assert isinstance(found, Placed) == (best is not None)
    if isinstance(found, Placed):
        assert found.link_gb_s == best
    elif len(free_rows(fleet)) >= size and patient:
        assert found.reason is BlockReason.TOPOLOGY


@given(fleets(models=("H100",)), st.integers(2, 6), st.sampled_from(REQUIRABLE))
@settings(max_examples=80, deadline=None)
def test_the_gap_tells_how_far_it_is_from_the_wish_and_from_an_empty_pool(fleet, size, level):
    shape, view = gang(size, level), View.of(fleet)
    found = find(view, shape)
    if isinstance(found, Blocked):
        return
    told, of = gap(view, shape, found), levels_of(fleet)
    rows = found.rows.tolist()
    got = next(level for level in LEVELS if within(of, rows, level))
    assert (told.wanted, told.level) == (level, got)
    assert told.steps == max(0, LEVELS.index(got) - LEVELS.index(level))
    fleet.free_milli[: len(fleet)] = 1000
    assert told.link_gb_s == found.link_gb_s
    assert told.best_link_gb_s == best_of(fleet, size, "pool")


@given(fleets(), st.integers(2, 8), st.integers(1, 8), st.sampled_from(REQUIRABLE), st.booleans())
@settings(max_examples=100, deadline=None)
def test_an_elastic_gang_is_the_largest_that_fits_and_never_below_its_least(fleet, size, least, level, required):
    least = min(size, least)
    found = find(View.of(fleet), gang(size, level, required=required, min_devices=least))
    level = level if required else "pool"
    largest = max((n for n in range(least, size + 1) if any(True for _ in gangs(fleet, n, level))), default=0)
    assert (len(found.rows) if isinstance(found, Placed) else 0) == largest


@given(fleets(), st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_the_same_fleet_gives_the_same_gang_and_is_left_alone(fleet, size):
    view = View.of(fleet)
    before = view.free_milli.copy()
    one, two = find(view, gang(size)), find(View.of(fleet), gang(size))
    assert isinstance(one, Placed) == isinstance(two, Placed)
    if isinstance(one, Placed) and isinstance(two, Placed):
        assert one.rows.tolist() == two.rows.tolist()
    assert (view.free_milli == before).all()


# ------------------------------------------------------------------------------------------------------------- roles


def role(name: str, count: int, devices: int, level: str = "node", *, required: bool = True, **kw) -> Role:
    policy = TopologyPolicy.REQUIRED if required else TopologyPolicy.PREFERRED
    return Role(name=name, count=count, devices=devices, topology=Topology(level=Level(level), policy=policy), **kw)


def nested(*roles: Role, level: str = "pool", required: bool = True) -> Shape:
    policy = TopologyPolicy.REQUIRED if required else TopologyPolicy.PREFERRED
    resources = Resources(roles=roles, topology=Topology(level=Level(level), policy=policy))
    return shape_of(JobSpec(command=("x",), resources=resources))


def packs(fleet: Fleet, size: int, count: int, inner: str, outer: str) -> bool:
    """Whether `count` groups of `size` within `inner` fit within one group of `outer`, all of one model: each group
    takes `size` wherever it goes, so counting what every inner group holds is exact."""
    of = levels_of(fleet)
    held: dict[tuple[int, int, int], int] = {}
    for row in free_rows(fleet):
        key = (int(fleet.model[row]), of[outer][row], of[inner][row])
        held[key] = held.get(key, 0) + 1
    slots: dict[tuple[int, int], int] = {}
    for (model, out, _), n in held.items():
        slots[model, out] = slots.get((model, out), 0) + n // size
    return max(slots.values(), default=0) >= count


@given(
    fleets(devices=14),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(REQUIRABLE),
    st.sampled_from(("node", "leaf", "spine", "zone", "pool")),
)
@settings(max_examples=100, deadline=None)
def test_one_role_fits_exactly_when_its_groups_do(fleet, size, count, inner, outer):
    found = find(View.of(fleet), nested(role("stage", count, size, inner), level=outer))
    assert isinstance(found, Placed) == packs(fleet, size, count, inner, outer)
    if isinstance(found, Placed):
        check_nest(fleet, found, [(count, size, inner)], outer)


def check_nest(fleet: Fleet, found: Placed, roles: list[tuple[int, int, str]], outer: str) -> None:
    """Distinct free devices, role by role; every group and the whole within their levels; the slowest link told."""
    rows, of = found.rows.tolist(), levels_of(fleet)
    assert found.roles is not None
    assert found.roles.tolist() == [i for i, (count, size, _) in enumerate(roles) for _ in range(count * size)]
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(free_rows(fleet))
    assert within(of, rows, outer)
    at = 0
    for count, size, inner in roles:
        models = {int(fleet.model[row]) for row in rows[at : at + count * size]}
        assert len(models) == 1
        for _ in range(count):
            assert within(of, rows[at : at + size], inner)
            at += size
    if len(rows) > 1:
        assert found.link_gb_s == slowest_pair(fleet, of, rows)


@given(
    fleets(devices=14),
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4), st.sampled_from(REQUIRABLE)), min_size=2, max_size=3),
    st.sampled_from(("node", "leaf", "spine", "zone", "pool")),
)
@settings(max_examples=100, deadline=None)
def test_several_roles_are_placed_whole_and_within_their_levels_or_not_at_all(fleet, roles, outer):
    shape = nested(*(role(f"r{i}", *r) for i, r in enumerate(roles)), level=outer)
    found = find(View.of(fleet), shape)
    if isinstance(found, Placed):
        check_nest(fleet, found, roles, outer)
    else:
        assert found.left >= 0
    if not packs(fleet, 1, sum(count * size for count, size, _ in roles), outer, outer) and len(fleet.models) == 1:
        assert isinstance(found, Blocked)


@given(fleets(devices=14), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from(REQUIRABLE))
@settings(max_examples=80, deadline=None)
def test_an_elastic_role_gets_the_most_groups_that_fit(fleet, size, count, fewest, inner):
    fewest = min(count, fewest)
    found = find(View.of(fleet), nested(role("worker", count, size, inner, min_count=fewest), level="zone"))
    most = max((n for n in range(fewest, count + 1) if packs(fleet, size, n, inner, "zone")), default=0)
    assert (len(found.rows) if isinstance(found, Placed) else 0) == most * size
