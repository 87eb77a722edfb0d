"""A job that wants much of its node beside its device is not overtaken for ever by jobs that want less of it."""

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.placement.answer import BlockReason
from libs.core.scheduling import cycle, preemption
from schemas import inbox
from schemas.jobs import JobSpec
from schemas.ledger import DevicesReserved
from schemas.queues import Queue
from schemas.resources import (
    Device,
    DeviceKind,
    Inventory,
    Level,
    Position,
    Resources,
    Role,
    Runtime,
    Topology,
    TopologyPolicy,
)
from tests.core.builders import GIB, World, job, node

S = 1_000_000
DUE = 70 * S
LATER = count(1)
PROCESSORS = {"types": ("CPU",)}


def asks(name: str, team: str, **resources: Any) -> inbox.JobAdmitted:
    """Each is younger than those before."""
    spec = JobSpec(name=name, command=("true",), resources=Resources(**resources))
    return job(name, team=team, submitted_us=next(LATER)).model_copy(update={"spec": spec})


def runs(w: World, admitted: inbox.JobAdmitted) -> str:
    one = w.submit(admitted)
    w.started(one)
    assert w.state_of(one) == "running"
    return one


def host(name: str, devices: int = 4, cpus: int = 32, with_processors: bool = False, linked: bool = False) -> Inventory:
    """A node of `cpus` processors, which are a device of their own if they can be asked for `with_processors`."""
    found = node(name, devices)
    own = Device(
        id=f"{name}-cpu", index=99, kind=DeviceKind.CPU, model="CPU", memory_mib=64 * GIB, runtime=Runtime.CPU
    )  # fmt: skip
    gpus = [device.model_copy(update={"nvlink_domain": name if linked else ""}) for device in found.devices]
    return found.model_copy(
        update={"devices": (*gpus, *([own] if with_processors else [])), "cpus": cpus, "memory_mib": 64 * GIB}
    )


def reserved(events: list[Any]) -> dict[str, int]:
    return {event.gang: len(event.devices) for event in events if isinstance(event, DevicesReserved)}


