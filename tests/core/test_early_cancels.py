"""Cancels ahead of their submits, requests that placement refuses, and how long a job may take to stop."""

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.history import Feed
from libs.core.scheduling.decider import Decider
from libs.core.state import early_cancels, snapshot
from libs.core.state.early_cancels import EarlyCancel, EarlyCancels
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget
from schemas.ids import job_id
from schemas.inbox import ApplyBudgets, CancelRequested, NodeLost, Released, SuspendTeam, Tick
from schemas.jobs import JobEvent, JobRejected, RetryPolicy
from tests.core.builders import World, job, node

S = 1_000_000


@pytest.fixture
def world() -> World:
    return World(node("n1", 4))


def cancel(name: str, requested_us: int, team: str = "research", reason: str = "a mistake") -> CancelRequested:
    return CancelRequested(
        job_id=job_id("research", name), team=team, reason=reason, user="ana", requested_us=requested_us
    )


def kinds(events: list) -> list[str]:
    return [event.kind for event in events]


def test_a_submit_whose_cancel_came_first_is_answered_as_cancelled(world: World) -> None:
    assert kinds(world.send(cancel("j", 7))) == ["input.rejected"]
    events = world.send(job("j", submitted_us=5), job("other", submitted_us=6))
    assert kinds(events) == ["job.queued", "job.finished", "job.queued", "job.granted"]
    ended = events[1]
    assert (ended.job_id, ended.state, ended.reason, ended.user) == (
        job_id("research", "j"), "cancelled", "a mistake", "ana",
    )  # fmt: skip
    assert kinds(world.send(job("j", submitted_us=5))) == [], "a repeat is the same job"


def test_a_submit_that_came_after_the_cancel_is_a_new_wish(world: World) -> None:
    world.send(cancel("j", 7))
    assert kinds(world.send(job("j", submitted_us=8))) == ["job.queued", "job.granted"]


@pytest.mark.parametrize("by_s", [-3600, 3600])
def test_which_came_first_is_known_also_where_the_brokers_clock_was_set_in_between(world: World, by_s: int) -> None:
    world.send(after_us=7200 * S)
    sent = job("sent", submitted_us=world.wall_us)
    world.send(cancel("new", world.wall_us))
    world.set_clock(by_s * S)
    world.send(cancel("sent", world.wall_us))
    assert kinds(world.send(sent)) == ["job.queued", "job.finished"]
    assert kinds(world.send(job("new", submitted_us=world.wall_us))) == ["job.queued", "job.granted"]
    world.check()


def test_another_teams_cancel_cancels_nothing(world: World) -> None:
    world.send(cancel("j", 7, team="other"))
    assert kinds(world.send(job("j", submitted_us=5))) == ["job.queued", "job.granted"]


def test_another_teams_cancel_does_not_take_the_place_of_the_teams_own(world: World) -> None:
    """A job's id follows from its team and its client key, which others may guess."""
    world.send(cancel("j", 7), cancel("j", 8, team="other"))
    assert kinds(world.send(job("j", submitted_us=5))) == ["job.queued", "job.finished"]


