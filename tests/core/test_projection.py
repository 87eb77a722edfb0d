"""The hot state against the fold that placement runs on, over random histories."""

from typing import Any

from hypothesis import given, settings

from libs.core.accelerators.kinds import accelerators_milli
from libs.core.projections.hot_state import HotState, encode
from libs.core.state.limits import Limits
from schemas import inbox
from schemas.jobs import JobState
from tests.core.builders import World, job, node
from tests.core.histories import drive, steps


def same_as_fold(hot: HotState, world: World) -> None:
    """Every figure that both keep is equal."""
    state = world.decider.state
    assert hot.jobs.keys() == state.jobs.keys()
    for job_id, row in hot.jobs.items():
        other = state.jobs[job_id]
        assert (row["team"], row["state"], row["attempt"]) == (other.team, other.state.value, other.attempts)
    for name, row in hot.devices.items():
        index = state.fleet.row(name)
        assert row["milli_used"] == 1000 - state.fleet.free_milli[index]
        assert row["memory_used_mib"] == state.fleet.memory_mib[index] - state.fleet.free_mib[index]
        holders = {j.id for j in state.jobs.values() if j.current for p in j.current.parts.values() if not p.freed
                   for c in p.claims if c.device == name}  # fmt: skip
        assert set(row["jobs"]) == holders
    for name, row in hot.nodes.items():
        known = state.fleet.nodes[name]
        assert (row["status"] == "up", row["incarnation"]) == (known.up, known.incarnation)
    for team, row in hot.teams.items():
        jobs = [j for j in state.jobs.values() if j.team == team]
        assert row["used"] == state.used.get(team, {})
        assert row["used_milli"] == accelerators_milli(state.used.get(team, {}))
        assert Limits.of(row["limit_milli"], row["by_type"]) == state.quotas.get(team)
        assert row["queued"] == sum(j.state is JobState.QUEUED for j in jobs)
        assert row["active"] == len(jobs) - row["queued"]
    assert (hot.grants, hot.preemptions) == (state.grants, state.preemptions)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_deltas_add_up_to_the_fold(history: list[Any]) -> None:
    world = drive(history)
    hot, tables = HotState(), {}
    for seq, record in enumerate(world.records, 1):
        for table, key, value in hot.apply(record, seq):
            if value is None:
                tables.pop((table, key), None)
            else:
                tables[table, key] = encode(value)
    same_as_fold(hot, world)
    assert tables == {(table, key): encode(value) for table, key, value in hot.rows() if value is not None}
    again = HotState.load(hot.dump())
    assert list(again.dump()) == list(hot.dump())


def test_a_node_that_returns_with_other_devices_loses_the_old_ones() -> None:
    world = World(node("a", 4))
    world.send(inbox.NodeRegistered(incarnation=2, inventory=node("a", 2), lease_s=10))
    hot = HotState()
    for seq, record in enumerate(world.records, 1):
        hot.apply(record, seq)
    assert sorted(hot.devices) == ["a-gpu0", "a-gpu1"]
    assert hot.nodes["a"]["devices"] == ["a-gpu0", "a-gpu1"]


def test_what_is_allocated() -> None:
    world = World(node("a", 4), node("b", 4))
    world.submit(job("gang", 3))
    world.submit(job("half", share_milli=500))
    hot = HotState()
    for seq, record in enumerate(world.records, 1):
        hot.apply(record, seq)
    assert hot.milli() == (3500, 8000)
