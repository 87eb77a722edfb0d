"""Runtime, precision, processors, host memory, anti-affinity, rack power, measured memory, contents."""

import random
from typing import Any

import numpy as np
import pytest

from libs.core.accelerators.catalog import catalog
from libs.core.accelerators.precisions import computes
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.placement.answer import Blocked, BlockReason, Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.search.locality import seconds_to_ready
from libs.core.placement.view import Context, View
from libs.core.projections.verify import Checker
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.preemption.victims import plans
from libs.core.state.fleet import Fleet, Overcommitted
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas import inbox
from schemas.ids import job_id
from schemas.jobs import JobSpec
from schemas.ledger import JobGranted, JobQueued, LedgerRecord, NodeJoined
from schemas.resources import Claim, Content, Device, Inventory, Level, Position, Resources, Role, Runtime, Spread
from tests.core.builders import GIB, World


def host(
    name: str,
    devices: int = 4,
    *,
    leaf: str = "a",
    spine: str = "s",
    watts: int = 700,
    device: Any = None,
    **fields: Any,
) -> Inventory:
    """A node of H100 with 32 processors and 512 GiB; `device` is laid over each device, the rest over the inventory."""
    one: dict[str, Any] = {"model": "H100", "memory_mib": 80 * GIB, "power_limit_w": watts} | (device or {})
    made = tuple(Device(id=f"{name}-{i}", index=i, **one) for i in range(devices))
    position = Position(leaf=leaf, spine=spine)
    given: dict[str, Any] = {"node": name, "position": position, "devices": made, "cpus": 32, "memory_mib": 512 * GIB}
    return Inventory(**given | fields)


def fleet_of(*hosts: Inventory) -> Fleet:
    fleet = Fleet()
    for inventory in hosts:
        fleet.join(inventory, 1)
    return fleet


def asking(name: str, *, priority: int = 0, preempts: bool = False, **resources: Any) -> inbox.JobAdmitted:
    spec = JobSpec(name=name, command=("true",), resources=Resources(**resources))
    return inbox.JobAdmitted(
        job_id=job_id("research", name), team="research", spec=spec, spec_hash=name, client_key=name,
        priority=priority, preempts=preempts, submitted_us=1,
    )  # fmt: skip


def nodes_of(fleet: Fleet, outcome: Placed | Blocked) -> list[str]:
    assert isinstance(outcome, Placed), outcome
    return [fleet.node_names.names[n] for n in fleet.node[outcome.rows]]


def reason(fleet: Fleet, shape: Shape, context: Context = Context()) -> BlockReason:
    outcome = find(View.of(fleet), shape, context=context)
    assert isinstance(outcome, Blocked), outcome
    return outcome.reason


def test_a_binary_goes_where_its_runtime_is() -> None:
    fleet = fleet_of(host("cuda"), host("rocm", device={"model": "MI300X", "runtime": Runtime.ROCM}))
    assert nodes_of(fleet, find(View.of(fleet), Shape(1, runtime="rocm"))) == ["rocm"]
    assert reason(fleet, Shape(1, runtime="neuron")) is BlockReason.RUNTIME


def test_a_number_format_needs_a_device_that_computes_in_it() -> None:
    fleet = fleet_of(host("old", device={"model": "A100"}), host("new", device={"model": "H100-NVL"}))
    assert nodes_of(fleet, find(View.of(fleet), Shape(1, precision="fp8"))) == ["new"]
    assert reason(fleet, Shape(1, precision="fp4")) is BlockReason.PRECISION
    unknown = fleet_of(host("x", device={"model": "Quantum-9"}))
    assert nodes_of(unknown, find(View.of(unknown), Shape(1, precision="fp4"))) == ["x"]


def test_the_table_of_formats_agrees_with_the_catalogue() -> None:
    for known in catalog().values():
        for precision in known.tflops:
            if f"tflops_dense.{precision.value}" in known.unverified or (known.model, precision) == ("v6e", "fp16"):
                continue  # a peak is told, the list of formats of the same source has none
            assert computes(known.model, precision.value), (known.model, precision)


