"""Checks how attempts and their jobs end (I5, I3): the recorded outcome follows from decisions and the nodes' reports.

An attempt succeeded only if every part exited by itself with code 0, and it was neither cancelled nor over its time. A
decided end (cancelled, over time, preempted, node left in good order) is recorded as such. Otherwise the first part
that ended decides: the agent's reason or, without one, whether it failed, was lost or was refused.

A lost job runs again, whatever its retries. It ends only after more consecutive losses than every job survives, and
waits longer after each but the first; a good run resets the count. From a later format on the same holds for jobs that
fail by themselves. A ledger that reports no consecutive losses and declares no format predates the count; there, losses
used up retries. While older readers live there is no back-off: such records declare the first format, or none.
"""

from typing import ClassVar

from libs.core.projections.verify.books import AttemptRow, Books, JobRow, Stage, Subject
from libs.core.state.formats import BACK_OFF, BACK_OFF_FAILURES, FIRST
from schemas import ledger as led
from schemas.attempts import Category, Cause, Evidence, Outcome
from schemas.jobs import JobState

_BOOKED_AS: dict[Category, Outcome] = {
    Category.SUCCESS: Outcome.SUCCEEDED,
    Category.CANCELLED: Outcome.CANCELLED,
    Category.TIME_LIMIT: Outcome.TIME_LIMIT,
    Category.PREEMPTED: Outcome.PREEMPTED,
    Category.DRAINED: Outcome.DRAINED,
    Category.NODE_LOST: Outcome.LOST,
    Category.HARDWARE: Outcome.LOST,
    Category.REFUSED: Outcome.REFUSED,
    Category.INPUT_MISSING: Outcome.FAILED,
    Category.OUT_OF_MEMORY: Outcome.FAILED,
    Category.DISK_LIMIT: Outcome.FAILED,
    Category.USER_ERROR: Outcome.FAILED,
}
_DECIDED: dict[Cause, Category] = {
    Cause.CANCELLED: Category.CANCELLED,
    Cause.TIME_LIMIT: Category.TIME_LIMIT,
    Cause.PREEMPTED: Category.PREEMPTED,
    Cause.NODE_LEFT: Category.DRAINED,
    Cause.SUSPENDED: Category.DRAINED,
    Cause.BUDGET_SPENT: Category.DRAINED,
}
_SHOWN: dict[Cause, Category] = {
    Cause.PART_LOST: Category.NODE_LOST,
    Cause.PART_REFUSED: Category.REFUSED,
}
_CODES: dict[int | None, Category] = {127: Category.INPUT_MISSING, 137: Category.OUT_OF_MEMORY}
_PROOF: dict[Cause, frozenset[str]] = {
    Cause.PART_FAILED: frozenset({"failed"}),
    Cause.PART_LOST: frozenset({Evidence.RELEASED, Evidence.LEASE_ENDED, Evidence.NEW_INCARNATION}),
    Cause.PART_REFUSED: frozenset({Evidence.REFUSED}),
    Cause.NODE_LEFT: frozenset({Evidence.NODE_LEFT}),
}
"""Cause -> reports of a part of which one must come first."""


_LOST = (Outcome.LOST, Outcome.REFUSED)
_GOOD_RUN_US = 600_000_000
_SURVIVED = 8
"""Consecutive losses after which every job runs again, except one that must not run twice."""
_WAITS_S = (5, 10, 20, 40, 80, 160, 300)
"""Back-off after the second consecutive loss or failure, the third, ...; the last value repeats."""


_LATE_US = 5_000_000
"""A tick stops an attempt at most this long after its limit."""
_LOOK_US = 10_000_000


