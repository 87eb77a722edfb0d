"""Where gangs go: NVLink islands and fabrics, slowest links, widening, roles, elastic sizes, and what is charged for them."""

import json
from pathlib import Path

import numpy as np
import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.placement.answer import Blocked, BlockReason, Placed
from libs.core.placement.find import find
from libs.core.placement.search.gang import gap, shrink
from libs.core.placement.search.links import LINKS, link_gb_s
from libs.core.placement.view import Context, View
from libs.core.scheduling import preemption
from libs.core.scheduling.reservation import reserve
from libs.core.state.desired import desired
from libs.core.state.fleet import Fleet, Index
from libs.core.state.levels import LEVELS
from libs.core.state.shape import Shape, shape_of
from libs.core.state.snapshot import dump, load
from schemas import inbox
from schemas.ids import job_id
from schemas.jobs import CheckpointPolicy, JobSpec
from schemas.model_shape import ModelShape
from schemas.resources import Claim, Device, Inventory, Level, Position, Resources, Role, Topology, TopologyPolicy
from tests.core.builders import GIB, World
from tests.core.test_topology_properties import gang, nested, role

CATALOGUE = Path(__file__).parents[2] / "libs/core/accelerators/data.json"


def host(
    name: str,
    devices: int = 8,
    *,
    leaf: str = "l0",
    spine: str = "s0",
    zone: str = "z0",
    islands: int = 1,
    fabric: str = "",
    model: str = "H100",
    cpus: int = 0,
) -> Inventory:
    """A node whose devices are cut into NVLink islands (0: PCIe only)."""
    per = devices // islands if islands else 0
    return Inventory(
        node=name,
        position=Position(leaf=leaf, spine=spine, zone=zone),
        devices=tuple(
            Device(
                id=f"{name}-{i}", index=i, model=model, memory_mib=80 * GIB, fabric=fabric,
                nvlink_domain=f"nvl{i // per}" if per else "",
            )
            for i in range(devices)
        ),
        cpus=cpus,
        simulated=True,
    )  # fmt: skip


def fleet_of(*inventories: Inventory) -> Fleet:
    fleet = Fleet()
    for inventory in inventories:
        fleet.join(inventory, 1)
    return fleet


def take(fleet: Fleet, *devices: str) -> None:
    for device in devices:
        owner = fleet.node_names.names[int(fleet.node[fleet.row(device)])]
        fleet.take([Claim(device=device, node=owner, milli=1000, memory_mib=80 * GIB, epoch=1)])


def names(fleet: Fleet, placed: Placed | Blocked) -> list[str]:
    assert isinstance(placed, Placed)
    return [fleet.devices.names[row] for row in placed.rows.tolist()]


# ------------------------------------------------------------------------------------------------------------- links


def test_no_model_has_a_faster_link_at_a_wider_level():
    for model, links in LINKS.items():
        rates = [links.at(level) for level in LEVELS]
        assert rates == sorted(rates, reverse=True), model
        assert rates[-1] > 0


@pytest.mark.parametrize(
    ("model", "level", "gb_s"),
    [
        ("H100", "nvlink", 450), ("H100", "node", 63), ("H100", "leaf", 50), ("A100", "nvlink", 300), ("A100", "leaf", 25),
        ("B200", "nvlink", 900), ("MI300X", "nvlink", 64), ("L4", "nvlink", 31), ("L4", "node", 31), ("new", "node", 0),
    ],
)  # fmt: skip
def test_link_rates_one_way(model, level, gb_s):
    assert link_gb_s(model, Level(level)) == gb_s


def test_link_rates_agree_with_the_catalogue_of_accelerators():
    """But for: links of a pair of a V100 cube mesh or an MI250X, and Grace, whose C2C link joins no two accelerators."""
    others = {"V100", "MI250X", "GH200", "GB200", "GB300"}
    found = {a["model"]: a for a in json.loads(CATALOGUE.read_text())["accelerators"] if a["name"] == a["model"]}
    checked = [model for model in found if model in LINKS and model not in others]
    assert len(checked) > 20
    for model in checked:
        told = found[model]
        assert (LINKS[model].fabric, LINKS[model].node) == (told["link"]["pair_gb_s"], told["host_gb_s"]), model


