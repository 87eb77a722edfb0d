"""A pool at a glance, from placement's state: all of it for the operator, its own share for a team.

What the pool *has* is told to every team, for they ask for it by type and number. What is *held*, by how many jobs, and how
long those waited, is told to those whose jobs they are.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest

import numpy as np

from libs.core.accelerators.kinds import accelerators_milli, is_cpu
from libs.core.state.fleet import Fleet, Ints
from libs.core.state.limits import Limits
from libs.core.state.model import State, running
from schemas.jobs import JobState
from schemas.pool_status import MOST_SUSPENDED, PoolStatus, Quantiles, SuspendedTeam
from schemas.resources import WHOLE_MILLI, kind_of


@dataclass(slots=True)
class _Share:
    """What one team has of the pool."""

    jobs: Counter[str] = field(default_factory=Counter)
    grants: int = 0
    preemptions: int = 0
    waiting_devices: int = 0


class StatusFigures:
    """The figures of `state` at `ledger_seq`, all taken when it is made, for however many teams ask: one look at each queue and
    at each job that runs."""

    def __init__(self, state: State, pool: str, ledger_seq: int) -> None:
        self._shares: dict[str, _Share] = {}
        self._used = {team: dict(used) for team, used in state.used.items()}
        self._quotas = dict(state.quotas)
        self._suspended, self._left = dict(state.suspended), dict(state.left)
        self._whole = _whole(state, pool, ledger_seq)
        self._inbox_seq = state.inbox_seq
        self._totals = (state.grants, state.preemptions, dict(state.finished_by_state))
        lines = [*state.queues.items(), *state.parked.items()]
        for key, queue in lines:
            share = self._share(key.team)
            share.jobs[JobState.QUEUED.value] += len(queue)
            share.grants += queue.attempts
            share.preemptions += queue.preemptions
            share.waiting_devices += len(queue) * key.shape.devices
        others = [state.jobs[job_id] for job_id in state.backing_off] + running(state)
        if sum(len(queue) for _, queue in lines) + len(others) != len(state.jobs):  # between the pieces of one decision
            standing = {job_id for _, queue in lines for job_id in queue}
            others = [job for job in state.jobs.values() if job.id not in standing]
        for job in others:
            share = self._share(job.team)
            share.jobs[job.state.value] += 1
            share.grants += job.attempts
            share.preemptions += job.preemptions
            if job.state is JobState.QUEUED:
                share.waiting_devices += job.shape.devices

    def _share(self, team: str) -> _Share:
        share = self._shares.get(team)
        if share is None:
            share = self._shares[team] = _Share()
        return share

    def of_all(self, latency: Quantiles, wait: Quantiles) -> PoolStatus:
        """As the operator sees it; the two distributions are what the service measured."""
        grants, preemptions, ended = self._totals
        jobs = Counter(ended)
        for share in self._shares.values():
            jobs.update(share.jobs)
        waiting = sum(share.waiting_devices for share in self._shares.values())
        return self._whole.model_copy(
            update={
                "jobs": dict(jobs), "inbox_seq": self._inbox_seq, "grants": grants, "preemptions": preemptions,
                "suspended": self._paused(), "waiting_devices": waiting,
                "scheduling_latency_ms": latency, "queue_wait_ms": wait,
            }
        )  # fmt: skip

    def _paused(self) -> tuple[SuspendedTeam, ...]:
        """By name; where that are too many for an answer, those that left long ago are left out, then those of long ago."""
        stay = [team for team in self._suspended if team not in self._left]
        told = nlargest(MOST_SUSPENDED, stay, key=lambda team: self._suspended[team].since_us)
        told += nlargest(MOST_SUSPENDED - len(told), self._left, key=self._left.__getitem__)
        return tuple(map(self._how, sorted(told)))

    def _how(self, team: str) -> SuspendedTeam:
        how = self._suspended[team]
        return SuspendedTeam(
            team=team, since_us=how.since_us, reason=how.reason, user=how.user, left_us=self._left.get(team)
        )

    def of_team(self, team: str, latency: Quantiles, wait: Quantiles) -> PoolStatus:
        """As `team` sees it; the two distributions are of its own jobs."""
        share, used = self._shares.get(team, _Share()), self._used.get(team, {})
        limits = self._quotas.get(team, Limits())
        return self._whole.model_copy(
            update={
                "team": team, "jobs": dict(share.jobs), "grants": share.grants, "preemptions": share.preemptions,
                "waiting_devices": share.waiting_devices, "milli_used": sum(used.values()),
                "accelerators_used_milli": accelerators_milli(used), "processors_used_milli": _processors_milli(used),
                "limit_milli": limits.total_milli, "limits_by_type": dict(limits.by_type),
                "scheduling_latency_ms": latency, "queue_wait_ms": wait,
                "suspended": (self._how(team),) if team in self._suspended else (),
            }
        )  # fmt: skip


def _whole(state: State, pool: str, ledger_seq: int) -> PoolStatus:
    """What the pool has, and what of it is held; of jobs nothing yet."""
    up = state.fleet.up
    used, offered = _by_kind(state.fleet, WHOLE_MILLI - state.fleet.free_milli), _by_kind(state.fleet, WHOLE_MILLI)
    return PoolStatus(
        pool=pool,
        ledger_seq=ledger_seq,
        inbox_seq=0,
        jobs={},
        nodes_up=sum(node.up for node in state.fleet.nodes.values()),
        devices=int(np.count_nonzero(up)),
        devices_quarantined=sum(not known.lifted for known in state.quarantined.values()),
        milli_used=int((WHOLE_MILLI - state.fleet.free_milli[up]).sum()),
        milli_total=int(np.count_nonzero(up)) * WHOLE_MILLI,
        accelerators_used_milli=accelerators_milli(used),
        accelerators_milli=accelerators_milli(offered),
        processors_used_milli=_processors_milli(used),
        processors_milli=_processors_milli(offered),
        kinds={kind: milli // WHOLE_MILLI for kind, milli in offered.items()},
        grants=0,
        preemptions=0,
        scheduling_latency_ms=Quantiles(count=0),
        queue_wait_ms=Quantiles(count=0),
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
