"""`baton top`: one look, drawn; and what bars say."""

import time

import pytest

from libs.cli.bars import bar, progress, progress_in_full
from libs.cli.get import QUEUES
from libs.cli.output import show
from libs.cli.top import TopView, draw
from schemas.jobs import JobSpec, JobState, ProgressDoubt, StepProgress
from schemas.pool_status import PoolStatus
from schemas.queries import AttemptDocument, JobDocument
from schemas.queue_status import ExpectedStart, QueuedJob, QueueShare, QueuesReply
from schemas.queues import Queue
from tests.schemas.golden_files import load

S = 1_000_000


def now_us() -> int:
    return int(time.time() * S)


def running(told: StepProgress | None, ago_s: float = 0) -> JobDocument:
    attempt = AttemptDocument(
        attempt=1, granted_us=now_us() - 60 * S, running_us=now_us() - 50 * S, nodes=tuple(f"gpu-{n:02}" for n in range(16)),
        devices=("a",), progress=told, progress_us=now_us() - int(ago_s * S),
    )  # fmt: skip
    return JobDocument(
        job_id="job-" + "1" * 32, team="blue", name="train", client_key="k", priority_class="production", priority=1,
        state=JobState.RUNNING, devices=16, submitted_us=1, queued_us=1, attempts=(attempt,), spec=JobSpec(command=("x",)),
        seq=1,
    )  # fmt: skip


def status() -> PoolStatus:
    (golden,) = (one for one in load() if one.name == "io.baton.pool.status.query.v1")
    return PoolStatus.model_validate(golden.answer)


def test_one_look_shows_queues_progress_and_who_starts_when(capsys: pytest.CaptureFixture[str]) -> None:
    start = ExpectedStart(p50_us=now_us() + 700 * S, p90_us=now_us() + 1500 * S, basis="guess")
    waits = QueuedJob(
        job_id="job-" + "2" * 32, team="blue", name="next", priority_class="production", priority=1, devices=8,
        waiting_since_us=now_us(), reason="busy", position=1, start=start,
    )  # fmt: skip
    shares = (QueueShare(queue=Queue(name="lab")), QueueShare(queue=Queue(name="blue", parent="lab"), next_start=start))
    draw(
        TopView(status(), QueuesReply(shares=shares), [running(StepProgress(step=50, steps=100, left_s=600))], [waits])
    )
    out = capsys.readouterr().out
    for piece in (
        "accelerators held",
        "queues",
        "  blue",
        "running",
        "train",
        "gpu-[00-15]",
        "#####..... 50%",
        "waiting",
        "11m..24m",
    ):
        assert piece in out, piece


def test_a_team_without_a_queue_is_told_no_share_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen: SHARE 0 of a team that may have all, while no file of queues is applied."""
    shares = [QueueShare(queue=Queue(name="blue"), applied=False), QueueShare(queue=Queue(name="red"))]
    share = [column for column in QUEUES if column.title in ("QUEUE", "SHARE")]
    show(shares, share, header=False)
    assert capsys.readouterr().out == "blue\t-\nred\t0\n"


def test_a_bar_goes_on_with_time_and_never_beyond_its_end() -> None:
    told = StepProgress(step=0, steps=100, left_s=1000, left_p90_s=2000)
    assert progress(running(told, ago_s=500)).startswith("####") or progress(running(told, ago_s=500)).startswith(
        "#####"
    )
    assert progress(running(told, ago_s=10**6)) == "########## 100% 0s left"
    assert (bar(-1), bar(2)) == ("..........", "##########")
    assert progress(running(None)) == ""


def test_what_is_not_believed_shows_no_bar_but_says_why() -> None:
    doubted = running(StepProgress(step=7, steps=100, doubt=ProgressDoubt.WENT_BACK))
    assert progress(doubted) == ""
    assert progress_in_full(doubted.attempts[0]) == "not believed (went-back) since step 7 of 100"