GIVEN: dict[str, tuple[Inventory, dict[str, Any], dict[str, Any]]] = {
    "processors": (host("n0"), {"cpu_milli": 8000}, {"cpu_milli": 20_000}),
    "memory": (host("n0"), {"host_memory_mib": 16 * GIB}, {"host_memory_mib": 40 * GIB}),
    "of parts of devices": (host("n0", 2), {"share_milli": 500, "cpu_milli": 8000}, {"share_milli": 500, "cpu_milli": 20_000}),
    "all processors": (host("n0", with_processors=True), {"cpu_milli": 8000}, PROCESSORS),
    "a part of the processors": (
        host("n0", with_processors=True), {"cpu_milli": 8000}, {**PROCESSORS, "share_milli": 600}
    ),
    "beside processors": (
        host("n0", with_processors=True), {**PROCESSORS, "share_milli": 250}, {"cpu_milli": 20_000}
    ),
    "of a gang": (host("n0"), {"cpu_milli": 8000}, {"devices": 2, "cpu_milli": 12_000}),
    "of a gang beside processors": (
        host("n0", with_processors=True), {**PROCESSORS, "share_milli": 250}, {"devices": 4, "cpu_milli": 6000}
    ),
    "of roles beside processors": (
        host("n0", with_processors=True),
        {**PROCESSORS, "share_milli": 250},
        {"roles": (Role(name="worker", devices=3, cpu_milli=2000), Role(name="server", devices=1, cpu_milli=14_000))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", GIVEN)
def test_what_is_given_back_of_a_node_is_kept_for_who_waits_for_more(what: str) -> None:
    inventory, small, large = GIVEN[what]
    w = World(inventory)
    those = [runs(w, asks(f"r{n}", "red", **small)) for n in range(4)]
    waits = w.submit(asks("waits", "blue", **large))
    w.released(those.pop(0))
    those.append(runs(w, asks("early", "red", **small)))
    w.send(inbox.Tick(), after_us=DUE)
    late = [w.submit(asks(f"late{n}", "red", **small)) for n in range(3)]
    while w.state_of(waits) == "queued":
        assert those, "it never began"
        w.released(those.pop(0))
        w.send(inbox.Tick())
        assert {w.state_of(one) for one in late} == {"queued"} or w.state_of(waits) == "granted"
    w.started(waits)
    w.released(waits)
    assert w.state_of(late[0]) == "granted"
    w.check()


def test_a_gang_keeps_as_many_nodes_as_have_the_processors_for_it() -> None:
    """Eight devices of one node would suffice, its processors do not."""
    w = World(*(host(f"n{n}", 8, cpus=64) for n in range(3)))
    those = [runs(w, asks(f"r{n}", "red", cpu_milli=8000)) for n in range(24)]
    gang = w.submit(asks("gang", "blue", devices=8, cpu_milli=16_000))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {gang: 16}
    kept = {device[:2] for device in w.decider.state.reserved[gang]}
    for one in [one for one in those if set(w.nodes_of(one)) <= kept]:
        w.submit(asks(f"late{one}", "red", cpu_milli=8000))
        w.released(one)
    assert w.state_of(gang) == "granted"
    w.check()


ROLES = {"roles": (Role(name="worker", count=2, devices=2), Role(name="server", devices=1))}


@pytest.mark.parametrize(("limit", "kept"), [(3000, 0), (5000, 8)])
def test_roles_are_kept_no_devices_of_a_model_of_which_their_team_may_have_too_few(limit: int, kept: int) -> None:
    """Seen: eight, without end, of which nobody could use any."""
    w = World(host("n0", 8))
    those = [runs(w, asks(f"r{n}", "red")) for n in range(8)]
    waits = w.submit(asks("waits", "blue", **ROLES))
    w.send(inbox.QuotaChanged(team="blue", limit_milli=None, by_type={"H100": limit}))
    w.send(inbox.Tick(), after_us=DUE)
    assert len(w.decider.state.reserved.get(waits, ())) == kept
    late = w.submit(asks("late", "red"))
    w.released(those.pop())
    assert w.state_of(late) == ("queued" if kept else "granted")


def test_roles_of_two_models_are_kept_as_many_of_each_as_their_team_may_have() -> None:
    w = World(host("n0", 4), node("n1", 4, model="A100"))
    for n in range(4):
        runs(w, asks(f"h{n}", "red", types=("H100",)))
        runs(w, asks(f"a{n}", "red", types=("A100",)))
    waits = w.submit(asks("waits", "blue", **ROLES))
    w.send(inbox.QuotaChanged(team="blue", limit_milli=None, by_type={"H100": 2000}))
    w.send(inbox.Tick(), after_us=DUE)
    models = Counter(device[:2] for device in w.decider.state.reserved[waits])
    assert models == {"n0": 2, "n1": 4}


A_NODE = Topology(level=Level.NODE, policy=TopologyPolicy.REQUIRED)
APART: dict[str, tuple[tuple[Inventory, ...], tuple[Role, ...]]] = {
    "of two models": (
        (host("n0"), host("n1"), node("n2", 4, model="A100")),
        (Role(name="prefill", devices=4, types=("H100",)), Role(name="decode", devices=4, types=("A100",))),
    ),
    "beside each other": (
        (host("n0", 6), host("n1", 2), node("n2", 6)),
        (Role(name="prefill", devices=4, topology=A_NODE), Role(name="decode", devices=4, topology=A_NODE)),
    ),
}


@pytest.mark.parametrize("what", APART)
def test_roles_are_kept_devices_on_which_they_fit_together(what: str) -> None:
    """Seen: all devices of the nodes that came free first were kept without end, and a role never found its own."""
    nodes, roles = APART[what]
    w = World(*nodes)
    models = [device.model for one in nodes for device in one.devices if device.kind is DeviceKind.GPU]
    those = [runs(w, asks(f"r{n}", "red", types=(model,))) for n, model in enumerate(models)]
    waits = w.submit(asks("waits", "blue", roles=roles))
    w.send(inbox.Tick(), after_us=DUE)
    those.sort(key=lambda one: w.nodes_of(one) == ("n2",))  # there they run longest
    for n in range(40):
        late = w.submit(asks(f"late{n}", "red", types=(models[-1],)))
        if those:
            w.released(those.pop(0))
        if w.state_of(late) == "granted":
            w.started(late)
            those.append(late)
        w.send(inbox.Tick())
    assert w.state_of(waits) == "granted"
    w.check()


def drawing(name: str, cap_w: int) -> Inventory:
    """A node on a leaf of its own, with eight boards of 700 W."""
    found = host(name, 8)
    boards = tuple(device.model_copy(update={"power_limit_w": 700}) for device in found.devices)
    return found.model_copy(update={"devices": boards, "position": Position(leaf=name), "rack_power_w": cap_w})


def test_a_gang_is_kept_no_devices_of_a_leaf_that_never_has_the_power_for_it() -> None:
    """Seen: they stood idle without end."""
    w = World(drawing("n0", 3500), drawing("n1", 6000))
    those = [runs(w, asks(f"r{n}", "red")) for n in range(5 + 8)]
    leaf = Topology(level=Level.LEAF, policy=TopologyPolicy.REQUIRED)
    waits = w.submit(asks("waits", "blue", devices=8, topology=leaf))
    w.send(inbox.Tick(), after_us=DUE)
    assert {device[:2] for device in w.decider.state.reserved[waits]} == {"n1"}
    for one in those:
        late = w.submit(asks(f"late{one}", "red"))
        w.released(one)
        if w.state_of(late) == "granted":
            w.started(late)
    assert w.state_of(waits) == "granted"


def test_who_wants_nothing_of_the_node_runs_on_its_other_devices() -> None:
    w = World(host("n0"))
    runs(w, asks("r0", "red", cpu_milli=20_000))
    w.submit(asks("waits", "blue", cpu_milli=16_000))
    assert len(reserved(w.send(inbox.Tick(), after_us=DUE))) == 1
    assert w.state_of(w.submit(asks("more", "red", cpu_milli=1000))) == "queued"
    assert w.state_of(w.submit(asks("none", "red"))) == "granted"
    w.check()


def ends(w: World, waits: str) -> None:
    w.send(inbox.CancelRequested(job_id=waits, team="blue", reason="no need"))


def begins(w: World, waits: str) -> None:
    w.send(inbox.QuotaChanged(team="red", limit_milli=None))
    w.send(inbox.NodeRegistered(incarnation=1, inventory=host("n1", 1), lease_s=10))
    assert w.state_of(waits) == "granted"


@pytest.mark.parametrize("over", [ends, begins])
def test_what_was_kept_of_a_node_is_open_again_once_the_job_waits_no_longer(over: Callable[[World, str], None]) -> None:
    """Also to jobs on devices of the node that were not kept."""
    w = World(host("n0"))
    runs(w, asks("r0", "red", cpu_milli=20_000))
    waits = w.submit(asks("waits", "blue", cpu_milli=16_000))
    w.send(inbox.Tick(), after_us=DUE)
    behind = w.submit(asks("behind", "red", cpu_milli=8000))
    assert w.state_of(behind) == "queued"
    over(w, waits)
    assert w.state_of(behind) == "granted"
    w.check()


def test_who_comes_before_it_by_now_has_what_it_kept_within_a_second() -> None:
    w = World(host("n0", with_processors=True), node("n1", 5, model="A100"))
    w.send(inbox.ApplyQueues(version=1, queues=(Queue(name="blue"), Queue(name="red"), Queue(name="green"))))
    runs(w, asks("r0", "green", types=("H100",), cpu_milli=20_000))
    many = runs(w, asks("many", "red", devices=2, types=("A100",)))
    runs(w, asks("few", "blue", types=("A100",)))
    waits = w.submit(asks("waits", "blue", types=("H100",), cpu_milli=16_000))
    w.send(inbox.Tick(), after_us=DUE)
    behind = w.submit(asks("behind", "red", **PROCESSORS, share_milli=250))
    w.send(inbox.Tick(), after_us=S)
    assert w.state_of(behind) == "queued", "it is kept for who holds less"
    w.released(many)
    w.send(inbox.Tick(), after_us=S)
    assert (w.state_of(behind), w.state_of(waits)) == ("granted", "queued")
    w.check()


def test_nobody_gives_way_to_a_job_behind_it_for_processors_that_are_kept() -> None:
    w = World(host("n0"))
    runs(w, asks("high", "red", cpu_milli=20_000).model_copy(update={"priority": 100}))
    low = runs(w, asks("low", "red", cpu_milli=8000))
    first = w.submit(asks("first", "blue", cpu_milli=12_000).model_copy(update={"priority": 100}))
    w.send(inbox.Tick(), after_us=DUE)
    more = {"priority": 50, "preempts": True}
    behind = w.submit(asks("behind", "green", cpu_milli=4000).model_copy(update=more))
    assert w.state_of(behind) == w.state_of(first) == "queued", "4,000 are free, and kept"
    plans = preemption.plans(w.decider.state, w.now_us, len(w.records), policy=w.decider.policy)
    assert plans == [], f"{low} would stop for processors that {behind} does not get"


def test_who_waits_behind_it_is_told_so() -> None:
    w = World(host("n0"))
    runs(w, asks("r0", "red", cpu_milli=20_000))
    w.submit(asks("waits", "blue", cpu_milli=16_000))
    w.send(inbox.Tick(), after_us=DUE)
    behind = w.submit(asks("behind", "red", cpu_milli=8000))
    state = w.decider.state
    found = Reasons(state, w.decider.policy).of(state.jobs[behind].queue)
    assert found is not None
    assert found.reason is BlockReason.CPU


@pytest.mark.parametrize("linked", [True, False])
def test_of_many_devices_the_one_is_kept_of_which_the_least_is_lacking(linked: bool) -> None:
    """Seen: of a node with NVLink all eight were kept for one."""
    w = World(host("n0", 8, linked=linked), host("n1", 8, linked=linked))
    shares = [runs(w, asks(f"s{n}", "red", share_milli=300)) for n in range(48)]
    near = next(one for one in shares if w.nodes_of(one) == ["n1"])
    (device,) = (claim.device for part in w.decider.state.jobs[near].current.parts.values() for claim in part.claims)
    w.released(near)
    whole = w.submit(asks("whole", "blue"))
    w.send(inbox.Tick(), after_us=DUE)
    assert w.decider.state.reserved == {whole: (device,)}


def test_it_is_not_put_back_by_what_comes_free_elsewhere() -> None:
    """While it has more on one device than on any other, it stays there."""
    w = World(host("n0", 1), host("n1", 1))
    shares = [runs(w, asks(f"s{n}", "red", share_milli=200)) for n in range(10)]
    whole = w.submit(asks("whole", "blue"))
    first, second = ([one for one in shares if w.nodes_of(one) == [f"n{n}"]] for n in range(2))
    w.send(inbox.Tick(), after_us=DUE)
    for there, node_there in ((first, "n0"), (second, "n0"), (second, "n1")):
        w.released(there.pop())
        w.send(inbox.Tick())
        assert w.decider.state.reserved == {whole: (f"{node_there}-gpu0",)}
    w.check()


def test_others_use_processors_that_its_own_teams_job_keeps_from_it() -> None:
    """Seen as an attack: a job without end, and one that waits for its processors, so that the rest is idle for others."""
    w = World(host("n0"))
    stays = runs(w, asks("stays", "red", cpu_milli=20_000))
    waits = w.submit(asks("waits", "red", cpu_milli=16_000))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {}
    assert w.state_of(w.submit(asks("own", "red", cpu_milli=4000))) == "queued"
    other = runs(w, asks("other", "green", cpu_milli=4000))
    w.released(stays)
    assert (w.state_of(waits), w.state_of(other)) == ("granted", "running")
    w.check()


def test_nothing_is_kept_for_a_job_that_waits_at_its_teams_limit() -> None:
    w = World(host("n0"))
    w.send(inbox.QuotaChanged(team="red", limit_milli=1000))
    runs(w, asks("stays", "red"))
    runs(w, asks("busy", "green", cpu_milli=20_000))
    w.submit(asks("waits", "red", cpu_milli=16_000))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {}
    assert w.state_of(w.submit(asks("other", "green", cpu_milli=4000))) == "granted"
    w.check()


def test_who_has_devices_held_gets_the_processors_for_which_others_stopped() -> None:
    """Seen: a job ahead of it was kept them beside another device of the node, which it never had as many as it asked for; and
    both waited, beside what was idle."""
    w = World(host("n0", 3))
    runs(w, asks("stays", "red", cpu_milli=12_000).model_copy(update={"priority": 200}))
    victim = runs(w, asks("victim", "green", cpu_milli=20_000))
    urgent = w.submit(asks("urgent", "red", cpu_milli=20_000).model_copy(update={"priority": 100, "preempts": True}))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records), policy=w.decider.policy)
    w.send(plan)
    assert list(w.decider.state.holds) == [urgent]
    ahead = w.submit(asks("ahead", "blue", cpu_milli=24_000).model_copy(update={"priority": 200}))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {ahead: 1}
    w.released(victim, exit_code=143, own_exit=False)
    assert (w.state_of(ahead), w.state_of(urgent)) == ("queued", "granted")
    w.check()


def gives_way(w: World) -> None:
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records), policy=w.decider.policy)
    w.send(plan)
    assert w.decider.state.holds


