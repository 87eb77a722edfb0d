"""Checks progress (I15): an attempt's steps never go back and stay within a constant total; after a doubt there are no
more reports."""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from schemas import ledger as led
from schemas.jobs import StepProgress

LEAST_US = 10_000_000
"""Least time between two recorded reports of an attempt."""


class AttemptsProgress(Subject):
    """Tracks the last report of each open attempt, and its time."""

    handlers: ClassVar = {led.AttemptProgress: "reported", led.AttemptClosed: "closed"}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._last: dict[str, tuple[int, StepProgress, int]] = {}

    def reported(self, e: led.AttemptProgress) -> None:
        new, name = e.progress, f"{e.job_id}.{e.attempt}"
        if new.step > new.steps:
            self.books.broken("I15", f"{name} is told to be at step {new.step} of {new.steps}")
        if (new.left_s is not None) is (new.doubt is not None):
            self.books.broken("I15", f"{name} is told to be doubted and known at once, or neither")
        number, last, told_us = self._last.get(e.job_id, (0, new, 0))
        if number == e.attempt:
            if last.doubt is not None:
                self.books.broken("I15", f"{name}: its progress is told after it was doubted ({last.doubt})")
            elif new.doubt is None and self.books.t_us < told_us + LEAST_US:
                self.books.broken("I15", f"{name}: its progress is told twice within {LEAST_US // 1_000_000} s")
            if new.step < last.step or new.steps != last.steps:
                self.books.broken(
                    "I15", f"{name}: from step {last.step} of {last.steps} to step {new.step} of {new.steps}"
                )
        self._last[e.job_id] = (e.attempt, new, self.books.t_us)

    def closed(self, e: led.AttemptClosed) -> None:
        self._last.pop(e.job_id, None)
