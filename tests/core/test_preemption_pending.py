"""The planner's memory: nothing that is on its way is planned again, and nothing is computed while nothing has changed."""

from collections.abc import Callable
from typing import get_args

import pytest

from libs.core.scheduling import preemption
from libs.core.scheduling.preemption.pending import PROGRESS, PendingPlans
from schemas import inbox, ledger
from schemas.ids import job_id
from schemas.jobs import StartPromise
from schemas.ledger import PlanDeclineReason as Reason
from schemas.resources import Level, Resources, Topology, TopologyPolicy
from services.preemption.planner import PreemptionPlanner
from tests.core.builders import World, job, node

SERVING = {"priority": 100, "preempts": True}
JOB = job_id("blue", "urgent")


def plan(plan_id: str = "p1", beneficiary: str = JOB, victim: str = "low") -> inbox.PreemptionPlanned:
    return inbox.PreemptionPlanned(
        plan_id=plan_id, base_seq=1, beneficiary=beneficiary, victims=(job_id("red", victim),), devices=("n1-gpu0",),
        cost_device_s=1,
    )  # fmt: skip


def record(*events: object, inbox_seq: int = 0) -> ledger.LedgerRecord:
    return ledger.LedgerRecord(
        pool="main", prev_seq=0, prev_hash="", inbox_seq=inbox_seq, t_us=1, writer="w", events=events
    )  # type: ignore[arg-type]


HELD = ledger.DevicesHeld(job_id=JOB, devices=("n1-gpu0",), plan_id="p1")
DECLINED = ledger.PlanDeclined(plan_id="p1", beneficiary=JOB, reason=Reason.VICTIM_GONE)
CHANGE = ledger.QuotaSet(team="blue", limit_milli=None)
PROGRESSED = ledger.AttemptRunning(job_id=JOB, attempt=1)


def sent(*plans: inbox.PreemptionPlanned, inbox_seq: int = 10) -> PendingPlans:
    """A memory of plans that were computed and sent."""
    pending = PendingPlans()
    assert pending.due(0)
    pending.computed()
    for one in plans or (plan(),):
        pending.sent(one, inbox_seq)
    return pending


def test_the_first_computation_is_due_and_the_next_only_after_a_change():
    pending = sent()
    assert not pending.due(0)
    pending.apply(record(PROGRESSED))
    assert not pending.due(0)
    pending.apply(record(CHANGE))
    assert pending.due(0)
    pending.computed()
    assert not pending.due(0)


def test_a_promise_is_a_change():
    """What is kept for the gang is open from then on to who ends before its start."""
    pending = sent()
    promise = StartPromise(start_us=3, p50_us=1, p90_us=2)
    pending.apply(record(ledger.GangPromised(job_id=JOB, promise=promise)))
    assert pending.due(0)


def test_a_plan_is_pending_until_it_is_answered():
    pending = sent()
    pending.apply(record(CHANGE, inbox_seq=9))
    assert pending.plans == [plan()]
    (answer,) = pending.apply(record(HELD, inbox_seq=10))
    assert (answer.plan, answer.accepted, answer.name) == (plan(), True, "accepted")
    assert pending.plans == []


def test_an_answer_to_somebody_elses_plan_is_none_of_ours():
    pending = sent()
    assert pending.apply(record(HELD.model_copy(update={"plan_id": "other"}))) == []
    assert pending.apply(record(DECLINED.model_copy(update={"plan_id": "other"}))) == []
    assert pending.plans == [plan()]


def test_a_plan_that_was_declined_after_a_change_is_made_anew():
    pending = sent()
    pending.apply(record(CHANGE))
    assert pending.due(0)
    pending.computed()  # others were planned for on this change while it was pending
    (answer,) = pending.apply(record(DECLINED, inbox_seq=10))
    assert answer.name == "victim-gone"
    assert pending.plans == []
    assert pending.due(0)
    assert pending.waiting == frozenset()


def test_a_plan_that_was_declined_although_nothing_changed_is_not_sent_again_before_something_does():
    """Else planner and placement, of two minds about one plan, would write the ledger full."""
    pending = sent()
    pending.apply(record(PROGRESSED, DECLINED, inbox_seq=10))
    assert pending.plans == []
    assert not pending.due(0)
    assert pending.waiting == {JOB}
    pending.apply(record(CHANGE))
    assert pending.due(0)
    assert pending.waiting == frozenset()


def test_a_change_in_the_record_of_the_answer_counts():
    pending = sent()
    pending.apply(record(CHANGE, DECLINED, inbox_seq=10))
    assert pending.due(0)
    pending = sent()
    pending.apply(record(DECLINED, CHANGE, inbox_seq=10))
    assert pending.due(0)
    assert pending.waiting == frozenset()


def test_a_plan_without_an_answer_has_timed_out_when_the_inbox_is_decided_beyond_it():
    pending = sent(plan(), plan("p2", job_id("blue", "second"), "low2"))
    pending.apply(record(CHANGE, inbox_seq=9))
    pending.computed()
    answers = pending.apply(record(PROGRESSED, inbox_seq=10))
    assert [answer.name for answer in answers] == ["timed-out", "timed-out"]
    assert pending.plans == []
    assert pending.due(0)


def test_time_alone_can_make_a_plan_possible_when_a_job_widens():
    pending = PendingPlans()
    pending.computed(widening_us=5_000)
    assert not pending.due(4_999)
    assert pending.due(5_000)
    pending.computed()
    assert not pending.due(9_999)


