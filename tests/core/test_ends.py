"""When running jobs end is worked out once for all questions of one state, and not at all where no answer needs it."""

from typing import Any

import pytest

from libs.core.explain import ends
from libs.core.explain.reasons import Reasons
from libs.core.explain.start_estimate import AHEAD
from libs.core.explain.waiting import explain, queue_view
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence.remaining import remaining, remaining_each
from libs.core.state.model import running
from schemas import inbox
from schemas.jobs import CheckpointPolicy
from tests.core.builders import World, job, node


@pytest.fixture
def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of jobs each time that their ends are worked out."""
    made: list[int] = []

    def counted(*args: Any) -> Any:
        found = remaining_each(*args)
        made.append(len(found))
        return found

    monkeypatch.setattr(ends, "remaining_each", counted)
    return made


def full(waiting: int) -> tuple[World, list[str]]:
    """Eight jobs run, and so many wait for them."""
    w = World(node("n0"))
    w.send(*(job(f"runs{n}", time_limit_s=600 + n) for n in range(8)))
    w.send(after_us=30_000_000)
    return w, [w.submit(job(f"waits{n}", 1 + n % 2, submitted_us=2 + n)) for n in range(waiting)]


def reasons(w: World) -> Reasons:
    return Reasons(w.decider.state, Policy(precedence=w.decider.turns))


def test_questions_of_one_state_share_the_ends_of_what_runs(worked_out: list[int]) -> None:
    """With ten thousand shares that ran, each answer took 0.35 s, and a list of a team's queue 1.4 s."""
    w, waiting = full(4)
    shared, state = reasons(w), w.decider.state
    told = [explain(state, state.jobs[one], shared) for one in waiting]
    assert all(one.start is not None for one in told)
    assert len(queue_view(state, shared, 100)) == 4
    assert worked_out == [8]
    assert told == [explain(state, state.jobs[one], reasons(w)) for one in waiting]


def test_a_team_behind_many_others_needs_no_ends(worked_out: list[int]) -> None:
    """How many run without a time limit is told to operators alone."""
    w, waiting = full(AHEAD + 2)
    state = w.decider.state
    assert explain(state, state.jobs[waiting[-1]], reasons(w), seen_by="research").start is None
    assert worked_out == []


def test_what_remains_of_many_is_what_remains_of_each() -> None:
    w, _ = full(2)
    turns, jobs = w.decider.turns, running(w.decider.state)
    assert remaining_each(turns, jobs, w.now_us) == [remaining(turns, one, w.now_us) for one in jobs]
    for n in range(0, 8, 2):  # some have ended, and so something is learned
        w.started(jobs[n].id)
        w.send(after_us=10_000_000)
        w.released(jobs[n].id)
    jobs = running(w.decider.state)
    assert remaining_each(turns, jobs, w.now_us) == [remaining(turns, one, w.now_us) for one in jobs]


def test_who_stops_ends_by_the_graces_that_it_has() -> None:
    """A job said that it saves within a millisecond, and a gang was promised devices on which it was five minutes later."""
    saves = CheckpointPolicy(grace_s=0.001)
    told = job("patient", 8)
    told = told.model_copy(update={"spec": told.spec.model_copy(update={"stop_grace_s": 300.0, "checkpoint": saves})})

    def left(*said: Any) -> tuple[float, float]:
        w = World(node("n0"))
        w.started(w.submit(told))
        w.send(*said)
        (end,) = ends.ExpectedEnds(w.decider.state, w.now_us, Policy(precedence=w.decider.turns)).known
        found = remaining(w.decider.turns, running(w.decider.state)[0], w.now_us)[:2]
        assert ((end.at_us - w.now_us) / 1e6, (end.latest_us - w.now_us) / 1e6) == found, "explain says the same"
        return found

    cancel = inbox.CancelRequested(
        job_id=told.job_id, team=told.team, reason="not any more", user="ann", requested_us=2
    )
    assert left(cancel) == (300.0, 300.0)
    suspend = inbox.SuspendTeam(team=told.team, reason="it owes", stop=True, user="olga")
    assert left(suspend) == (0.001, 300.001), "it is asked to save, and then to stop"
