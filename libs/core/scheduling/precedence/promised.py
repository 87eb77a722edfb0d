"""Which gangs were promised a start, what has come since that may move it, and what became of promises."""

from collections import deque
from typing import Any, NamedTuple

from libs.core.state.model import State
from schemas import ledger as led
from schemas.jobs import PromiseCause, StartPromise

_KEPT = 1024
_OF_PROMISES = frozenset({
    led.JobQueued, led.JobRequeued, led.JobBoosted, led.JobGranted, led.JobFinished, led.GangPromised, led.NodeSilence,
    led.NodeDeclaredDead, led.DeviceQuarantined, led.NodeJoined, led.NodeLeft, led.NodeCordoned,
})  # fmt: skip
"""Kinds that say anything of promises; most events are of others."""


class Promised(NamedTuple):
    """One gang's. Times in ledger us."""

    first_us: int
    """The start that was promised first."""
    told_us: int
    """When the last promise was told."""
    last: StartPromise


class PromiseOutcome(NamedTuple):
    """A gang that had a promise started. Times in ledger us."""

    promised_us: int
    """First."""
    start_us: int


class PromiseBook:
    """Follows the ledger. It forgets a gang when it is granted or ends."""

    def __init__(self) -> None:
        self.of: dict[str, Promised] = {}
        self.outcomes: deque[PromiseOutcome] = deque(maxlen=_KEPT)
        """Of the last starts, until somebody takes them."""
        self._last: dict[PromiseCause, int] = {}
        self._came: dict[int, int] = {}
        """Priority -> when a job of it came last."""

    def note(self, state: State, event: led.LedgerEvent, t_us: int) -> None:
        if type(event) not in _OF_PROMISES:
            return
        if isinstance(event, led.JobQueued | led.JobRequeued | led.JobBoosted):
            if (job := state.jobs.get(event.job_id)) is not None:
                self._came[job.priority] = t_us
        elif isinstance(event, led.JobGranted):
            if (known := self.of.pop(event.job_id, None)) is not None:
                self.outcomes.append(PromiseOutcome(known.first_us, t_us))
        elif isinstance(event, led.JobFinished):
            self.of.pop(event.job_id, None)
        elif isinstance(event, led.GangPromised):
            known = self.of.get(event.job_id)
            first_us = known.first_us if known is not None else event.promise.start_us
            self.of[event.job_id] = Promised(first_us, t_us, event.promise)
        elif isinstance(event, led.NodeSilence | led.NodeDeclaredDead | led.DeviceQuarantined | led.NodeJoined):
            self._last[PromiseCause.FAULT] = t_us
        elif isinstance(event, led.NodeLeft | led.NodeCordoned):
            self._last[PromiseCause.DRAIN] = t_us

    def cause(self, job_id: str, priority: int) -> PromiseCause | None:
        """What came since the promise was told that may move it; None: nothing."""
        since_us = self.of[job_id].told_us
        if self._last.get(PromiseCause.FAULT, -1) > since_us:
            return PromiseCause.FAULT
        if any(at_us > since_us for other, at_us in self._came.items() if other > priority):
            return PromiseCause.HIGHER_CLASS
        return PromiseCause.DRAIN if self._last.get(PromiseCause.DRAIN, -1) > since_us else None

    def dump(self) -> dict[str, Any]:
        return {
            "of": {
                job: [one.first_us, one.told_us, one.last.model_dump(mode="json")]
                for job, one in sorted(self.of.items())
            },
            "last": {cause.value: at_us for cause, at_us in sorted(self._last.items())},
            "came": sorted(self._came.items()),
        }

    def load(self, told: dict[str, Any]) -> None:
        """The inverse of `dump`; an empty one of nothing."""
        promised = told.get("of", {}).items()
        self.of = {job: Promised(first, at, StartPromise.model_validate(last)) for job, (first, at, last) in promised}
        self._last = {PromiseCause(cause): at_us for cause, at_us in told.get("last", {}).items()}
        self._came = {int(priority): at_us for priority, at_us in told.get("came", ())}
