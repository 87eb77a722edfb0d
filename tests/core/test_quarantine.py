"""Devices that something uses which is no job of ours: out of placement, told, and back by evidence or by an operator."""

import random
from typing import Any

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.hot_state import HotState
from libs.core.projections.pool_status import StatusFigures
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider
from libs.core.state import snapshot
from libs.core.state.desired import desired, node_change, node_state
from libs.core.state.formats import FIRST, NEWEST
from schemas import inbox
from schemas.nodes import LiftedQuarantine
from schemas.pool_status import Quantiles
from tests.core.builders import World, job, node
from tests.core.test_repartition import ONES, cut


@pytest.fixture
def world():
    w = World(node("n0", 2))
    yield w
    w.check()


def busy(*devices: str, since_us: int = 5) -> tuple[inbox.BusyDevice, ...]:
    return tuple(inbox.BusyDevice(device=one, users="python (pid 7)", since_us=since_us) for one in devices)


def told(world: World, *devices: str, since_us: int = 5, **fields: Any) -> list[str]:
    said = inbox.NodeQuarantine(node="n0", incarnation=1, devices=busy(*devices, since_us=since_us))
    return [event.kind for event in world.send(said.model_copy(update=fields))]


def lift(world: World, device: str = "n0-gpu0", since_us: int = 0) -> list:
    said = inbox.QuarantineLifted(node="n0", device=device, reason="a monitor of the site", user="olga")
    return world.send(said.model_copy(update={"since_us": since_us}))


def up(world: World) -> int:
    return StatusFigures(world.decider.state, "p", 1).of_all(Quantiles(count=0), Quantiles(count=0)).devices


def test_a_device_in_quarantine_is_granted_to_nobody_until_its_node_says_that_it_is_free(world: World) -> None:
    assert told(world, "n0-gpu0") == ["device.quarantined"]
    assert told(world, "n0-gpu0") == [], "said again it says nothing new"
    both = world.submit(job("both", 2))
    assert world.state_of(both) == "queued"
    figures = StatusFigures(world.decider.state, "p", 1).of_all(Quantiles(count=0), Quantiles(count=0))
    assert (figures.devices, figures.devices_quarantined) == (1, 1)
    why = explain(world.decider.state, world.decider.state.jobs[both], Reasons(world.decider.state))
    assert why.text.endswith("(1 more is in quarantine: something that is no job uses it)")
    assert told(world) == ["device.returned", "job.granted"]
    assert up(world) == 2


def test_a_job_that_leaves_a_device_busy_is_released_and_the_next_goes_elsewhere(world: World) -> None:
    first = world.submit(job("first"))
    world.started(first)
    (claim,) = world.decider.state.jobs[first].current.claims
    told(world, claim.device)
    world.released(first)
    assert world.state_of(first) == "ended"
    second = world.submit(job("second"))
    assert [c.device for c in world.decider.state.jobs[second].current.claims] != [claim.device]


def test_an_operator_may_lift_a_quarantine_and_the_node_hears_of_it(world: World) -> None:
    told(world, "n0-gpu0")
    (returned,) = lift(world)
    assert (returned.user, returned.reason, returned.since_us) == ("olga", "a monitor of the site", 5)
    assert up(world) == 2
    lifted = (LiftedQuarantine(device="n0-gpu0", since_us=5),)
    state = world.decider.state
    assert desired(state, "n0", "p", 1).lifted == lifted
    assert node_state(state, "n0", "p", 1)[0].lifted == lifted
    assert node_change(state, "n0", (), "p", since=0, ledger_seq=1).lifted == lifted
    assert told(world, "n0-gpu0") == [], "it was said before the node heard"
    assert told(world) == []
    assert told(world, "n0-gpu0", since_us=6) == ["device.quarantined"], "another one of the same device"
    assert desired(state, "n0", "p", 1).lifted == ()


