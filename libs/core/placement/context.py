"""What bears on a job's request beside its shape: how long it has waited, where its peers run, how fast it must be.

Spread peers are jobs of one team with the same spread key. Two of them share no group of either one's level, whichever came
first: the nodes of a peer are widened here to the group of *its* level, `placement.constraints` widens them to the group
of the newcomer's.
"""

from collections.abc import Container, Iterable, Mapping

import numpy as np

from libs.core.placement.search.topology import nodes_near
from libs.core.placement.view import Context, View, host_at_most
from libs.core.state.fleet import Fleet
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas.jobs import Latency

SpreadKey = tuple[str, str]
"""Team and spread key."""


def context_of(
    state: State, job: Job, t_us: int, granted: Mapping[SpreadKey, Iterable[int]] = {}, without: Container[str] = ()
) -> Context:
    """The context of `job`'s request at `t_us`.

    Args:
        state: where peers run, and what is held for them.
        job: the job that asks.
        t_us: now.
        granted: node codes that a plan gave to peers in this cycle, as `nodes_kept_away` widens them; not yet in `state`.
        without: ids of jobs that would be gone (victims of a preemption): they keep nobody away.
    """
    avoid: set[int] = set()
    if job.shape.spread[0]:
        key = spread_key(job)
        avoid.update(granted.get(key, ()))
        for other_id in state.spread_peers.get(key, ()):
            other = state.jobs[other_id]
            if other_id != job.id and other_id not in without and other.current is not None:
                nodes = [part.node for part in other.current.parts.values() if not part.freed]
                avoid |= nodes_kept_away(state.fleet, other, (state.fleet.node_names.find(node) for node in nodes))
        for beneficiary, devices in state.holds.items():
            peers = state.jobs.get(beneficiary)
            if peers is not None and beneficiary != job.id and beneficiary not in without and spread_key(peers) == key:
                rows = [state.fleet.row(device) for device in devices]
                avoid |= nodes_kept_away(state.fleet, peers, state.fleet.node[rows].tolist())
    return Context(waited_us=max(0, t_us - job.queued_us), avoid=tuple(sorted(avoid)), fast=job.latency is Latency.FAST)


def spread_key(job: Job) -> SpreadKey:
    """What makes two jobs peers; they are only when the spread key is not empty."""
    return (job.team, job.shape.spread[0])


def nodes_kept_away(fleet: Fleet, job: Job, nodes: Iterable[int]) -> set[int]:
    """Codes of the nodes that share a group of `job`'s spread level with one of `nodes`; below a node it is the node."""
    near = nodes_near(fleet, job.shape.spread[1], np.fromiter(nodes, dtype=np.int64))
    return set(np.flatnonzero(near[: len(fleet.node_names)]).tolist())


def reserve_host_resources(state: State, view: View) -> None:
    """Takes the processors and host memory that beneficiaries will need beside their held devices out of what is free.
    Of a nested gang each device counts as its hungriest role."""
    for beneficiary in state.holds:
        _host_resources(state, view, beneficiary, -1)


def reserve_host_resources_of(state: State, view: View, beneficiary: str) -> None:
    """Takes what is reserved for one beneficiary out of what is free."""
    _host_resources(state, view, beneficiary, -1)


def release_host_resources_of(state: State, view: View, beneficiary: str) -> None:
    """Gives what is reserved for one beneficiary back."""
    _host_resources(state, view, beneficiary, 1)


def _host_resources(state: State, view: View, beneficiary: str, sign: int) -> None:
    job = state.jobs.get(beneficiary)
    if job is None:
        return
    rows = np.array([state.fleet.row(device) for device in state.holds[beneficiary]], dtype=np.int64)
    cpu_milli, host_mib = host_at_most(view.fleet, rows, job.shape)
    if cpu_milli.any() or host_mib.any():
        np.add.at(view.free_cpu, state.fleet.node[rows], sign * cpu_milli)
        np.add.at(view.free_host, state.fleet.node[rows], sign * host_mib)
