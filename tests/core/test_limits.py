"""Limits in normalised units: what counts, how much room is left, and what is told when there is none."""

from itertools import product

import pytest

from libs.core.accelerators.kinds import GRAINS, accelerators_milli, counted_milli, grains, problem_with, weight
from libs.core.accelerators.mig_boards import GEOMETRIES
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.placement.search.constraints import cap_of
from libs.core.projections.verify.limit_books import part_of
from libs.core.scheduling import preemption
from libs.core.scheduling.limits import room
from libs.core.state.limits import Cap, Limits
from libs.core.state.shape import RoleShape, Shape
from schemas import inbox
from schemas.resources import (
    ANY_ACCELERATOR,
    Device,
    DeviceKind,
    Inventory,
    MigBoard,
    Resources,
    Runtime,
    kind_of,
    parts_of,
)
from tests.core.builders import GIB, World, job, maximal_layouts, node

WHOLE = GRAINS * 1000


def model_of(board: str) -> str:
    return "GH200" if board == "H100-96GB" else board.split("-")[0]


# ------------------------------------------------------------------------------------------------------ what counts


@pytest.mark.parametrize("board", GEOMETRIES)
def test_no_set_of_instances_is_more_than_its_board(board: str) -> None:
    geometry, model = GEOMETRIES[board], model_of(board)
    for layout in maximal_layouts(geometry):
        held: dict[str, int] = {}
        for profile, _ in layout:
            held[kind_of(model, profile)] = held.get(kind_of(model, profile), 0) + 1000
        assert 0 < grains(ANY_ACCELERATOR, held) <= WHOLE
        assert grains(model, held) == grains(ANY_ACCELERATOR, held)


@pytest.mark.parametrize("board", GEOMETRIES)
def test_as_many_smallest_slices_as_a_board_has_are_exactly_one_board(board: str) -> None:
    geometry, model = GEOMETRIES[board], model_of(board)
    smallest = next(p for p in geometry.profiles if p.compute_slices == 1 and p.limit == geometry.compute)
    held = {kind_of(model, smallest.name): geometry.compute * 1000}
    assert grains(ANY_ACCELERATOR, held) == WHOLE
    assert accelerators_milli(held) == 1000


def test_each_limit_counts_what_its_key_names() -> None:
    held = {"H100": 2000, "H100:1g.10gb": 3000, "A100": 500, "CPU": 4000}
    assert counted_milli("*", held) == 2000 + 429 + 500, "three slices of seven, rounded up; no processors"
    assert counted_milli("H100", held) == 2429
    assert counted_milli("H100:1g.10gb", held) == 3000
    assert counted_milli("CPU", held) == 4000
    assert counted_milli("L4", held) == 0


def test_an_instance_that_no_table_names_counts_by_its_name_or_as_a_whole_accelerator() -> None:
    assert weight("*", "H100:2g.22gb") == GRAINS * 2 // 7
    assert weight("*", "A30:1g.7gb") == GRAINS // 4
    assert weight("*", "H100:odd") == GRAINS
    assert weight("*", "RTX-PRO-6000:1g.24gb") == GRAINS, "its board is not known"
    assert weight("*", "X9") == GRAINS


def test_the_checkers_own_fractions_agree_with_the_grains_on_every_kind_and_key() -> None:
    kinds = {kind_of(model_of(b), p.name) for b, g in GEOMETRIES.items() for p in g.profiles}
    kinds |= {"H100", "CPU", "X9", "v5e", "H100:2g.22gb", "H100:odd", "RTX-PRO-6000:1g.24gb", "Hailo-8"}
    for kind, key in product(sorted(kinds), ["*", *sorted(kinds | {parts_of(k)[0] for k in kinds})]):
        assert part_of(key, {parts_of(kind): 1000}) * GRAINS == grains(key, {kind: 1000}), (key, kind)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("h100", "no such device type: did you mean H100?"),
        ("H100:1g.10g", "no such MIG profile: did you mean 1g.10gb? H100 has "),
        ("H100:", "no such MIG profile"),
        ("T4:1g.10gb", "T4 has none"),
    ],
)
def test_a_wrong_key_is_told_with_the_fix(key: str, says: str) -> None:
    assert says in problem_with(key)


