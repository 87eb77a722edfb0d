"""What teams ask of admission (stream REQUESTS): to run a job, and to cancel one."""

from pydantic import Field

from schemas.base import JobId, Name, Strict
from schemas.ids import content_hash
from schemas.known_specs import SubmittedSpec


class SubmitJob(Strict):
    """A team asks for a job to be run. Sent by pipelines, the client and the CLI; owned by admission.

    Team and user are the subject's last tokens (the broker checks them against the credential); a team inside the
    payload could be forged and there is none. The same key with the same body is the same job; with another body it is
    refused.
    """

    client_key: str = Field(
        min_length=1, max_length=256, description="the sender's own name for this job, unique in its team"
    )
    job: SubmittedSpec

    def spec_hashes(self) -> tuple[str, ...]:
        """By which of these its job is known: the first is what it is admitted as, with `env` and labels in order (maps have
        none, and many languages send them in any); a release of before took the body as it was sent, the last."""
        job = self.job
        env, labels = dict(sorted(job.env.items())), dict(sorted(job.resources.labels.items()))
        as_sent = _hash_of(self)
        if list(env) == list(job.env) and list(labels) == list(job.resources.labels):
            return (as_sent,)
        resources = job.resources.model_copy(update={"labels": labels})
        in_order = job.model_copy(update={"env": env, "resources": resources})
        return _hash_of(self.model_copy(update={"job": in_order})), as_sent


def _hash_of(request: SubmitJob) -> str:
    return content_hash(request.model_dump_json().encode())


class CancelJob(Strict):
    """A team no longer wants a job. Sent by pipelines, the client and the CLI; owned by admission."""

    job_id: JobId
    reason: str = Field(default="cancelled by its team", max_length=512)
    pool: Name | None = Field(
        default=None,
        description="which has the job, as its document says: refused when admission serves no such pool, since it is closed",
    )
