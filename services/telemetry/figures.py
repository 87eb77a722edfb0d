"""What the ledger says about the pool, counted: a fold, and the waiting times of what is new."""

from collections.abc import Iterable
from dataclasses import dataclass

from libs.core.projections.hot_state import HotState
from libs.core.projections.node_health import Watch
from libs.ledger.chain import ChainEntry
from schemas import ledger as led


@dataclass(frozen=True, slots=True)
class Waits:
    """Of first grants, in ms. `scheduling` is of jobs that fitted at once: from the inbox's time of the job to the
    broker's time of the record that grants it. `queue` is from submit to grant, of all."""

    scheduling: tuple[float, ...] = ()
    queue: tuple[float, ...] = ()


def take(hot: HotState, watch: Watch, entries: Iterable[ChainEntry], now: float) -> Waits:
    """Folds entries into the pool's state and the watch over its nodes; returns the waits that ended in them."""
    scheduling: list[float] = []
    queue: list[float] = []
    for entry in entries:
        if not entry.valid:
            continue
        new: set[str] = set()
        hot.apply(entry.record, entry.seq)
        for event in entry.record.events:
            if isinstance(event, led.NodeJoined):
                watch.joined(event.inventory.node, event.incarnation, now)
            elif isinstance(event, led.NodeLeft):
                watch.left(event.node, event.incarnation)
            elif isinstance(event, led.JobQueued):
                new.add(event.job_id)
            elif isinstance(event, led.JobGranted) and event.attempt == 1:
                if event.job_id in new:
                    scheduling.append(max(0, entry.time_us - entry.record.t_us) / 1000)
                row = hot.jobs.get(event.job_id)
                if row is not None:
                    queue.append(max(0, entry.record.t_us - row["submitted_us"]) / 1000)
    return Waits(tuple(scheduling), tuple(queue))


def preemption_rate_pct(hot: HotState) -> float:
    """Attempts that had to give way, of all that were granted, percent."""
    return 100.0 * hot.preemptions / hot.grants if hot.grants else 0.0


def allocated_pct(hot: HotState) -> float:
    """Compute of accelerators that is granted, percent of what is up; CPUs do not count."""
    held, total = hot.milli()
    return 100.0 * held / total if total else 0.0


def nodes_by_status(hot: HotState) -> dict[str, int]:
    counts = {"up": 0, "lost": 0}
    for row in hot.nodes.values():
        counts[row["status"]] += 1
    return counts
