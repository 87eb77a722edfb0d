"""What should run on a node, derived from the state: the whole truth for that node, not a change to it."""

from libs.core.state.lifecycle import AttemptState
from libs.core.state.model import Attempt, Job, State
from schemas.nodes import Action, DesiredPart, DesiredState, Rank

_ACTIONS = {AttemptState.PREEMPTING: Action.CHECKPOINT, AttemptState.STOPPING: Action.STOP}


def desired(state: State, node: str, pool: str, ledger_seq: int) -> DesiredState:
    """The desired state of `node` as of `ledger_seq`. Raises KeyError when the pool has no such node."""
    return DesiredState.model_construct(
        pool=pool,
        node=node,
        incarnation=state.fleet.nodes[node].incarnation,
        ledger_seq=ledger_seq,
        parts=tuple(_part(state.jobs[job_id], node) for job_id in state.on_node[node]),
        recuts=tuple(asked.recut for asked in state.repartitions.values() if asked.node == node),
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
    nodes = tuple(attempt.parts)
    return DesiredPart.model_construct(
        job_id=job.id,
        attempt=attempt.number,
        team=job.team,
        action=_ACTIONS.get(attempt.state, Action.RUN),
        spec=job.spec,
        ranks=_ranks(attempt, node),
        world_size=len(attempt.claims),
        node_rank=nodes.index(node),
        nodes=nodes,
        resume=job.resume,
    )


def _ranks(attempt: Attempt, node: str) -> tuple[Rank, ...]:
    return tuple(
        Rank.model_construct(rank=rank, device=c.device, epoch=c.epoch, milli=c.milli, memory_mib=c.memory_mib)
        for rank, c in enumerate(attempt.claims)
        if c.node == node
    )
