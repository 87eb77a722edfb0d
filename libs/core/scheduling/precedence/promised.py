"""Which gangs were promised a start, what has come since that may move it, and what became of promises."""

from collections import deque
from typing import Any, NamedTuple

from libs.core.scheduling.precedence.own_delay import held_by_teams, in_the_way
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas import ledger as led
from schemas.jobs import PromiseCause, StartPromise

_KEPT = 1024
_OF_PROMISES = frozenset({
    led.JobQueued, led.JobRequeued, led.JobBoosted, led.JobGranted, led.JobFinished, led.GangPromised, led.NodeSilence,
    led.NodeDeclaredDead, led.DeviceQuarantined, led.NodeJoined, led.NodeLeft, led.NodeCordoned,
})  # fmt: skip
"""Kinds that say anything of promises; most events are of others."""


class CountedOn(NamedTuple):
    """A start that was promised, and the jobs of the gang's team that were expected to run on beyond it."""

    start_us: int
    stays: tuple[str, ...]


class Promised(NamedTuple):
    """One gang's. Times in ledger us."""

    first_us: int
    """The start that was promised first."""
    told_us: int
    """When the last promise was told."""
    last: StartPromise
    counted_on: tuple[CountedOn, ...] = ()
    """Of the promises since a higher class moved it, `led.MOST_COUNTED_ON` at the most: the first ones, and the last."""
    own_delay_us: int | None = None
    """The earliest of these starts after which only jobs of its own team were in its way."""


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
        self._noted_us = -1
        """When something happened last."""
        self._looked_us = -led.OWN_DELAY_US
        """When it was looked last for who keeps late gangs waiting."""
        self._looks_us: int | None = None
        self._late: dict[str, int] = {}
        """That it looks now, and `Promised.own_delay_us` as it is found; kept once something happens, as whoever reads the
        ledger finds it."""

    def look(self, state: State, t_us: int) -> None:
        """What follows is decided, or folded, at `t_us`, and nothing of it has changed `state` yet: finds gangs that are late
        for jobs of their own team. What is decided at one moment is one decision, however many records it takes."""
        self._late, self._looks_us = {}, None
        if t_us <= self._noted_us or t_us < self._looked_us + led.OWN_DELAY_US:
            return
        late = [
            (job, start_us, stays)
            for job_id, known in self.of.items()
            for start_us, stays in known.counted_on
            if start_us < t_us
            and (known.own_delay_us is None or start_us < known.own_delay_us)
            and (job := state.jobs.get(job_id)) is not None
        ]
        if not late:
            return
        self._looks_us, held = t_us, held_by_teams(state, {job.team for job, _, _ in late})
        for job, start_us, stays in late:
            if start_us < self._late.get(job.id, t_us) and in_the_way(state, held, job, stays):
                self._late[job.id] = start_us

    def own_delay_us(self, state: State, job: Job) -> int | None:
        """The earliest promised start of a gang after which only jobs of its own team were in its way, or at which its team
        was suspended, or was since; None: there was none."""
        known, resumed = self.of.get(job.id), state.resumed.get(job.team)
        if known is None:
            return None
        found = self._late.get(job.id, known.own_delay_us)
        starts = [start_us for start_us, _ in known.counted_on if resumed is not None and start_us < resumed.t_us]
        return min(starts if found is None else [found, *starts], default=None)

    def note(self, state: State, event: led.LedgerEvent, t_us: int) -> None:
        self._noted_us = t_us
        if self._looks_us is not None:
            for job_id, start_us in self._late.items():
                self.of[job_id] = self.of[job_id]._replace(own_delay_us=start_us)
            self._looked_us, self._looks_us, self._late = self._looks_us, None, {}
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
            self._promised(event, t_us)
        elif isinstance(event, led.NodeSilence | led.NodeDeclaredDead | led.DeviceQuarantined | led.NodeJoined):
            self._last[PromiseCause.FAULT] = t_us
        elif isinstance(event, led.NodeLeft | led.NodeCordoned):
            self._last[PromiseCause.DRAIN] = t_us

    def _promised(self, event: led.GangPromised, t_us: int) -> None:
        known, promise = self.of.get(event.job_id), event.promise
        first_us = known.first_us if known is not None else promise.start_us
        told = (CountedOn(promise.start_us, event.stays),) if event.stays is not None else ()
        if known is None or promise.cause is PromiseCause.HIGHER_CLASS:
            self.of[event.job_id] = Promised(first_us, t_us, promise, told)
        else:
            counted_on = known.counted_on[: led.MOST_COUNTED_ON - 1] + told
            self.of[event.job_id] = Promised(first_us, t_us, promise, counted_on, known.own_delay_us)

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
            "noted": [self._noted_us, self._looked_us],
            "own": {job: [one.counted_on, one.own_delay_us] for job, one in sorted(self.of.items()) if one.counted_on},
        }

    def load(self, told: dict[str, Any]) -> None:
        """The inverse of `dump`; an empty one of nothing."""
        promised = told.get("of", {}).items()
        self.of = {job: Promised(first, at, StartPromise.model_validate(last)) for job, (first, at, last) in promised}
        for job, (counted_on, own_delay_us) in told.get("own", {}).items():
            starts = tuple(CountedOn(start_us, tuple(stays)) for start_us, stays in counted_on)
            self.of[job] = self.of[job]._replace(counted_on=starts, own_delay_us=own_delay_us)
        self._noted_us, self._looked_us = told.get("noted", (-1, -led.OWN_DELAY_US))
        self._last = {PromiseCause(cause): at_us for cause, at_us in told.get("last", {}).items()}
        self._came = {int(priority): at_us for priority, at_us in told.get("came", ())}