# ----------------------------------------------------------------------------------------------------------- islands


def test_a_gang_keeps_to_one_island_where_one_suffices_and_tells_its_link():
    fleet = fleet_of(host("a", islands=2), host("b", islands=2))
    take(fleet, "a-0", "b-4")
    four = find(View.of(fleet), gang(4))
    assert names(fleet, four) == ["a-4", "a-5", "a-6", "a-7"]
    assert (four.level, four.link_gb_s) == ("nvlink", 450)
    three = find(View.of(fleet), gang(3))
    assert names(fleet, three) == ["a-1", "a-2", "a-3"]
    six = find(View.of(fleet), gang(6))
    assert (six.level, six.link_gb_s) == ("node", 63)


def test_without_nvlink_there_is_no_island_to_require():
    fleet = fleet_of(host("a", islands=0, model="L40S"))
    placed = find(View.of(fleet), gang(4))
    assert (placed.level, placed.link_gb_s) == ("node", 31)
    blocked = find(View.of(fleet), gang(4, "nvlink", required=True))
    assert blocked.reason is BlockReason.TOPOLOGY


def test_a_fabric_is_one_island_over_many_nodes():
    racks = [
        host(f"r{r}t{t}", 4, leaf=f"l{r}", fabric=f"nvl72-{r}", model="GB200") for r in range(2) for t in range(18)
    ]
    fleet = fleet_of(*racks)
    whole = find(View.of(fleet), gang(72, "nvlink", required=True))
    assert (whole.level, whole.link_gb_s) == ("nvlink", 900)
    assert len({name[:2] for name in names(fleet, whole)}) == 1
    assert isinstance(find(View.of(fleet), gang(73, "nvlink", required=True)), Blocked)
    wider = find(View.of(fleet), gang(73))
    assert (wider.level, wider.link_gb_s) == ("spine", 50)
    assert [name[:2] for name in names(fleet, wider)] == ["r0"] * 72 + ["r1"]


def test_a_level_that_is_required_cuts_a_fabric_too():
    fleet = fleet_of(*(host(f"t{t}", 4, fabric="rack", model="GB200") for t in range(4)))
    within_a_node = find(View.of(fleet), gang(4, "node", required=True))
    assert len({name.split("-")[0] for name in names(fleet, within_a_node)}) == 1
    assert isinstance(find(View.of(fleet), gang(5, "node", required=True)), Blocked)
    assert find(View.of(fleet), gang(5, "leaf", required=True)).level == "nvlink"


def test_a_fabric_that_is_whole_is_spared_while_a_cut_one_suffices():
    fleet = fleet_of(*(host(f"r{r}t{t}", 4, fabric=f"f{r}", model="GB200") for r in range(2) for t in range(4)))
    take(fleet, "r1t0-0")
    assert {name[:2] for name in names(fleet, find(View.of(fleet), gang(8)))} == {"r1"}


def test_of_equal_nodes_the_one_on_the_fullest_leaf_is_taken():
    fleet = fleet_of(host("a", leaf="l0"), host("b", leaf="l0"), host("c", leaf="l1"), host("d", leaf="l1"))
    take(fleet, "d-0")
    assert names(fleet, find(View.of(fleet), gang(8)))[0] == "c-0"


def test_the_remainder_goes_where_it_fits_tightest():
    fleet = fleet_of(*(host(f"{leaf}{i}", 4, leaf=leaf) for leaf in "abc" for i in range(3)))
    take(fleet, *(f"b{i}-{k}" for i in range(2) for k in range(4)), *(f"c0-{k}" for k in range(4)))
    placed = find(View.of(fleet), gang(15))  # a has 12 free, b 4, c 8: all of a, and 3 of the leaf with 4
    assert {name[0] for name in names(fleet, placed)} == {"a", "b"}


# ---------------------------------------------------------------------------------------------------------- widening


