"""The rules that order a class: what is learned, who is first, and who gives way."""

import numpy as np
import pytest

from libs.core.scheduling.decider import Decider
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import OrderKnobs, OrderRule, Precedence
from libs.core.scheduling.precedence.exchange import exchanges
from libs.core.scheduling.precedence.learned import CELLS, EDGES, Learned, cell_of, cells_of
from libs.core.scheduling.precedence.rules import classes_of
from libs.core.scheduling.promises import new_promises
from schemas import inbox
from schemas.ledger import DevicesReserved
from tests.core.builders import World, job, node

NOBODY_ELSE = (np.zeros(0, dtype=np.int64), np.zeros(0))


class Ruled(World):
    """A pool whose decider has a rule."""

    def __init__(self, rule: OrderRule, nodes: int = 1, knobs: OrderKnobs = OrderKnobs()) -> None:
        super().__init__()
        self.precedence = Precedence(rule, knobs)
        self.decider = Decider(policy=Policy(precedence=self.precedence))
        self.send(*(inbox.NodeRegistered(incarnation=1, inventory=node(f"n{i}"), lease_s=10) for i in range(nodes)))

    def promised(self) -> list[tuple[str, int]]:
        """Gangs that are told now when they start, and when, us."""
        state = self.decider.state
        told = new_promises(state, Policy(precedence=self.precedence), self.now_us)
        for one in told:
            self.precedence.note(state, one, self.now_us)
        return [(one.job_id, one.promise.start_us) for one in told]

    def exchange(self) -> list[inbox.PreemptionPlanned]:
        return exchanges(self.decider.state, self.precedence, self.now_us, 1)

    def run(self, admitted: inbox.JobAdmitted) -> str:
        job_id = self.submit(admitted)
        self.started(job_id)
        return job_id


def test_cells_are_found_alike_one_by_one_and_all_at_once() -> None:
    services = np.concatenate([EDGES[:-1] * 1.01, EDGES[:-1] * 0.99, [0.0, 1e18]])
    assert [cell_of(service) for service in services] == cells_of(services).tolist()


def test_before_anything_is_learned_what_has_got_less_is_cheaper() -> None:
    price = Learned().price[0]
    assert all(price[: CELLS - 8] < price[1 : CELLS - 7])


def test_where_all_jobs_take_the_same_the_nearest_to_its_end_is_the_cheapest() -> None:
    learned = Learned()
    for _ in range(500):
        learned.ended(1, 10_000.0)
    learned.relearn(*NOBODY_ELSE)
    price, last = learned.price[0], cell_of(10_000.0)
    assert all(price[:last] >= price[1 : last + 1])
    assert price[0] == pytest.approx(10_000, rel=0.3)


def test_what_nobody_asks_for_is_not_worked_out_and_is_as_of_when_it_was_learned() -> None:
    learned, asked = Learned(), Learned()
    for one in (learned, asked):
        for service_s in (100.0, 1000.0, 9000.0) * 20:
            one.ended(2, service_s)
        one.relearn(*NOBODY_ELSE)
    tables = [asked.price, asked.median, asked.late, asked.rest]
    for _ in range(50):
        learned.ended(1, 5.0)  # not learned yet
    assert not learned._tables
    for late, early in zip([learned.price, learned.median, learned.late, learned.rest], tables, strict=True):
        assert np.array_equal(late, early)


def test_jobs_that_still_run_count_as_long_ones() -> None:
    alone, beside = Learned(), Learned()
    for learned in (alone, beside):
        for _ in range(50):
            learned.ended(1, 1000.0)
    alone.relearn(*NOBODY_ELSE)
    beside.relearn(np.zeros(200, dtype=np.int64), np.full(200, 50_000.0))
    assert beside.price[0][0] > 2 * alone.price[0][0]


def test_jobs_that_wait_are_passed_over_and_change_nothing_of_what_is_learned() -> None:
    pool = Ruled(OrderRule.SHORTEST_REMAINING)
    running = [pool.run(job(f"runs-{n}", 2)) for n in range(4)]
    for n in range(30):
        pool.submit(job(f"waits-{n}", 8))
    served, t_us = pool.precedence.served, pool.now_us + 500_000_000
    assert {served.ids[slot] for slot in served.begun()} == set(running)
    learned = []
    for slots in (served.begun(), np.array(list(served.slots.values()))):
        learned.append(Learned())
        for _ in range(50):
            learned[-1].ended(1, 1000.0)
        learned[-1].relearn(classes_of(served.width[slots]), served.attained_all(slots, t_us))
    assert np.array_equal(learned[0].price, learned[1].price)
    assert np.array_equal(learned[0].median, learned[1].median)


