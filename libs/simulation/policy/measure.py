"""Figures of a simulated run, by the names that `baton simulate` prints."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.simulation.policy.engine import SimulatedRun

LARGE_GANG = 8
BOUND_S = 600.0
"""Of the bounded slowdown: shorter jobs count as so long (Feitelson)."""


def figures(run: SimulatedRun) -> dict[str, Any]:
    """`queueing` is the time from submission to end beyond the run time of the row; `wait` is one stretch without devices.
    `utilization_pct`: of device time from the first submission to the last end, the part in which jobs ran.
    `within_p50_pct`, `within_p90_pct`: of the second half of the jobs to end, those that took no longer than the P50 and the
    P90 that history gave them when they came."""
    ended = [job for job in run.jobs if job.end_us >= 0]
    refused = len(run.refused)
    found: dict[str, Any] = {"jobs": len(run.jobs) + refused, "ended": len(ended), "refused": refused}
    jct = np.array([job.end_us - job.submit_us for job in ended], dtype=np.float64) / 1e6
    need = np.array([job.row.duration_s for job in ended])
    queueing = np.maximum(0.0, jct - need)
    large = np.array([job.row.devices >= LARGE_GANG for job in ended], dtype=np.bool_)
    span_us = max((job.end_us for job in ended), default=0) - min((job.submit_us for job in ended), default=0)
    held = sum(job.held_us * job.row.devices * job.row.share_milli for job in run.jobs) / 1000
    kept = [start <= promised for promised, start, _ in run.promises]
    slack = [(promised - start) / max(1, start - since) for promised, start, since in run.promises if start > since]
    later = run.foretold[len(run.foretold) // 2 :]
    within_p50, within_p90 = [p50 for p50, _ in later], [p90 for _, p90 in later]
    return found | {
        "jct_mean_s": _mean(jct),
        "jct_p50_s": _quantile(jct, 0.5),
        "jct_p99_s": _quantile(jct, 0.99),
        "queueing_mean_s": _mean(queueing),
        "queueing_p99_s": _quantile(queueing, 0.99),
        "large_gang_queueing_p99_s": _quantile(queueing[large], 0.99),
        "wait_max_s": max((job.longest_wait_us for job in ended), default=0) / 1e6,
        "bounded_slowdown_mean": _mean(np.maximum(1.0, jct / np.maximum(need, BOUND_S))),
        "utilization_pct": round(100 * held / max(1.0, run.devices * span_us), 3),
        "makespan_s": span_us / 1e6,
        "preemptions": run.preemptions,
        "lost_device_s": run.lost_device_us / 1e6,
        "promises": len(run.promises),
        "promises_kept_pct": round(100 * sum(kept) / len(kept), 3) if kept else 100.0,
        "promise_slack_p50": round(float(np.median(slack)), 4) if slack else 0.0,
        "decisions": run.decisions,
        "within_p50_pct": _part(within_p50),
        "within_p90_pct": _part(within_p90),
    }


def _part(said: Sequence[bool]) -> float:
    return round(100 * sum(said) / len(said), 3) if said else 0.0


def _mean(values: Any) -> float:
    return round(float(values.mean()), 1) if len(values) else 0.0


def _quantile(values: Any, q: float) -> float:
    """The nearest rank, as published comparisons take it."""
    return round(float(np.sort(values)[min(len(values) - 1, int(len(values) * q))]), 1) if len(values) else 0.0
