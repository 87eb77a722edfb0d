"""MIG geometry against every legal layout of every board, with a legality check of its own."""

import json
from collections import Counter
from pathlib import Path

import pytest

from libs.core.accelerators.mig_boards import GEOMETRIES, Geometry, geometry_for
from libs.core.placement import mig
from tests.core.builders import maximal_layouts

H100 = GEOMETRIES["H100-80GB-SXM"]
DISTINCT = ("A30-24GB", "H100-80GB-SXM")
"""Every other board has the geometry of the second under other names (tested), so what holds of it holds of them."""
FACTS = Path(__file__).parents[2].parent / "shared/reference/accelerators.json"


def possible(geometry: Geometry, instances: tuple[mig.Instance, ...]) -> bool:
    """Legality straight from hardware.md 1.1, slice by slice, sharing no code with the module."""
    profiles = {p.name: p for p in geometry.profiles}
    taken: Counter[int] = Counter()
    for name, start in instances:
        if start not in profiles[name].starts:
            return False
        taken.update(range(start, start + profiles[name].memory_slices))
    media = sum(name.endswith("+me") for name, _ in instances)
    compute = sum(profiles[name].compute_slices for name, _ in instances)
    counts = Counter(name for name, _ in instances)
    return (
        all(n == 1 for n in taken.values())
        and media <= 1
        and compute <= (4 if geometry.slices == 4 else 7)
        and all(n <= profiles[name].limit for name, n in counts.items())
    )


@pytest.mark.parametrize("board", sorted(set(GEOMETRIES) - set(DISTINCT)))
def test_all_seven_slice_boards_have_one_geometry(board: str) -> None:
    for mine, known in zip(GEOMETRIES[board].profiles, H100.profiles, strict=True):
        assert mine.model_dump(exclude={"name", "memory_mib"}) == known.model_dump(exclude={"name", "memory_mib"})
        assert mine.name.endswith("+me") == known.name.endswith("+me")


@pytest.mark.parametrize("board", DISTINCT)
def test_every_layout_is_legal_and_none_is_missing(board: str) -> None:
    geometry = GEOMETRIES[board]
    known = set(mig.layouts(geometry))
    assert all(possible(geometry, layout) for layout in known)
    every = [(p.name, start) for p in geometry.profiles for start in p.starts]
    for layout in known:
        for instance in set(every) - set(layout):
            larger = tuple(sorted([*layout, instance], key=lambda i: (i[1], i[0])))
            assert (larger in known) == possible(geometry, larger) == mig.legal(geometry, larger)


@pytest.mark.parametrize("board", DISTINCT)
def test_an_instance_fits_exactly_where_it_is_legal(board: str) -> None:
    """Every legal layout as what is taken, every profile."""
    geometry = GEOMETRIES[board]
    for taken in mig.layouts(geometry):
        for profile in geometry.profiles:
            free = tuple(s for s in profile.starts if possible(geometry, (*taken, (profile.name, s))))
            assert mig.fits(geometry, taken, profile.name) == free


@pytest.mark.parametrize("board", GEOMETRIES)
def test_as_many_maximal_layouts_as_the_driver_table_gives(board: str) -> None:
    geometry = GEOMETRIES[board]
    plain = [x for x in maximal_layouts(geometry) if not any(name.endswith("+me") for name, _ in x)]
    double = {p.name for p in geometry.profiles if p.memory_slices == 2 and p.compute_slices == 1}
    without = [x for x in plain if not double & {name for name, _ in x}]
    assert (len(plain), len(without)) == ((5, 5) if board == "A30-24GB" else (78, 19))


def _short(layout: tuple[mig.Instance, ...], geometry: Geometry) -> tuple[str, ...]:
    profiles = {p.name: p for p in geometry.profiles}
    double = ".2x"
    return tuple(
        f"{name.split('.')[0]}{double if profiles[name].memory_slices > profiles[name].compute_slices == 1 else ''}@{s}"
        for name, s in layout
    )


@pytest.mark.skipif(not FACTS.exists(), reason="the facts that the table was written from are not in the repository")
def test_the_table_says_what_the_facts_say() -> None:
    facts = json.loads(FACTS.read_text())["mig"]
    assert list(GEOMETRIES) == list(facts["boards"])
    for board, geometry in GEOMETRIES.items():
        for profile, fact in zip(geometry.profiles, facts["boards"][board]["profiles"], strict=True):
            assert profile.name == fact["name"]
            assert list(profile.starts) == fact["placement_starts"]
            assert profile.compute_slices == fact["compute_slices"]
            assert profile.limit == fact["max_instances"]
            assert profile.memory_slices == fact["memory_slices"] == fact["placement_size"]
            if fact["memory_gib"] is not None:
                assert profile.memory_mib == int(fact["memory_gib"] * 1024)
    plain = [x for x in maximal_layouts(H100) if not any(name.endswith("+me") for name, _ in x)]
    listed = facts["geometries"]["7slice"]["maximal_layouts_with_1g2x"]
    assert {_short(x, H100) for x in plain} == {tuple(x) for x in listed}


