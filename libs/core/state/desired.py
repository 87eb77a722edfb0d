"""What should run on a node, derived from the state, and told in messages of bounded size.

The naive message is everything with every spec. Eight jobs with 40 KB of environment, or a thousand small ones on one node,
are more than a broker takes. So a state comes in pieces, a change is told as one, and specs are named by their digests:
whoever lacks some asks for them.
"""

import sys
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from libs.core.state.job import Job, grant_order
from libs.core.state.lifecycle import AttemptState
from libs.core.state.model import State
from schemas.attempts import Cause
from schemas.base import of_known
from schemas.nodes import (
    PIECE_BYTES,
    Action,
    DesiredPart,
    DesiredState,
    LiftedQuarantine,
    NodeChanged,
    NodeSpecs,
    NodeState,
    Rank,
    ReferencedPart,
    RoleHosts,
)
from schemas.resources import Claim

_ACTIONS = {AttemptState.PREEMPTING: Action.CHECKPOINT, AttemptState.STOPPING: Action.STOP}
SAVES_FIRST = frozenset({Cause.SUSPENDED, Cause.BUDGET_SPENT})
"""Causes of a stop before which an attempt saves its work."""

_NAME, _RANK = 72, 384
"""Bytes that the name of a node or job takes at the most, and a rank that serves no role."""


def desired(state: State, node: str, pool: str, ledger_seq: int) -> DesiredState:
    """All of it in one message, with every spec, as agents of 0.1.0 read it; of any size. Raises KeyError when the pool has
    no such node."""
    return DesiredState.model_construct(
        pool=pool,
        node=node,
        incarnation=state.fleet.nodes[node].incarnation,
        ledger_seq=ledger_seq,
        parts=tuple(_part(state.jobs[job_id], node) for job_id in state.on_node[node]),
        **_of_devices(state, node),
    )


def spec_bytes(state: State, node: str) -> int:
    """What the specs of the node's parts take: `desired` takes more."""
    return sum(state.jobs[job_id].spec_bytes() for job_id in state.on_node.get(node, ()))


def node_state(state: State, node: str, pool: str, ledger_seq: int, limit: int = PIECE_BYTES) -> list[NodeState]:
    """The desired state of `node` as of `ledger_seq`, in pieces of about `limit` bytes; of a node that is not up only which
    life the pool knows of it."""
    known = state.fleet.nodes.get(node)
    whole = NodeState.model_construct(
        pool=pool, node=node, ledger_seq=ledger_seq, incarnation=known.incarnation if known is not None else 0
    )
    if known is None or not known.up:
        return [whole]
    parts = tuple(_referenced(state.jobs[job_id], node) for job_id in state.on_node[node])
    whole = whole.model_copy(update={"up": True, "parts": parts, **_of_devices(state, node)})
    pieces = list(_split(whole, limit))
    return [piece.model_copy(update={"piece": n, "pieces": len(pieces)}) for n, piece in enumerate(pieces, 1)]


def node_change(
    state: State,
    node: str,
    job_ids: Iterable[str],
    pool: str,
    *,
    since: int,
    ledger_seq: int,
    started: Iterable[str] = (),
    running: Iterable[str] = (),
    limit: int = PIECE_BYTES,
) -> NodeChanged:
    """What has become of `job_ids` on `node` between `since` and `ledger_seq`: their parts, the specs that fit, or that
    they are gone. When the parts alone are too large it tells no more than that something has changed."""
    here, wanted = state.on_node[node], set(job_ids)
    present = [state.jobs[job_id] for job_id in wanted if job_id in here]
    present.sort(key=grant_order)
    specs: dict[str, Any] = {}
    told: dict[str, Any] = {
        "pool": pool,
        "node": node,
        "incarnation": state.fleet.nodes[node].incarnation,
        "since": since,
        "ledger_seq": ledger_seq,
        "parts": tuple(_referenced(job, node) for job in present),
        "gone": tuple(sorted(wanted.difference(here))),
        "started": tuple(sorted(job_id for job_id in started if job_id in here and job_id not in wanted)),
        "running": tuple(sorted(job_id for job_id in running if job_id in here and job_id not in wanted)),
        "specs": specs,
        **_of_devices(state, node),
    }
    change = of_known(NodeChanged, told)
    size = _at_most(change)
    if size > limit and (size := _size(change)) > limit:
        return change.model_copy(update={"since": ledger_seq, "parts": (), "gone": (), "started": (), "running": ()})
    for job in present:
        if job.current is not None and job.current.state is AttemptState.GRANTED and job.spec_digest() not in specs:
            size += job.spec_bytes()
            if size > limit:
                break
            specs[job.spec_digest()] = job.spec
    return change