def test_processors_that_are_held_count_as_taken_from_who_waits_for_more() -> None:
    """Seen: while others stopped for a third, each job of a few processors overtook it; for an hour, which a grace may last."""
    two_of_another = host("n0", 8, cpus=64)
    models = tuple(d.model_copy(update={"model": "A10"}) if d.index < 2 else d for d in two_of_another.devices)
    w = World(two_of_another.model_copy(update={"devices": models}))
    victim = runs(w, asks("victim", "green", types=("A10",), cpu_milli=4000))
    small = {"types": ("H100",), "cpu_milli": 4000}
    those = [runs(w, asks(f"r{n}", "red", **small)) for n in range(5)]
    urgent = asks("urgent", "red", devices=2, types=("A10",), cpu_milli=18_000)
    w.submit(urgent.model_copy(update={"priority": 100, "preempts": True}))
    gives_way(w)
    waits = w.submit(asks("waits", "blue", types=("H100",), cpu_milli=12_000))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {waits: 1}
    late = [w.submit(asks(f"late{n}", "red", **small)) for n in range(3)]
    while w.state_of(waits) == "queued":
        assert those, "it never began"
        assert {w.state_of(one) for one in late} == {"queued"}
        w.released(those.pop(0))
    assert w.state_of(victim) == "preempting"
    w.check()


