"""What bears on a job's request beside its shape: how long it has waited, where its kin run, how fast it must be.

Kin are jobs of one team with the same spread key. Two of them share no group of either one's level, whichever came
first: the nodes of a kin are widened here to the group of *its* level, `placement.constraints` widens them to the group
of the newcomer's.
"""

from collections.abc import Container, Iterable, Mapping

import numpy as np

from libs.core.placement.view import Context, View
from libs.core.state.fleet import Fleet
from libs.core.state.model import Job, State

KinKey = tuple[str, str]
"""Team and spread key."""


def context_of(
    state: State, job: Job, t_us: int, granted: Mapping[KinKey, Iterable[int]] = {}, without: Container[str] = ()
) -> Context:
    """The context of `job`'s request at `t_us`.

    Args:
        state: where kin run, and what is held for them.
        job: the job that asks.
        t_us: now.
        granted: node codes that a plan gave to kin in this cycle, as `taken_by` widens them; not yet in `state`.
        without: ids of jobs that would be gone (victims of a preemption): they keep nobody away.
    """
    avoid: set[int] = set()
    if job.shape.spread[0]:
        key = kin_key(job)
        avoid.update(granted.get(key, ()))
        for other_id in state.kin.get(key, ()):
            other = state.jobs[other_id]
            if other_id != job.id and other_id not in without and other.current is not None:
                nodes = [part.node for part in other.current.parts.values() if not part.freed]
                avoid |= taken_by(state.fleet, other, (state.fleet.node_names.find(node) for node in nodes))
        for holder, devices in state.holds.items():
            kin = state.jobs.get(holder)
            if kin is not None and holder != job.id and holder not in without and kin_key(kin) == key:
                rows = [state.fleet.row(device) for device in devices]
                avoid |= taken_by(state.fleet, kin, state.fleet.node[rows].tolist())
    return Context(waited_us=max(0, t_us - job.queued_us), avoid=tuple(sorted(avoid)), fast=job.preempts)


def kin_key(job: Job) -> KinKey:
    """What makes two jobs kin; they are only when the spread key is not empty."""
    return (job.team, job.shape.spread[0])


def taken_by(fleet: Fleet, job: Job, nodes: Iterable[int]) -> set[int]:
    """Codes of the nodes that share a group of `job`'s spread level with one of `nodes`; below a node it is the node."""
    codes = np.fromiter(nodes, dtype=np.int64)
    level = job.shape.spread[1]
    if level == "pool":
        return set(range(len(fleet.node_names)))
    column = {"leaf": fleet.leaf, "spine": fleet.spine, "zone": fleet.zone}.get(level)
    if column is None or len(codes) == 0:
        return set(codes.tolist())
    return set(np.flatnonzero(np.isin(column[: len(fleet.node_names)], column[codes])).tolist())


def keep_hosts(state: State, view: View, sign: int, only: str = "") -> None:
    """Takes the processors and host memory that beneficiaries will need beside their held devices out of what is free
    (`sign` 1), or gives those of one of them back (-1). Of a nested gang each device counts as its hungriest role."""
    for holder, devices in state.holds.items():
        job = state.jobs.get(holder)
        if job is None or only not in ("", holder):
            continue
        cpu_milli = max((job.shape.cpu_milli, *(role.cpu_milli for role in job.shape.roles)))
        host_mib = max((job.shape.host_mib, *(role.host_mib for role in job.shape.roles)))
        if cpu_milli or host_mib:
            nodes = state.fleet.node[[state.fleet.row(device) for device in devices]]
            np.subtract.at(view.free_cpu, nodes, sign * cpu_milli)
            np.subtract.at(view.free_host, nodes, sign * host_mib)
