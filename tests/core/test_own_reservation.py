"""A gang that waits for jobs of its own team keeps devices from that team only."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from libs.core.explain.reasons import Reasons
from libs.core.placement.answer import BlockReason
from libs.core.scheduling import preemption
from schemas import inbox
from schemas.jobs import JobSpec
from schemas.ledger import DevicesReserved
from schemas.resources import Inventory, Level, Resources, Spread
from tests.core.builders import GIB, World, job, node

S = 1_000_000
DUE = 70 * S


def asks(name: str, team: str = "red", devices: int = 1, **resources: Any) -> inbox.JobAdmitted:
    admitted = job(name, devices, team=team)
    spec = JobSpec(name=name, command=("true",), resources=Resources(devices=devices, **resources))
    return admitted.model_copy(update={"spec": spec})


def runs(w: World, admitted: inbox.JobAdmitted) -> str:
    one = w.submit(admitted)
    w.started(one)
    return one


def told_reserved(w: World, after_us: int = S) -> dict[str, int]:
    events = w.send(inbox.Tick(), after_us=after_us)
    return {event.gang: len(event.devices) for event in events if isinstance(event, DevicesReserved)}


def host(name: str, devices: int, **more: Any) -> Inventory:
    return Inventory.model_validate(node(name, devices).model_dump() | more)


@pytest.mark.parametrize("limit_s", [0, 20 * 86_400])
def test_others_use_what_a_gang_could_not_have_before_its_own_teams_job_ends(limit_s: float) -> None:
    w = World(node("n0"), node("n1"))
    stays = runs(w, job("stays", team="red", time_limit_s=limit_s))
    gang = w.submit(asks("gang", devices=16))
    assert told_reserved(w, DUE) == {}, "what others may use is idle"
    other = runs(w, asks("other", "blue"))
    behind = w.submit(asks("behind"))
    assert w.state_of(behind) == "queued", "its own team's jobs do not overtake it for ever"
    w.released(stays)
    assert told_reserved(w) == {gang: 16}, "now others' jobs keep it waiting, and from here on all are kept out"
    late = w.submit(asks("late", "blue"))
    assert w.state_of(late) == "queued"
    w.released(other)
    assert w.state_of(gang) == "granted"
    w.check()


def test_what_fits_beside_its_own_teams_job_is_kept_from_all_and_nothing_else() -> None:
    w = World(node("n0", 4), node("n1", 4))
    (there,) = w.nodes_of(runs(w, asks("stays", devices=3)))
    others = [runs(w, asks(f"other{n}", "blue")) for n in range(5)]
    gang = w.submit(job("gang", 4, team="red", required=Level.NODE))
    for one in others:
        if w.nodes_of(one) == [there]:
            w.released(one)
    assert told_reserved(w, DUE) == {gang: 4}
    assert set(w.nodes_of(w.submit(asks("beside", "blue")))) == {there}, "the gang can't have it"
    w.released(next(one for one in others if one in w.decider.state.jobs))
    assert w.state_of(w.submit(asks("late", "blue"))) == "queued"
    w.check()


KEEPS: dict[str, tuple[list[Inventory], inbox.JobAdmitted, inbox.JobAdmitted]] = {
    "a device": ([node("n0", 4)], asks("stays"), asks("gang", devices=4)),
    "a share of a device": ([node("n0", 4)], asks("stays", share_milli=100), asks("gang", devices=4)),
    "processors": (
        [host("n0", 4, cpus=16, memory_mib=64 * GIB)],
        asks("stays", cpu_milli=14_000),
        asks("gang", devices=3, cpu_milli=1000),
    ),
    "memory of the node": (
        [host("n0", 4, cpus=16, memory_mib=64 * GIB)],
        asks("stays", host_memory_mib=60 * GIB),
        asks("gang", devices=3, host_memory_mib=2 * GIB),
    ),
    "power": (
        [
            Inventory.model_validate(
                {
                    **(raw := node("n0", 4).model_dump()),
                    "rack_power_w": 1600,
                    "devices": [{**device, "power_limit_w": 500} for device in raw["devices"]],
                }
            )
        ],
        asks("stays"),
        asks("gang", devices=3),
    ),
    "nodes of its spread": (
        [node("n0", 4)],
        asks("stays", spread=Spread(key="replica", level=Level.NODE)),
        asks("gang", devices=2, spread=Spread(key="replica", level=Level.NODE)),
    ),
}


@pytest.mark.parametrize("what", KEEPS)
def test_whatever_its_own_teams_job_keeps_from_a_gang_others_may_run_beside(what: str) -> None:
    nodes, stays, gang = KEEPS[what]
    w = World(*nodes)
    one = runs(w, stays)
    waits = w.submit(gang)
    assert told_reserved(w, DUE) == {}
    other = runs(w, asks("other", "blue"))
    w.released(one)
    assert w.state_of(other) == "running"
    assert w.state_of(waits) == "granted" or told_reserved(w).keys() == {waits}
    w.check()


def test_gangs_that_wait_for_their_own_teams_jobs_leave_others_their_reservations() -> None:
    w = World(node("n0", 8))
    policy = w.decider.policy = replace(w.decider.policy, reservations=1)
    runs(w, asks("stays", devices=1))
    runs(w, asks("busy", "green", devices=3))
    for n in range(6):
        w.submit(asks(f"gang{n}", devices=8, labels={} if n % 2 else {"simulated": "yes"}))
    theirs = w.submit(asks("theirs", "blue", devices=7))
    assert policy.reservations == 1
    assert told_reserved(w, DUE).keys() == {theirs}
    assert w.state_of(w.submit(asks("late", "green"))) == "queued"


def test_gangs_that_wait_for_their_own_teams_jobs_leave_those_of_other_teams_what_is_kept_for_them() -> None:
    w = World(*(host(f"n{n}", 4, labels={"place": str(n)}) for n in range(5)))
    w.decider.policy = replace(w.decider.policy, reservations=1)
    for n in range(4):
        runs(w, asks(f"stays{n}", labels={"place": str(n)}))
        w.submit(asks(f"gang{n}", devices=4, labels={"place": str(n)}))
    runs(w, asks("stays", "blue", devices=2, labels={"place": "4"}))
    w.submit(asks("gang", "blue", devices=4, labels={"place": "4"}).model_copy(update={"submitted_us": 2}))
    w.send(inbox.Tick(), after_us=DUE)
    assert w.state_of(w.submit(asks("behind", "blue", labels={"place": "4"}))) == "queued"


@pytest.mark.parametrize("comes", [True, False])
def test_who_waits_is_asked_again_when_the_gang_comes_to_wait_for_its_own_team(comes: bool) -> None:
    w = World(node("n0", 4))
    runs(w, asks("busy", "green", devices=2))
    gang = w.submit(asks("gang", devices=4))
    assert told_reserved(w, DUE) == {gang: 4}
    waits = w.submit(asks("waits", "blue"))
    assert w.state_of(waits) == "queued"
    if comes:  # of a higher class, so it goes before the gang
        w.started(w.submit(job("own", 1, team="red", priority=100)))
    w.send(inbox.Tick(), after_us=S)
    assert w.state_of(waits) == ("granted" if comes else "queued")
    w.check()


def test_explain_says_the_same_as_the_cycle() -> None:
    w = World(node("n0"))
    runs(w, asks("stays"))
    runs(w, asks("other", "blue", devices=2))
    w.submit(asks("gang", devices=8))
    w.send(inbox.Tick(), after_us=DUE)
    own = w.submit(asks("own"))
    wide = w.submit(asks("wide", "blue", devices=6))
    state = w.decider.state
    reasons = Reasons(state, w.decider.policy)

    def why(one: str) -> BlockReason | None:
        found = reasons.of(state.jobs[one].queue)
        return None if found is None else found.reason

    assert (why(own), why(wide)) == (BlockReason.RESERVED, BlockReason.BUSY)
    w.started(w.submit(asks("fits", "blue")))


def test_nobody_gives_way_to_its_own_teams_job_on_what_the_gang_keeps_from_it() -> None:
    w = World(node("n0", 2), node("n1", 2))
    w.started(w.submit(job("stays", 1, team="red", priority=50)))
    victims = [w.submit(job(f"low{n}", team="blue", priority=0)) for n in range(2)]
    for one in victims:
        w.started(one)
    w.submit(job("gang", 4, team="red", priority=50))
    w.send(inbox.Tick(), after_us=DUE)
    own = w.submit(job("own", 1, team="red", priority=50, preempts=True))
    theirs = w.submit(job("theirs", 2, team="green", priority=50, preempts=True))

    def planned(one: str) -> bool:
        state = w.decider.state
        return preemption.choice_for(state, state.jobs[one], w.now_us, w.decider.policy) is not None

    assert not planned(own)
    assert planned(theirs)


def test_what_is_known_of_teams_is_bounded_by_those_that_hold_anything() -> None:
    w = World(node("n0", 2))
    for n in range(5):
        w.released(runs(w, asks("whole", f"team{n}")))
        w.released(runs(w, asks("part", f"team{n}", share_milli=300)))
    runs(w, asks("stays", "red"))
    fleet, claims = w.decider.state.fleet, w.decider.state.team_claims
    nothing = np.zeros(len(fleet.up), dtype=np.bool_)
    held = claims.of(fleet, "red", but=nothing)
    assert held is not None
    assert held.milli.tolist() == [1000]
    assert claims.of(fleet, "team0", but=nothing) is None
    assert list(claims._numbers) == ["red"]
    assert not claims._shared
    w.check()