def test_nothing_is_kept_for_one_device_where_only_held_ones_are_taken_in_part() -> None:
    """Seen: processors were kept on a node where it waits for a whole device, as long as another's device was held."""
    w = World(host("n0", 1), host("n1", 1, with_processors=True))
    share = runs(w, asks("share", "green", share_milli=300))
    whole = runs(w, asks("whole", "red"))
    assert (w.nodes_of(share), w.nodes_of(whole)) == (["n0"], ["n1"])
    w.submit(asks("urgent", "red").model_copy(update={"priority": 100, "preempts": True}))
    gives_way(w)
    w.submit(asks("waits", "blue", cpu_milli=20_000))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {}
    beside = w.submit(asks("beside", "green", **PROCESSORS, share_milli=500))
    assert w.state_of(beside) == "granted"
    w.check()


def test_explain_says_of_who_has_devices_held_what_the_cycle_does() -> None:
    """None of what it waits for is kept for others."""
    w = World(host("n0", 3))
    runs(w, asks("stays", "red", cpu_milli=12_000).model_copy(update={"priority": 200}))
    victims = [runs(w, asks(f"victim{n}", "green", cpu_milli=10_000)) for n in range(2)]
    urgent = w.submit(
        asks("urgent", "red", devices=2, cpu_milli=10_000).model_copy(update={"priority": 100, "preempts": True})
    )
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records), policy=w.decider.policy)
    w.send(plan)
    w.submit(asks("ahead", "blue", cpu_milli=24_000).model_copy(update={"priority": 200}))
    w.released(victims[0], exit_code=143, own_exit=False)
    w.send(inbox.Tick(), after_us=DUE)
    state = w.decider.state
    for key, waits in cycle.plan(state, w.now_us, w.decider.policy).waiting.items():
        told = Reasons(state, w.decider.policy, w.now_us).of(key)
        assert told is not None
        assert (told.reason, told.removed, told.left) == (waits.reason, waits.removed, waits.left)
    w.released(victims[1], exit_code=143, own_exit=False)
    assert w.state_of(urgent) == "granted"


