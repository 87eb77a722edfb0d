"""Placement's state as a reader of the ledger has it, and how long grants took."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from libs.core.placement.score.scorer import Scorer
from libs.core.projections.pool_status import quantiles
from libs.core.scheduling.decider import Decider
from libs.core.state import fold, snapshot
from libs.core.state.model import State
from libs.ledger.follower import FollowedEntry
from schemas.ledger import JobGranted, JobQueued, LedgerRecord
from schemas.queries import Quantiles


@dataclass(frozen=True, slots=True)
class FirstGrant:
    """A job got its first devices. `at_once`: by the record that also queued it."""

    submitted_us: int
    at_once: bool


class Replica:
    """A decider that never decides: it folds what placement committed, and learns from it what placement's learns, so a
    dry run chooses as placement would."""

    version: ClassVar = snapshot.VERSION
    handled: ClassVar = fold.HANDLED
    ignored: ClassVar = fold.IGNORED

    def __init__(self, decider: Decider | None = None) -> None:
        self.decider = decider if decider is not None else Decider(learner=Scorer())
        self._wall_us: int | None = None  # the broker's clock at the last record

    @property
    def state(self) -> State:
        return self.decider.state

    def now_us(self, wall_us: int) -> int:
        """Ledger time when the wall clock shows `wall_us`, as if neither had jumped since the last record."""
        return self.state.t_us + (max(0, wall_us - self._wall_us) if self._wall_us is not None else 0)

    def apply(self, record: LedgerRecord, seq: int) -> list[FirstGrant]:
        """Folds a valid record; the first grants in it."""
        self.decider.apply(record, seq)
        self._wall_us = record.wall_us if record.wall_us is not None else record.t_us
        queued = {event.job_id for event in record.events if type(event) is JobQueued}
        granted = [event.job_id for event in record.events if type(event) is JobGranted and event.attempt == 1]
        jobs = self.state.jobs
        return [FirstGrant(jobs[job].submitted_us, job in queued) for job in granted if job in jobs]

    def skip(self, seq: int) -> None:
        """A void record: it changes nothing."""

    def dump(self) -> Iterable[bytes]:
        return self.decider.dump()

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "Replica":
        return cls(Decider.load(parts, learner=Scorer()))


class Latencies:
    """From submit stored to grant stored, ms by the broker's clock, of the last first grants that were read: of jobs that
    fitted at once, and of all."""

    def __init__(self, window: int) -> None:
        self._at_once: deque[float] = deque(maxlen=window)
        self._all: deque[float] = deque(maxlen=window)

    def observe(self, steps: Sequence[FollowedEntry]) -> None:
        """Takes in what was read."""
        for step in steps:
            for grant in step.told or ():
                waited_ms = max(0.0, (step.entry.time_us - grant.submitted_us) / 1000)
                self._all.append(waited_ms)
                if grant.at_once:
                    self._at_once.append(waited_ms)

    @property
    def scheduling(self) -> Quantiles:
        return quantiles(list(self._at_once))

    @property
    def wait(self) -> Quantiles:
        return quantiles(list(self._all))