def test_keys_of_the_catalogue_and_of_the_pool_are_right() -> None:
    assert not any(map(problem_with, ("H100", "CPU", "H100:1g.10gb", "A30:4g.24gb", "v5p")))
    assert problem_with("X9")
    assert not problem_with("X9", ["X9"])
    assert problem_with("X9:1g.9gb", ["X9"])
    assert not problem_with("X9:1g.9gb", ["X9:1g.9gb"])


# ------------------------------------------------------------------------------------------------------------- room


def test_without_limits_everything_is_allowed() -> None:
    shape = Shape(devices=512)
    assert room(None, {}, shape, ["H100"]).request is shape


@pytest.mark.parametrize(
    ("limit", "used", "allowed"), [(8000, 7000, True), (8000, 7001, False), (8000, 9000, False), (0, 0, False)]
)
def test_all_or_nothing(limit: int, used: int, allowed: bool) -> None:
    left = room(Limits(limit), {"H100": used}, Shape(devices=1), ["H100"])
    assert (left.request is not None) == allowed
    assert allowed or left.reached[0].text("vision") == (
        f"team vision holds {used / 1000:g} of its limit of {limit / 1000:g} accelerators and the job needs 1"
    )


def test_a_type_that_is_full_does_not_close_the_others() -> None:
    asked = Shape(devices=4, types=("H100", "A100"))
    left = room(Limits(16_000, (("H100", 8000),)), {"H100": 6000}, asked, [])
    assert left.request is not None
    assert [cap_of(left.request, model) for model in asked.types] == [2, 4]
    full = room(Limits(9000, (("H100", 8000),)), {"H100": 6000}, asked, [])
    assert full.request is None
    assert {r.key for r in full.reached} == {"*", "H100"}


def test_an_elastic_request_is_cut_to_the_model_with_the_most_room() -> None:
    asked = Shape(devices=8, min_devices=2, types=("H100", "A100", "L4"))
    left = room(Limits(None, (("H100", 4000), ("A100", 6000), ("L4", 1000))), {}, asked, [])
    assert left.request is not None
    assert left.request.devices == 6
    assert set(left.request.caps) == {Cap(("H100",), 4), Cap(("L4",), 1)}


def test_slices_and_shares_take_their_part() -> None:
    slices = Shape(devices=1, types=("H100",), profile="1g.10gb")
    assert room(Limits(1000), {"H100:1g.10gb": 6000}, slices, []).request is not None
    assert room(Limits(1000), {"H100:1g.10gb": 7000}, slices, []).request is None
    assert room(Limits(143), {}, slices, []).request is not None, "142.86 thousandths"
    assert room(Limits(142), {}, slices, []).request is None
    share = Shape(devices=1, types=("H100",), milli=250)
    assert room(Limits(1000), {"H100:1g.10gb": 5000}, share, []).request is not None, "five sevenths and a quarter"
    assert room(Limits(1000), {"H100:1g.10gb": 6000}, share, []).request is None
    profile = room(Limits(None, (("H100:1g.10gb", 2000),)), {"H100:1g.10gb": 2000}, slices, [])
    assert profile.reached[0].text("a") == (
        "team a holds 2 of its limit of 2 1g.10gb instances of H100 and the job needs 1"
    )


def test_processors_have_a_limit_of_their_own_and_no_other() -> None:
    processors = Shape(devices=2, types=("CPU",))
    assert room(Limits(0), {}, processors, []).request is not None
    assert room(Limits(None, (("CPU", 1000),)), {}, processors, []).request is None


def test_what_is_kept_for_a_request_is_its_own_also_above_a_lowered_limit() -> None:
    asked = Shape(devices=4, min_devices=1, types=("H100",))
    left = room(Limits(1000), {}, asked, [], kept={"H100": 3000})
    assert left.request is not None
    assert left.request.devices == 3


def role(name: str, count: int, devices: int, *types: str, least: int = 0) -> RoleShape:
    return RoleShape(name, count, least or count, devices, types, 0, 0, 0, "node", False, 0)


def nested(*roles: RoleShape) -> Shape:
    return Shape(devices=sum(r.count * r.devices for r in roles), roles=roles)


