"""What `baton describe` says of a job, from its document alone."""

from typing import Any

from libs.cli.describe import _job_fields
from schemas.jobs import JobSpec, JobState
from schemas.queries import AttemptDocument, JobDocument


def told(*attempts: AttemptDocument, preemptions: int = 0) -> dict[str, Any]:
    document = JobDocument(
        job_id="job-" + "0" * 32, team="red", name="train", client_key="k", priority_class="experiment", priority=0,
        state=JobState.QUEUED, devices=1, submitted_us=0, queued_us=0, spec=JobSpec(name="train", command=("true",)),
        attempts=attempts, preemptions=preemptions, seq=1,
    )  # fmt: skip
    return dict(_job_fields(document, ""))


def attempt(number: int, cost_device_s: float | None = None) -> AttemptDocument:
    return AttemptDocument(attempt=number, granted_us=1, closed_us=2, preemption_cost_device_s=cost_device_s)


def test_what_giving_way_has_cost_a_job_is_told_beside_how_often_it_did() -> None:
    assert told(attempt(1))["preempted"] == ""
    assert told(attempt(1), preemptions=1)["preempted"] == "once", "an older record does not tell the cost"
    assert told(attempt(1, 1200.0), attempt(2, 300.0), attempt(3), preemptions=2)["preempted"] == (
        "2 times, at a cost of 1,500 device-seconds of work and restarts"
    )
