"""An order for each queue, chosen by its operator: decided by the writer, planned by preemption, followed by every reader."""

import pytest

from libs.core.scheduling.order import JobsAhead, in_order
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence.exchange import exchanges
from schemas import inbox
from schemas.inbox import ProgressSeen
from schemas.jobs import StepProgress
from schemas.ledger import AttemptPreempting, DevicesHeld, LedgerRecord, PlanDeclined
from schemas.queues import Queue
from services.preemption.planner import PreemptionPlanner
from tests.core.builders import World, job, node

S = 1_000_000


def pool(*queues: Queue, order: str | None = None, nodes: int = 1) -> World:
    w = World(*(node(f"n{i}") for i in range(nodes)))
    w.send(inbox.ApplyQueues(version=1, queues=queues, order=order, user="olga"))
    return w


def tells(w: World, runs: str, left_s: float) -> None:
    """It says how far it is."""
    told = StepProgress(step=1, steps=10**6, left_s=left_s, left_p90_s=left_s)
    seen = ProgressSeen(job_id=runs, attempt=w.attempt(runs), progress=told)
    (where, *_) = w.nodes_of(runs)
    w.send(inbox.NodeObserved(node=where, incarnation=1, observations=(), progress=(seen,)), after_us=20 * S)


def run(w: World, name: str, devices: int = 8, team: str = "research", **more: object) -> str:
    runs = w.submit(job(name, devices, team=team, **more))
    w.started(runs)
    return runs


def order_of(w: World) -> list[str]:
    policy = w.decider.policy
    return [j.spec.name for j in in_order(w.decider.state, w.now_us, policy)]


def planner_of(records: list[LedgerRecord]) -> PreemptionPlanner:
    planner = PreemptionPlanner()
    for seq, record in enumerate(records, 1):
        planner.apply(record, seq)
    return planner


def given_way_and_back(w: World) -> tuple[str, str]:
    """Of two jobs one has run for half an hour and gave way to an urgent one; the other has only waited."""
    old = run(w, "old")
    w.send(inbox.Tick(), after_us=1800 * S)
    urgent = w.submit(job("urgent", 8, priority=9, preempts=True))
    planner = planner_of(w.records)
    (plan,) = planner.plans(len(w.records))
    w.send(plan)
    fresh = w.submit(job("fresh", 8))
    w.released(old, exit_code=143, own_exit=False)
    w.started(urgent)
    return old, fresh


@pytest.mark.parametrize(
    ("order", "first"),
    [
        (None, "old"),
        ("fifo", "old"),
        ("fair-share", "old"),
        ("least-attained", "fresh"),
        ("shortest-remaining", "fresh"),
    ],
)
def test_a_queue_is_in_the_order_that_its_file_says(order: str | None, first: str) -> None:
    w = pool(Queue(name="research", order=order))
    given_way_and_back(w)
    assert order_of(w)[0] == first
    w.check()


def test_a_queue_takes_the_order_of_the_one_above_and_at_last_the_pools() -> None:
    w = pool(Queue(name="lab"), Queue(name="research", parent="lab"), order="least-attained")
    given_way_and_back(w)
    assert order_of(w)[0] == "fresh"
    w.send(inbox.ApplyQueues(version=2, queues=(Queue(name="lab", order="fifo"), Queue(name="research", parent="lab"))))
    assert order_of(w)[0] == "old", "what waits already, too"
    w.check()


def test_below_a_queue_that_orders_by_age_all_jobs_are_one_line() -> None:
    teams = [Queue(name=name, parent="lab") for name in ("blue", "research")]
    for order, names in (("fifo", ["a", "b", "c"]), ("fair-share", ["b", "a", "c"])):
        w = pool(Queue(name="lab", order=order), *teams)
        run(w, "runs", 5)
        w.submit(job("a", 8))
        w.submit(job("b", 8, team="blue", submitted_us=2))
        w.submit(job("c", 8, submitted_us=3))
        assert order_of(w) == names, order
        w.check()


