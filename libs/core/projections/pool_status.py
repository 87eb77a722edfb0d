"""A pool at a glance, from placement's state."""

from collections import Counter

import numpy as np

from libs.core.state.model import State
from schemas.queries import PoolStatus, Quantiles
from schemas.resources import WHOLE_MILLI


def status(state: State, pool: str, ledger_seq: int, latency: Quantiles, wait: Quantiles) -> PoolStatus:
    """The figures of `state` at `ledger_seq`; the two distributions are what the service measured."""
    up = state.fleet.up
    jobs = Counter(job.state.value for job in state.jobs.values())
    jobs.update(state.finished_by_state)
    return PoolStatus(
        pool=pool,
        ledger_seq=ledger_seq,
        inbox_seq=state.inbox_seq,
        jobs=dict(jobs),
        nodes_up=sum(node.up for node in state.fleet.nodes.values()),
        devices=int(np.count_nonzero(up)),
        milli_used=int((WHOLE_MILLI - state.fleet.free_milli[up]).sum()),
        milli_total=int(np.count_nonzero(up)) * WHOLE_MILLI,
        grants=state.grants,
        preemptions=state.preemptions,
        scheduling_latency_ms=latency,
        queue_wait_ms=wait,
    )


def quantiles(values: list[float]) -> Quantiles:
    """Median, 99th percentile and maximum of `values` (nearest rank); zeros when there are none."""
    if not values:
        return Quantiles(count=0)
    ordered = sorted(values)
    last = len(ordered) - 1
    return Quantiles(count=len(ordered), p50=ordered[last // 2], p99=ordered[int(last * 0.99)], max=ordered[last])
