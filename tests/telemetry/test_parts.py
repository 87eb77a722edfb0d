"""Telemetry's parts without a server: figures, readings, answers."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from libs.bus.queries import NothingFound
from libs.core.projections.hot_state import HotState
from libs.ledger.chain import ChainEntry
from libs.ledger.follower import FollowedEntry
from schemas import inbox
from schemas.audit import ActionOutcome, OperatorAction
from schemas.ledger import LedgerRecord
from schemas.nodes import DeviceSample, NodeSampled, NodeWalls
from schemas.pool_status import DeviceListQuery, NodeListQuery
from schemas.subjects import OPERATOR
from services.telemetry import figures, handlers
from services.telemetry.figures import PoolFigures
from services.telemetry.readings import GAUGES, DeviceCollector, Readings
from tests.core.builders import World, job, node


def entries(world: World, latency_us: int = 0) -> list[ChainEntry]:
    """The world's records as the broker stored them, each `latency_us` after what it decides."""
    return [ChainEntry(i, record, f"{i}", record.t_us + latency_us, True) for i, record in enumerate(world.records, 1)]


def steps(entries: list[ChainEntry], kept: PoolFigures | None = None) -> list[FollowedEntry]:
    """As the follower hands them on."""
    kept = PoolFigures() if kept is None else kept
    return [FollowedEntry(e, kept.apply(e.record, e.seq) if e.valid else None) for e in entries]


def folded(world: World) -> HotState:
    kept = PoolFigures()
    steps(entries(world), kept)
    return kept.hot


def sampled(name: str, pct: float, *, incarnation: int = 1, devices: int = 2) -> NodeSampled:
    readings = tuple(
        DeviceSample(
            device=f"{name}-gpu{i}", utilization_pct=pct, memory_used_mib=1000 + i, power_w=300, temperature_c=60
        )
        for i in range(devices)
    )
    return NodeSampled(node=name, incarnation=incarnation, at_us=1, devices=readings)


def test_waits_are_of_first_grants_and_latency_of_jobs_that_fitted_at_once() -> None:
    world = World(node("a", 1))
    at_once = world.submit(job("one", submitted_us=500))
    world.submit(job("two", submitted_us=500))
    world.started(at_once)
    world.released(at_once)
    told = steps(entries(world, latency_us=7000))
    waits = figures.take(told)
    assert waits.scheduling == (7.0,)
    assert waits.queue == ((2000 - 500) / 1000, (world.now_us - 500) / 1000)
    assert figures.take(told, since=len(told)) == figures.Waits(), "the past is not news"


def test_void_records_count_for_nothing() -> None:
    world = World(node("a", 1))
    world.submit(job("one"))
    kept = PoolFigures()
    void = [ChainEntry(e.seq, e.record, e.hash, e.time_us, False) for e in entries(world)]
    assert figures.take(steps(void, kept)) == figures.Waits()
    assert kept.hot.nodes == {}


def test_who_is_kept_out_is_as_the_operators_book_says() -> None:
    world, kept = World(node("a", 1)), PoolFigures()
    older = list(PoolFigures.load(HotState().dump()).kept_out)
    assert older == [], "a snapshot of before says nothing of it"

    def acted(what: str, target: str, outcome: str = "done") -> None:
        action = OperatorAction(
            book="0" * 16,
            number=1,
            prev_hash="",
            what=what,
            target=target,
            reason="x",
            at_us=1,
            outcome=ActionOutcome(outcome),
        )
        world.send(inbox.ActionTold(action=action, user="ops"))

    for said in (
        ("team.keep-out", "red"), ("team.keep-out", "blue"), ("team.keep-out", "green", "failed"), ("team.revoke", "red"),
        ("team.let-in", "blue"), ("team.let-in", "grey"),
    ):  # fmt: skip
        acted(*said)
    steps(entries(world), kept)
    assert kept.kept_out == {"red"}
    again = PoolFigures.load(kept.dump())
    assert (again.kept_out, again.hot.nodes) == ({"red"}, kept.hot.nodes)


def test_rates() -> None:
    world = World(node("a", 4))
    victim = world.submit(job("victim", 3, priority=0))
    world.started(victim)
    urgent = job("urgent", 3, priority=9, preempts=True)
    world.submit(urgent)
    devices = tuple(c.device for c in world.decider.state.jobs[victim].current.claims)  # type: ignore[union-attr]
    world.send(
        inbox.PreemptionPlanned(
            plan_id="p", base_seq=0, beneficiary=urgent.job_id, victims=(victim,), devices=devices, cost_device_s=1
        )
    )
    hot = folded(world)
    assert figures.preemption_rate_pct(hot) == 100.0
    assert figures.allocated_pct(hot) == 75.0
    assert figures.preemption_rate_pct(HotState()) == figures.allocated_pct(HotState()) == 0.0