def test_a_node_serves_no_more_devices_than_its_processors_allow() -> None:
    fleet = fleet_of(host("a", cpus=16), host("b", cpus=24))
    assert nodes_of(fleet, find(View.of(fleet), Shape(5, cpu_milli=8000))).count("a") == 2
    assert reason(fleet, Shape(6, cpu_milli=8000)) is BlockReason.CPU
    assert reason(fleet, Shape(1, cpu_milli=24_001)) is BlockReason.CPU
    assert reason(fleet, Shape(1, host_mib=513 * GIB)) is BlockReason.HOST_MEMORY


def test_a_node_that_does_not_tell_its_processors_serves_none() -> None:
    fleet = fleet_of(host("mute", cpus=0, memory_mib=0))
    assert nodes_of(fleet, find(View.of(fleet), Shape(1))) == ["mute"]
    assert reason(fleet, Shape(1, cpu_milli=1)) is BlockReason.CPU
    assert reason(fleet, Shape(1, host_mib=1)) is BlockReason.HOST_MEMORY


def test_surplus_devices_are_dropped_island_by_island() -> None:
    inventory = host("n", 0, cpus=16)
    islands = tuple(
        Device(id=f"n-{i}", index=i, model="H100", memory_mib=GIB, nvlink_domain=f"i{i % 2}") for i in range(8)
    )
    fleet = fleet_of(inventory.model_copy(update={"devices": islands}))
    found = find(View.of(fleet), Shape(4, cpu_milli=4000))
    assert isinstance(found, Placed)
    assert len(set(fleet.domain[found.rows].tolist())) == 1


@pytest.mark.parametrize(
    ("level", "free"),
    [
        (Level.DEVICE, ["b", "c", "d"]), (Level.NODE, ["b", "c", "d"]), (Level.LEAF, ["c", "d"]), (Level.SPINE, ["d"]),
        (Level.POOL, []),
    ],
)  # fmt: skip
def test_spread_peers_never_share_a_group(level: Level, free: list[str]) -> None:
    fleet = fleet_of(host("a"), host("b"), host("c", leaf="other"), host("d", leaf="far", spine="far"))
    shape, context = Shape(4, spread=("web", level)), Context(avoid=(0,))
    view, found = View.of(fleet), []
    while isinstance(outcome := find(view, shape, context=context), Placed):
        found += sorted(set(nodes_of(fleet, outcome)))
        view.take(outcome.rows, shape)
    assert sorted(found) == free
    assert reason(fleet, Shape(16, spread=("web", level)), context) is BlockReason.SPREAD


def test_replicas_of_one_burst_are_spread_and_the_last_one_waits_for_a_node() -> None:
    world = World(host("a"), host("b"))
    spread = Spread(key="web")
    burst = [asking(name, spread=spread) for name in ("one", "two", "three")]
    ids = [j.job_id for j in burst]
    world.send(*burst)
    placed = [i for i in ids if world.state_of(i) == "granted"]
    (waiting,) = set(ids) - set(placed)
    assert sorted(world.nodes_of(i)[0] for i in placed) == ["a", "b"]
    why = explain(world.decider.state, world.decider.state.jobs[waiting], Reasons(world.decider.state))
    assert why.reason == "spread"
    assert "web" in why.text
    assert world.state_of(world.submit(asking("else", spread=Spread(key="db")))) == "granted"
    where = world.nodes_of(placed[0])
    world.started(placed[0])
    world.released(placed[0])
    assert world.nodes_of(waiting) == where
    world.check()


def test_the_wider_of_two_levels_counts_whoever_came_first() -> None:
    world = World(host("a"), host("b"), host("c", leaf="other"))
    world.submit(asking("shy", spread=Spread(key="k", level=Level.LEAF)))
    shy = world.nodes_of(job_id("research", "shy"))[0]
    plain = world.submit(asking("plain", spread=Spread(key="k", level=Level.NODE)))
    leaf = {"a": "a", "b": "a", "c": "other"}
    assert leaf[world.nodes_of(plain)[0]] != leaf[shy]
    assert context_of(world.decider.state, world.decider.state.jobs[plain], 0).avoid