def test_a_job_that_says_how_far_it_is_gives_way_to_one_with_less_left_and_the_ledger_shows_it() -> None:
    w = pool(Queue(name="research", order="shortest-remaining"))
    long, short = run(w, "long", 4), run(w, "short", 4)
    tells(w, long, 900_000)
    tells(w, short, 100)
    w.submit(job("waits", 4))
    w.send(inbox.Tick(), after_us=120 * S)
    planner = planner_of(w.records)
    (plan,) = planner.plans(len(w.records))
    assert plan.victims == (long,)
    events = w.send(plan)
    assert {type(e) for e in events} == {AttemptPreempting, DevicesHeld}
    planner.sent(plan, 10**6)
    assert planner.plans(len(w.records)) == [], "it is on its way"
    w.check()


def test_progress_that_is_not_believed_any_more_gains_nothing() -> None:
    w = pool(Queue(name="research", order="shortest-remaining"))
    liar = run(w, "liar")
    w.send(inbox.Tick(), after_us=4 * 3600 * S)
    tells(w, liar, 1)
    w.submit(job("waits", 8))
    assert planner_of(w.records).plans(1) == []
    seen = ProgressSeen(job_id=liar, attempt=1, progress=StepProgress(step=1, steps=9, left_s=1, left_p90_s=1))
    w.send(inbox.NodeObserved(node="n0", incarnation=1, observations=(), progress=(seen,)), after_us=20 * S)
    assert [plan.victims for plan in planner_of(w.records).plans(1)] == [(liar,)], "by history it has much left"
    w.check()


def test_no_job_gives_way_within_its_class_in_an_order_that_has_no_such() -> None:
    w = pool(Queue(name="research", order="shortest-remaining"), Queue(name="blue", order="fifo"), nodes=2)
    for team in ("research", "blue"):
        tells(w, run(w, "long", team=team), 900_000)
    blue = w.submit(job("waits", 8, team="blue"))
    w.submit(job("waits", 8))
    w.send(inbox.Tick(), after_us=120 * S)
    (plan,) = planner_of(w.records).plans(len(w.records))
    assert w.decider.state.jobs[plan.beneficiary].team == "research"
    (_, longs) = (plan.victims, [j.id for j in w.decider.state.jobs.values() if j.team == "blue" and j.id != blue])
    forged = plan.model_copy(update={"beneficiary": blue, "victims": tuple(longs), "plan_id": "forged"})
    (answer,) = w.send(forged)
    assert isinstance(answer, PlanDeclined)
    w.check()


def test_who_reads_the_ledger_or_a_snapshot_orders_as_who_wrote_it() -> None:
    w = pool(Queue(name="research", order="shortest-remaining"), nodes=2)
    for n in range(12):
        runs = run(w, f"short{n}", 1 + n % 8)
        w.send(inbox.Tick(), after_us=(60 + 40 * n) * S)
        w.released(runs)
    run(w, "filler", team="blue", priority=50)
    given_way_and_back(w)
    for n in range(5):
        w.submit(job(f"more{n}", 3 + n % 5))
    w.send(inbox.Tick(), after_us=7200 * S)
    w.check()
    planner = planner_of(w.records)
    again = PreemptionPlanner.load(iter(list(planner.dump())))
    assert list(again.dump()) == list(planner.dump())
    assert [p.victims for p in again.plans(1)] == [p.victims for p in planner.plans(1)]


def test_a_job_is_told_how_many_stand_before_it_in_whatever_order() -> None:
    w = pool(Queue(name="research", order="least-attained"), Queue(name="blue", order="fair-share"), order="fifo")
    given_way_and_back(w)
    for n in range(6):
        w.submit(job(f"more{n}", 2 + n % 3, team=("research", "blue", "green")[n % 3]))
    w.submit(job("urgent2", 8, priority=9, preempts=True))
    policy, state = w.decider.policy, w.decider.state
    names = [j.id for j in in_order(state, w.now_us, policy)]
    for place, job_id in enumerate(names):
        assert JobsAhead(state, w.now_us, policy).count(state.jobs[job_id]) == place
    assert exchanges(state, w.decider.turns, w.now_us, 1) == []
    assert Policy().precedence is None