def test_readings_are_the_latest_and_fresh_ones() -> None:
    readings = Readings(fresh_s=60)
    readings.take(sampled("a", 10), 0.0)
    readings.take(sampled("a", 20), 15.0)
    readings.take(sampled("b", 30, incarnation=2), 15.0)
    readings.take(sampled("b", 99, incarnation=1), 16.0)
    assert {d: s.utilization_pct for (_, d), s in readings.fresh(70.0).items()} == {
        "a-gpu0": 20, "a-gpu1": 20, "b-gpu0": 30, "b-gpu1": 30,
    }  # fmt: skip
    assert readings.fresh(76.0) == {}


def test_gauges_are_of_the_pools_own_devices() -> None:
    hot, readings = folded(World(node("a", 2))), Readings(60)
    registry = CollectorRegistry()
    registry.register(DeviceCollector(readings, lambda: hot, lambda: 1.0))
    empty = generate_latest(registry).decode()
    assert all(f"# TYPE {name} gauge" in empty for name, _, _ in GAUGES)
    readings.take(sampled("a", 42.5), 0.0)
    readings.take(sampled("stranger", 1), 0.0)
    text = generate_latest(registry).decode()
    labels = 'UUID="a-gpu1",device="gpu1",gpu="1",hostname="a",modelName="H100"'
    lines = [line for line in text.splitlines() if line.startswith("gpu_utilization_pct{")]
    assert len(lines) == 2
    assert all(part in lines[1] for part in labels.split(","))
    assert lines[1].endswith(" 42.5")
    assert "stranger" not in text


def test_a_node_that_speaks_of_anothers_devices_is_not_heeded() -> None:
    world = World(node("a", 2), node("b", 1))
    hot, readings = folded(world), Readings(60)
    readings.take(sampled("a", 50), 0.0)
    lie = sampled("a", 99).model_copy(update={"node": "b"})
    readings.take(lie, 1.0)
    registry = CollectorRegistry()
    registry.register(DeviceCollector(readings, lambda: hot, lambda: 1.0))
    lines = [one for one in generate_latest(registry).decode().splitlines() if one.startswith("gpu_utilization_pct{")]
    assert [one.rpartition(" ")[2] for one in lines] == ["50.0", "50.0"]
    answer = handlers.device_list(DeviceListQuery(), hot.nodes, hot.devices, readings.fresh(1.0), handlers.Visibility())
    assert [one.utilization_pct for one in answer.devices] == [50, 50, None]


def test_why_a_node_is_out_of_use_is_told_to_operators() -> None:
    world = World(node("a", 1), node("b", 1))
    world.send(inbox.CordonNode(node="a", reason="a fan is changed", user="olga"))
    hot = folded(world)
    for team, why in ((OPERATOR, "a fan is changed"), ("blue", "")):
        sight = handlers.Visibility(team=team)
        a, b = handlers.node_list(NodeListQuery(), hot.nodes, hot.devices, {}, {}.get, sight).nodes
        assert (a.status, a.out_of_use, b.status, b.out_of_use) == ("maintenance", why, "up", "")


def test_node_list_joins_rows_readings_and_ages() -> None:
    world = World(node("a", 2), node("b", 2))
    world.submit(job("one", 2))
    world.send(inbox.NodeLost(node="b", incarnation=1, silent_s=9))
    hot, readings = folded(world), Readings(60)
    readings.take(sampled("a", 50), 0.0)
    answer = handlers.node_list(
        NodeListQuery(), hot.nodes, hot.devices, readings.fresh(0.0), {"a": 1.2345}.get, handlers.Visibility()
    )
    a, b = answer.nodes
    assert (a.node, a.status, a.devices, a.milli_used, a.milli_total) == ("a", "up", 2, 2000, 2000)
    assert (a.models, a.utilization_pct, a.heartbeat_age_s, a.simulated) == ({"H100": 2}, 50.0, 1.234, True)
    assert (b.status, b.utilization_pct, b.heartbeat_age_s) == ("lost", None, None)


