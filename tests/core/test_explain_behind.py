"""A job that waits is told behind whom, since when, until when, and when it is expected to start."""

from dataclasses import replace

import pytest

from libs.cli.why import why
from libs.core.explain.queue_shares import queue_shares
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain, queue_view
from schemas import inbox
from schemas.explanations import Explanation
from schemas.inbox import ProgressSeen
from schemas.jobs import StepProgress
from tests.core.builders import World, job, node

S = 1_000_000


def told(w: World, waits: str, seen_by: str = "operator") -> Explanation:
    state = w.decider.state
    return explain(state, state.jobs[waits], Reasons(state, w.decider.policy), seen_by=seen_by)


def says(w: World, runs: str, left_s: float) -> None:
    progress = StepProgress(step=1, steps=9, left_s=left_s, left_p90_s=left_s * 2)
    seen = ProgressSeen(job_id=runs, attempt=1, progress=progress)
    (where,) = w.nodes_of(runs)
    w.send(inbox.NodeObserved(node=where, incarnation=1, observations=(), progress=(seen,)), after_us=20 * S)


def full(team: str = "research", **more: object) -> tuple[World, str]:
    w = World(node("n0"))
    runs = w.submit(job("old", 8, team=team, **more))
    w.started(runs)
    return w, runs


def test_behind_whom_since_when_and_until_when() -> None:
    w, runs = full()
    waits = w.submit(job("waits", 8))
    says(w, runs, 300)
    found = told(w, waits)
    (held,) = found.behind
    attempt = w.decider.state.jobs[runs].current
    assert attempt is not None
    assert (held.job_id, held.name, held.devices, held.since_us) == (runs, "old", 8, attempt.granted_us)
    assert (held.p50_us, held.p90_us, held.basis) == (w.now_us + 300 * S, w.now_us + 600 * S, "progress")
    assert found.start is not None
    assert (found.start.p50_us, found.start.p90_us) == (held.p50_us, held.p90_us)
    lines = dict(why(found))
    assert "old (job-" in str(lines["behind"])
    assert "since 1970" in str(lines["behind"])
    assert (found.reason, found.position, found.ahead) == ("busy", 1, 0)
    assert found.suggestion == told(w, waits, "research").suggestion


def test_the_place_in_the_queue_counts_and_each_job_ahead_delays_it() -> None:
    w, runs = full(time_limit_s=600)
    first = w.submit(job("first", 8, time_limit_s=600))
    second = w.submit(job("second", 8))
    assert [told(w, one).position for one in (first, second)] == [1, 2]
    assert told(w, first).start is not None
    assert told(w, first).behind[0].basis == "limit"
    assert told(w, runs).behind == ()


def test_what_nobody_knows_is_said_to_be_unknown() -> None:
    w, _ = full()
    waits = w.submit(job("waits", 8))
    found = told(w, waits)
    assert found.start is None
    assert found.behind[0].p50_us is None
    assert "until unknown" in str(dict(why(found))["behind"])


def test_run_times_of_jobs_that_ended_tell_when_the_next_do() -> None:
    w = World(node("n0"))
    for n in range(8):
        runs = w.submit(job(f"past{n}", 8))
        w.started(runs)
        w.send(inbox.Tick(), after_us=600 * S)
        w.released(runs)
    w.started(w.submit(job("now", 8)))
    found = told(w, w.submit(job("waits", 8)))
    assert found.behind[0].basis == "history"
    assert found.start is not None
    assert found.start.p90_us is not None
    assert w.now_us < found.start.p50_us <= found.start.p90_us
    assert (found.start.p50_us - w.now_us) / S == pytest.approx(600, rel=0.5)


def test_a_team_is_told_its_own_jobs_and_of_others_only_how_many_devices_they_hold() -> None:
    w, runs = full("blue")
    waits = w.submit(job("waits", 8))
    says(w, runs, 300)
    found = told(w, waits, "research")
    assert found.behind == ()
    assert found.behind_others_devices == 8
    shown = found.model_dump_json()
    assert "blue" not in shown
    assert runs not in shown
    assert "old" not in shown
    assert told(w, waits).behind[0].team == "blue"


def test_a_promise_is_told_in_explain_in_the_list_and_with_the_queue() -> None:
    w, _ = full(time_limit_s=600)
    waits = w.submit(job("waits", 8))
    w.send(inbox.Tick(), after_us=S)
    promise = w.decider.turns.book.of[waits].last
    assert told(w, waits).promise == promise
    state = w.decider.state
    (listed,) = queue_view(state, Reasons(state, w.decider.policy), 10)
    assert (listed.position, listed.start is not None) == (1, True)
    (share,) = queue_shares(state, "operator", {}, {waits: promise}).shares
    assert share.next_start is not None
    assert share.next_start.p50_us == promise.p50_us
    assert queue_shares(state, "operator").shares[0].next_start is None
    assert replace(w.decider.policy).precedence is w.decider.turns
