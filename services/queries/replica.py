"""Placement's state as a reader of the ledger has it, and how long grants took."""

from collections import OrderedDict, deque
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
from schemas.pool_status import Quantiles
from schemas.subjects import OPERATOR


@dataclass(frozen=True, slots=True)
class FirstGrant:
    """A job got its first devices. `at_once`: by the record that also queued it."""

    submitted_us: int
    at_once: bool
    team: str


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
        found = ((jobs[job], job in queued) for job in granted if job in jobs)
        return [FirstGrant(job.submitted_us, at_once, job.team) for job, at_once in found]

    def skip(self, seq: int) -> None:
        """A void record: it changes nothing."""

    def dump(self) -> Iterable[bytes]:
        return self.decider.dump()

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "Replica":
        return cls(Decider.load(parts, learner=Scorer()))


_OF_A_TEAM = 500
"""First grants of one team that its own quantiles are of."""
_TEAMS = 1024
"""Teams with quantiles of their own: those that were granted something last."""


class _Window:
    """The last first grants: how long they took, ms; of jobs that fitted at once, and of all."""

    def __init__(self, size: int) -> None:
        self.at_once: deque[float] = deque(maxlen=size)
        self.all: deque[float] = deque(maxlen=size)

    def take(self, waited_ms: float, at_once: bool) -> None:
        self.all.append(waited_ms)
        if at_once:
            self.at_once.append(waited_ms)


class Latencies:
    """From submit stored to grant stored, ms by the broker's clock, of the last first grants that were read: of all, and of
    each team's own."""

    def __init__(self, window: int) -> None:
        self._pool = _Window(window)
        self._of_a_team = min(window, _OF_A_TEAM)
        self._teams: OrderedDict[str, _Window] = OrderedDict()

    def observe(self, steps: Sequence[FollowedEntry]) -> None:
        """Takes in what was read."""
        for step in steps:
            for grant in step.told or ():
                waited_ms = max(0.0, (step.entry.time_us - grant.submitted_us) / 1000)
                self._pool.take(waited_ms, grant.at_once)
                if grant.team not in self._teams:
                    self._teams[grant.team] = _Window(self._of_a_team)
                self._teams[grant.team].take(waited_ms, grant.at_once)
                self._teams.move_to_end(grant.team)
        while len(self._teams) > _TEAMS:
            self._teams.popitem(last=False)

    def seen_by(self, team: str) -> tuple[Quantiles, Quantiles]:
        """(of jobs that fitted at once, of all): the operator's are of every team."""
        window = self._pool if team == OPERATOR else self._teams.get(team)
        if window is None:
            return Quantiles(count=0), Quantiles(count=0)
        return quantiles(list(window.at_once)), quantiles(list(window.all))