def test_a_gang_of_one_island_keeps_one_whose_node_has_the_processors_for_it() -> None:
    """Seen: each island counted as half of its node, and was too small."""
    w = World(*(islands(f"n{n}") for n in range(2)))
    those = [runs(w, asks(f"r{n}", "red", cpu_milli=4000)) for n in range(16)]
    one_island = Topology(level=Level.NVLINK, policy=TopologyPolicy.REQUIRED)
    gang = w.submit(asks("gang", "blue", devices=4, cpu_milli=8000, topology=one_island))
    w.released(those.pop(0))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {gang: 4}
    while w.state_of(gang) == "queued":
        w.submit(asks(f"late{len(those)}", "red", cpu_milli=4000))
        w.released(those.pop(0))
    w.check()


def islands(name: str) -> Inventory:
    """A node of two islands of four devices, and 32 processors."""
    found = host(name, 8)
    linked = [
        device.model_copy(update={"nvlink_domain": f"{name}-{at // 4}"}) for at, device in enumerate(found.devices)
    ]
    return found.model_copy(update={"devices": tuple(linked)})


def test_a_gang_keeps_devices_of_one_model() -> None:
    """Seen: it was kept some of each, on which it never runs, for as long as a node was away."""
    w = World(node("a", 4), node("b", 4, model="A100"), node("c", 4))
    busy = [runs(w, job(f"busy{n}", team="red", types=("H100",), submitted_us=n + 1)) for n in range(8)]
    gang = w.submit(job("gang", 8, team="blue", submitted_us=20))
    w.released(busy.pop())
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {gang: 8}
    assert {device[0] for device in w.decider.state.reserved[gang]} == {"a", "c"}
    assert w.state_of(w.submit(job("other", team="red", types=("A100",), submitted_us=30))) == "granted"
    w.send(inbox.NodeLost(node="c", incarnation=1, silent_s=31))
    w.send(inbox.Tick())
    assert w.decider.state.reserved.get(gang, ()) == (), "it never runs on what is left"
    assert w.state_of(w.submit(job("more", 3, team="red", types=("A100",), submitted_us=31))) == "granted"
    w.check()
