"""What telemetry says: a node whose lease has ended, and that time passes."""

from libs.core.scheduling.reactions.attempts import stop, vacate
from libs.core.scheduling.reactions.decision import Decision
from libs.core.state.lifecycle import UNDECIDED
from schemas import inbox, ledger
from schemas.attempts import Cause, Evidence


def node_lost(d: Decision, m: inbox.NodeLost) -> None:
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up or known.incarnation != m.incarnation:
        return
    if m.planned:
        reason = f"node {m.node} left: its agent was stopped"
        vacate(d, m.node, Evidence.NODE_LEFT, reason)
    else:
        reason = f"node {m.node} was silent for {m.silent_s:.1f} s: its lease has ended"
        vacate(d, m.node, Evidence.LEASE_ENDED, reason)
    d.emit(ledger.NodeLeft(node=m.node, incarnation=m.incarnation, reason=reason))


def tick(d: Decision, m: inbox.Tick) -> None:
    for job_id, end_us in list(d.state.limited.items()):
        job = d.state.jobs[job_id]
        if end_us <= d.t_us and job.current is not None and job.current.state in UNDECIDED:
            stop(d, job, Cause.TIME_LIMIT, f"it ran for its time limit of {job.spec.time_limit_s:g} s")
            d.may_end_here()