def admitted(name: str, resources: Resources, *, team: str = "research", **kw) -> inbox.JobAdmitted:
    return inbox.JobAdmitted(
        job_id=job_id(team, name),
        team=team,
        client_key=name,
        spec_hash=name,
        spec=JobSpec(name=name, command=("true",), resources=resources, checkpoint=CheckpointPolicy()),
        **{"priority": 0, "preempts": False, "submitted_us": 1} | kw,
    )


def submit(w: World, name: str, resources: Resources, **kw) -> str:
    w.send(job := admitted(name, resources, **kw))
    return job.job_id


def level(name: str, *, required: bool = True, widen_after_s: float = 0) -> Topology:
    policy = TopologyPolicy.REQUIRED if required else TopologyPolicy.PREFERRED
    return Topology(level=Level(name), policy=policy, widen_after_s=widen_after_s)


def test_a_preferred_level_is_waited_for_and_a_tick_widens_it():
    w = World(host("a", 4), host("b", 4, leaf="l1"))
    waits = submit(w, "waits", Resources(devices=8, topology=level("leaf", required=False, widen_after_s=30)))
    assert w.state_of(waits) == "queued"
    (blocked,) = w.decider.plan.waiting.values()
    assert blocked.reason is BlockReason.TOPOLOGY
    w.send(inbox.Tick(), after_us=29_000_000)
    assert w.state_of(waits) == "queued"
    w.send(inbox.Tick(), after_us=1_000_000)
    assert w.state_of(waits) == "granted"
    w.check()


def test_without_a_wait_a_preferred_level_widens_at_once_and_the_gap_tells():
    fleet = fleet_of(host("a", 4), host("b", 4), host("c", 8, leaf="l1"))
    take(fleet, "c-0")
    shape, view = gang(8, "nvlink"), View.of(fleet)
    placed = find(view, shape, context=Context(waited_us=0))
    told = gap(view, shape, placed)
    assert (told.wanted, told.level, told.steps, told.widened) == ("nvlink", "leaf", 2, True)
    assert (told.link_gb_s, told.best_link_gb_s) == (50, 450)


# ------------------------------------------------------------------------------------------------------------- roles


def test_groups_of_a_role_keep_to_their_islands_and_the_job_to_its_leaf():
    fleet = fleet_of(*(host(f"{leaf}{i}", leaf=leaf) for leaf in "xy" for i in range(4)))
    take(fleet, "x0-0", "x1-0", "x2-0")
    shape = nested(role("stage", 3, 8, "nvlink"), role("ps", 2, 1), level="leaf")
    placed = find(View.of(fleet), shape)
    found = names(fleet, placed)
    assert {name[0] for name in found} == {"y"}
    assert [len({n.split("-")[0] for n in found[i : i + 8]}) for i in (0, 8, 16)] == [1, 1, 1]
    assert placed.roles.tolist() == [0] * 24 + [1] * 2
    assert (placed.level, placed.link_gb_s) == ("leaf", 50)
    assert isinstance(find(View.of(fleet), nested(role("stage", 5, 8, "nvlink"), level="leaf")), Blocked)


def test_roles_may_be_of_different_types_and_the_slowest_link_is_that_of_the_slower_one():
    fleet = fleet_of(host("h", 8), host("l", 4, model="L4", islands=0))
    placed = find(View.of(fleet), nested(role("train", 1, 8, types=("H100",)), role("load", 2, 1, types=("L4",))))
    assert [name[0] for name in names(fleet, placed)] == ["h"] * 8 + ["l"] * 2
    assert placed.link_gb_s == link_gb_s("L4", "leaf")


def test_nothing_is_granted_when_one_role_does_not_fit():
    fleet = fleet_of(host("h", 8))
    blocked = find(View.of(fleet), nested(role("train", 1, 4), role("load", 1, 1, types=("L4",))))
    assert isinstance(blocked, Blocked)
    assert blocked.reason is BlockReason.TYPE
    blocked = find(View.of(fleet), nested(role("train", 1, 4), role("eval", 1, 5), level="pool"))
    assert isinstance(blocked, Blocked)


def test_a_group_of_a_preferred_level_widens_when_it_may():
    fleet = fleet_of(host("a", 4), host("b", 4))
    shape = nested(role("stage", 1, 6, "node", required=False), level="leaf")
    assert isinstance(find(View.of(fleet), shape), Placed)
    strict = nested(role("stage", 1, 6, "node"), level="leaf")
    assert find(View.of(fleet), strict).reason is BlockReason.TOPOLOGY


