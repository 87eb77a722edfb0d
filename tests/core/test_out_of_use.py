"""Nodes that an operator takes out of use, and devices that are kept free for a gang: each an account of its own."""

import re
from pathlib import Path

import pytest

from libs.core.billing.accounts import Account, Accounts
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.hot_state import HotState
from libs.core.scheduling import preemption
from libs.core.state import snapshot
from libs.core.state.formats import FORMAT_OF
from schemas import inbox
from schemas.ledger import DevicesReserved, InputRejected
from tests.core.builders import World, job, node

S = 1_000_000
T0_US = 1_790_000_000 * S


def cordon(world: World, name: str = "n0") -> list:
    return world.send(inbox.CordonNode(node=name, reason="a fan is changed", user="olga"))


def uncordon(world: World, name: str = "n0") -> list:
    return world.send(inbox.UncordonNode(node=name, reason="done", user="olga"))


def kinds(events: list) -> list[str]:
    return [event.kind for event in events]


def balances(world: World, until_us: int | None = None) -> dict[Account, int]:
    """Accounts that are not empty; their sum is what existed."""
    books = Accounts()
    for seq, record in enumerate(world.records, 1):
        books.apply(record, seq)
    found = books.balances(until_us)
    assert sum(found.values()) == books.capacity_unit_us(until_us)
    return {account: amount for account, amount in found.items() if amount}


def test_what_runs_on_a_node_out_of_use_goes_on_and_nothing_else_begins_there() -> None:
    world = World(node("n0", 2))
    first, since_us = world.submit(job("first")), world.now_us
    assert kinds(cordon(world)) == ["node.cordoned"]
    out_us, waits = world.now_us, world.submit(job("second"))
    assert (world.state_of(first), world.state_of(waits)) == ("granted", "queued")
    why = explain(world.decider.state, world.decider.state.jobs[waits], Reasons(world.decider.state))
    assert why.text.endswith("(2 more are out of use: maintenance)")
    world.started(first)
    world.released(first)
    freed_us = world.now_us
    assert kinds(uncordon(world)) == ["node.uncordoned", "job.granted"]
    told = balances(world)
    assert told[Account.BILLED] == 7000 * (freed_us - since_us)
    assert told[Account.MAINTENANCE] == 7000 * (world.now_us - out_us) + 7000 * (world.now_us - freed_us)
    world.check()


def test_a_node_stays_out_of_use_when_it_is_switched_off_and_comes_back() -> None:
    world = World(node("n0", 1), node("n1", 1))
    cordon(world)
    world.send(inbox.NodeLost(node="n0", incarnation=1, silent_s=100))
    world.send(inbox.NodeRegistered(incarnation=2, inventory=node("n0", 1), lease_s=10))
    back_us = world.now_us
    jobs = [world.submit(job(f"j{n}")) for n in range(2)]
    assert [world.state_of(one) for one in jobs] == ["granted", "queued"]
    assert balances(world)[Account.MAINTENANCE] >= 7000 * (world.now_us - back_us)
    assert "job.granted" in kinds(uncordon(world))
    world.check()


def test_what_was_held_there_is_let_go_and_a_state_that_was_saved_knows_it() -> None:
    world = World(node("n0", 2))
    world.started(world.submit(job("victim", 2)))
    urgent = world.submit(job("urgent", 2, priority=9, preempts=True))
    (plan,) = preemption.plans(world.decider.state, world.now_us, 1)
    world.send(plan)
    assert urgent in world.decider.state.holds
    assert kinds(cordon(world)) == ["node.cordoned", "hold.released"]
    world.send(inbox.NodeRegistered(incarnation=1, inventory=node("n1", 2), lease_s=10))
    world.check()
    loaded = snapshot.load(list(snapshot.dump(world.decider.state))).state
    assert loaded.cordoned == {"n0": "olga: a fan is changed"}
    assert loaded.fleet.up.tolist() == world.decider.state.fleet.up.tolist()
    assert [loaded.fleet.up[loaded.fleet.row(f"{name}-gpu0")] for name in ("n0", "n1")] == [False, True]
    hot = HotState()
    for seq, record in enumerate(world.records, 1):
        hot.apply(record, seq)
    assert (hot.nodes["n0"]["out_of_use"], hot.milli()) == ("a fan is changed", (2000, 2000))


