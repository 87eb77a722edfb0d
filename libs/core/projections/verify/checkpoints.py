"""Checks checkpoints (I12): a job's checkpoint never goes back, and every attempt resumes from the ledger's last one."""

from typing import ClassVar

from libs.core.projections.verify.books import Subject
from schemas import ledger as led
from schemas.jobs import Checkpoint


class Checkpoints(Subject):
    """Tracks each job's last checkpoint."""

    handlers: ClassVar = {
        led.AttemptCheckpointed: "checkpointed",
        led.JobRequeued: "goes_on",
        led.JobGranted: "goes_on",
    }

    def checkpointed(self, e: led.AttemptCheckpointed) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is None:
            return
        job, _ = found
        last = job.resume
        if last is not None and e.checkpoint.step < last.step:
            self.books.broken(
                "I12", f"{e.job_id}: its checkpoint goes back from step {last.step} to {e.checkpoint.step}"
            )
        elif e.checkpoint == last:
            self.books.broken("I12", f"{e.job_id}: its checkpoint of step {last.step} is told a second time")
        job.resume = e.checkpoint

    def goes_on(self, e: led.JobGranted | led.JobRequeued) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None and e.resume != job.resume:
            what = f"{e.job_id} goes on from {_name(e.resume)}, its last checkpoint is {_name(job.resume)}"
            self.books.broken("I12", what)


def _name(checkpoint: Checkpoint | None) -> str:
    return f"step {checkpoint.step} at {checkpoint.reference[:80]}" if checkpoint is not None else "the beginning"