def test_each_rank_of_a_role_is_charged_the_processors_of_its_role():
    w = World(host("a", 8, cpus=32))
    roles = (role("train", 4, 1, cpu_milli=2000), role("load", 2, 1, cpu_milli=8000))
    job = submit(w, "nest", Resources(roles=roles))
    claims = w.decider.state.jobs[job].current.claims
    assert [c.cpu_milli for c in claims] == [2000] * 4 + [8000] * 2
    assert int(w.decider.state.fleet.free_cpu[0]) == 32_000 - 24_000
    more = submit(w, "more", Resources(roles=(role("load", 2, 1, cpu_milli=8000),)))
    assert w.state_of(more) == "queued"
    w.started(job)
    w.released(job)
    assert w.state_of(more) == "granted"
    w.check()


def test_roles_that_share_a_node_share_its_processors():
    fleet = fleet_of(host("a", 8, cpus=8))
    one = nested(role("x", 4, 1, cpu_milli=1000), role("y", 4, 1, cpu_milli=1000), level="node")
    assert isinstance(find(View.of(fleet), one), Placed)
    two = nested(role("x", 4, 1, cpu_milli=1500), role("y", 4, 1, cpu_milli=1000), level="node")
    assert isinstance(find(View.of(fleet), two), Blocked)


# ----------------------------------------------------------------------------------------------------------- elastic


def test_an_elastic_gang_is_granted_what_there_is_and_charged_for_that():
    w = World(host("a", 8))
    submit(w, "other", Resources(devices=3))
    job = submit(w, "elastic", Resources(devices=8, min_devices=2))
    assert len(w.decider.state.jobs[job].current.claims) == 5
    assert w.decider.state.committed("research") == {"H100": 8000}
    w.check()


def elastic(name: str, devices: int, fewest: int, tensor: int, pipeline: int = 1) -> inbox.JobAdmitted:
    """One whose model is split over tensor x pipeline devices."""
    asked = admitted(name, Resources(devices=devices, min_devices=fewest))
    model = ModelShape(parameters_b=7, tensor_parallel=tensor, pipeline_parallel=pipeline)
    return asked.model_copy(update={"spec": asked.spec.model_copy(update={"model": model})})


@pytest.mark.parametrize(
    ("free", "limit", "got"), [(7, None, 4), (6, None, 4), (8, 7000, 4), (3, None, 0), (8, None, 8)]
)
def test_an_elastic_gang_gets_only_sizes_that_its_model_divides(free, limit, got):
    w = World(host("a", 8))
    w.send(inbox.QuotaChanged(team="research", limit_milli=limit))
    if free < 8:
        submit(w, "others", Resources(devices=8 - free), team="others")
    job = w.submit(elastic("split", 8, 4, tensor=2, pipeline=2))
    current = w.decider.state.jobs[job].current
    assert (len(current.claims) if current else 0) == got
    w.check()


def test_what_is_kept_for_an_elastic_gang_is_cut_to_whole_replicas():
    shape = shape_of(elastic("split", 12, 4, tensor=4).spec)
    assert [shrink(shape, n).devices if shrink(shape, n) else None for n in (3, 5, 11, 12, 13)] == [None, 4, 8, 12, 12]


def test_an_elastic_gang_is_cut_to_its_teams_quota():
    w = World(host("a", 8))
    w.send(inbox.QuotaChanged(team="research", limit_milli=5000))
    job = submit(w, "elastic", Resources(devices=8, min_devices=2))
    assert len(w.decider.state.jobs[job].current.claims) == 5
    below = submit(w, "below", Resources(devices=2, min_devices=1))
    assert w.state_of(below) == "queued"
    w.check()


