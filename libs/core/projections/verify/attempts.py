"""Checks attempts (I5): one after the other; each part seen running, then freed; closed once when nothing is left. The
bill is the sum of share x (freed - granted), in integers."""

from collections import defaultdict
from typing import ClassVar

from libs.core.projections.verify.books import AttemptRow, Books, Promises, Stage, Subject
from schemas import ledger as led
from schemas.attempts import Evidence
from schemas.resources import Claim


class Attempts(Subject):
    """Opens and closes rows of attempts, and sums usage."""

    handlers: ClassVar = {
        led.JobGranted: "granted",
        led.AttemptStarting: "starting",
        led.AttemptRunning: "running",
        led.DevicesFreed: "freed",
        led.AttemptClosed: "closed",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._empty = Promises(books, "{} is in limbo: nothing of its attempt is left, and it is not closed")
        self._by_team: dict[str, int] = defaultdict(int)

    def granted(self, e: led.JobGranted) -> None:
        books = self.books
        job = books.jobs.get(e.job_id)
        if job is None or job.stage is Stage.ENDED:
            return
        books.report.attempts += 1
        if job.open is not None:
            books.broken("I5", f"{e.job_id}: attempt {e.attempt} opens while {job.open.number} is open")
        if e.attempt != job.attempts + 1:
            books.broken("I5", f"{e.job_id}: attempt {e.attempt} follows {job.attempts}")
        parts: dict[str, list[Claim]] = {}
        for claim in e.claims:
            parts.setdefault(claim.node, []).append(claim)
        job.attempts = e.attempt
        job.open = AttemptRow(e.attempt, books.t_us, parts, tuple(parts), set(parts))

    def starting(self, e: led.AttemptStarting) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is None:
            return
        _, attempt = found
        if e.node not in attempt.unseen:
            what = "a second time" if e.node in attempt.nodes else "and has no part there"
            self.books.broken("I5", f"{e.job_id}.{e.attempt} is seen starting on {e.node} {what}")
        elif e.node not in attempt.parts:
            self.books.broken("I5", f"{e.job_id}.{e.attempt} is seen starting on {e.node}, where it is gone already")
        attempt.unseen.discard(e.node)

    def running(self, e: led.AttemptRunning) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is None:
            return
        _, attempt = found
        if len(attempt.unseen) != 1:  # the event counts for the last part seen
            self.books.broken(
                "I5", f"{e.job_id}.{e.attempt} runs, and {len(attempt.unseen)} parts were not seen, not 1"
            )
        attempt.unseen.clear()
        attempt.running_us = self.books.t_us

    def freed(self, e: led.DevicesFreed) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is None:
            return
        job, attempt = found
        claims = attempt.parts.pop(e.node, None)
        if claims is None or {c.device for c in claims} != set(e.devices) or len(e.devices) != len(claims):
            self.books.broken("I5", f"{e.job_id}.{e.attempt} frees on {e.node} what it does not hold there")
        if e.evidence is not Evidence.RELEASED and (e.own_exit or e.exit_code is not None):
            self.books.broken(
                "I5", f"{e.job_id}.{e.attempt} has an exit code on {e.node} by evidence {e.evidence.value}"
            )
        for claim in claims or ():
            amount = claim.milli * (self.books.t_us - attempt.opened_us)
            self.books.report.milli_us += amount
            self._by_team[job.team] += amount
        if not attempt.parts:
            self._empty.make(e.job_id)

    def closed(self, e: led.AttemptClosed) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is None:
            return
        job, attempt = found
        if attempt.parts:
            self.books.broken(
                "I5", f"{e.job_id}.{e.attempt} is closed and still holds devices on {', '.join(attempt.parts)}"
            )
        self._empty.keep(e.job_id)
        job.open, job.closed, job.outcome = None, attempt, e.outcome

    def end(self) -> None:
        if self._empty:
            self._empty.check("I5")

    def finish(self) -> None:
        report = self.books.report
        report.open_attempts = sum(job.open is not None for job in self.books.jobs.values())
        report.by_team = dict(sorted(self._by_team.items()))
        if sum(report.by_team.values()) != report.milli_us:
            self.books.broken("I5", f"teams used {sum(report.by_team.values())} milli-us, the pool {report.milli_us}")
