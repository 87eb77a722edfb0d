"""What was refused can be asked for later, until the job is queued after all."""

from nats.aio.client import Client

from schemas import ids, subjects
from schemas.jobs import JobEvent, JobRejected, JobState, Reason
from services.history.events import EventLog


async def test_a_rejection_is_remembered_until_its_job_is_queued(nats: Client, pool: str, team: str) -> None:
    js, log, job = nats.jetstream(), EventLog(nats.jetstream()), ids.job_id(team, "k")
    reason = Reason(field="job.resources", value="", problem="no such device", fix="f")
    for job_id in ("", job):
        told = JobRejected(job_id=job_id, team=team, client_key="k", reasons=(reason,), at_us=1)
        await js.publish(subjects.event("rejected", team), told.model_dump_json().encode())
    found = await log.rejection(job, team)
    assert found is not None
    assert (found.state, found.reason) == (JobState.REJECTED, "job.resources: no such device")
    assert await log.rejection(job, None) == found
    assert await log.rejection(job, "another-team") is None
    assert await log.read(team, after_us=None, limit=10) == [found]
    queued = JobEvent(job_id=job, team=team, name="", what="queued", state=JobState.QUEUED, at_us=2)
    await js.publish(subjects.event("queued", team), queued.model_dump_json().encode())
    assert await log.rejection(job, team) is None