class Outcomes(Subject):
    """Tracks decisions and reports about an attempt's end, and compares them with the recorded outcome."""

    handlers: ClassVar = {
        led.JobGranted: "granted",
        led.AttemptRunning: "running",
        led.AttemptPreempting: "preempting",
        led.AttemptStopping: "stopping",
        led.DevicesFreed: "freed",
        led.AttemptClosed: "closed",
        led.JobRequeued: "requeued",
        led.JobFinished: "finished",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._limits: dict[str, int] = {}
        """Running job with a time limit -> when it is reached."""
        self._looked_us = 0

    def granted(self, e: led.JobGranted) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None and self.books.t_us < job.not_before_us:
            early_s = (job.not_before_us - self.books.t_us) / 1e6
            self.books.broken("I3", f"{e.job_id} is granted {early_s:g} s before it may run again")

    def running(self, e: led.AttemptRunning) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is not None and found[0].spec.time_limit_s:
            self._limits[e.job_id] = self.books.t_us + int(found[0].spec.time_limit_s * 1_000_000)

    def end(self) -> None:
        tick_us = self.books.ticked_us
        if self._limits and tick_us - self._looked_us >= _LOOK_US and not self.books.more:
            self._looked_us = tick_us
            for job_id, end_us in list(self._limits.items()):
                job = self.books.jobs.get(job_id)
                if job is None or job.stage is not Stage.RUNNING:
                    del self._limits[job_id]
                elif tick_us >= end_us + _LATE_US:
                    over = f"{(tick_us - end_us) / 1e6:g} s over its limit of {job.spec.time_limit_s:g} s"
                    self.books.broken("I5", f"{job_id} runs on, {over}")
                    del self._limits[job_id]

    def preempting(self, e: led.AttemptPreempting) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is not None:
            found[1].cause, found[1].beneficiary = Cause.PREEMPTED, e.beneficiary
            found[1].ended_us = self.books.t_us

    def stopping(self, e: led.AttemptStopping) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is None:
            return
        job, attempt = found
        attempt.ended_us = attempt.ended_us or self.books.t_us
        proof = _PROOF.get(e.cause)
        if proof is not None and not proof & attempt.evidence:
            self.books.broken(
                "I5", f"{e.job_id}.{e.attempt} is stopped for {e.cause.value}, and no part of it showed that"
            )
        if e.cause is Cause.SUSPENDED and job.team not in self.books.suspended:
            self.books.broken("I5", f"{e.job_id}.{e.attempt} is stopped for the suspension of {job.team}, which is not")
        if e.cause is Cause.TIME_LIMIT:
            ran_us = self.books.t_us - attempt.running_us if attempt.running_us else -1
            if not job.spec.time_limit_s or ran_us < int(job.spec.time_limit_s * 1_000_000):
                limit = (
                    f"its limit of {job.spec.time_limit_s:g} s" if job.spec.time_limit_s else "a limit that it has not"
                )
                self.books.broken(
                    "I5", f"{e.job_id}.{e.attempt} is stopped after {max(0, ran_us) / 1e6:g} s for {limit}"
                )
        attempt.cause = e.cause

    def freed(self, e: led.DevicesFreed) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is None:
            return
        _, attempt = found
        attempt.exits[e.node] = e.exit_code
        attempt.own_exits &= e.own_exit
        if e.own_exit and e.exit_code == 0 and e.evidence is Evidence.RELEASED:
            return
        if attempt.done and attempt.cause is None:
            attempt.bad, attempt.bad_code = e.category, e.exit_code if e.own_exit else None
            silent = self.books.silent.get(e.node)
            attempt.ended_us = silent.since_us if silent is not None else self.books.t_us
        attempt.done = False
        attempt.evidence.add("failed" if e.own_exit else e.evidence.value)

    def closed(self, e: led.AttemptClosed) -> None:
        job = self.books.jobs.get(e.job_id)
        self._limits.pop(e.job_id, None)
        if job is None or job.closed is None or job.closed.number != e.attempt:
            return
        should = _outcome(job.closed)
        if should is None:
            self.books.broken(
                "I5", f"{e.job_id}.{e.attempt} is closed as {e.outcome.value}, and nothing says why it ended"
            )
        elif e.outcome is not should:
            self.books.broken("I5", f"{e.job_id}.{e.attempt} is closed as {e.outcome.value}, it was {should.value}")
        if e.category is not None and _BOOKED_AS[e.category] is not e.outcome:
            self.books.broken("I5", f"{e.job_id}.{e.attempt} is closed as {e.outcome.value} of kind {e.category.value}")
        elif should is not None and self.books.format is not None and e.category is not (kind := _category(job.closed)):
            recorded = e.category.value if e.category is not None else "nothing"
            self.books.broken("I5", f"{e.job_id}.{e.attempt} is closed as of kind {recorded}, it was {kind.value}")
        lost = e.outcome in _LOST
        ran_us = job.closed.ended_us - job.closed.running_us if job.closed.running_us else 0
        job.failures += e.outcome is Outcome.FAILED
        job.losses += lost
        good = ran_us >= _GOOD_RUN_US
        job.in_a_row = (0 if good else job.in_a_row) + lost
        job.failed_in_a_row = (0 if good else job.failed_in_a_row) + (e.outcome is Outcome.FAILED)

    def requeued(self, e: led.JobRequeued) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is None or job.outcome is None:
            return
        if job.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.TIME_LIMIT):
            self.books.broken("I3", f"{e.job_id} is queued again after an attempt that was {job.outcome.value}")
        if job.outcome is Outcome.FAILED and job.failures > job.spec.retry.on_failure:
            allowed = job.spec.retry.on_failure
            self.books.broken("I3", f"{e.job_id} is queued again after {job.failures} failures, {allowed} are allowed")
        self._losses_of(job, e)
        job.closed = None

    def _losses_of(self, job: JobRow, e: led.JobRequeued) -> None:
        survived = max(_SURVIVED, job.spec.retry.on_lost) if job.spec.retry.on_lost else 0
        declared = self.books.format
        refused = job.closed is not None and job.closed.cause is Cause.PART_REFUSED
        if refused and (declared or FIRST) < BACK_OFF and e.losses == job.in_a_row - 1:
            job.in_a_row = e.losses  # a refusal without a known reason need not count
        if job.outcome in _LOST and job.in_a_row > survived:
            self.books.broken("I3", f"{job.id} is queued again after {job.in_a_row} losses, {survived} are survived")
        if (e.losses or declared is not None) and e.losses != job.in_a_row:
            self.books.broken("I3", f"{job.id} was lost {job.in_a_row} times in a row, and it is told as {e.losses}")
        failed = job.failed_in_a_row if (declared or FIRST) >= BACK_OFF_FAILURES else 0
        if e.failures != failed:
            self.books.broken("I3", f"{job.id} failed {failed} times in a row, and it is told as {e.failures}")
        self._wait_of(job, e)
        job.in_a_row, job.failed_in_a_row, job.not_before_us = e.losses, e.failures, e.not_before_us or 0
        job.counted = e.losses > 0 or declared is not None

    def _wait_of(self, job: JobRow, e: led.JobRequeued) -> None:
        if e.not_before_us is None and (self.books.format or 0) < BACK_OFF:
            return
        times = e.losses if job.outcome in _LOST else e.failures if job.outcome is Outcome.FAILED else 0
        waits_s = wait_s(times)
        told_us = e.not_before_us - self.books.t_us if e.not_before_us is not None else 0
        if told_us != waits_s * 1_000_000 or (e.not_before_us is not None and not waits_s):
            what = "losses" if job.outcome in _LOST else "failures"
            told = f"{job.id} is to wait {told_us / 1e6:g} s after {times} {what} in a row, that is {waits_s} s"
            self.books.broken("I3", told)

    def finished(self, e: led.JobFinished) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is None:
            return
        if not e.state.terminal:
            self.books.broken("I3", f"{e.job_id} ends in {e.state.value}, which is not a terminal state")
        attempt = job.closed
        if attempt is None:
            if e.state is not JobState.CANCELLED and job.open is None:
                self.books.broken("I3", f"{e.job_id} ends as {e.state.value} while it waits: it can only be cancelled")
            if e.exit_code is not None:
                self.books.broken("I3", f"{e.job_id} ends with exit code {e.exit_code} while it waits")
            return
        job.closed = None
        self._end_of(job, attempt, e)

    def _end_of(self, job: JobRow, attempt: AttemptRow, e: led.JobFinished) -> None:
        """The job's outcome after its last attempt."""
        outcome = job.outcome
        should = {Outcome.SUCCEEDED: JobState.SUCCEEDED, Outcome.CANCELLED: JobState.CANCELLED}.get(
            outcome or Outcome.FAILED, JobState.FAILED
        )
        if e.state is not should:
            after = outcome.value if outcome is not None else "nothing"
            self.books.broken("I3", f"{job.id} ends as {e.state.value} after an attempt that was {after}")
        retry = job.spec.retry
        if job.counted:
            lost_early = bool(retry.on_lost) and job.in_a_row <= max(_SURVIVED, retry.on_lost)
        else:
            lost_early = job.losses <= retry.on_lost
        early = (outcome is Outcome.FAILED and job.failures <= retry.on_failure) or (outcome in _LOST and lost_early)
        if early or outcome in (Outcome.PREEMPTED, Outcome.DRAINED):
            self.books.broken("I3", f"{job.id} ends after an attempt that was {outcome}, and has attempts left")
        codes = [attempt.exits.get(node) for node in attempt.nodes]
        code = next((code for code in codes if code), 0 if attempt.own_exits else None)
        if e.exit_code != code and (e.exit_code is not None or self.books.format is not None):
            self.books.broken("I3", f"{job.id} ends with exit code {e.exit_code}, its last attempt ended with {code}")


def wait_s(times: int) -> int:
    """Back-off after so many consecutive losses or failures, s."""
    return _WAITS_S[min(times - 2, len(_WAITS_S) - 1)] if times > 1 else 0


_MAY_FINISH = (Cause.PREEMPTED, Cause.SUSPENDED, Cause.BUDGET_SPENT)
"""Causes after which an attempt may save or finish its work."""


def _category(attempt: AttemptRow) -> Category:
    """The kind of end of an attempt for which `_outcome` has a result."""
    if attempt.cause is None or (attempt.done and attempt.cause in _MAY_FINISH):
        return Category.SUCCESS
    if attempt.cause in _DECIDED:
        return _DECIDED[attempt.cause]
    if attempt.bad is not None:
        return Category(attempt.bad)
    return _SHOWN.get(attempt.cause) or _CODES.get(attempt.bad_code, Category.USER_ERROR)


def _outcome(attempt: AttemptRow) -> Outcome | None:
    """The outcome to record for an attempt without parts; None: nothing says why it ended."""
    if attempt.cause is None and not attempt.done:
        return None
    return _BOOKED_AS[_category(attempt)]