def test_the_shortest_known_job_is_granted_first() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    known = {"long": 9000.0, "short": 100.0}
    world.precedence.declared = lambda job: known.get(job.spec.name)
    first = world.run(job("first", 8))
    long, short = world.submit(job("long", 8)), world.submit(job("short", 8))
    world.released(first)
    assert (world.state_of(short), world.state_of(long)) == ("granted", "queued")


def test_a_long_job_gives_way_to_a_short_one_and_no_sooner_than_it_may() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    known = {"long": 80_000.0, "short": 800.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    long = world.run(job("long", 8))
    short = world.submit(job("short", 8))
    assert world.exchange() == [], "it has run for less than its minimum"
    world.send(after_us=61_000_000)
    (plan,) = world.exchange()
    assert (plan.beneficiary, plan.victims, len(plan.devices)) == (short, (long,), 8)
    world.send(plan)
    assert world.state_of(long) == "preempting"
    assert set(world.decider.state.holds[short]) == set(plan.devices)


def test_jobs_of_a_kind_do_not_take_turns() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    world.precedence.declared = lambda job: 10_000.0 if job.spec.name == "one" else 9_000.0
    world.run(job("one", 8))
    world.submit(job("other", 8))
    world.send(after_us=61_000_000)
    assert world.exchange() == []


def test_nobody_gives_way_to_another_team() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    world.precedence.declared = lambda job: 80_000.0 if job.spec.name == "long" else 80.0
    world.run(job("long", 8))
    world.submit(job("short", 8, team="vision"))
    world.send(after_us=61_000_000)
    assert world.exchange() == []


def test_the_writer_declines_an_exchange_that_its_rule_does_not_make() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    world.precedence.declared = lambda job: 10_000.0
    one = world.run(job("one", 8))
    other = world.submit(job("other", 8))
    world.send(after_us=61_000_000)
    devices = tuple(f"n0-gpu{i}" for i in range(8))
    (declined,) = world.send(
        inbox.PreemptionPlanned(
            plan_id="a-plan", base_seq=1, beneficiary=other, victims=(one,), devices=devices, cost_device_s=1.0,
            costs_device_s=(1.0,), reason="because",
        )
    )  # fmt: skip
    assert declined.kind == "plan.declined"


def test_of_the_nodes_the_one_with_the_longest_jobs_is_freed() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING, nodes=2)
    known = {"longer": 900_000.0, "long": 90_000.0, "short": 80.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    world.run(job("long", 8))
    longer = world.run(job("longer", 8))
    world.submit(job("short", 4))
    world.send(after_us=61_000_000)
    (plan,) = world.exchange()
    assert plan.victims == (longer,)


def test_what_has_waited_too_long_comes_before_all_and_keeps_what_it_gets_for_its_slice() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING, knobs=OrderKnobs(age_s=1000.0, slice_s=500.0, in_turn=0.0))
    known = {"old": 1e6, "short": 8000.0, "shorter": 80.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    world.run(job("short", 8))
    old = world.submit(job("old", 8))
    assert world.exchange() == []
    world.send(after_us=1001_000_000)
    (plan,) = world.exchange()
    assert plan.beneficiary == old
    world.send(plan)
    victim = plan.victims[0]
    world.observe("n0", inbox.Released(job_id=victim, attempt=1, exit_code=0, own_exit=False, reason="preempted"))
    assert world.state_of(old) == "granted"
    world.started(old)
    world.submit(job("shorter", 8))
    world.send(after_us=400_000_000)
    assert world.exchange() == [], "its slice is not over"
    world.send(after_us=101_000_000)
    assert world.exchange() != []


def test_least_attained_prefers_who_has_got_less() -> None:
    world = Ruled(OrderRule.LEAST_ATTAINED)
    first = world.run(job("first", 8))
    world.send(after_us=3600_000_000)
    second = world.submit(job("second", 8))
    (plan,) = world.exchange()
    assert (plan.beneficiary, plan.victims) == (second, (first,))


def test_the_first_gang_is_promised_when_what_stands_before_it_ends() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    known = {"before": 4 * 1000.0, "after": 4 * 90_000.0, "gang": 8 * 5000.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    world.run(job("before", 4))
    world.run(job("after", 4))
    gang = world.submit(job("gang", 8))
    ((promised, start_us),) = world.promised()
    assert promised == gang
    expected_s = 1000 * world.precedence.knobs.promise_margin
    assert (start_us - world.now_us) / 1e6 == pytest.approx(expected_s, rel=0.01)


def test_a_promise_is_kept_against_what_comes_to_stand_before_it() -> None:
    knobs = OrderKnobs(promise_margin=1.0, in_turn=0.0)
    world = Ruled(OrderRule.SHORTEST_REMAINING, knobs=knobs)
    known = {"before": 8 * 1000.0, "gang": 8 * 5000.0, "smaller": 8 * 4000.0}
    world.precedence.declared = lambda job: known[job.spec.name]
    before = world.run(job("before", 8))
    gang = world.submit(job("gang", 8))
    ((_, start_us),) = world.promised()
    assert world.promised() == [], "one each"
    smaller = world.submit(job("smaller", 8))
    world.send(after_us=500_000_000)
    world.released(before)
    assert world.state_of(smaller) == "granted", "it stands before the gang"
    world.started(smaller)
    world.send(after_us=start_us - int(knobs.lead_s * 1e6) - world.now_us + 1)
    (plan,) = world.exchange()
    assert (plan.beneficiary, plan.victims) == (gang, (smaller,))


def test_a_gang_that_was_overtaken_for_long_comes_before_all_and_runs_to_its_end() -> None:
    world = Ruled(
        OrderRule.SHORTEST_REMAINING,
        knobs=OrderKnobs(in_turn=2.0, in_turn_least_s=0.0, own_turn=0.0, turn_most_s=1e9, turn_worth=1e9),
    )
    known = {"there": 8 * 1000.0, "gang": 8 * 90_000.0, "small": 8 * 700.0}
    world.precedence.declared = lambda job: known[job.spec.name.split("-")[0]]
    there = world.run(job("there", 8))
    gang = world.submit(job("gang", 8))
    first = world.submit(job("small-1", 8))
    world.send(after_us=1000_000_000)
    world.released(there)
    assert world.state_of(first) == "granted"
    second = world.submit(job("small-2", 8))
    world.send(after_us=1000_000_000)  # 2 x the 1,000 s that stood before the gang are over
    world.released(first)
    assert (world.state_of(gang), world.state_of(second)) == ("granted", "queued")
    world.started(gang)
    world.send(after_us=80_000_000_000)
    assert world.exchange() == []


def test_a_promise_that_moved_to_later_makes_nobody_due_at_its_old_time() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    world.run(job("runs", 8))
    gang = world.submit(job("gang", 8))
    first_us, hour_us = world.now_us + 3_600_000_000, 3_600_000_000
    world.precedence.promise(gang, first_us)
    world.precedence.promise(gang, first_us + hour_us)
    world.send(after_us=hour_us)
    world.send()
    assert not world.precedence.is_due(gang)
    world.send(after_us=hour_us)
    world.send()
    assert world.precedence.is_due(gang)


def test_what_is_kept_of_who_falls_due_is_bounded_by_who_waits() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING)
    world.run(job("runs", 8))
    old = world.submit(job("old", 8))
    most = 0
    for number in range(400):
        gone = world.submit(job(f"gone-{number}", 8))
        world.send(inbox.CancelRequested(job_id=gone, team=world.decider.state.jobs[gone].team, reason="a change"))
        most = max(most, len(world.precedence.ageing.entries))
    assert most < 150, "400 jobs waited, and one still does"
    world.send(after_us=int(world.precedence.knobs.age_s * 1e6))
    world.send()
    assert world.precedence.is_due(old), "who waits is not thrown away with the others"


def test_for_a_single_device_that_waited_for_too_long_one_is_kept_and_that_is_told() -> None:
    world = Ruled(OrderRule.SHORTEST_REMAINING, knobs=OrderKnobs(age_s=60.0))
    world.run(job("runs", 8, team="blue"))
    aged = world.submit(job("aged", 1))
    world.send(after_us=120_000_000)
    told = [e for _ in range(2) for e in world.send(inbox.Tick(), after_us=1_000_000) if isinstance(e, DevicesReserved)]
    assert [(one.gang, len(one.devices)) for one in told] == [(aged, 1)]
    assert world.checker.finish().violations == []