def test_roles_share_what_a_limit_leaves() -> None:
    asked = nested(role("work", 2, 4, "H100"), role("serve", 1, 2, "H100", "A100"))
    assert room(Limits(None, (("H100", 8000),)), {}, asked, []).request is not None
    assert room(Limits(None, (("H100", 7000),)), {}, asked, []).request is None
    assert room(Limits(9000), {}, asked, []).request is None
    assert room(Limits(None, (("H100", 8000), ("A100", 1000))), {}, asked, []).request is not None, "find sees the rest"
    elastic = nested(role("work", 4, 2, "H100", least=1), role("host", 2, 1, "CPU"))
    cut = room(Limits(None, (("H100", 4000),)), {}, elastic, []).request
    assert cut is not None
    assert cut.caps == (Cap(("H100",), 4),)


# ---------------------------------------------------------------------------------------------------- in a world


def board(name: str, profile: str, count: int, model: str = "H100") -> Inventory:
    """A node with one MIG board, cut into `count` instances of `profile`."""
    geometry = GEOMETRIES["H100-80GB-SXM" if model == "H100" else "A30-24GB"]
    known = next(p for p in geometry.profiles if p.name == profile)
    return Inventory(
        node=name,
        devices=tuple(
            Device(
                id=f"{name}-mig{i}", index=i, kind=DeviceKind.MIG, model=model, memory_mib=known.memory_mib,
                mig_profile=profile, parent=f"{name}-board", mig_start=known.starts[i],
            )
            for i in range(count)
        ),
        boards=(
            MigBoard(
                id=f"{name}-board", index=0, model=model, memory_mib=80 * GIB, slices=geometry.slices,
                profiles=geometry.profiles,
            ),
        ),
        simulated=True,
    )  # fmt: skip


def processors(name: str, count: int = 1) -> Inventory:
    return Inventory(
        node=name,
        devices=tuple(
            Device(
                id=f"{name}-cpu{i}", index=i, kind=DeviceKind.CPU, model="CPU", memory_mib=GIB, runtime=Runtime.CPU
            )
            for i in range(count)
        ),
        simulated=True,
    )  # fmt: skip


def asking(name: str, resources: Resources, **more) -> inbox.JobAdmitted:
    admitted = job(name, **more)
    return admitted.model_copy(update={"spec": admitted.spec.model_copy(update={"resources": resources})})


def why(world: World, job_id: str):
    state = world.decider.state
    return explain(state, state.jobs[job_id], Reasons(state))


def test_seven_slices_are_one_board_and_no_more() -> None:
    world = World(board("m", "1g.10gb", 7), node("h", 2))
    world.send(inbox.QuotaChanged(team="research", limit_milli=1000))
    slices = [world.submit(asking(f"s{i}", Resources(mig_profile="1g.10gb"))) for i in range(7)]
    whole = world.submit(job("whole"))
    assert {world.state_of(s) for s in slices} == {"granted"}
    assert world.state_of(whole) == "queued"
    told = why(world, whole)
    assert (told.reason, told.text) == (
        "quota",
        "team research holds 1 of its limit of 1 accelerator and the job needs 1",
    )
    world.released(slices[0])
    assert world.state_of(whole) == "queued", "six sevenths are held"
    assert "holds 0.857 of" in why(world, whole).text
    world.check()


def test_a_job_goes_to_the_listed_type_that_has_room() -> None:
    world = World(node("h", 8), node("a", 8, model="A100"))
    world.send(inbox.QuotaChanged(team="research", limit_milli=None, by_type={"H100": 4000}))
    both = [world.submit(job(f"j{i}", 4, types=("H100", "A100"))) for i in range(2)]
    assert [world.nodes_of(j) for j in both] == [["h"], ["a"]]
    alone = world.submit(job("alone", types=("H100",)))
    told = why(world, alone)
    assert told.text == "team research holds 4 of its limit of 4 H100 and the job needs 1"
    assert told.suggestion == "add A100 to resources.types"
    anything = world.submit(job("anything", 4))
    assert world.nodes_of(anything) == ["a"]
    other = world.submit(job("other", 4, team="vision", types=("H100",)))
    assert world.nodes_of(other) == ["h"], "another team's limit is another's"
    world.check()


def test_a_suggestion_keeps_to_the_limits_too() -> None:
    world = World(node("h", 1), node("a", 8, model="A100"))
    world.submit(job("first", team="vision", types=("H100",)))
    world.send(inbox.QuotaChanged(team="research", limit_milli=None, by_type={"A100": 0}))
    assert "A100" not in why(world, world.submit(job("second", types=("H100",)))).suggestion