def test_what_an_elastic_gang_did_not_get_is_open_to_its_team_in_the_same_cycle():
    w = World(host("a", 4), host("b", 2))
    elastic = Resources(devices=8, min_devices=2, topology=level("node"))
    w.send(inbox.QuotaChanged(team="research", limit_milli=6000))
    batch = [admitted("elastic", elastic), admitted("pair", Resources(devices=2), submitted_us=2)]
    granted = [e for e in w.send(*batch) if e.kind == "job.granted"]
    assert [len(e.claims) for e in granted] == [4, 2]
    w.check()


def test_every_model_is_tried_in_full_before_any_gang_is_made_smaller():
    fleet = fleet_of(host("h", 6), host("a", 8, model="A100"))
    both = gang(8, types=("H100", "A100"), min_devices=2)
    assert {name[0] for name in names(fleet, find(View.of(fleet), both))} == {"a"}
    take(fleet, "a-0", "a-1", "a-2")
    assert {name[0] for name in names(fleet, find(View.of(fleet), both))} == {"h"}


def test_a_shape_is_cut_from_its_last_role_and_never_below_its_least():
    shape = nested(role("a", 4, 2, min_count=2), role("b", 4, 1, min_count=1))
    counts = {devices: shrink(shape, devices) for devices in (12, 10, 8, 5, 4)}
    assert [[r.count for r in counts[n].roles] for n in (12, 10, 8, 5)] == [[4, 4], [4, 2], [3, 1], [2, 1]]
    assert counts[4] is None
    assert shrink(gang(8, min_devices=3), 5).devices == 5


def test_devices_held_for_an_elastic_beneficiary_count_as_many_as_they_are():
    w = World(host("a", 8))
    w.started(submit(w, "victim", Resources(devices=8)))
    serve = submit(
        w, "serve", Resources(devices=16, min_devices=4), team="serving", priority=100, preempts=True
    )  # fmt: skip
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    assert len(plan.devices) == 8
    w.send(plan)
    assert w.decider.state.committed("serving") == {"H100": 8000}
    victim = plan.victims[0]
    w.released(victim, exit_code=143, own_exit=False)
    assert len(w.decider.state.jobs[serve].current.claims) == 8
    w.check()


# -------------------------------------------------------------------------------------------- preemption and reserve


def test_preemption_frees_an_island_and_not_just_as_many_devices():
    w = World(host("a", 8, islands=2))
    jobs = [submit(w, f"pair{i}", Resources(devices=2, topology=level("nvlink"))) for i in range(4)]
    for job in jobs:
        w.started(job)
    serve = submit(
        w, "serve", Resources(devices=4, topology=level("nvlink")), priority=100, preempts=True
    )  # fmt: skip
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    assert sorted(plan.devices) in ([f"a-{i}" for i in range(4)], [f"a-{i}" for i in range(4, 8)])
    assert len(plan.victims) == 2
    w.send(plan)
    for victim in plan.victims:
        w.released(victim, exit_code=143, own_exit=False)
    assert w.state_of(serve) == "granted"
    w.check()


def test_preemption_makes_room_for_nested_roles():
    w = World(host("a", 8), host("b", 8))
    for name in ("one", "two"):
        w.started(submit(w, name, Resources(devices=8)))
    roles = (role("tp", 1, 8, "nvlink"), role("ps", 1, 1))
    serve = submit(w, "serve", Resources(roles=roles), priority=100, preempts=True)
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    for victim in plan.victims:
        w.released(victim, exit_code=143, own_exit=False)
    assert w.state_of(serve) == "granted"
    w.check()


def test_a_reservation_keeps_one_island_only():
    w = World(host("a", 8, islands=2))
    w.started(submit(w, "busy", Resources(devices=3, topology=level("nvlink"))))
    w.started(submit(w, "busy2", Resources(devices=2, topology=level("nvlink"))))
    job = submit(w, "gang", Resources(devices=4, topology=level("nvlink")))
    view = View.of(w.decider.state.fleet)
    assert reserve(view, w.decider.state.jobs[job].shape).tolist() == [4, 5, 6, 7]


# ------------------------------------------------------------------------------------------------------------- speed


