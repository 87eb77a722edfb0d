"""How far a job is: what is believed of its word, and what is told of it."""

import json
import math
from itertools import pairwise

import pytest

from libs.core.scheduling.progress import Gauge, left_now
from libs.core.scheduling.progress.gauge import EVERY_S, LEAST_S, SAMPLES
from libs.core.scheduling.reactions.agents import PROGRESS_LEAST_US
from libs.core.state.snapshot import dump, load
from schemas import inbox
from schemas.inbox import ProgressSeen
from schemas.jobs import Checkpoint, ProgressDoubt, RetryPolicy, StepProgress
from schemas.ledger import AttemptProgress
from tests.core.builders import World, job, node

D = ProgressDoubt
S = 1_000_000


def told(
    gauge: Gauge, until_s: int, step_s: float = 1.0, steps: int = 10_000, begin: int = 0
) -> list[tuple[int, StepProgress]]:
    """What is told of a job that writes each second."""
    out = []
    for second in range(until_s):
        gauge.note(second, {"step": begin + int(second / step_s), "steps": steps})
        if (news := gauge.news(second)) is not None:
            out.append((second, news))
    return out


def resumes_at(world: World, job_id: str) -> int:
    resume = world.decider.state.jobs[job_id].resume
    return 0 if resume is None else resume.step


def test_checkpoints_are_told_no_more_often_than_every_five_seconds() -> None:
    """Seen: thousands a second of one attempt went into the ledger, within what its node may send."""
    world = World(node("n0"))
    world.started(runs := world.submit(job("trains")))
    steps = []
    for step in range(1, 13):
        world.now_us += S
        world.checkpointed(runs, step)
        steps.append(resumes_at(world, runs))
    assert steps == [1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 11, 11]


def test_another_node_of_a_gang_than_its_rank_0_says_nothing_of_where_it_resumes() -> None:
    """All nodes of the next attempt are given what was saved last: one that lied would have had them load what it made."""
    world = World(node("n0"), node("n1"))
    world.started(gang := world.submit(job("trains", 16)))
    attempt = world.decider.state.jobs[gang].current
    assert attempt is not None
    first = attempt.claims[0].node
    (other,) = {"n0", "n1"} - {first}
    for step, name in ((7, first), (9, other)):
        saved = inbox.CheckpointTaken(job_id=gang, attempt=1, checkpoint=Checkpoint(step=step, reference=name))
        world.send(inbox.NodeObserved(node=name, incarnation=1, observations=(saved,)), after_us=60 * S)
    assert world.decider.state.jobs[gang].resume == Checkpoint(step=7, reference=first)