def test_every_kind_of_event_is_a_change_or_progress():
    """A new kind is a change until somebody has thought about it."""
    kinds = set(get_args(get_args(ledger.LedgerEvent)[0]))
    assert kinds >= PROGRESS
    assert kinds - PROGRESS == {
        ledger.NodeJoined, ledger.NodeLeft, ledger.NodeSilence, ledger.NodeHeard, ledger.QuotaSet, ledger.PricesApplied,
        ledger.JobQueued, ledger.JobGranted, ledger.JobBoosted, ledger.BoostEnded,
        ledger.AttemptPreempting, ledger.AttemptStopping, ledger.DevicesFreed, ledger.JobRequeued, ledger.JobFinished,
        ledger.DevicesHeld, ledger.HoldReleased, ledger.BoardRecut, ledger.BoardCutDone,
        ledger.DeviceQuarantined, ledger.DeviceReturned, ledger.NodeCordoned, ledger.NodeUncordoned,
        ledger.TeamSuspended, ledger.TeamResumed, ledger.QueuesApplied,
        ledger.BudgetsApplied, ledger.BudgetToppedUp, ledger.BudgetPeriodBegan, ledger.GangPromised,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ the planner on a pool


class Planning:
    """A planner that follows a world's ledger. `plan` computes what is due and sends it: it waits in the inbox."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.answers, self.computed, self._read, self._sent = world, list[str](), 0, 0, 0
        self.planner = PreemptionPlanner()
        computes: Callable[..., list[inbox.PreemptionPlanned]] = preemption.plans

        def counted(*args: object, **kwargs: object) -> list[inbox.PreemptionPlanned]:
            self.computed += 1
            return computes(*args, **kwargs)

        monkeypatch.setattr(preemption, "plans", counted)

    def read(self) -> None:
        for seq, one in enumerate(self.world.records[self._read :], self._read + 1):
            self.answers += [answer.name for answer in self.planner.apply(one, seq)]
        self._read = len(self.world.records)

    def plan(self) -> list[inbox.PreemptionPlanned]:
        self.read()
        made = self.planner.plans(self._read)
        for one in made:
            self._sent += 1
            self.planner.sent(one, 1_000_000 + self._sent)  # behind all that the world decides by itself
        return made


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Planning:
    """Two full nodes of eight, a job of the lowest class on each."""
    world = World(node("n0"), node("n1"))
    for name in ("a", "b"):
        world.started(world.submit(job(name, 8)))
    return Planning(world, monkeypatch)


def test_a_plan_is_made_once_and_nothing_is_computed_while_nothing_changes(full: Planning):
    full.world.submit(job("serve", 8, **SERVING))
    full.world.send(inbox.Tick())  # with it the gang is promised its start
    (made,) = full.plan()
    assert full.plan() == []
    full.world.checkpointed(job_id("research", "a"), 3)
    full.world.send(inbox.Tick(), after_us=60_000_000)
    assert full.plan() == []
    assert full.computed == 1
    assert len(made.victims) == 1


def test_what_is_pending_serves_nobody_else(full: Planning):
    full.world.submit(job("serve-1", 8, **SERVING))
    (first,) = full.plan()
    full.world.submit(job("serve-2", 8, **SERVING))
    (second,) = full.plan()
    assert second.beneficiary == job_id("research", "serve-2")
    assert not set(first.victims) & set(second.victims)
    assert not set(first.devices) & set(second.devices)
    full.world.submit(job("serve-3", 8, **SERVING))
    assert full.plan() == [], "both victims are spoken for"
    for one in (first, second):
        (*_, held) = full.world.send(one)
        assert held.kind == "devices.held"
    assert full.plan() == []
    assert full.answers == ["accepted", "accepted"]
    full.world.check()


def test_what_is_pending_counts_against_the_teams_quota(full: Planning):
    full.world.send(inbox.QuotaChanged(team="serving", limit_milli=8_000))
    full.world.submit(job("serve-1", 8, team="serving", **SERVING))
    full.plan()
    full.world.submit(job("serve-2", 8, team="serving", **SERVING))
    assert full.plan() == []


def test_a_stale_plan_is_followed_by_another_one(full: Planning):
    full.world.submit(job("serve", 8, **SERVING))
    (first,) = full.plan()
    full.world.send(inbox.CancelRequested(job_id=first.victims[0], team="research", reason=""))
    (declined,) = full.world.send(first)
    assert declined.kind == "plan.declined"
    (second,) = full.plan()
    assert full.answers == ["victim-gone"]
    assert second.beneficiary == first.beneficiary
    assert second.victims != first.victims
    (*_, held) = full.world.send(second)
    assert held.kind == "devices.held"
    full.world.check()


def test_two_planners_at_once_cost_a_declined_plan_and_nothing_else(full: Planning, monkeypatch: pytest.MonkeyPatch):
    """As after a restart, which forgets what is pending."""
    full.world.submit(job("serve", 8, **SERVING))
    (first,) = full.plan()
    other = Planning(full.world, monkeypatch)
    full.world.send(inbox.QuotaChanged(team="green", limit_milli=1))
    (second,) = other.plan()
    assert second.plan_id != first.plan_id
    full.world.send(first, second)
    assert (full.plan(), other.plan()) == ([], [])
    assert (full.answers, other.answers) == (["accepted"], ["already-held"])
    full.world.check()


def test_a_job_that_may_widen_later_is_planned_for_when_it_does(full: Planning):
    admitted = job("serve", 16, **SERVING)
    near = Topology(level=Level.NODE, policy=TopologyPolicy.PREFERRED, widen_after_s=100)
    resources = Resources(devices=16, topology=near)
    full.world.submit(admitted.model_copy(update={"spec": admitted.spec.model_copy(update={"resources": resources})}))
    assert full.plan() == []
    full.world.send(inbox.Tick(), after_us=50_000_000)
    assert full.plan() == []
    full.world.send(inbox.Tick(), after_us=51_000_000)
    (made,) = full.plan()
    assert len(made.victims) == 2