def big_fleet(nodes: int) -> Fleet:
    """`nodes` nodes of 8, 32 to a leaf, 16 leaves to a spine: the columns of one node, repeated."""
    fleet = fleet_of(host("n"))
    per_node = {
        "leaf",
        "spine",
        "zone",
        "simulated",
        "cpu_milli",
        "host_mib",
        "free_cpu",
        "free_host",
        "rack_w",
        "fetch_mib_s",
    }
    for name, column in vars(fleet).items():
        if isinstance(column, np.ndarray):
            length = 1 if name in per_node else 8
            setattr(fleet, name, np.tile(column[:length], nodes))
    device, node = np.arange(nodes * 8), np.arange(nodes)
    fleet.node, fleet.domain, fleet.leaf, fleet.spine = device // 8, device // 8, node // 32, node // 512
    for index, count in (
        ("devices", nodes * 8), ("domains", nodes), ("node_names", nodes), ("leaves", nodes // 32 + 1),
        ("spines", nodes // 512 + 1),
    ):  # fmt: skip
        setattr(fleet, index, Index(map(str, range(count))))
    return fleet


def test_a_gang_of_512_on_100_000_devices_is_placed_under_one_spine():
    """What it takes is measured by `python -m benchmarks.placement`."""
    fleet = big_fleet(12_500)
    view = View.of(fleet)
    view.free_milli[np.random.default_rng(3).random(len(view.free_milli)) < 0.3] = 0
    for shape in (
        gang(512, "spine", required=True),
        nested(role("tp", 64, 8, "node", required=False), level="spine"),
    ):
        placed = find(view, shape)
        assert len(placed.rows) == 512
        assert len(np.unique(fleet.spine[fleet.node[placed.rows]])) == 1


def test_shapes_are_hashable_with_roles():
    assert len({nested(role("a", 1, 2)), nested(role("a", 1, 2)), Shape(2)}) == 2


# ------------------------------------------------------------------------------------------------- what a grant tells


def test_a_grant_tells_how_close_together_the_gang_is_and_explain_repeats_it():
    w = World(host("a", 4), host("b", 4), host("c", 8, leaf="l1"))
    submit(w, "one", Resources(devices=5, topology=level("node")))  # on c, the only node that holds it
    wide = submit(w, "wide", Resources(devices=8, topology=level("nvlink", required=False)))
    events = w.records[-1].events
    (granted,) = [e for e in events if e.kind == "job.granted"]
    assert (granted.span.level, granted.span.wanted, granted.span.widened) == ("leaf", "nvlink", True)
    assert (granted.span.link_gb_s, granted.span.best_link_gb_s) == (50, 450)
    told = explain(w.decider.state, w.decider.state.jobs[wide], Reasons(w.decider.state))
    assert told.span == granted.span
    assert "within one leaf at 50 GB/s (asked for one nvlink; 450 GB/s if the pool were empty)" in told.text
    assert load(dump(w.decider.state)).state.jobs[wide].current.span == granted.span
    w.check()


def test_a_gang_that_got_the_best_has_no_gap_and_a_single_device_tells_nothing():
    w = World(host("a", 8))
    submit(w, "gang", Resources(devices=4))
    submit(w, "single", Resources())
    gang_, single = [e.span for record in w.records for e in record.events if e.kind == "job.granted"]
    assert (gang_.widened, gang_.steps, gang_.link_gb_s) == (False, 0, gang_.best_link_gb_s)
    assert single is None


def test_claims_of_a_nested_gang_keep_their_roles_as_far_as_the_desired_state():
    w = World(host("a", 4), host("b", 4))
    roles = (Role(name="trainer", count=2, devices=2), Role(name="judge", count=2))
    job_id_ = submit(w, "nested", Resources(roles=roles))
    claims = w.decider.state.jobs[job_id_].current.claims
    assert [c.role for c in claims] == ["trainer"] * 4 + ["judge"] * 2
    parts = [part for name in ("a", "b") for part in desired(w.decider.state, name, "p", 1).parts]
    assert [(r.name, r.devices, r.nodes) for r in parts[0].roles] == [("trainer", 4, (0,)), ("judge", 2, (1,))]
    assert [(r.role, r.role_rank) for part in parts for r in part.ranks] == [
        *(("trainer", n) for n in range(4)), ("judge", 0), ("judge", 1),
    ]  # fmt: skip