def specs_of(state: State, node: str, digests: Set[str], limit: int = PIECE_BYTES) -> NodeSpecs:
    """Of the specs of the node's parts those of `digests`, as many as fit into `limit` bytes but at least one."""
    found: dict[str, Any] = {}
    size = 0
    for job_id in state.on_node.get(node, ()):
        job = state.jobs[job_id]
        if job.spec_digest() in digests and job.spec_digest() not in found:
            size += job.spec_bytes()
            if found and size > limit:
                break
            found[job.spec_digest()] = job.spec
            if len(found) == len(digests):
                break
    return NodeSpecs.model_construct(specs=found)


def _split(state: NodeState, limit: int) -> Iterable[NodeState]:
    """Halved until each piece is small enough, or one part. Repartitions and quarantines are in the first piece."""
    if len(state.parts) < 2 or _size(state) <= limit:
        yield state
        return
    half = len(state.parts) // 2
    yield from _split(state.model_copy(update={"parts": state.parts[:half]}), limit)
    rest = {"parts": state.parts[half:], "recuts": (), "withdrawn": (), "lifted": ()}
    yield from _split(state.model_copy(update=rest), limit)


def _size(model: Any) -> int:
    return len(model.__pydantic_serializer__.to_json(model))


def _at_most(told: NodeChanged) -> int:
    """Bytes that it takes without specs, or more: of a usual one reckoned from how long names may be, which is soon done."""
    size = 1024 + _NAME * (len(told.gone) + len(told.started) + len(told.running))
    if told.recuts or told.withdrawn or told.lifted:
        return sys.maxsize
    for part in told.parts:
        if part.roles or part.resume is not None:
            return sys.maxsize
        size += 1024 + _RANK * len(part.ranks) + _NAME * len(part.nodes)
    return size


def _of_devices(state: State, node: str) -> dict[str, Any]:
    """What is asked of the node beside its parts."""
    asked = [asked.recut for asked in state.repartitions.values() if asked.node == node]
    return {
        "recuts": tuple(recut for recut in asked if recut.board not in state.withdrawn),
        "withdrawn": tuple(recut for recut in asked if recut.board in state.withdrawn),
        "lifted": tuple(
            LiftedQuarantine(device=device, since_us=known.since_us)
            for device, known in state.quarantined.items()
            if known.lifted and known.node == node
        ),
    }


def _part(job: Job, node: str) -> DesiredPart:
    return DesiredPart.model_construct(spec=job.spec, **_about(job, node))


def _referenced(job: Job, node: str) -> ReferencedPart:
    return of_known(ReferencedPart, {**_about(job, node), "spec": job.spec_digest()})


def _about(job: Job, node: str) -> dict[str, Any]:
    """Everything of a part but its spec."""
    attempt = job.current
    assert attempt is not None
    seating = _seating(_Same(attempt.claims))
    return {
        "job_id": job.id,
        "attempt": attempt.number,
        "team": job.team,
        "action": Action.CHECKPOINT if attempt.cause in SAVES_FIRST else _ACTIONS.get(attempt.state, Action.RUN),
        "ranks": seating.ranks[node],
        "world_size": len(attempt.claims),
        "node_rank": seating.node_rank[node],
        "nodes": tuple(attempt.parts),
        "roles": seating.roles,
        "resume": job.resume,
        "started": attempt.parts[node].started,
        "lease_s": job.lease_s,
        "network": job.network,
        "running": attempt.running_us > 0,
    }


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
        rank = of_known(
            Rank,
            {
                "rank": number,
                "device": claim.device,
                "epoch": claim.epoch,
                "milli": claim.milli,
                "memory_mib": claim.memory_mib,
                "role": claim.role,
                "role_rank": role_rank,
            },
        )
        ranks.setdefault(claim.node, []).append(rank)
    roles = tuple(RoleHosts.model_construct(name=r, devices=n, nodes=tuple(hosts[r])) for r, n in served.items())
    return _Seating({node: tuple(mine) for node, mine in ranks.items()}, node_rank, roles)