@pytest.mark.parametrize("device", ["n0-gpu1", "nobodys"])
def test_what_is_not_in_quarantine_cannot_be_lifted(world: World, device: str) -> None:
    told(world, "n0-gpu0")
    (refused,) = lift(world, device)
    assert "is not in quarantine" in refused.reason
    lift(world)
    (twice,) = lift(world)
    assert twice.kind == "input.rejected"


def test_an_old_copy_of_an_operators_word_lifts_no_later_quarantine(world: World) -> None:
    told(world, "n0-gpu0", since_us=5)
    told(world)
    told(world, "n0-gpu0", since_us=6)
    (refused,) = lift(world, since_us=5)
    assert "is in another quarantine by now, the one of 6 and not of 5" in refused.reason
    assert up(world) == 1
    (returned,) = lift(world, since_us=6)
    assert (returned.kind, returned.since_us, up(world)) == ("device.returned", 6, 2)


def test_a_new_life_says_anew_what_is_in_quarantine(world: World) -> None:
    told(world, "n0-gpu0", "n0-gpu1")
    lift(world, "n0-gpu1")
    again = inbox.NodeRegistered(incarnation=2, inventory=node("n0", 2), lease_s=10)
    events = world.send(again.model_copy(update={"quarantine": busy("n0-gpu1")}))
    assert [e.kind for e in events] == ["node.joined", "device.returned", "device.quarantined"]
    assert (events[1].device, events[2].device, up(world)) == ("n0-gpu0", "n0-gpu1", 1)


def test_what_an_earlier_life_says_or_of_a_foreign_device_counts_for_nothing(world: World) -> None:
    assert told(world, "n0-gpu0", incarnation=9) == ["input.rejected"]
    assert told(world, "n1-gpu0") == []
    assert up(world) == 2


def test_a_device_that_goes_to_another_node_leaves_its_quarantine_behind(world: World) -> None:
    told(world, "n0-gpu1")
    world.send(inbox.NodeRegistered(incarnation=2, inventory=node("n0", 1), lease_s=10))
    moved = node("n0", 2)
    other = moved.model_copy(update={"node": "n9", "devices": moved.devices[1:]})
    world.send(inbox.NodeRegistered(incarnation=1, inventory=other, lease_s=10))
    assert up(world) == 2
    world.submit(job("both", 2))


def test_a_quarantine_outlives_silence_and_a_snapshot(world: World) -> None:
    told(world, "n0-gpu0")
    world.send(inbox.NodeSilent(node="n0", incarnation=1, silent_s=20))
    assert up(world) == 0
    world.send(inbox.NodeHeardAgain(node="n0", incarnation=1))
    assert up(world) == 1
    again = snapshot.load(iter(list(snapshot.dump(world.decider.state)))).state
    assert again.quarantined == world.decider.state.quarantined
    assert int(again.fleet.up.sum()) == 1


def test_what_is_held_for_a_job_is_given_up_when_the_device_is_in_quarantine(world: World) -> None:
    victim = world.submit(job("victim", 2))
    world.started(victim)
    urgent = world.submit(job("urgent", 2, priority=9, preempts=True))
    (plan,) = preemption.plans(world.decider.state, world.now_us, 1)
    world.send(plan)
    assert urgent in world.decider.state.holds
    assert told(world, "n0-gpu1") == ["device.quarantined", "hold.released"]


def test_while_older_readers_live_the_node_refuses_by_itself(world: World) -> None:
    world.decider = Decider.load(world.decider.dump(), allowed=lambda: FIRST)
    assert told(world, "n0-gpu0") == []
    assert lift(world)[0].kind == "input.rejected"


def test_the_present_shows_who_uses_a_device(world: World) -> None:
    told(world, "n0-gpu0")
    hot = HotState()
    for seq, record in enumerate(world.records, 1):
        hot.apply(record, seq)
    assert {name: row["quarantine"] for name, row in hot.devices.items()} == {
        "n0-gpu0": "python (pid 7)",
        "n0-gpu1": "",
    }
    told(world)
    hot.apply(world.records[-1], len(world.records))
    assert hot.devices["n0-gpu0"]["quarantine"] == ""


