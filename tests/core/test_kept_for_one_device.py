"""A job that wants one whole device is not overtaken for ever by jobs that want parts of it."""

from itertools import count
from typing import Any

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.placement.answer import BlockReason
from libs.core.scheduling import preemption
from schemas import inbox
from schemas.jobs import JobSpec
from schemas.ledger import DevicesReserved
from schemas.resources import Resources
from tests.core.builders import World, job, node

S = 1_000_000
DUE = 70 * S


LATER = count(1)


def asks(name: str, team: str, share_milli: int = 1000) -> inbox.JobAdmitted:
    """Each is younger than those before."""
    spec = JobSpec(name=name, command=("true",), resources=Resources(devices=1, share_milli=share_milli))
    return job(name, team=team, submitted_us=next(LATER)).model_copy(update={"spec": spec})


def runs(w: World, admitted: inbox.JobAdmitted) -> str:
    one = w.submit(admitted)
    w.started(one)
    return one


def reserved(events: list[Any]) -> dict[str, int]:
    return {event.gang: len(event.devices) for event in events if isinstance(event, DevicesReserved)}


@pytest.mark.parametrize(("large", "small"), [(1000, 300), (600, 300)])
def test_parts_of_a_device_that_are_given_back_are_kept_for_who_waits_for_more(large: int, small: int) -> None:
    w = World(node("n0", 1))
    shares = [runs(w, asks(f"s{n}", "red", small)) for n in range(1000 // small)]
    whole = w.submit(asks("whole", "blue", large))
    w.released(shares.pop(0))
    shares.append(runs(w, asks("early", "red", small)))
    assert w.state_of(whole) == "queued", "for a minute it may be overtaken"
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {whole: 1}
    late = [w.submit(asks(f"late{n}", "red", small)) for n in range(3)]
    while w.state_of(whole) == "queued":
        w.released(shares.pop(0))
        assert {w.state_of(one) for one in late} == {"queued"}
    assert w.state_of(whole) == "granted"
    w.released(whole)
    assert w.state_of(late[0]) == "granted"
    w.check()


def test_it_comes_no_earlier_for_that() -> None:
    """Who is ahead by the share of its team goes on being ahead."""
    w = World(node("n0", 1), node("n1", 1))
    runs(w, asks("holds", "blue"))
    share = runs(w, asks("s0", "red", 600))
    whole = w.submit(asks("whole", "blue"))
    w.send(inbox.Tick(), after_us=DUE)
    w.released(share)
    assert w.state_of(whole) == "granted", "nobody else waits"
    w.released(whole)
    share = runs(w, asks("s1", "red", 600))
    again = w.submit(asks("again", "blue"))
    w.send(inbox.Tick(), after_us=DUE)
    assert w.state_of(w.submit(asks("s2", "red", 300))) == "granted", "its team holds less"
    assert w.state_of(again) == "queued"
    w.check()


def test_nothing_is_kept_where_nobody_has_a_part_of_what_it_could_use() -> None:
    w = World(node("n0", 3))
    for n in range(3):
        runs(w, asks(f"r{n}", "red"))
    w.submit(asks("whole", "blue"))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {}


def test_what_is_kept_is_open_again_once_nobody_has_a_part() -> None:
    """Then the next device that is given back is its own, whichever it is."""
    w = World(node("n0", 1), node("n1", 1))
    runs(w, asks("r0", "red"))
    share = runs(w, asks("s0", "red", 600))
    whole = w.submit(asks("whole", "blue"))
    assert reserved(w.send(inbox.Tick(), after_us=DUE)) == {whole: 1}
    w.released(share)
    assert w.state_of(whole) == "granted"
    assert not w.decider.state.reserved
    w.check()


def test_who_waits_behind_it_is_told_so() -> None:
    w = World(node("n0", 1))
    runs(w, asks("s0", "red", 600))
    w.submit(asks("whole", "blue"))
    w.send(inbox.Tick(), after_us=DUE)
    behind = w.submit(asks("behind", "red", 300))
    state = w.decider.state
    found = Reasons(state, w.decider.policy).of(state.jobs[behind].queue)
    assert found is not None
    assert found.reason is BlockReason.RESERVED


def test_the_rest_of_a_device_that_was_held_is_kept_in_the_decision_that_opens_it() -> None:
    w = World(node("n0", 1))
    victim = runs(w, asks("victim", "green"))
    urgent = asks("urgent", "red", 300).model_copy(update={"priority": 100, "preempts": True})
    waits = w.submit(asks("waits", "blue"))
    behind = w.submit(asks("behind", "cyan", 300))
    w.submit(urgent)
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records), policy=w.decider.policy)
    w.send(plan)
    w.send(inbox.Tick(), after_us=DUE)
    w.released(victim, exit_code=143, own_exit=False)
    assert w.state_of(urgent.job_id) == "granted"
    assert (w.state_of(waits), w.state_of(behind)) == ("queued", "queued")
    w.check()
