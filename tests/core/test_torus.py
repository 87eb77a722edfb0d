"""TPU slices against brute force: on small tori every legal box is tried by hand, chip by chip."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.accelerators.catalog import tpu_generations
from libs.core.accelerators.vendors.tpu_boxes import legal, nearest
from libs.core.placement.answer import Blocked, Placed
from libs.core.placement.find import find
from libs.core.placement.search.torus import find_box, place_box
from libs.core.placement.view import Context, View
from libs.core.state.fleet import Fleet
from libs.core.state.shape import Shape
from schemas.resources import Device, DeviceKind, Inventory, Position, Runtime


def chips_of(start, sides, torus):
    """The chips of a box, over the edge where it must; in coordinate order."""
    offsets = product(*(range(s) for s in sides))
    return [tuple((a + o) % n for a, o, n in zip(start, off, torus, strict=True)) for off in offsets]


def legal_places(free, box, host, wrap, cube):
    """All legal (start, sides), from the rules as they are said, not as they are coded."""
    torus = free.shape
    for sides in sorted(set(permutations(box))):
        if any(s > n for s, n in zip(sides, torus, strict=True)):
            continue
        for start in product(*(range(n) for n in torus)):
            chips = chips_of(start, sides, torus)
            over = [a + s > n for a, s, n in zip(start, sides, torus, strict=True)]
            if any(o and not w and s < n for o, w, s, n in zip(over, wrap, sides, torus, strict=True)):
                continue
            if not all(free[c] for c in chips):
                continue
            hosts = {tuple(x // h for x, h in zip(c, host, strict=True)) for c in chips}
            in_one = len(hosts) == 1 and all(s <= h for s, h in zip(sides, host, strict=True))
            whole = len(chips) == len(hosts) * int(np.prod(host))
            if not in_one and not whole:
                continue
            if cube is not None:
                cubes = {tuple(x // c for x, c in zip(chip, cube, strict=True)) for chip in chips}
                of_cubes = all(s % c == 0 for s, c in zip(sides, cube, strict=True))
                if of_cubes and len(chips) != len(cubes) * int(np.prod(cube)):
                    continue
                if not of_cubes and len(cubes) > 1:
                    continue
            yield start, sides


TORI = st.sampled_from(
    [
        ((4, 4), (2, 2), None, [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4)]),
        ((8, 4), (2, 4), None, [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (4, 8)]),
        (
            (4, 4, 4),
            (2, 2, 1),
            (4, 4, 4),
            [(1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4)],
        ),
        ((4, 4, 8), (2, 2, 1), (4, 4, 4), [(2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8)]),
        ((4, 4, 12), (2, 2, 1), (4, 4, 4), [(2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 4, 12)]),
    ]
)


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_box_is_found_exactly_when_a_legal_one_is_free(data):
    torus, host, cube, boxes = data.draw(TORI)
    box = data.draw(st.sampled_from(boxes))
    free = np.ones(torus, dtype=bool)
    grain = data.draw(st.sampled_from([(1,) * len(torus), host, *([cube] if cube else [])]))
    cells = list(product(*(range(n // g) for n, g in zip(torus, grain, strict=True))))
    for cell in data.draw(st.lists(st.sampled_from(cells), max_size=max(1, len(cells) - 1), unique=True)):
        free[tuple(slice(c * g, (c + 1) * g) for c, g in zip(cell, grain, strict=True))] = False
    of_cubes = cube is not None and all(s % c == 0 for s, c in zip(box, cube, strict=True))
    wrap = (of_cubes,) * len(torus)
    before = free.copy()
    found = find_box(free, box, host, wrap, cube)
    places = {frozenset(chips_of(*place, torus)) for place in legal_places(free, box, host, wrap, cube)}
    assert (found is None) == (not places)
    assert (free == before).all()
    if found is not None:
        chips = [tuple(c) for c in found.tolist()]
        assert len(set(chips)) == len(chips) == np.prod(box)
        assert frozenset(chips) in places
        assert np.array_equal(found, find_box(free.copy(), box, host, wrap, cube)), "the same question, the same answer"
        hosts = [tuple(x // h for x, h in zip(c, host, strict=True)) for c in chips]
        assert len([h for i, h in enumerate(hosts) if i == 0 or hosts[i - 1] != h]) == len(set(hosts)), "host by host"


def test_a_box_goes_into_the_corner_that_others_leave_least_use_for():
    free = np.ones((8, 8), dtype=bool)
    free[0:2, 0:2] = False
    found = find_box(free, (2, 2), (2, 2), (False, False))
    assert found.tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]], "beside the occupied host, along the edge"


def test_part_of_a_host_goes_to_a_host_that_is_already_split():
    free = np.ones((4, 4, 4), dtype=bool)
    free[2, 2, 3] = False
    found = find_box(free, (1, 2, 1), (2, 2, 1), (False,) * 3, (4, 4, 4))
    assert {tuple(c) for c in found.tolist()} <= {(2, 2, 3), (2, 3, 3), (3, 2, 3), (3, 3, 3)}


def test_small_slices_fill_one_cube_before_they_open_another():
    free = np.ones((4, 4, 8), dtype=bool)
    for number in range(8):
        found = find_box(free, (2, 2, 2), (2, 2, 1), (False,) * 3, (4, 4, 4))
        assert found is not None
        assert (found[:, 2] < 4).all(), number
        free[tuple(found.T)] = False
    assert find_box(free, (4, 4, 4), (2, 2, 1), (True,) * 3, (4, 4, 4)) is not None


def test_boxes_of_cubes_may_reach_over_the_edge_and_others_may_not():
    free = np.zeros((4, 4, 12), dtype=bool)
    free[:, :, 0:4] = free[:, :, 8:12] = True
    found = find_box(free, (4, 4, 8), (2, 2, 1), (True,) * 3, (4, 4, 4))
    assert sorted(set(found[:, 2].tolist())) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert found[0].tolist() == [0, 0, 8], "ranks follow the slice, not the torus"
    assert find_box(free, (4, 4, 8), (2, 2, 1), (False,) * 3, (4, 4, 4)) is None


# --------------------------------------------------------------------------------------------------- through the fleet


def pod(name="pod", model="v5p", shape=(4, 4, 4), host=(2, 2, 1)):
    """Hosts of a torus, in coordinate order."""
    for n, corner in enumerate(product(*(range(0, length, side) for length, side in zip(shape, host, strict=True)))):
        devices = tuple(
            Device(
                id=f"{name}-{n}-tpu{i}", index=i, kind=DeviceKind.TPU, model=model, memory_mib=95 * 1024, torus=name,
                runtime=Runtime.TPU, torus_shape=shape, torus_at=tuple(c + o for c, o in zip(corner, off, strict=True)),
            )
            for i, off in enumerate(product(*(range(h) for h in host)))
        )  # fmt: skip
        yield Inventory(node=f"{name}-{n}", position=Position(leaf=name), devices=devices, simulated=True)


def view(*nodes):
    fleet = Fleet()
    for inventory in nodes:
        fleet.join(inventory, 1)
    return View.of(fleet)


def ask(*box):
    return Shape(devices=int(np.prod(box)), torus=box)


def place(v, *box):
    return place_box(v, ask(*box), np.flatnonzero(v.fleet.up & (v.free_milli == 1000)), Context())


def test_slices_fill_a_pod_without_a_gap_and_know_their_level_and_link():
    v = view(*pod())
    taken = []
    for _ in range(8):
        placed = place(v, 2, 2, 2)
        assert (placed.level, placed.link_gb_s) == ("leaf", 100.0)
        v.take(placed.rows, ask(2, 2, 2))
        taken += placed.rows.tolist()
    assert len(set(taken)) == 64
    assert place(v, 2, 2, 1) is None
    assert place(view(*pod()), 2, 2, 1).level == "node"


def test_the_fullest_pod_that_has_room_is_used_and_slices_never_span_pods():
    v = view(*pod("a"), *pod("b"))
    first = place(v, 2, 4, 4)
    v.take(first.rows, ask(2, 4, 4))
    second = place(v, 2, 2, 1)
    assert set(v.fleet.torus[second.rows]) == set(v.fleet.torus[first.rows])
    v.take(second.rows, ask(2, 2, 1))
    assert place(v, 4, 4, 4) is not None
    v.take(place(v, 4, 4, 4).rows, ask(4, 4, 4))
    assert place(v, 4, 4, 4) is None
    assert place(v, 4, 4, 8) is None


def test_a_lost_host_or_a_lost_chip_is_built_around():
    v = view(*pod())
    v.fleet.leave("pod-0")
    v.fleet.up[v.fleet.row("pod-5-tpu3")] = False
    placed = place(v, 2, 2, 4)
    assert placed is not None
    assert not {"pod-0", "pod-5"} & {v.fleet.node_names.names[n] for n in v.fleet.node[placed.rows]}
    assert place(v, 4, 4, 4) is None


def test_what_is_no_slice_of_the_generation_is_not_placed():
    assert place(view(*pod()), 3, 2, 1) is None
    assert place(view(*pod()), 4, 2, 2) is None, "v5p names sides in ascending order"
    assert place(view(*pod(model="v4")), 4, 2, 2) is not None, "v4 takes any order"
    assert place(view(*pod()), 2, 2) is None
    assert place(view(*pod(model="v5e", shape=(8, 8), host=(2, 4))), 4, 8) is not None


def test_chips_that_do_not_lie_in_their_torus_belong_to_no_slice():
    nodes = list(pod(shape=(2, 2, 1)))
    wrong = nodes[0].devices[0].model_copy(update={"torus_at": (7, 0, 0)})
    v = view(nodes[0].model_copy(update={"devices": (wrong, *nodes[0].devices[1:])}))
    assert v.fleet.torus[v.fleet.row(wrong.id)] == -1
    assert place(v, 2, 2, 1) is None


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (3_000, 3_000, 3_000), (2**62, 2**62, 2**62)])
def test_no_node_changes_the_shape_of_a_torus_for_others(shape):
    """Smaller, other chips lay outside of it; larger, the grid took more memory than there is."""
    liar = next(pod(name="liar", shape=(1, 1, 1), host=(1, 1, 1)))
    chip = liar.devices[0].model_copy(update={"torus": "pod", "torus_shape": shape})
    v = view(*pod(), liar.model_copy(update={"devices": (chip,)}))
    placed = place(v, 4, 4, 4)
    assert {v.fleet.node_names.names[n] for n in v.fleet.node[placed.rows]} == {f"pod-{n}" for n in range(16)}


def test_find_cuts_a_slice_from_the_pod():
    v = view(*pod())
    placed = find(v, ask(2, 2, 4))
    assert isinstance(placed, Placed)
    assert isinstance(find(v, ask(4, 4, 8)), Blocked)


@pytest.mark.parametrize(
    ("generation", "good", "bad"),
    [
        ("v5e", [(1, 1), (1, 2), (2, 4), (16, 16)], [(4, 2), (2, 8), (3, 3), (2, 2, 1), (16, 32)]),
        ("v4", [(1, 1, 1), (1, 2, 1), (4, 2, 2), (8, 4, 4), (16, 16, 16)], [(4, 4, 6), (16, 16, 20), (2, 2, 8)]),
        ("v5p", [(2, 2, 1), (4, 4, 8), (16, 16, 24), (16, 20, 28)], [(8, 4, 4), (20, 20, 28), (1, 1, 4)]),
        ("tpu7x", [(1, 1, 1), (4, 4, 4), (12, 16, 48)], [(2, 8, 8)]),
    ],
)
def test_the_boxes_of_each_generation(generation, good, bad):
    g = tpu_generations()[generation]
    assert [b for b in good if not legal(g, b)] == []
    assert [b for b in bad if legal(g, b)] == []


def test_the_nearest_boxes_are_legal_and_near():
    v5p = tpu_generations()["v5p"]
    assert nearest(v5p, 12)[0] in [(2, 2, 2), (2, 2, 4)]
    assert nearest(v5p, 100)[0] == (4, 4, 8)
    assert all(legal(g, b) for g in tpu_generations().values() for n in (1, 3, 50, 5000) for b in nearest(g, n, 5))


def test_what_is_no_box_never_splits_a_host_and_shares_stay_off_devices_that_are_whole():
    v = view(*pod())
    assert isinstance(find(v, Shape(devices=1)), Placed)
    blocked = find(v, Shape(devices=4))
    assert isinstance(blocked, Blocked)
    assert blocked.reason == "type"
    assert isinstance(find(v, Shape(devices=1, milli=500)), Blocked)
