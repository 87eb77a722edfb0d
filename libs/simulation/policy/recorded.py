"""A recorded ledger as a workload: what was asked for, by whom and when, and how long it ran.

Only what does not depend on the scheduler is taken from the ledger. A job's run time is the time in which its attempts ran, all
together; of one that ran to no end, as far as it got.
"""

from dataclasses import dataclass, field, replace

from libs.simulation.policy.workload import WorkloadRow
from schemas import ledger as led


@dataclass(slots=True)
class _RecordedJob:
    row: WorkloadRow
    ran_us: int = 0
    since_us: dict[int, int] = field(default_factory=dict)
    """Attempt that runs -> since when."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A job that is no row of a workload, and why."""

    line: int
    """Sequence of the record in which it was queued."""
    job_id: str
    reason: str


class RecordedWorkload:
    """Takes the records of one ledger in their order."""

    def __init__(self) -> None:
        self._jobs: dict[str, _RecordedJob] = {}
        self._left_out: list[LeftOut] = []
        self._t_us = 0

    def add(self, record: led.LedgerRecord, seq: int) -> None:
        self._t_us = record.t_us
        for event in record.events:
            match event:
                case led.JobQueued():
                    self._queued(event, seq)
                case led.AttemptRunning():
                    if (job := self._jobs.get(event.job_id)) is not None:
                        job.since_us.setdefault(event.attempt, record.t_us)
                case led.AttemptClosed():
                    if (job := self._jobs.get(event.job_id)) is not None:
                        job.ran_us += record.t_us - job.since_us.pop(event.attempt, record.t_us)

    def rows(self) -> tuple[list[WorkloadRow], list[LeftOut]]:
        """The jobs that ran, in the order in which they came, and the others. Times in seconds of the ledger."""
        found, left_out = [], list(self._left_out)
        for job_id, job in self._jobs.items():
            ran_us = job.ran_us + sum(self._t_us - since_us for since_us in job.since_us.values())
            if ran_us <= 0:
                left_out.append(LeftOut(job.row.line, job_id, "it never ran: nobody knows for how long it would"))
            else:
                found.append(replace(job.row, duration_s=ran_us / 1e6))
        return found, sorted(left_out, key=lambda one: one.line)

    def _queued(self, event: led.JobQueued, seq: int) -> None:
        asked = event.spec.resources
        if asked.mig_profile:
            self._left_out.append(LeftOut(seq, event.job_id, f"it asks for MIG slices ({asked.mig_profile})"))
        else:
            self._jobs[event.job_id] = _RecordedJob(
                WorkloadRow(
                    line=seq,
                    key=event.job_id,
                    submit_s=self._t_us / 1e6,
                    duration_s=0.0,
                    devices=asked.devices,
                    share_milli=asked.share_milli,
                    team=event.team,
                    name=event.spec.name,
                    user=event.user,
                    types=asked.types,
                    priority=event.priority,
                    preempts=event.preempts,
                )
            )