def test_the_answer_of_a_job_that_gives_way_counts_however_soon_it_comes() -> None:
    world = World(node("n0"))
    world.started(runs := world.submit(job("trains", 8)))
    world.checkpointed(runs, 100)
    world.send(inbox.SuspendTeam(team="research", stop=True, reason="r", user="olga"), after_us=S // 5)
    world.checkpointed(runs, 200)
    assert resumes_at(world, runs) == 200
    world.checkpointed(runs, 300)
    assert resumes_at(world, runs) == 200, "one in a second"
    world.now_us += S
    world.checkpointed(runs, 400)
    assert resumes_at(world, runs) == 400


def test_what_is_told_with_the_end_counts_however_soon_it_comes() -> None:
    world = World(node("n0"))
    world.started(runs := world.submit(job("trains", retry=RetryPolicy(on_failure=1))))
    world.checkpointed(runs, 100)
    about = {"job_id": runs, "attempt": 1}
    told = [inbox.CheckpointTaken(**about, checkpoint=Checkpoint(step=n, reference="r")) for n in (150, 200)]
    told.append(inbox.CheckpointTaken(**about, checkpoint=Checkpoint(step=10**400, reference="r")))
    told[1:2], told[2:] = told[2:], told[1:2]
    released = inbox.Released(**about, exit_code=1, own_exit=True)
    world.send(inbox.NodeObserved(node="n0", incarnation=1, observations=(*told, released)), after_us=S // 2)
    assert resumes_at(world, runs) == 200
    kinds = [e.kind for e in world.records[-1].events if e.kind == "attempt.checkpointed"]
    assert len(kinds) == 1, "the last of them"


def test_an_even_rate_is_told_at_once_and_then_every_ten_minutes() -> None:
    news = told(Gauge(), 3000, step_s=2.0)
    assert len(news) <= 2 + 3000 / EVERY_S
    for at_s, one in news:
        assert one.left_s == pytest.approx(10_000 * 2.0 - at_s, rel=0.02)
        assert one.left_s <= one.left_p90_s <= one.left_s * 1.6
    assert news[-1][1].left_p90_s < news[-1][1].left_s * 1.1, "an even rate is known well after an hour"


def test_a_job_that_resumes_counts_from_where_it_begins() -> None:
    ((_, one),) = told(Gauge(), 5, begin=9_000)
    assert one.left_s == pytest.approx(1000, rel=0.02)


def test_a_rate_that_changes_is_told_soon_but_not_twice_in_half_a_minute() -> None:
    gauge, times = Gauge(), []
    for second in range(1200):
        step = second if second < 300 else 300 + (second - 300) // 4
        gauge.note(second, {"step": step, "steps": 10_000})
        if (news := gauge.news(second)) is not None:
            times.append((second, news.left_s))
    assert all(b - a >= LEAST_S for (a, _), (b, _) in pairwise(times[1:]))
    assert any(300 < at_s < 500 for at_s, _ in times), "the end moved by more than a tenth"
    assert times[-1][1] == pytest.approx((10_000 - 525) * 4, rel=0.1)
    assert len(times) < 30


def test_a_stall_makes_what_is_left_longer() -> None:
    gauge = Gauge()
    told(gauge, 100)
    soon = gauge.left(100)
    late = gauge.left(1000)
    assert soon is not None
    assert late is not None
    assert late[0] > 5 * soon[0]


def test_what_varies_is_told_with_a_wide_spread() -> None:
    gauge, at_s, step = Gauge(), 0.0, 0
    for n in range(60):
        at_s += 1 if n % 2 else 19
        step += 10
        gauge.note(at_s, {"step": step, "steps": 1200})
    left = gauge.left(at_s)
    assert left is not None
    assert left[0] == pytest.approx(600, rel=0.1)
    assert left[1] > 1.15 * left[0]


@pytest.mark.parametrize(
    ("said", "doubt"),
    [
        ({"step": 3, "steps": 100}, D.WENT_BACK),
        ({"step": 101, "steps": 100}, D.BEYOND_TOTAL),
        ({"step": 90, "steps": 100}, D.JUMPED),
        ({"step": 12, "steps": 20}, D.TOTAL_CHANGED),
        ({"step": math.nan, "steps": 100}, D.NOT_A_NUMBER),
        ({"step": 11, "steps": math.inf}, D.NOT_A_NUMBER),
        ({"step": -1, "steps": 100}, D.NOT_A_NUMBER),
        ({"step": 10**17, "steps": 10**18}, D.NOT_A_NUMBER),
        ({"step": 11.5, "steps": 100}, D.NOT_A_NUMBER),
        ({"step": 11, "steps": 0}, D.NOT_A_NUMBER),
    ],
    ids=str,
)
def test_impossible_progress_is_told_once_and_nothing_is_believed_after_it(said: dict, doubt: ProgressDoubt) -> None:
    gauge = Gauge()
    told(gauge, 11, steps=100)
    gauge.note(11, json.loads(json.dumps(said)))
    news = gauge.news(11)
    assert news == StepProgress(step=10, steps=100, doubt=doubt)
    gauge.note(12, {"step": 12, "steps": 100})
    assert gauge.news(2000) is None
    assert gauge.left(2000) is None


@pytest.mark.parametrize("said", [7, [], {}, {"step": 1}, {"step": "1", "steps": 2}, {"step": True, "steps": 2}, None])
def test_what_is_no_report_is_an_error_that_says_what_to_write(said: object) -> None:
    with pytest.raises(ValueError, match="step"):
        Gauge().note(1, said)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 10**400])
def test_a_run_that_diverges_still_goes_through_its_steps(loss: float) -> None:
    gauge = Gauge()
    for second in range(5):
        gauge.note(second, {"step": second, "steps": 100, "loss": loss})
    news = gauge.news(5)
    assert news is not None
    assert (news.loss, news.doubt) == (None, None)


