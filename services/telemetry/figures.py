"""Figures of the pool: a fold of the ledger into counts, and what is new in each record."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from libs.core.projections.hot_state import HotState
from libs.ledger.follower import FollowedEntry
from schemas import ledger as led
from schemas.audit import ActionOutcome

_KEPT_OUT = "kept_out"
"""The last part of a snapshot; one of an older version has none."""


@dataclass(frozen=True, slots=True)
class RecordFigures:
    """What one record says beside the state: its first grants.

    `queue_ms`: from submit to grant, of every job that it grants for the first time. `at_once`: how many of these it
    also queued, so they fitted at once.
    """

    queue_ms: tuple[float, ...] = ()
    at_once: int = 0


@dataclass(frozen=True, slots=True)
class Waits:
    """Of first grants, in ms. `scheduling` is of jobs that fitted at once: from the inbox's time of the job to the
    broker's time of the record that grants it. `queue` is from submit to grant, of all."""

    scheduling: tuple[float, ...] = ()
    queue: tuple[float, ...] = ()


@dataclass(slots=True)
class PoolFigures:
    """Telemetry's projection: the rows of the pool, and the news of each record as what `apply` returns."""

    version: ClassVar = HotState.version
    handled: ClassVar = HotState.handled | {"operator.acted"}
    ignored: ClassVar = HotState.ignored - {"operator.acted"}

    hot: HotState = field(default_factory=HotState)
    kept_out: set[str] = field(default_factory=set)
    """Teams that may not connect for a while, as the operator's book says (`libs.walls.floods`)."""

    def apply(self, record: led.LedgerRecord, seq: int) -> RecordFigures:
        """Folds a valid record. Raises what HotState raises on a ledger that cannot be."""
        self.hot.apply(record, seq)
        queue_ms: list[float] = []
        queued: set[str] = set()
        at_once = 0
        for event in record.events:
            if isinstance(event, led.JobQueued):
                queued.add(event.job_id)
            elif isinstance(event, led.JobGranted) and event.attempt == 1:
                at_once += event.job_id in queued
                row = self.hot.jobs.get(event.job_id)
                if row is not None:
                    queue_ms.append(max(0, record.t_us - row["submitted_us"]) / 1000)
            elif isinstance(event, led.OperatorActed) and event.action.outcome is ActionOutcome.DONE:
                if event.action.what == "team.keep-out":
                    self.kept_out.add(event.action.target)
                elif event.action.what == "team.let-in":
                    self.kept_out.discard(event.action.target)
        return RecordFigures(tuple(queue_ms), at_once)

    def skip(self, seq: int) -> None:
        self.hot.skip(seq)

    def dump(self) -> Iterator[bytes]:
        yield from self.hot.dump()
        yield json.dumps([_KEPT_OUT, sorted(self.kept_out)]).encode()

    @classmethod
    def load(cls, parts: Iterable[bytes]) -> "PoolFigures":
        kept_out = set[str]()

        def of_hot() -> Iterator[bytes]:
            for part in parts:
                if part.startswith(f'["{_KEPT_OUT}"'.encode()):
                    kept_out.update(json.loads(part)[1])
                else:
                    yield part

        return cls(HotState.load(of_hot()), kept_out)


def take(steps: Iterable[FollowedEntry], *, since: int = 0) -> Waits:
    """The waits that ended in records after sequence `since`."""
    scheduling: list[float] = []
    queue: list[float] = []
    for step in steps:
        if not isinstance(step.told, RecordFigures):
            continue  # void
        if step.entry.seq > since:
            took_ms = max(0, step.entry.time_us - step.entry.record.t_us) / 1000
            scheduling += [took_ms] * step.told.at_once
            queue += step.told.queue_ms
    return Waits(tuple(scheduling), tuple(queue))


def preemption_rate_pct(hot: HotState) -> float:
    """Attempts that had to give way, of all that were granted, percent."""
    return 100.0 * hot.preemptions / hot.grants if hot.grants else 0.0


def allocated_pct(hot: HotState) -> float:
    """Compute of accelerators that is granted, percent of what is up; CPUs do not count."""
    held, total = hot.milli()
    return 100.0 * held / total if total else 0.0


def quarantined(hot: HotState) -> int:
    """Devices that something uses which is no job."""
    return sum(bool(row["quarantine"]) for row in hot.devices.values())


def nodes_by_status(hot: HotState) -> dict[str, int]:
    counts = {"up": 0, "silent": 0, "lost": 0}
    for row in hot.nodes.values():
        counts[row["status"]] += 1
    return counts
