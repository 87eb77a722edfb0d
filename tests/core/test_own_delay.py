"""A gang that its own team's jobs keep waiting beyond its promised start is credited nothing for that; what others, faults and
drains put off is credited as before."""

import json
from random import Random
from typing import Any

import pytest

from libs.core.billing.credits import CreditCause
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.precedence.promised import PromiseBook
from libs.core.state.formats import NEWEST, OWN_DELAY
from libs.core.state.model import State
from schemas import inbox
from schemas import ledger as led
from schemas.clock import MeasuredBy
from schemas.ids import job_id
from schemas.jobs import PromiseCause, StartPromise
from schemas.queues import Queue
from schemas.resources import Inventory, Level
from tests.core.builders import World, job, node
from tests.core.test_credits import credits_of

S = 1_000_000


def pool(*runs: tuple[str, float], more: tuple[Inventory, ...] = (), allowed: int = NEWEST) -> World:
    """A node of eight for each job that runs there (team, time limit); `more` are idle."""
    w = World(*(node(f"n{n}") for n in range(len(runs))), allowed=allowed)
    for number, (team, limit_s) in enumerate(runs):
        w.started(w.submit(job(f"runs{number}", 8, team=team, types=("H100",), time_limit_s=limit_s)))
    w.send(*(inbox.NodeRegistered(incarnation=1, inventory=one, lease_s=10) for one in more))
    return w


def runs(w: World, name: str) -> str:
    (found,) = (one.id for one in w.decider.state.jobs.values() if one.spec.name == name)
    return found


def waits(w: World, devices: int = 8, **asks: Any) -> tuple[str, led.GangPromised]:
    """A gang of research, and what it is promised."""
    gang = w.submit(job("gang", devices, types=("H100",), **asks))
    w.send(inbox.Tick(), after_us=S)
    return gang, promises(w)[-1]


def promises(w: World) -> list[led.GangPromised]:
    return [e for record in w.records for e in record.events if isinstance(e, led.GangPromised)]


def until(w: World, t_us: int) -> None:
    w.send(inbox.Tick(), after_us=t_us - w.now_us)


def own_delay(w: World, gang: str) -> int | None:
    (found,) = (e for r in w.records for e in r.events if isinstance(e, led.JobGranted) and e.job_id == gang)
    return found.own_delay_us


def credited_us(w: World, gang: str) -> int:
    """How much of the gang's time is given back, after two hours; the checker has found the same."""
    w.started(gang)
    width = w.decider.state.jobs[gang].shape.devices
    w.send(inbox.Tick(), after_us=7200 * S)
    w.released(gang)
    w.check()
    found = [one for one in credits_of(w.records)[0] if one.posting.job_id == gang]
    assert {one.cause for one in found} <= {CreditCause.PROMISE_BROKEN}
    return sum(one.unit_us for one in found) // (width * 7000)


@pytest.mark.parametrize(("team", "own"), [("research", True), ("blue", False)])
def test_what_runs_longer_than_expected_puts_a_start_off_at_its_own_teams_expense(team: str, own: bool) -> None:
    w = pool((team, 600))
    gang, told = waits(w)
    assert told.stays == ()
    until(w, told.promise.start_us + 3600 * S)
    w.check()
    w.released(runs(w, "runs0"))
    late_us = w.now_us - told.promise.start_us
    assert own_delay(w, gang) == (told.promise.start_us if own else None)
    assert credited_us(w, gang) == (0 if own else late_us)


def test_a_jump_of_the_clock_in_the_same_decision_hides_nothing() -> None:
    """Seen: what the ledger tells first of a decision was taken for a decision before it, so that nobody looked whose jobs are
    in the way. Whoever read the record did."""
    w = pool(("research", 600))
    gang, told = waits(w)
    until(w, told.promise.start_us - S)
    from_us, w.behind_us = w.wall_us + 3 * S, -3600 * S
    jump = led.ClockJumped(from_us=from_us, to_us=from_us + 3600 * S, elapsed_us=3 * S, measured=MeasuredBy.BOOT_TIME)
    done = inbox.Released(job_id=runs(w, "runs0"), attempt=1, exit_code=0, own_exit=True)
    w.send(inbox.NodeObserved(node="n0", incarnation=1, observations=(done,)), after_us=3 * S, jumps=(jump,))
    assert own_delay(w, gang) == told.promise.start_us
    w.check()