def test_a_limit_on_processors_and_one_on_accelerators_do_not_meet() -> None:
    world = World(node("h", 2), processors("c", 3))
    world.send(inbox.QuotaChanged(team="research", limit_milli=1000, by_type={"CPU": 2000}))
    jobs = [world.submit(job(f"c{i}", types=("CPU",))) for i in range(3)]
    assert [world.state_of(j) for j in jobs] == ["granted", "granted", "queued"]
    assert why(world, jobs[2]).text == "team research holds 2 of its limit of 2 CPU and the job needs 1"
    assert world.state_of(world.submit(job("gpu"))) == "granted"
    world.check()


def test_preemption_takes_nothing_for_a_type_that_is_full() -> None:
    world = World(node("h", 4), node("a", 4, model="A100"))
    for name, kind in (("x", "H100"), ("y", "A100")):
        world.started(world.submit(job(name, 4, types=(kind,), team="low")))
    world.send(inbox.QuotaChanged(team="serving", limit_milli=None, by_type={"H100": 1000}))
    world.submit(job("only", 2, types=("H100",), team="serving", priority=9, preempts=True))
    assert preemption.plans(world.decider.state, world.now_us, len(world.records)) == []
    wanted = world.submit(job("either", 2, types=("H100", "A100"), team="serving", priority=9, preempts=True))
    (plan,) = preemption.plans(world.decider.state, world.now_us, len(world.records))
    assert (plan.beneficiary, {device[0] for device in plan.devices}) == (wanted, {"a"})
    world.send(plan)
    assert wanted in world.decider.state.holds
    world.check()


def test_a_plan_that_lifts_its_team_above_a_limit_by_type_is_declined() -> None:
    world = World(node("h", 4))
    world.started(world.submit(job("x", 4, team="low")))
    world.submit(job("up", 2, team="serving", priority=9, preempts=True))
    (plan,) = preemption.plans(world.decider.state, world.now_us, len(world.records))
    world.send(inbox.QuotaChanged(team="serving", limit_milli=None, by_type={"H100": 1000}))
    (declined,) = [e for e in world.send(plan) if e.kind == "plan.declined"]
    assert declined.reason == "over-limit"
    assert "team serving holds 0 of its limit of 1 H100 and the job needs 2" in declined.text


def test_a_nested_gang_spreads_over_types_within_their_limits() -> None:
    world = World(node("h", 8), node("a", 8, model="A100"))
    world.send(inbox.QuotaChanged(team="research", limit_milli=None, by_type={"H100": 4000}))
    roles = [
        {"name": "work", "count": 1, "devices": 4, "types": ["H100"]},
        {"name": "serve", "count": 1, "devices": 2, "types": ["H100", "A100"]},
    ]
    granted = world.submit(asking("nest", Resources.model_validate({"roles": roles})))
    assert world.decider.state.used["research"] == {"H100": 4000, "A100": 2000}
    assert world.state_of(granted) == "granted"
    world.check()


def test_a_gang_whose_types_are_partly_full_still_reserves_the_others() -> None:
    world = World(node("h", 8), node("a", 4, model="A100"))
    world.send(inbox.QuotaChanged(team="research", limit_milli=None, by_type={"H100": 1000}))
    holders = [world.submit(job(f"v{i}", team="vision", types=("A100",))) for i in range(4)]
    gang = world.submit(job("gang", 4, types=("H100", "A100")))
    world.send(inbox.Tick(), after_us=70_000_000)
    world.released(holders[0])
    late = world.submit(job("late", team="vision", types=("A100",)))
    assert world.state_of(late) == "queued", "what is free is kept for the gang"
    for holder in holders[1:]:
        world.released(holder)
    assert world.nodes_of(gang) == ["a"]
    world.check()


def test_what_a_cycle_has_granted_counts_for_the_rest_of_it() -> None:
    world = World(node("h", 8), board("m", "1g.10gb", 7))
    world.send(inbox.QuotaChanged(team="research", limit_milli=None, by_type={"H100": 4000}))
    batch = [job(f"j{i}", 3) for i in range(2)] + [asking(f"s{i}", Resources(mig_profile="3g.40gb")) for i in range(1)]
    batch += [asking(f"t{i}", Resources(mig_profile="1g.10gb")) for i in range(7)]
    granted = [e for e in world.send(*batch) if e.kind == "job.granted"]
    assert world.decider.state.used["research"] == {"H100": 3000, "H100:1g.10gb": 7000}
    assert len(granted) == 8, "three boards, and seven sevenths of one"
    world.check()
