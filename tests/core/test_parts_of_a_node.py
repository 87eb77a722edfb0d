"""A node runs a bounded number of parts: what placement tells its agent, and what the agent watches, has a bound."""

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.state import snapshot
from schemas import inbox
from tests.core.builders import World, job, node


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr("libs.core.state.usable.MOST_PARTS", 3)
    w = World(node("n0", 1))
    yield w
    w.check()


def small(world: World, name: str) -> str:
    return world.submit(job(name, share_milli=1, memory_gib=1))


def test_no_more_parts_than_its_bound_are_granted_on_a_node(world: World) -> None:
    running = [small(world, f"runs{i}") for i in range(3)]
    waits = small(world, "waits")
    state = world.decider.state
    assert ([world.state_of(one) for one in running], world.state_of(waits)) == (["granted"] * 3, "queued")
    why = explain(state, state.jobs[waits], Reasons(state))
    assert (why.reason, why.ahead) == ("parts", 0)
    assert why.text == "the nodes with free devices run 4096 parts each, and a node may run no more"
    assert snapshot.load(iter(list(snapshot.dump(state)))).state.fleet.full == {0}
    world.started(running[0])
    world.released(running[0])
    assert world.state_of(waits) == "granted", "there is room for one again, and it is granted in the same record"


def test_a_part_that_ends_makes_room_on_every_device_of_its_node(monkeypatch) -> None:
    monkeypatch.setattr("libs.core.state.usable.MOST_PARTS", 2)
    w = World(node("n0", 2))
    whole = [w.submit(job("whole")), small(w, "small")]
    waits = small(w, "waits")
    assert w.state_of(waits) == "queued"
    w.started(whole[0])
    w.released(whole[0])
    assert w.state_of(waits) == "granted"
    w.check()


def test_what_does_not_fit_on_a_full_node_goes_to_another(world: World) -> None:
    for i in range(3):
        small(world, f"runs{i}")
    world.send(inbox.NodeRegistered(incarnation=1, inventory=node("n1", 1), lease_s=10))
    assert world.nodes_of(small(world, "next")) == ["n1"]