def test_the_walls_of_a_node_are_shown_as_its_agent_has_told_them() -> None:
    hot, readings = folded(World(node("a", 2), node("b", 2))), Readings(60)
    told = NodeWalls(tier="namespaces", lacks=("the agent is not root",))
    readings.take(sampled("a", 50).model_copy(update={"walls": told, "cleared_seq": 7}), 0.0)
    readings.take(sampled("b", 50), 0.0)
    args = NodeListQuery(), hot.nodes, hot.devices, readings.fresh(900.0), {}.get, handlers.Visibility("blue")
    a, b = handlers.node_list(*args, told=readings.last()).nodes
    assert (a.walls, b.walls) == (told, None), "also when its last sample is old: an agent finds them once"
    assert a.cleared_seq is None, "which teams left is no team's business"
    a, b = handlers.node_list(*args[:-1], handlers.Visibility(), told=readings.last()).nodes
    assert (a.cleared_seq, b.cleared_seq) == (7, None)
    readings.take(sampled("a", 50, incarnation=2), 1.0)
    assert readings.last()["a"].walls is None, "another agent, that has not told"


def test_a_team_sees_its_own_jobs_on_devices_and_no_others() -> None:
    world = World(node("a", 2))
    red = world.submit(job("r", share_milli=400, team="red"))
    blue = world.submit(job("b", share_milli=400, team="blue"))
    hot = folded(world)

    def seen(team: str) -> tuple[str, ...]:
        sight = handlers.Visibility(team, hot.jobs)
        return handlers.device_list(DeviceListQuery(), hot.nodes, hot.devices, {}, sight).devices[0].jobs

    assert seen("red") == (red,)
    assert seen("blue") == (blue,)
    assert seen("green") == ()
    assert set(seen("operator")) == {red, blue}
    for team, used in (("red", 400), ("green", 0), ("operator", 800)):
        sight = handlers.Visibility(team, hot.jobs)
        shown = handlers.device_list(DeviceListQuery(node="a"), hot.nodes, hot.devices, {}, sight)
        assert [(d.index, d.milli_used) for d in shown.devices] == [(0, used), (1, 0)], team
        (listed,) = handlers.node_list(NodeListQuery(), hot.nodes, hot.devices, {}, {}.get, sight).nodes
        assert listed.milli_used == used, team
    with pytest.raises(NothingFound, match="no node 'z'"):
        handlers.device_list(DeviceListQuery(node="z"), hot.nodes, hot.devices, {}, handlers.Visibility("red"))


def test_what_a_device_does_is_told_to_those_who_have_it_alone() -> None:
    """The sample of a shared device tells of the other's work, and of a device that others hold, of theirs."""
    world = World(node("a", 3))
    world.submit(job("alone", 1, team="red"))
    world.submit(job("r", share_milli=400, team="red"))
    world.submit(job("b", share_milli=400, team="blue"))
    hot, readings = folded(world), Readings(60)
    readings.take(sampled("a", 50, devices=3), 0.0)

    def told(team: str) -> tuple[list[float | None], float | None]:
        fresh, sight = readings.fresh(0.0), handlers.Visibility(team, hot.jobs)
        shown = handlers.device_list(DeviceListQuery(), hot.nodes, hot.devices, fresh, sight).devices
        (listed,) = handlers.node_list(NodeListQuery(), hot.nodes, hot.devices, fresh, {}.get, sight).nodes
        for device in shown:
            more = (device.memory_used_mib, device.power_w, device.temperature_c)
            assert (device.utilization_pct is None) == all(value is None for value in more)
        return [device.utilization_pct for device in shown], listed.utilization_pct

    assert told("operator") == ([50, 50, 50], 50)
    assert told("red") == ([50, None, None], 50)
    assert told("blue") == ([None, None, None], None)


def test_who_keeps_a_device_from_the_pool_is_told_to_the_operator() -> None:
    world = World(node("a", 1))
    hot = folded(world)
    hot.devices["a-gpu0"]["quarantine"] = "4711 (train.py of secret)"
    for team, told in (("red", handlers.NO_JOB), ("operator", "4711 (train.py of secret)")):
        shown = handlers.device_list(DeviceListQuery(), hot.nodes, hot.devices, {}, handlers.Visibility(team))
        assert shown.devices[0].quarantine == told


def test_records_are_checked_before_they_are_folded() -> None:
    world = World(node("a", 1))
    assert isinstance(world.records[0], LedgerRecord)
    assert folded(world).devices["a-gpu0"]["index"] == 0
