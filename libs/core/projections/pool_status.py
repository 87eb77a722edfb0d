"""A pool at a glance, from placement's state."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from libs.core.accelerators.kinds import accelerators_milli, is_cpu
from libs.core.state.fleet import Fleet, Ints
from libs.core.state.model import State
from schemas.queries import PoolStatus, Quantiles
from schemas.resources import WHOLE_MILLI, kind_of


def status(state: State, pool: str, ledger_seq: int, latency: Quantiles, wait: Quantiles) -> PoolStatus:
    """The figures of `state` at `ledger_seq`; the two distributions are what the service measured."""
    up = state.fleet.up
    used, offered = _by_kind(state.fleet, WHOLE_MILLI - state.fleet.free_milli), _by_kind(state.fleet, WHOLE_MILLI)
    jobs = Counter(job.state.value for job in state.jobs.values())
    jobs.update(state.finished_by_state)
    return PoolStatus(
        pool=pool,
        ledger_seq=ledger_seq,
        inbox_seq=state.inbox_seq,
        jobs=dict(jobs),
        nodes_up=sum(node.up for node in state.fleet.nodes.values()),
        devices=int(np.count_nonzero(up)),
        devices_quarantined=sum(not known.lifted for known in state.quarantined.values()),
        milli_used=int((WHOLE_MILLI - state.fleet.free_milli[up]).sum()),
        milli_total=int(np.count_nonzero(up)) * WHOLE_MILLI,
        accelerators_used_milli=accelerators_milli(used),
        accelerators_milli=accelerators_milli(offered),
        processors_used_milli=_processors_milli(used),
        processors_milli=_processors_milli(offered),
        grants=state.grants,
        preemptions=state.preemptions,
        scheduling_latency_ms=latency,
        queue_wait_ms=wait,
    )


def _by_kind(fleet: Fleet, milli: Ints | int) -> dict[str, int]:
    """Kind -> the sum of `milli` (per device, shape (D,)) of the devices that are up."""
    profiles = max(1, len(fleet.profiles))
    codes = (fleet.model * profiles + fleet.profile)[fleet.up]
    sums = np.bincount(codes, weights=np.broadcast_to(milli, fleet.up.shape)[fleet.up])
    models, mig_profiles = fleet.models.names, fleet.profiles.names
    return {
        kind_of(models[code // profiles], mig_profiles[code % profiles]): int(sums[code])
        for code in np.unique(codes).tolist()
    }


def _processors_milli(held: Mapping[str, int]) -> int:
    return sum(milli for kind, milli in held.items() if is_cpu(kind))


def quantiles(values: list[float]) -> Quantiles:
    """Median, 99th percentile and maximum of `values` (nearest rank); zeros when there are none."""
    if not values:
        return Quantiles(count=0)
    ordered = sorted(values)
    last = len(ordered) - 1
    return Quantiles(count=len(ordered), p50=ordered[last // 2], p99=ordered[int(last * 0.99)], max=ordered[last])