ONE, DOUBLE, TWO, THREE, FOUR, SEVEN = "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"
POSSIBLE = [  # hardware.md 1.2
    [FOUR, THREE],
    [THREE, THREE],
    [TWO, TWO, TWO, ONE],
    [FOUR, TWO, ONE],
    [FOUR, ONE, ONE, ONE],
    [THREE, TWO, TWO],
    [THREE, TWO, ONE, ONE],
    [THREE, ONE, ONE, ONE, ONE],
    [TWO, TWO, ONE, ONE, ONE],
    [TWO] + [ONE] * 5,
    [ONE] * 7,
    [DOUBLE] * 4,
    [FOUR, DOUBLE, DOUBLE],
    [TWO, TWO, TWO, DOUBLE],
    [SEVEN],
    ["1g.10gb+me"] + [ONE] * 6,
]
IMPOSSIBLE = [
    [FOUR, FOUR],
    [THREE, THREE, ONE],
    [THREE, TWO, TWO, ONE],
    [TWO] * 4,
    [FOUR, TWO, TWO],
    [SEVEN, ONE],
    ["1g.10gb+me", "1g.10gb+me"],
    [ONE] * 8,
]


def _sets() -> set[tuple[str, ...]]:
    return {tuple(sorted(name for name, _ in layout)) for layout in mig.layouts(H100)}


@pytest.mark.parametrize("wanted", POSSIBLE, ids="+".join)
def test_possible_combinations_have_a_layout(wanted: list[str]) -> None:
    assert tuple(sorted(wanted)) in _sets()
    layout = mig.best_layout(H100, [], Counter(wanted), [])
    assert possible(H100, layout)
    assert not Counter(wanted) - Counter(name for name, _ in layout)


@pytest.mark.parametrize("wanted", IMPOSSIBLE, ids="+".join)
def test_impossible_combinations_have_none(wanted: list[str]) -> None:
    assert tuple(sorted(wanted)) not in _sets()
    layout = mig.best_layout(H100, [], Counter(wanted), [])
    assert Counter(wanted) - Counter(name for name, _ in layout)


def test_3g_beside_two_2g_is_at_4() -> None:
    (layout,) = [x for x in mig.layouts(H100) if sorted(n for n, _ in x) == [TWO, TWO, THREE]]
    assert layout == ((TWO, 0), (TWO, 2), (THREE, 4))
    assert not mig.legal(H100, [(THREE, 0), (ONE, 3)])
    assert not mig.legal(H100, [(FOUR, 4)])


def test_a_recut_keeps_what_is_busy_and_as_much_as_it_can_of_what_is_idle() -> None:
    ones = [(ONE, s) for s in range(7)]
    layout = mig.best_layout(H100, [ones[5]], {THREE: 1}, [i for i in ones if i != ones[5]])
    assert layout == ((THREE, 0), (ONE, 4), (ONE, 5), (ONE, 6))
    assert mig.best_layout(H100, [], {THREE: 1}, ones) == (*ones[:4], (THREE, 4))
    assert mig.best_layout(H100, [ones[1], ones[5]], {THREE: 1}, [])[-1:] != ((THREE, 4),)


def test_the_best_layout_around_any_busy_set_is_legal_and_serves_the_largest_wish() -> None:
    for busy in mig.layouts(H100):
        layout = mig.best_layout(H100, busy, {THREE: 2, ONE: 1}, [])
        assert possible(H100, layout)
        assert set(busy) <= set(layout)
        served = sum(name == THREE for name, _ in layout) - sum(name == THREE for name, _ in busy)
        assert bool(mig.fits(H100, busy, THREE)) == (served > 0)


def test_an_instance_costs_what_it_makes_impossible() -> None:
    at = {s: mig.instance_cost(H100, [], (ONE, s), {}) for s in range(7)}
    assert min(at, key=lambda s: at[s]) == 6
    assert at[0] > at[6]
    assert mig.instance_cost(H100, [(ONE, 4)], (ONE, 5), {THREE: 1.0}) == 0  # that half is lost to 3g already
    assert mig.instance_cost(H100, [(ONE, 4)], (ONE, 0), {THREE: 1.0}) > 0


def test_a_board_is_found_by_model_and_memory() -> None:
    assert geometry_for("A100", 40_960) is GEOMETRIES["A100-40GB"]
    assert geometry_for("A100", 81_920) is GEOMETRIES["A100-80GB"]
    assert geometry_for("H100", 81_559) in (GEOMETRIES["H100-80GB-SXM"], GEOMETRIES["H100-80GB-PCIe"])
    assert geometry_for("L4", 23_034) is None