def test_who_says_that_it_is_done_and_runs_on_is_believed_no_more() -> None:
    gauge = Gauge()
    told(gauge, 101, steps=100)
    assert gauge.news(130) is None or gauge.left(130) == (0.0, 0.0)
    later = gauge.news(162)
    assert later is not None
    assert later.doubt is D.RUNS_ON


def test_a_job_that_writes_without_end_costs_one_look_a_second_and_a_bounded_memory() -> None:
    gauge = Gauge()
    assert sum(gauge.wants(n / 1000) for n in range(60_000)) <= 61
    told(gauge, 5000)
    assert len(gauge._notes) <= SAMPLES


# --------------------------------------------------------------------------------------------------- what the ledger says


def running(name: str = "one", devices: int = 1) -> tuple[World, str]:
    world = World(node("n0", 1), node("n1", 1))
    runs = world.submit(job(name, devices))
    world.started(runs)
    return world, runs


def say(
    world: World, runs: str, progress: StepProgress, *, at: str = "", after_us: int = 60 * S, attempt: int = 1
) -> list:
    name = at or world.nodes_of(runs)[0]
    seen = ProgressSeen(job_id=runs, attempt=attempt, progress=progress)
    message = inbox.NodeObserved(node=name, incarnation=1, observations=(), progress=(seen,))
    return [e for e in world.send(message, after_us=after_us) if isinstance(e, AttemptProgress)]


AT_10 = StepProgress(step=10, steps=100, left_s=90, left_p90_s=100)


def test_the_state_knows_how_far_an_attempt_is_also_from_a_snapshot() -> None:
    world, runs = running()
    assert say(world, runs, AT_10) == [AttemptProgress(job_id=runs, attempt=1, progress=AT_10)]
    for state in (world.decider.state, load(dump(world.decider.state)).state):
        attempt = state.jobs[runs].current
        assert attempt is not None
        assert (attempt.progress, attempt.progress_us) == (AT_10, world.now_us)
    world.check()


def test_it_is_told_once_in_ten_seconds_whatever_an_agent_says() -> None:
    world, runs = running()
    count = sum(len(say(world, runs, AT_10.model_copy(update={"step": 11 + n}), after_us=S // 10)) for n in range(80))
    assert count == 1
    assert len(say(world, runs, AT_10.model_copy(update={"step": 95}), after_us=PROGRESS_LEAST_US)) == 1
    world.check()


@pytest.mark.parametrize(
    ("later", "doubt"),
    [
        ({"step": 9}, D.WENT_BACK),
        ({"steps": 90}, D.TOTAL_CHANGED),
        ({"step": 101}, D.BEYOND_TOTAL),
        ({"left_s": None}, D.NOT_A_NUMBER),
    ],
)
def test_what_cannot_be_is_told_as_a_doubt_and_nothing_after_it(later: dict, doubt: ProgressDoubt) -> None:
    world, runs = running()
    say(world, runs, AT_10)
    (event,) = say(world, runs, AT_10.model_copy(update=later))
    assert event.progress == StepProgress(step=10, steps=100, doubt=doubt)
    assert say(world, runs, AT_10.model_copy(update={"step": 50})) == []
    world.check()


def test_only_the_node_of_rank_0_speaks_and_only_of_the_attempt_that_runs() -> None:
    world, runs = running(devices=2)
    first, second = world.nodes_of(runs)
    assert say(world, runs, AT_10, at=second) == []
    assert say(world, runs, AT_10, attempt=2) == []
    assert len(say(world, runs, AT_10, at=first)) == 1
    world.released(runs, nodes=[first])
    world.released(runs, nodes=[second])
    assert say(world, runs, AT_10, at=first) == []
    world.check()


def test_what_is_left_shrinks_with_time_and_the_bar_never_passes_its_end() -> None:
    left = left_now(AT_10, 0, 45 * S)
    assert left == (45.0, 55.0, 55)
    assert left_now(AT_10, 0, 10_000 * S) == (0.0, 0.0, 100)
    assert left_now(StepProgress(step=1, steps=2, doubt=D.JUMPED), 0, 1) is None
