"""What placement publishes after its own commits, and its answers to nodes. Nothing here changes the state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from libs.bus.queries import InvalidQuestion
from libs.core.scheduling.decider import Decider
from libs.core.state.desired import desired, spec_bytes, specs_of
from schemas.base import Fact
from schemas.jobs import Reason
from schemas.ledger import JobGranted, JobQueued, LedgerRecord, NodeCordoned
from schemas.nodes import (
    DesiredQuery,
    DesiredReply,
    NodeSpecs,
    NodeSpecsQuery,
    NodeState,
    NodeStateQuery,
    TeamsLeft,
    TeamsLeftQuery,
)
from services.placement.node_notifier import NodeNotifier


def granted_at_once_ms(record: LedgerRecord, decider: Decider, now_us: int) -> list[float]:
    """From submit stored to grant committed, ms, of the jobs that a committed record both queues and grants.

    `now_us` is this process's clock, compared with the broker's submit times: on one host the same clock.
    """
    new = {e.job_id for e in record.events if type(e) is JobQueued}
    granted = [e.job_id for e in record.events if type(e) is JobGranted and e.attempt == 1 and e.job_id in new]
    return [max(0.0, (now_us - decider.state.jobs[job].submitted_us) / 1000) for job in granted]


def taken_out(record: LedgerRecord) -> list[NodeCordoned]:
    """Nodes that a committed record takes out of use, which no operator asked for."""
    return [event for event in record.events if type(event) is NodeCordoned and not event.user]


def promise_errors_s(record: LedgerRecord, decider: Decider) -> list[float]:
    """Start minus first promised start, s, of the gangs with a promise that a committed record grants."""
    outcomes = decider.turns.book.outcomes
    found = [(one.start_us - one.promised_us) / 1e6 for one in outcomes if one.start_us == record.t_us]
    outcomes.clear()
    return found


@dataclass(frozen=True, slots=True)
class Answerer:
    """Of whom a node asks: the process that knows what was told, the ledger sequence of its state, whether it writes."""

    notifier: NodeNotifier
    ledger_seq: int
    leading: bool


_SPECS_LOOKED_AT = 32
"""Parts of a node whose specs are looked up in the time that it takes to tell one."""

AboutNode = Callable[[Decider, Any, str, Answerer], Fact | Sequence[Fact]]


def state_of_node(decider: Decider, query: NodeStateQuery, node: str, of: Answerer) -> Sequence[NodeState]:
    """All that should run on `node`, in pieces; of one that is not up, which of its lives the pool knows."""
    of.notifier.reads_changes(node)
    return of.notifier.state_of(decider, node, query.followed, of.ledger_seq, leading=of.leading)


def specs_of_node(decider: Decider, query: NodeSpecsQuery, node: str, of: Answerer) -> NodeSpecs:
    """Specs of what runs on `node`; those of other nodes are not told."""
    of.notifier.looks_at(node, len(decider.state.on_node.get(node, ())) // _SPECS_LOOKED_AT)
    return specs_of(decider.state, node, set(query.specs), of.notifier.limit)


def teams_left(decider: Decider, query: TeamsLeftQuery, node: str, of: Answerer) -> TeamsLeft:
    """Of the teams that `node` names those that have left. Of others it hears nothing: an answer is no longer than its
    question."""
    of.notifier.looks_at(node, 0)
    left = tuple(team for team in dict.fromkeys(query.teams) if team in decider.state.left)
    return TeamsLeft(ledger_seq=of.ledger_seq, left=left)


def whole_state_of_node(decider: Decider, query: DesiredQuery, asker: str, of: Answerer) -> DesiredReply:
    """The question of 0.1.0: everything in one message, of `asker` if it is up. A node that is missing in the reply was
    declared lost, and registers again.

    Raises InvalidQuestion when the question names another node than the subject does, or the answer is too large."""
    if foreign := [name for name in query.nodes if name != asker]:
        raise InvalidQuestion([_not_its_own(asker, foreign[0])])
    nodes = decider.state.fleet.nodes
    # Once, however often it names itself: each state has the specs of all that runs there.
    known = [name for name in dict.fromkeys(query.nodes) if name in nodes and nodes[name].up]
    of.notifier.looks_at(asker, sum(len(decider.state.on_node[name]) for name in known))
    if (least := sum(spec_bytes(decider.state, name) for name in known)) > of.notifier.largest:
        raise InvalidQuestion([_too_large(asker, least, of.notifier.largest)])
    reply = DesiredReply(states=tuple(desired(decider.state, name, of.notifier.pool, of.ledger_seq) for name in known))
    if (size := len(reply.model_dump_json())) > of.notifier.largest:
        raise InvalidQuestion([_too_large(asker, size, of.notifier.largest)])
    if known:
        of.notifier.reads_whole(asker)
    return reply


def _too_large(node: str, size: int, largest: int) -> Reason:
    return Reason(
        field="nodes",
        value=node,
        problem=f"what should run there takes {size} bytes or more in one message, and the broker takes {largest}",
        fix="start an agent of the present version: it asks for pieces",
    )


def _not_its_own(asker: str, named: str) -> Reason:
    return Reason(
        field="nodes",
        value=named,
        problem=f"is asked for on the subject of node {asker!r}",
        fix="ask for each node on its own subject",
    )