def test_a_cancel_of_a_job_that_ended_is_not_remembered(world: World) -> None:
    world.send(job("j"))
    world.send(cancel("j", 3))
    world.released(job_id("research", "j"), own_exit=False, exit_code=143)
    world.send(cancel("j", 4))
    assert len(world.decider.state.early_cancels) == 0


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("why", ["suspended", "budget", "a part is lost", "a part failed"])
def test_a_job_that_is_cancelled_while_it_is_stopped_for_another_reason_does_not_wait_again(
    why: str, restart: bool
) -> None:
    """Found by random lives: the cancel changed nothing, and the job ran once more."""
    w = World(node("n1", 1), node("n2", 1))
    if why == "budget":
        budget = SpendingBudget(team="research", unit=BudgetUnit.GPU_HOURS, period=BudgetPeriod.MONTH, hard=1_000_000)
        w.send(ApplyBudgets(budgets=BudgetSet(version=1, renewal_s=1500, budgets=(budget,))))
    gang = w.submit(job("gang", 2, retry=RetryPolicy(on_failure=3)))
    w.started(gang)
    if why == "suspended":
        w.send(SuspendTeam(team="research", reason="unpaid", stop=True))
    elif why == "budget":
        for _ in range(2):
            w.send(Tick(), after_us=1500 * S)
    elif why == "a part is lost":
        w.send(NodeLost(node="n2", incarnation=1, silent_s=31))
    else:
        w.observe("n2", Released(job_id=gang, attempt=1, exit_code=1, own_exit=True))
    assert w.state_of(gang) == "stopping"
    assert kinds(w.send(cancel("gang", w.wall_us, team="other"))) == ["input.rejected"]
    (told,) = w.send(cancel("gang", w.wall_us))
    assert "it is cancelled as soon as that is done" in told.reason
    assert w.send(cancel("gang", w.wall_us)) == [], "a repeat says nothing new"
    if restart:
        w.decider = Decider.load(w.decider.dump())
    state = w.decider.state
    explained = explain(state, state.jobs[gang], Reasons(state)).text
    assert explained.endswith("; it was cancelled, and does not wait again")
    left = [
        name for name in w.nodes_of(gang) if name in w.decider.state.on_node and gang in w.decider.state.on_node[name]
    ]
    w.released(gang, exit_code=143, own_exit=False, nodes=left)
    *_, again, ended = [event for event in w.records[-1].events if event.kind.startswith("job.")]
    assert (again.kind, ended.state, ended.reason, ended.user) == ("job.requeued", "cancelled", "a mistake", "ana")
    assert w.state_of(gang) == "ended"
    assert [row[3] for row in w.decider.state.early_cancels.rows()] == []
    w.check()


def test_a_job_that_was_asked_to_end_already_is_not_told_of_a_second_cancel(world: World) -> None:
    world.send(job("j"))
    world.send(cancel("j", 3))
    assert world.send(cancel("j", 4)) == []


def test_early_cancels_are_in_the_snapshot_and_every_fold_has_them(world: World) -> None:
    world.send(cancel("j", 7), cancel("k", 8))
    state = world.decider.state
    assert len(state.early_cancels) == 2
    assert snapshot.load(snapshot.dump(state)).state.early_cancels == state.early_cancels
    assert world.replica.state.early_cancels == state.early_cancels


def test_they_are_bounded_by_age_per_team_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_cancels, "PER_TEAM", 3)
    monkeypatch.setattr(early_cancels, "IN_ALL", 5)
    kept = EarlyCancels()
    kept.note("of-blue", EarlyCancel("blue", "", "", 1))
    for n in range(10):
        kept.note(f"red-{n}", EarlyCancel("red", "", "", n + 2))
    assert kept.of("of-blue", "blue") is not None, "who sends many loses its own first"
    assert [row[0] for row in kept.rows()] == ["of-blue", "red-7", "red-8", "red-9"]
    for n in range(4):
        kept.note(f"green-{n}", EarlyCancel(f"green-{n}", "", "", 20))
    assert len(kept) == 5
    kept.note("late", EarlyCancel("late", "", "", 21 + early_cancels.KEPT_US))
    assert [row[0] for row in kept.rows()] == ["late"]
    assert EarlyCancels.of_rows(kept.rows()) == kept


def test_a_second_body_under_a_key_is_told_to_its_team_and_names_no_job(world: World) -> None:
    feed = Feed()
    first = job("j", submitted_us=1)
    second = first.model_copy(update={"spec_hash": "another", "user": "bob"})
    world.send(first, second, first)
    told = [one for n, record in enumerate(world.records, 1) for one in feed.apply(record, n)]
    (refused,) = [one for one in told if isinstance(one, JobRejected)]
    assert (refused.client_key, refused.job_id, refused.user, refused.team) == ("j", "", "bob", "research")
    assert "already names" in refused.reasons[0].problem
    assert [one.what for one in told if isinstance(one, JobEvent)] == ["queued", "granted"]


def test_no_job_has_more_grace_than_its_class_gives(world: World) -> None:
    greedy = job("j")
    checkpoint = greedy.spec.checkpoint
    assert checkpoint is not None
    spec = greedy.spec.model_copy(
        update={"stop_grace_s": 3600.0, "checkpoint": checkpoint.model_copy(update={"grace_s": 3600.0})}
    )
    world.send(greedy.model_copy(update={"spec": spec, "longest_grace_s": 120.0}))
    queued = world.decider.state.jobs[greedy.job_id].spec
    assert queued.checkpoint is not None
    assert (queued.stop_grace_s, queued.checkpoint.grace_s) == (120, 120)