@pytest.mark.parametrize("since", ["before the start", "after the start", "long before"])
@pytest.mark.parametrize("restart", [False, True])
def test_while_its_team_is_suspended_nothing_is_put_off_at_the_platforms_expense(since: str, restart: bool) -> None:
    """A gang whose team had not paid for a day cost nothing for a day then. Not where it was resumed in time."""
    w = pool(("blue", 600))
    gang, told = waits(w)
    start_us = told.promise.start_us
    if since == "after the start":
        until(w, start_us + 3600 * S)
    w.send(inbox.SuspendTeam(team="research", reason="unpaid", user="olga"))
    until(w, start_us - 60 * S if since == "long before" else w.now_us + 20_000 * S)
    w.send(inbox.ResumeTeam(team="research", reason="paid", user="olga"))
    if restart:
        w.decider = Decider.load(w.decider.dump())
    if since == "long before":
        until(w, start_us + 1800 * S)
    w.released(runs(w, "runs0"))
    late_us = w.now_us - start_us
    own = since != "long before"
    assert own_delay(w, gang) == (start_us if own else None)
    assert credited_us(w, gang) == (0 if own else late_us)


def test_the_devices_that_it_gets_at_last_are_no_matter() -> None:
    """Its own job runs on: that the other team's is the one that makes room at last does not matter."""
    w = pool(("research", 600), ("blue", 600))
    gang, told = waits(w)
    until(w, told.promise.start_us + 3600 * S)
    freed = w.nodes_of(runs(w, "runs1"))
    w.released(runs(w, "runs1"))
    assert w.nodes_of(gang) == freed
    assert own_delay(w, gang) == told.promise.start_us
    assert credited_us(w, gang) == 0


def test_its_own_jobs_that_were_to_run_on_are_in_nobodys_way() -> None:
    w = pool(("research", 90_000), ("blue", 600))
    gang, told = waits(w)
    assert told.stays == (runs(w, "runs0"),)
    until(w, told.promise.start_us + 3600 * S)
    w.released(runs(w, "runs1"))
    assert own_delay(w, gang) is None
    assert credited_us(w, gang) == late(w, gang, told)


def late(w: World, gang: str, told: led.GangPromised) -> int:
    """Ledger us from a promised start to the gang's."""
    (at,) = (r.t_us for r in w.records for e in r.events if isinstance(e, led.JobGranted) and e.job_id == gang)
    return at - told.promise.start_us


def test_its_jobs_that_came_since_count_only_where_they_take_what_it_lacks() -> None:
    """Another team is late with eight; a job of its own beside, that began since, is not why the gang waits."""
    w = pool(("blue", 600), more=(node("small", 2),))
    gang, told = waits(w)
    w.started(w.submit(job("since", 2, types=("H100",))))
    until(w, told.promise.start_us + 3600 * S)
    w.released(runs(w, "runs0"))
    assert own_delay(w, gang) is None
    assert credited_us(w, gang) == late(w, gang, told)


def test_a_job_that_fills_the_hole_and_stays_there_puts_it_off() -> None:
    w = pool(("blue", 600), more=(node("hole"),))
    gang, told = waits(w, 16)
    w.started(w.submit(job("fills", 8, types=("H100",))))
    assert told.stays == ()
    w.released(runs(w, "runs0"))
    until(w, told.promise.start_us + 3600 * S)
    w.released(runs(w, "fills"))
    assert own_delay(w, gang) == told.promise.start_us
    assert credited_us(w, gang) == 0


def test_devices_of_other_kinds_and_nodes_where_it_could_not_be_are_no_matter() -> None:
    other = node("old", model="A100")
    w = pool(("blue", 600), more=(other, *(node(f"part{n}", 4) for n in range(2))))
    gang, told = waits(w, required=Level.NODE)
    for n in range(2):
        w.started(w.submit(job(f"since{n}", 3, types=("H100",))))
    w.started(w.submit(job("aside", 8, types=("A100",))))
    until(w, told.promise.start_us + 3600 * S)
    w.released(runs(w, "runs0"))
    assert own_delay(w, gang) is None, "it needs eight of one node"
    assert credited_us(w, gang) == late(w, gang, told)


def test_a_fault_is_credited_up_to_the_start_that_its_own_jobs_put_off() -> None:
    """n0 is lost; then the gang waits for its own team's job on n1, which was to run on at first, and runs longer than told."""
    for own_too_long in (False, True):
        w = pool(("blue", 600), ("research", 3600))
        gang, first = waits(w)
        assert first.stays == (runs(w, "runs1"),)
        until(w, 300 * S)
        w.send(inbox.NodeSilent(node=w.nodes_of(runs(w, "runs0"))[0], incarnation=1, silent_s=6), after_us=S)
        until(w, w.now_us + S)
        last = promises(w)[-1]
        assert (last.promise.cause, last.stays) == (PromiseCause.FAULT, ())
        until(w, first.promise.start_us + 1000 * S)
        if own_too_long:
            until(w, last.promise.start_us + 1800 * S)
        w.released(runs(w, "runs1"))
        assert own_delay(w, gang) == (last.promise.start_us if own_too_long else None)
        moved_us = last.promise.start_us - first.promise.start_us
        assert credited_us(w, gang) == (moved_us if own_too_long else late(w, gang, first))