def test_victims_keep_nobody_away() -> None:
    world = World(host("a", 1))
    low = world.submit(asking("low", spread=Spread(key="k")))
    world.started(low)
    world.submit(asking("high", priority=9, preempts=True, spread=Spread(key="k")))
    (plan,) = plans(world.decider.state, world.now_us, 1)
    assert plan.victims == (low,)
    world.send(plan)
    assert world.state_of(low) == "preempting"


def test_a_rack_never_draws_more_than_its_cap() -> None:
    fleet = fleet_of(host("a", rack_power_w=5000), host("b", rack_power_w=3000), host("c", 2, leaf="other"))
    placed = find(View.of(fleet), Shape(6))
    assert nodes_of(fleet, placed).count("c") == 2, "the smallest cap of a leaf counts: 3,000 W are four of 700 W"
    view = View.of(fleet)
    for _ in range(6):
        one = find(view, Shape(1))
        assert isinstance(one, Placed)
        view.take(one.rows, Shape(1))
    last = find(view, Shape(1))
    assert isinstance(last, Blocked)
    assert dict(last.removed) == {BlockReason.BUSY: 6, BlockReason.POWER: 4}


def test_a_gang_takes_no_more_of_a_rack_than_the_rest_of_its_cap() -> None:
    fleet = fleet_of(host("a", rack_power_w=2300), host("b"), host("c", leaf="other"))
    found = find(View.of(fleet), Shape(7))
    names = nodes_of(fleet, found)
    assert names.count("c") == 4
    assert len(set(names)) == 2, "the three that the cap allows are on one node"
    blocked = find(View.of(fleet), Shape(8))
    assert isinstance(blocked, Blocked)
    assert blocked.reason is BlockReason.POWER
    assert dict(blocked.removed) == {BlockReason.POWER: 5}


def test_a_share_draws_its_part_and_an_unmeasured_device_nothing() -> None:
    fleet = fleet_of(host("a", 1, rack_power_w=350), host("b", 1, watts=0, leaf="z"))
    h100 = Shape(1, milli=500, memory_mib=1, types=("H100",))
    view = View.of(fleet)
    view.free_milli[1] = 0
    found = find(view, h100)
    assert isinstance(found, Placed)
    view.take(found.rows, h100)
    assert isinstance(find(view, h100), Blocked)
    assert isinstance(find(View.of(fleet_of(host("b", watts=0, rack_power_w=1))), Shape(4)), Placed)


def test_measured_free_memory_wins_over_the_book_value() -> None:
    fleet = fleet_of(
        host("a", 1, device={"memory_free_mib": 70 * GIB}), host("b", 1, device={"memory_free_mib": 99 * GIB})
    )
    assert fleet.memory_mib[:2].tolist() == [70 * GIB, 80 * GIB]
    assert nodes_of(fleet, find(View.of(fleet), Shape(1, memory_mib=75 * GIB))) == ["b"]
    assert reason(fleet, Shape(2, memory_mib=75 * GIB)) is BlockReason.MEMORY


def test_books_refuse_what_a_node_does_not_have() -> None:
    fleet = fleet_of(host("a", cpus=4))
    claim = Claim(device="a-0", node="a", milli=1000, memory_mib=0, cpu_milli=4001, epoch=1)
    with pytest.raises(Overcommitted, match="a: 4001 thousandths"):
        fleet.take([claim])
    two = [claim.model_copy(update={"device": f"a-{i}", "cpu_milli": 2001}) for i in range(2)]
    with pytest.raises(Overcommitted, match="a: 4002"):
        fleet.take(two)
    assert fleet.free_milli[:2].tolist() == [1000, 1000], "nothing is taken of what is refused"
    kept = claim.model_copy(update={"cpu_milli": 4000, "host_memory_mib": 7})
    fleet.take([kept])
    assert (fleet.free_cpu[0], fleet.free_host[0]) == (0, 512 * GIB - 7)
    fleet.give_back([kept])
    assert (fleet.free_cpu[0], fleet.free_host[0]) == (4000, 512 * GIB)
    with pytest.raises(Overcommitted):
        fleet.give_back([kept])


