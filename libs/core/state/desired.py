"""What should run on a node, derived from the state: everything that should run there, not a change."""

from dataclasses import dataclass
from functools import lru_cache

from libs.core.state.lifecycle import AttemptState
from libs.core.state.model import Job, State
from schemas.nodes import Action, DesiredPart, DesiredState, Rank, RoleHosts
from schemas.resources import Claim

_ACTIONS = {AttemptState.PREEMPTING: Action.CHECKPOINT, AttemptState.STOPPING: Action.STOP}


def desired(state: State, node: str, pool: str, ledger_seq: int) -> DesiredState:
    """The desired state of `node` as of `ledger_seq`. Raises KeyError when the pool has no such node."""
    asked = [asked.recut for asked in state.repartitions.values() if asked.node == node]
    return DesiredState.model_construct(
        pool=pool,
        node=node,
        incarnation=state.fleet.nodes[node].incarnation,
        ledger_seq=ledger_seq,
        parts=tuple(_part(state.jobs[job_id], node) for job_id in state.on_node[node]),
        recuts=tuple(recut for recut in asked if recut.board not in state.withdrawn),
        withdrawn=tuple(recut for recut in asked if recut.board in state.withdrawn),
    )


def nodes_touched(state: State, job_ids: set[str], freed: set[str]) -> set[str]:
    """Nodes whose desired state a record changed: those of the attempts of `job_ids`, and those that freed devices."""
    nodes = set(freed)
    for job_id in job_ids:
        job = state.jobs.get(job_id)
        if job is not None and job.current is not None:
            nodes.update(part.node for part in job.current.parts.values() if not part.freed)
    return nodes


def _part(job: Job, node: str) -> DesiredPart:
    attempt = job.current
    assert attempt is not None
    seating = _seating(_Same(attempt.claims))
    nodes = tuple(attempt.parts)
    return DesiredPart.model_construct(
        job_id=job.id,
        attempt=attempt.number,
        team=job.team,
        action=_ACTIONS.get(attempt.state, Action.RUN),
        spec=job.spec,
        ranks=seating.ranks[node],
        world_size=len(attempt.claims),
        node_rank=seating.node_rank[node],
        nodes=nodes,
        roles=seating.roles,
        resume=job.resume,
    )


@dataclass(frozen=True, slots=True)
class _Seating:
    """An attempt's claims as its nodes see them."""

    ranks: dict[str, tuple[Rank, ...]]
    node_rank: dict[str, int]
    roles: tuple[RoleHosts, ...]


class _Same:
    """Keyed by identity: the claims of an attempt never change, and comparing thousands would take long."""

    __slots__ = ("claims",)

    def __init__(self, claims: tuple[Claim, ...]) -> None:
        self.claims = claims

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.claims is other.claims

    def __hash__(self) -> int:
        return id(self.claims)


@lru_cache(maxsize=64)
def _seating(same: _Same) -> _Seating:
    """One walk over the claims for all nodes of the attempt: a gang of 2,000 nodes asks 2,000 times."""
    ranks: dict[str, list[Rank]] = {}
    node_rank: dict[str, int] = {}
    served: dict[str, int] = {}
    hosts: dict[str, dict[int, None]] = {}
    for number, claim in enumerate(same.claims):
        at = node_rank.setdefault(claim.node, len(node_rank))
        role_rank = 0
        if claim.role:
            role_rank = served.get(claim.role, 0)
            served[claim.role] = role_rank + 1
            hosts.setdefault(claim.role, {})[at] = None
        rank = Rank.model_construct(
            rank=number,
            device=claim.device,
            epoch=claim.epoch,
            milli=claim.milli,
            memory_mib=claim.memory_mib,
            role=claim.role,
            role_rank=role_rank,
        )
        ranks.setdefault(claim.node, []).append(rank)
    roles = tuple(RoleHosts.model_construct(name=r, devices=n, nodes=tuple(hosts[r])) for r, n in served.items())
    return _Seating({node: tuple(mine) for node, mine in ranks.items()}, node_rank, roles)