def test_a_quarantine_that_no_reader_understood_is_written_down_when_it_is_told_again(world: World) -> None:
    allowed = FIRST
    world.decider = Decider.load(world.decider.dump(), allowed=lambda: allowed)
    assert told(world, "n0-gpu0") == [], "older readers have a part in the ledger"
    allowed = NEWEST
    assert told(world, "n0-gpu0") == ["device.quarantined"]
    assert told(world, "n0-gpu0") == []


def test_a_node_that_says_it_of_thousands_of_devices_is_soon_dealt_with() -> None:
    """Seen: with each, all that were in quarantine were looked at. One message of 4,096 took 2.1 s of placement, and of each
    reader; to say that they are free again took 2.7 s."""
    world = World(node("n0", 300))
    fleet, names = world.decider.state.fleet, [f"n0-gpu{n}" for n in range(300)]
    for devices in (names, []):
        world.send(after_us=300_000_000)
        before = fleet.version
        assert len(told(world, *devices)) == 300
        assert fleet.version - before < 2 * 300, "changes of what is free"
    world.check()


@pytest.mark.parametrize("seed", range(8))
def test_what_is_out_of_placement_is_what_a_state_that_was_saved_says(seed: int) -> None:
    """Whatever else keeps devices out, and in which order it begins and ends."""
    chance = random.Random(seed)
    world = World(node("n0", 3), node("n1", 1))
    state, life = world.decider.state, 1
    for _ in range(60):
        known, chosen = state.fleet.nodes["n0"], chance.sample(["n0-gpu0", "n0-gpu1", "n0-gpu2"], chance.randint(0, 3))
        match chance.randrange(6):
            case 0:
                life += 1
                inventory = node("n0", chance.randint(1, 3))
                world.send(
                    inbox.NodeRegistered(incarnation=life, inventory=inventory, lease_s=10, quarantine=busy(*chosen))
                )
            case 1:
                world.send(inbox.NodeLost(node="n0", incarnation=life, silent_s=0, planned=True))
            case 2:
                out = "n0" in state.cordoned
                world.send(inbox.UncordonNode(node="n0") if out else inbox.CordonNode(node="n0", reason="a fan"))
            case 3 if known.up:
                heard = inbox.NodeHeardAgain(node="n0", incarnation=life)
                silent = inbox.NodeSilent(node="n0", incarnation=life, silent_s=20)
                world.send(heard if "n0" in state.silent else silent)
            case 4 if state.quarantined:
                lift(world, chance.choice(sorted(state.quarantined)))
            case _:
                told(world, *chosen, incarnation=life, since_us=chance.randint(1, 3))
        saved = snapshot.load(list(snapshot.dump(state))).state
        assert saved.fleet.up.tolist() == state.fleet.up.tolist()


def test_who_asks_for_whole_devices_is_told_of_those_that_are_cut_and_of_no_instance_in_quarantine() -> None:
    """Seen: "7 of 8 devices are no MIG instances of profile (none)", and of one in quarantine that it could use it."""
    boards, whole = cut("n0", {"b0": ONES}), node("n1", 1)
    w = World(boards, whole)
    w.send(inbox.NodeQuarantine(node="n0", incarnation=1, devices=busy(boards.devices[0].id)))
    wide = w.submit(job("wide", 3))

    def text(job_id: str) -> str:
        return explain(w.decider.state, w.decider.state.jobs[job_id], Reasons(w.decider.state)).text

    assert (
        text(wide) == "6 of 7 devices are MIG instances, and it asks for whole ones; 1 are left and it needs 3 at once"
    )
    w.send(inbox.NodeLost(node="n1", incarnation=1, silent_s=31))
    one = w.submit(job("one"))
    assert text(one) == "all usable devices are MIG instances, and it asks for whole ones"
    w.check()
