"""Promised starts (I18): a promise moves to a later time only for a cause that came since it was made."""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from schemas import ledger as led
from schemas.jobs import PromiseCause


class PromisedStarts(Subject):
    """Keeps the promise of each gang that waits, and when causes came last."""

    handlers: ClassVar = {
        led.GangPromised: "told",
        led.JobGranted: "over",
        led.JobFinished: "over",
        led.NodeSilence: "fault",
        led.NodeDeclaredDead: "fault",
        led.DeviceQuarantined: "fault",
        led.NodeJoined: "fault",
        led.NodeLeft: "left",
        led.NodeCordoned: "left",
        led.JobQueued: "came",
        led.JobBoosted: "came",
        led.JobRequeued: "came",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._told: dict[str, tuple[int, int]] = {}
        """Job -> the promised start, and when it was told."""
        self._last: dict[PromiseCause, int] = {}
        self._came: dict[int, int] = {}
        """Priority -> when a job of it came last."""

    def told(self, e: led.GangPromised) -> None:
        books, new = self.books, e.promise
        job = books.jobs.get(e.job_id)
        if not books.t_us <= new.p50_us <= new.p90_us or new.start_us < new.p50_us:
            books.broken("I18", f"{e.job_id} is promised a start by {new.start_us} us, and expected at {new.p50_us} us")
        before = self._told.get(e.job_id)
        if before is not None:
            start_us, told_us = before
            if new.start_us > start_us and (
                new.cause is None or self._since(new.cause, job.priority if job is not None else None) < told_us
            ):
                why = f"for {new.cause}, of which there was none" if new.cause else "for no cause"
                books.broken(
                    "I18", f"the promised start of {e.job_id} moves from {start_us} to {new.start_us} us {why}"
                )
        elif new.cause is not None:
            books.broken("I18", f"the first promise of {e.job_id} names {new.cause} as the cause of a move")
        self._told[e.job_id] = (new.start_us, books.t_us)

    def _since(self, cause: PromiseCause, priority: int | None) -> int:
        if cause is not PromiseCause.HIGHER_CLASS:
            return self._last.get(cause, -1)
        return max((at for other, at in self._came.items() if priority is not None and other > priority), default=-1)

    def over(self, e: led.JobGranted | led.JobFinished) -> None:
        self._told.pop(e.job_id, None)

    def fault(self, e: led.LedgerEvent) -> None:
        self._last[PromiseCause.FAULT] = self.books.t_us

    def left(self, e: led.NodeLeft | led.NodeCordoned) -> None:
        self._last[PromiseCause.DRAIN] = self.books.t_us

    def came(self, e: led.JobQueued | led.JobRequeued | led.JobBoosted) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None:
            self._came[job.priority] = self.books.t_us