def test_a_restart_knows_processors_host_memory_and_kin() -> None:
    world = World(host("a"), host("b"))
    job = world.submit(asking("one", devices=2, cpu_milli=3000, host_memory_mib=5, spread=Spread(key="k")))
    loaded = Decider.load(world.decider.dump()).state
    state = world.decider.state
    assert np.array_equal(loaded.fleet.free_cpu, state.fleet.free_cpu)
    assert np.array_equal(loaded.fleet.free_host, state.fleet.free_host)
    assert loaded.spread_peers == state.spread_peers == {("research", "k"): {job: None}}
    assert loaded.fleet.free_cpu.min() <= 26_000
    world.check()


def test_what_is_held_for_a_beneficiary_keeps_its_processors_too() -> None:
    world = World(host("a", 2, cpus=10))
    low = world.submit(asking("low", cpu_milli=5000))
    world.started(low)
    other = world.submit(asking("other", cpu_milli=4000))
    world.started(other)
    high = world.submit(asking("high", priority=9, preempts=True, cpu_milli=6000))
    (plan,) = plans(world.decider.state, world.now_us, 1)
    world.send(plan)
    beside = world.submit(asking("beside", cpu_milli=2000))
    victim = plan.victims[0]
    world.released(victim, own_exit=False)
    assert world.state_of(high) == "granted"
    assert world.state_of(beside) == "queued"
    world.check()


def test_the_checker_sees_processors_host_memory_and_power() -> None:
    spec = JobSpec(name="j", command=("true",), resources=Resources(devices=2))
    job = job_id("t", "j")
    claims = tuple(
        Claim(device=f"a-{i}", node="a", milli=1000, memory_mib=0, cpu_milli=20_000, host_memory_mib=300 * GIB, epoch=1)
        for i in range(2)
    )
    events = (
        NodeJoined(incarnation=1, inventory=host("a", rack_power_w=1399)),
        JobQueued(job_id=job, team="t", spec=spec, spec_hash="", client_key="j", priority=0, preempts=False,
                  submitted_us=1),
        JobGranted(job_id=job, attempt=1, claims=claims),
    )  # fmt: skip
    checker = Checker()
    record = LedgerRecord(pool="p", prev_seq=0, prev_hash="", inbox_seq=1, t_us=1, writer="w", events=events)
    checker.step(1, record, valid=True)
    broken = " ".join(checker.finish().violations)
    assert "32000 milli of processors, 40000 are granted" in broken
    assert "MiB of host memory" in broken
    assert "may draw 1399 W, granted devices draw 1400" in broken


def test_seconds_to_ready_counts_what_is_missing() -> None:
    fleet = fleet_of(
        host("has", contents=("image", "data"), fetch_mib_s=10),
        host("half", contents=("image",), fetch_mib_s=100),
        host("bare", fetch_mib_s=1000),
    )
    shape = Shape(1, contents=(("data", 500), ("image", 1000)))
    assert seconds_to_ready(fleet, np.array([0, 1, 2]), shape).tolist() == [0, 5, 1.5]
    fleet.join(host("has", fetch_mib_s=10), 2)
    assert seconds_to_ready(fleet, np.array([0]), shape).tolist() == [150]
    assert sorted(fleet.content_nodes) == ["image"]