def test_a_fault_elsewhere_does_not_hide_that_its_own_job_is_what_it_waits_for() -> None:
    w = pool(("research", 0), ("blue", 90_000), more=(node("idle", 1),))
    gang, first = waits(w)
    assert first.stays == ()
    until(w, first.promise.start_us - 10 * S)
    w.send(inbox.NodeSilent(node="idle", incarnation=1, silent_s=6), after_us=S)
    until(w, w.now_us + S)
    assert [one.promise.cause for one in promises(w)] == [None, PromiseCause.FAULT]
    until(w, promises(w)[-1].promise.start_us - S)
    w.released(runs(w, "runs0"))
    assert own_delay(w, gang) == first.promise.start_us
    assert credited_us(w, gang) == 0


def test_where_there_is_room_and_something_else_keeps_it_waiting_its_jobs_beside_are_not_why() -> None:
    """An operator lowers its team's limit, and raises it again."""
    w = pool(("blue", 600), more=(node("small", 2),))
    gang, told = waits(w, required=Level.NODE)
    w.started(w.submit(job("since", 2, types=("H100",))))
    w.send(inbox.QuotaChanged(team="research", limit_milli=4000))
    w.released(runs(w, "runs0"))
    until(w, told.promise.start_us + 3600 * S)
    w.send(inbox.QuotaChanged(team="research", limit_milli=16_000))
    assert own_delay(w, gang) is None
    assert credited_us(w, gang) == late(w, gang, told)


def test_of_very_many_promises_of_one_gang_the_first_ones_and_the_last_are_kept() -> None:
    book, again, gang = PromiseBook(), PromiseBook(), job_id("research", "gang")
    for n in range(20):
        start = StartPromise(start_us=n, p50_us=n, p90_us=n, cause=PromiseCause.FAULT if n else None)
        book.note(State(), led.GangPromised(job_id=gang, promise=start, stays=(job_id("research", f"{n}"),)), n)
    kept = book.of[gang].counted_on
    assert [one.start_us for one in kept] == [*range(led.MOST_COUNTED_ON - 1), 19]
    again.load(json.loads(json.dumps(book.dump())))
    assert again.of == book.of


def test_while_a_reader_would_credit_it_nothing_says_that_it_is_not() -> None:
    w = pool(("research", 600), allowed=OWN_DELAY - 1)
    gang, told = waits(w)
    assert told.stays is None
    until(w, told.promise.start_us + 3600 * S)
    w.released(runs(w, "runs0"))
    assert own_delay(w, gang) is None
    assert credited_us(w, gang) == late(w, gang, told)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_checker_counts_the_same(seed: int) -> None:
    """Gangs and small jobs of two teams in three orders, whose nodes fall silent, are cordoned and come back."""
    chance = Random(seed)
    w = World(*(node(f"n{n}", chance.choice((4, 8)), leaf=f"leaf-{n % 2}") for n in range(4)))
    orders = ("fifo", "least-attained", "shortest-remaining")
    queues = tuple(Queue(name=team, order=chance.choice(orders)) for team in ("research", "blue"))
    w.send(inbox.ApplyQueues(version=1, queues=queues))
    silent, cordoned = set[str](), set[str]()
    for number in range(80):
        name, act = f"n{chance.randrange(4)}", chance.choice(("come", "come", "come", "end", "end", "wait", "node"))
        held = [one for one in w.decider.state.jobs.values() if one.current is not None]
        if act == "come":
            width = chance.choice((1, 2, 4, 8, 8, 16))
            share, near = (
                chance.choice((500, 1000)) if width == 1 else 1000,
                chance.choice((None, Level.NODE, Level.LEAF)),
            )
            team, urgent = chance.choice(("research", "blue")), chance.random() < 0.2
            asked = job(
                f"j{number}", width, team=team, priority=9 * urgent, preempts=urgent, share_milli=share,
                required=near if width > 1 else None, time_limit_s=chance.choice((0, 60, 600)),
            )  # fmt: skip
            w.send(asked, after_us=chance.randint(1, 20) * S)
            w.send(*preemption.plans(w.decider.state, w.now_us, len(w.records)))
        elif act == "end" and held:
            gone = chance.choice(held)
            if not silent.intersection(w.nodes_of(gone.id)):
                w.started(gone.id)
                w.released(gone.id)
        elif act == "node" and name not in silent:
            silent.add(name)
            w.send(inbox.NodeSilent(node=name, incarnation=1, silent_s=6), after_us=10 * S)
        elif act == "node":
            silent.discard(name)
            out = inbox.UncordonNode if name in cordoned else inbox.CordonNode
            cordoned ^= {name}
            w.send(inbox.NodeHeardAgain(node=name, incarnation=1), out(node=name, reason="a test", user="olga"))
        w.send(inbox.Tick(), after_us=chance.choice((1, 30, 300, 900)) * S)
    w.check()