@pytest.mark.parametrize("wrong", [lambda w: cordon(w, "n9"), uncordon, lambda w: (cordon(w), cordon(w))[1]])
def test_what_cannot_be_is_refused_with_the_reason(wrong) -> None:  # type: ignore[no-untyped-def]
    (refused,) = wrong(World(node("n0", 1)))
    assert isinstance(refused, InputRejected)
    assert "node n" in refused.reason


def test_readers_of_before_keep_a_node_in_use() -> None:
    world = World(node("n0", 1), allowed=FORMAT_OF["node.cordoned"] - 1)
    (refused,) = cordon(world)
    assert "a reader of this ledger is of a release" in refused.reason


def test_what_is_kept_free_for_a_gang_is_reserved_until_it_begins() -> None:
    world = World(node("n0", 2))
    running = [world.submit(job(f"half{n}", team="blue")) for n in range(2)]
    gang = world.submit(job("gang", 2))
    for one in running:
        world.started(one)
    told = world.send(inbox.Tick(), after_us=70 * S)
    reserved = [event for event in told if isinstance(event, DevicesReserved)]
    assert [(one.gang, len(one.devices)) for one in reserved] == [(gang, 2)]
    assert kinds(world.send(inbox.Tick())).count("devices.reserved") == 0, "told once"
    world.released(running[0])
    free_us, small = world.now_us, world.submit(job("small"))
    assert world.state_of(small) == "queued"
    assert balances(world, free_us + 5 * S)[Account.RESERVED] == 7000 * 5 * S
    world.send(after_us=5 * S)
    world.released(running[1])
    assert world.state_of(gang) == "granted"
    assert balances(world)[Account.RESERVED] >= 7000 * 5 * S
    assert not world.decider.state.reserved
    world.check()


def test_the_example_of_the_documentation() -> None:
    world = World()

    def at(seconds: int, *messages: object) -> None:
        world.send(*messages, after_us=T0_US + seconds * S - world.now_us)

    world.now_us = T0_US
    at(0, inbox.NodeRegistered(incarnation=1, inventory=node("n0", 2), lease_s=10))
    at(10, half := job("half", team="blue", submitted_us=T0_US))
    at(10, gang := job("gang", 2, submitted_us=T0_US))
    at(80, inbox.Tick())
    at(100, inbox.CordonNode(node="n0", reason="a fan", user="olga"))
    ended = inbox.Released(job_id=half.job_id, attempt=1, exit_code=0, own_exit=True)
    at(140, inbox.NodeObserved(node="n0", incarnation=1, observations=(ended,)))
    at(160, inbox.UncordonNode(node="n0", user="olga"))
    assert world.state_of(gang.job_id) == "granted"
    found = {account.value: amount for account, amount in balances(world).items()}
    text = (Path(__file__).parents[2] / "docs" / "billing.md").read_text("utf-8")
    example = text.partition("### Example: kept free for a gang")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| `?([a-z]+)`? \|.*= ([\d ]+)(?:: what existed)? \|$", example, re.M))
    assert {name: int(amount.replace(" ", "")) for name, amount in told.items()} == found | {"all": sum(found.values())}


def test_a_gang_that_is_cancelled_keeps_nothing() -> None:
    world = World(node("n0", 2))
    world.started(world.submit(job("half", team="blue")))
    gang = world.submit(job("gang", 2))
    world.send(inbox.Tick(), after_us=70 * S)
    reserved = balances(world, world.now_us + S)
    assert reserved[Account.RESERVED] == 7000 * S
    world.send(inbox.CancelRequested(job_id=gang, team="research", user="u", reason="enough"))
    after = balances(world, world.now_us + S)
    assert after[Account.RESERVED] == 7000 * 1000, "until the record that ended it"
    world.check()
