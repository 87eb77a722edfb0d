"""Checks lives of jobs (I3): queued once, ended once, and each event in a stage that allows it."""

from typing import ClassVar

from libs.core.projections.verify.books import Books, JobRow, Promises, Stage, Subject
from schemas import ledger as led
from schemas.ids import job_id

S = Stage
_OPEN = frozenset({S.GRANTED, S.STARTING, S.RUNNING, S.PREEMPTING, S.STOPPING})
_UNDECIDED = frozenset({S.GRANTED, S.STARTING, S.RUNNING})

_MAY_COME: dict[type, tuple[frozenset[Stage], Stage | None, bool, str]] = {
    led.JobGranted: (frozenset({S.WAITING}), S.GRANTED, False, "granted"),
    led.DevicesHeld: (frozenset({S.WAITING}), None, False, "given a hold"),
    led.GangPromised: (frozenset({S.WAITING}), None, False, "promised a start"),
    led.JobBoosted: (_OPEN | {S.WAITING}, None, False, "boosted"),
    led.BoostEnded: (_OPEN | {S.WAITING}, None, False, "boosted no longer"),
    led.HoldReleased: (frozenset({S.WAITING}), None, False, "rid of its hold"),
    led.AttemptStarting: (frozenset({S.GRANTED, S.STARTING}), S.STARTING, True, "seen starting"),
    led.AttemptRunning: (frozenset({S.GRANTED, S.STARTING}), S.RUNNING, True, "seen running"),
    led.AttemptCheckpointed: (_OPEN, None, True, "checkpointed"),
    led.AttemptProgress: (_UNDECIDED, None, True, "said to be at a step"),
    led.AttemptPreempting: (_UNDECIDED, S.PREEMPTING, True, "preempted"),
    led.AttemptStopping: (_UNDECIDED | {S.PREEMPTING}, S.STOPPING, True, "stopped"),
    led.DevicesFreed: (_OPEN, None, True, "freeing devices"),
    led.AttemptClosed: (_OPEN, S.CLOSED, True, "closed"),
    led.JobRequeued: (frozenset({S.CLOSED}), S.WAITING, False, "queued again"),
    led.JobFinished: (frozenset({S.WAITING, S.CLOSED}), S.ENDED, False, "finished"),
}
"""Event -> allowed stages, next stage, whether it concerns the open attempt, and a verb."""


class Lives(Subject):
    """Reports events of jobs that do not exist, are over, or are in another stage. Removes ended jobs."""

    handlers: ClassVar = {led.JobQueued: "queued", **dict.fromkeys(_MAY_COME, "follows")}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        limbo = "{} is in limbo: its attempt is closed, and it is neither queued again nor ended"
        self._limbo = Promises(books, limbo)

    def queued(self, e: led.JobQueued) -> None:
        books = self.books
        if e.job_id != job_id(e.team, e.client_key):
            books.broken("I3", f"{e.job_id} is not the id of {e.client_key!r} of team {e.team}")
        if books.format is not None and e.submitted_us > books.t_us:
            books.broken("I3", f"{e.job_id} is submitted at {e.submitted_us} us, which is to come")
        if e.job_id in books.jobs or books.ended.has(e.job_id, books.t_us):
            books.broken("I3", f"{e.job_id} is queued a second time")
            return
        books.report.jobs += 1
        books.jobs[e.job_id] = JobRow(e.job_id, e.team, e.spec, e.priority, e.preempts, e.lease_s)

    def follows(self, e: led.EventOfJob) -> None:
        books = self.books
        may, leads_to, of_attempt, what = _MAY_COME[type(e)]
        job = books.jobs.get(e.job_id)
        if job is None:
            ended = books.ended.has(e.job_id, books.t_us)
            books.broken("I3", f"{e.job_id} is {what} " + ("after it ended" if ended else "and does not wait or run"))
            return
        if job.stage is S.ENDED:
            books.broken("I3", f"{e.job_id} is {what} after it ended")
            return
        if job.stage not in may:
            of = f"attempt {job.open.number} is " if job.open is not None else ""
            books.broken("I5" if job.open else "I3", f"{e.job_id} is {what} while {of}{job.stage.name.lower()}")
        elif of_attempt:
            number = e.attempt  # type: ignore[union-attr]
            if job.open is None or job.open.number != number:
                books.broken("I5", f"{e.job_id}.{number} is {what}, its attempt is {job.attempts}")
                return
        if leads_to is not None:
            job.stage = leads_to
            if leads_to is S.CLOSED:
                self._limbo.make(e.job_id)
            elif self._limbo:
                self._limbo.keep(e.job_id)

    def end(self) -> None:
        if self._limbo:
            self._limbo.check("I3")


class Ends(Subject):
    """The last subject that handles a job's end: nothing of the job may be left."""

    handlers: ClassVar = {led.JobFinished: "finished", led.AttemptClosed: "closed"}

    def finished(self, e: led.JobFinished) -> None:
        books = self.books
        job = books.jobs.get(e.job_id)
        if job is None:
            return
        books.ended.add(e.job_id, books.t_us)
        books.report.terminal[e.state.value] = books.report.terminal.get(e.state.value, 0) + 1
        if job.open is None:
            del books.jobs[e.job_id]

    def closed(self, e: led.AttemptClosed) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None and job.stage is Stage.ENDED and job.open is None:
            del self.books.jobs[e.job_id]
