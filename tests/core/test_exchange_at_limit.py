"""A job that waits at a limit of its team, or of a queue above, is exchanged for those that stand behind it: what they give
back below the limit it may have. The planner, the ledger's writer and the checker agree."""

from collections.abc import Callable

import pytest

from libs.core.scheduling.precedence.exchange import exchanges
from schemas import inbox
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget
from schemas.inbox import PreemptionPlanned
from schemas.ledger import AttemptPreempting, PlanDeclined
from schemas.queues import Queue
from tests.core.builders import World, job, node
from tests.core.test_order_of_queues import S, run, tells

ORDER = "shortest-remaining"


def at_limit(limit: int, nodes: int = 2, *, above: bool = False, model: str = "H100") -> World:
    """Nodes of eight; research, or the lab that it is in, may have so many devices."""
    w = World(*(node(f"n{i}", model=model) for i in range(nodes)))
    amounts = {"*": limit * 1000}
    lab = Queue(name="lab", limit=amounts if above else {}, order=ORDER)
    research = Queue(name="research", parent="lab", limit={} if above else amounts)
    w.send(inbox.ApplyQueues(version=1, queues=(lab, research), user="olga"))
    return w


def planned(w: World) -> list[PreemptionPlanned]:
    return exchanges(w.decider.state, w.decider.turns, w.now_us, len(w.records))


def long_jobs(w: World, *devices: int) -> list[str]:
    """Each has more left than the one before, and has run for long enough to give way."""
    found = [run(w, f"long{at}", each) for at, each in enumerate(devices)]
    for at, runs in enumerate(found):
        tells(w, runs, 500_000 + at * 100_000)
    w.send(inbox.Tick(), after_us=120 * S)
    return found


@pytest.mark.parametrize("above", [False, True])
def test_who_has_the_most_left_gives_way_below_a_limit_though_other_devices_are_idle(above: bool) -> None:
    w = at_limit(8, above=above)
    longs = long_jobs(w, 2, 2, 4)
    fresh = w.submit(job("fresh", 2))
    (plan,) = planned(w)
    assert plan.victims == (longs[-1],), "of the largest number, wherever it runs"
    assert any(isinstance(event, AttemptPreempting) for event in w.send(plan))
    assert w.state_of(fresh) == "queued"
    w.released(longs[-1], exit_code=143, own_exit=False)
    assert w.state_of(fresh) == "granted"
    assert w.state_of(longs[-1]) == "queued", "four do not fit beside six of eight"
    w.check()


def test_a_gang_has_as_many_give_way_as_the_limit_needs_and_no_more() -> None:
    w = at_limit(12, nodes=3)
    longs = long_jobs(w, 3, 3, 3, 3)
    fresh = w.submit(job("fresh", 5))
    (plan,) = planned(w)
    assert set(plan.victims) == set(longs[-2:])
    w.send(plan)
    for victim in plan.victims:
        assert w.state_of(fresh) == "queued", "until the last is gone the team is at its limit"
        w.released(victim, exit_code=143, own_exit=False)
    assert w.state_of(fresh) == "granted"
    w.check()


def test_two_beneficiaries_do_not_count_on_the_same_room() -> None:
    w = at_limit(8, nodes=3)
    long_jobs(w, 4, 4)
    for name, devices in (("a", 4), ("b", 3)):
        w.submit(job(name, devices))
    plans = planned(w)
    assert len(plans) == 2
    assert not set(plans[0].victims) & set(plans[1].victims)
    for plan in plans:
        assert any(isinstance(event, AttemptPreempting) for event in w.send(plan))
    w.check()


def too_wide(w: World) -> None:
    w.submit(job("wide", 9))


def of_a_team_without_money(w: World) -> None:
    ten_hours = SpendingBudget(team="research", unit=BudgetUnit.GPU_HOURS, period=BudgetPeriod.MONTH, hard=10_000_000)
    w.send(inbox.ApplyBudgets(budgets=BudgetSet(version=1, budgets=(ten_hours,))))
    w.submit(job("fresh", 2, time_limit_s=36_000))


@pytest.mark.parametrize("waits", [too_wide, of_a_team_without_money])
def test_nobody_gives_way_to_a_job_that_this_would_not_help(waits: Callable[[World], None]) -> None:
    w = at_limit(8)
    long_jobs(w, 4, 4)
    waits(w)
    assert planned(w) == []
    w.check()


def test_the_writer_counts_who_is_only_moved_against_the_limit() -> None:
    w = at_limit(8, nodes=3)
    short, longer = run(w, "short", 4), run(w, "longer", 4)
    tells(w, longer, 900_000)
    w.send(inbox.Tick(), after_us=700 * S)
    tells(w, short, 100)
    fresh = w.submit(job("fresh", 4))
    w.send(inbox.Tick(), after_us=120 * S)
    (plan,) = planned(w)
    assert plan.victims == (longer,)
    forged = plan.model_copy(update={"victims": (short,), "plan_id": "forged", "costs_device_s": ()})
    (answer,) = w.send(forged)
    assert isinstance(answer, PlanDeclined)
    assert answer.reason == "over-limit"
    assert w.state_of(fresh) == "queued"
    w.check()