def _random_resources(rng: random.Random) -> dict[str, Any]:
    wanted: dict[str, Any] = {"devices": rng.choice((1, 1, 2, 3, 6))}
    if rng.random() < 0.15:
        wanted = {"roles": tuple(_random_role(rng, name) for name in "ab"[: rng.randrange(1, 3)])}
    elif wanted["devices"] > 1 and rng.random() < 0.4:
        wanted["min_devices"] = rng.randrange(1, wanted["devices"])
    if rng.random() < 0.6:
        wanted |= _random_host(rng)
    if rng.random() < 0.4:
        wanted["spread"] = Spread(key=rng.choice("xy"), level=rng.choice([Level.NODE, Level.LEAF]))
    if wanted.get("devices") == 1 and rng.random() < 0.4:
        wanted["share_milli"] = rng.choice((250, 500))
    if rng.random() < 0.3:
        wanted["contents"] = (Content(name="image", size_mib=10),)
    return wanted


def _random_host(rng: random.Random) -> dict[str, Any]:
    return {"cpu_milli": rng.randrange(1, 20_000), "host_memory_mib": rng.randrange(0, 200 * GIB)}


def _random_role(rng: random.Random, name: str) -> Role:
    count = rng.randrange(1, 4)
    fewest = rng.choice((None, 1, count))
    hosts: dict[str, Any] = _random_host(rng) if rng.random() < 0.5 else {}
    return Role(name=name, count=count, min_count=fewest, devices=rng.randrange(1, 4), **hosts)


@pytest.mark.parametrize("seed", range(15))
def test_random_worlds_never_break_a_constraint(seed: int) -> None:
    """The independent checker sees processors, host memory and power; peers are looked at here, after every message."""
    rng = random.Random(seed)
    nodes = [host(f"n{i}", leaf=f"l{i // 2}", rack_power_w=rng.choice((0, 0, 3100))) for i in range(6)]
    world = World(*nodes)
    for i in range(60):
        state = world.decider.state
        if rng.random() < 0.08:
            again = rng.choice(nodes)
            life = state.fleet.nodes[again.node].incarnation
            if rng.random() < 0.5:
                world.send(inbox.NodeLost(node=again.node, incarnation=life, silent_s=9))
            again = again.model_copy(update={"cpus": rng.choice((0, 16, 64)), "rack_power_w": rng.choice((0, 2000))})
            world.send(inbox.NodeRegistered(incarnation=life + 1, inventory=again, lease_s=10))
        running = [j.id for j in state.jobs.values() if j.current is not None]
        if running and rng.random() < 0.45:
            world.released(rng.choice(sorted(running)), own_exit=True)
        else:
            preempts = rng.random() < 0.2
            asked = _random_resources(rng)
            world.submit(asking(f"j{i}", preempts=preempts, priority=9 if preempts else rng.randrange(2), **asked))
        if rng.random() < 0.3:
            for plan in plans(state, world.now_us, 1):
                world.send(plan)
        _kin_are_apart(world.decider.state)
    assert world.decider.state.grants > 20
    world.check()
    loaded, now = Decider.load(world.decider.dump()).state, world.decider.state
    assert np.array_equal(loaded.fleet.free_cpu, now.fleet.free_cpu)
    assert np.array_equal(loaded.fleet.free_host, now.fleet.free_host)
    assert {k: set(v) for k, v in loaded.spread_peers.items()} == {k: set(v) for k, v in now.spread_peers.items()}


def _kin_are_apart(state: State) -> None:
    fleet = state.fleet
    for peers in state.spread_peers.values():
        seen: dict[str, list[tuple[str, str]]] = {}
        for peer_id in peers:
            current = state.jobs[peer_id].current
            assert current is not None
            for part in current.parts.values():
                leaf = int(fleet.leaf[fleet.node_names.find(part.node)])
                if not part.freed:
                    seen.setdefault(f"{leaf}", []).append((part.node, peer_id))
        for members in seen.values():
            for node, peer_id in members:
                level = state.jobs[peer_id].shape.spread[1]
                near = [other for at, other in members if other != peer_id and (level == "leaf" or at == node)]
                assert near == [], f"{peer_id} shares a {level} with {near}"
