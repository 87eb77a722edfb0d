"""What leases says: nodes that are silent, heard again or lost, who grants leases, and that time passes. What an operator
says of a node that nobody hears."""

from libs.core.scheduling.reactions import budgets
from libs.core.scheduling.reactions.attempts import after_loss, free, release_holds_on, stop_at_limit, vacate
from libs.core.scheduling.reactions.decision import Decision, InputRefused
from libs.core.state.lifecycle import UNDECIDED
from schemas import inbox, ledger
from schemas.attempts import Cause, Evidence

_LONGEST_S = 1e9
"""Longer than any lease: no part has a longer one than its node."""


def _old(d: Decision, m: inbox.NodeLost | inbox.NodeSilent | inbox.NodeHeardAgain) -> bool:
    """Whether what leases says is of the past: of a life that is over, by a granter that has a successor, or of a silence that
    has ended. A message may be late by any time: its sender was frozen, or it went round by a broker that was. What has been
    granted since is not meant."""
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up or known.incarnation != m.incarnation:
        return True
    if m.epoch and m.epoch < d.state.granter_epoch:
        return True
    if isinstance(m, inbox.NodeHeardAgain) or m.since_us is None:
        return False
    silence = d.state.silent.get(m.node)
    return silence is None or silence.since_us != m.since_us


def node_lost(d: Decision, m: inbox.NodeLost) -> None:
    """All leases of the node have ended, or it left. Work that is kept is not given up by silence: then the node stays."""
    if _old(d, m):
        return
    if m.planned:
        reason = f"node {m.node} left: its agent was stopped"
        vacate(d, m.node, Evidence.NODE_LEFT, reason)
    else:
        reason = f"node {m.node} was silent for {m.silent_s:.1f} s: its lease has ended"
        if _kept(d, m.node):
            said = ledger.NodeSilence(
                node=m.node, incarnation=m.incarnation, silent_s=m.silent_s, kept=True, ended_lease_s=_LONGEST_S
            )
            known_as = d.state.silent.get(m.node)
            if d.may(said) and (known_as is None or not known_as.kept):
                _is_silent(d, said)
                _end_leases(d, m.node, _LONGEST_S, m.silent_s, reason)
            return
        vacate(d, m.node, Evidence.LEASE_ENDED, reason)
    d.emit(ledger.NodeLeft(node=m.node, incarnation=m.incarnation, reason=reason))


def node_silent(d: Decision, m: inbox.NodeSilent) -> None:
    """Nothing new is granted there, and work whose lease has surely ended is over. Each is told, also when no work is: who
    grants leases waits for it before it renews any of that node (`libs.core.projections.node_health`)."""
    said = ledger.NodeSilence(
        node=m.node, incarnation=m.incarnation, silent_s=m.silent_s, ended_lease_s=m.ended_lease_s
    )
    if _old(d, m) or not d.may(said):
        return
    known = d.state.silent.get(m.node)
    if known is None or (not known.kept and m.ended_lease_s > known.ended_lease_s):
        _is_silent(d, said)
    if m.ended_lease_s:
        reason = f"node {m.node} was silent for {m.silent_s:.1f} s: its lease has ended"
        _end_leases(d, m.node, m.ended_lease_s, m.silent_s, reason)


def _is_silent(d: Decision, said: ledger.NodeSilence) -> None:
    """Said first of a silence, it lets go what is held there."""
    first = said.node not in d.state.silent
    d.emit(said)
    if first:
        release_holds_on(d, said.node)


def node_heard(d: Decision, m: inbox.NodeHeardAgain) -> None:
    if m.node in d.state.silent and not _old(d, m):
        d.emit(ledger.NodeHeard(node=m.node, incarnation=m.incarnation))


def node_dead(d: Decision, m: inbox.NodeDead) -> None:
    """An operator's word frees what no silence does. It is refused for a node that is heard: that one can be asked."""
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up:
        raise InputRefused(
            f"node {m.node} is not up, so nothing of the ledger runs there: `baton get nodes` shows which are silent"
        )
    if m.incarnation is not None and m.incarnation != known.incarnation:
        came = "it has come back since" if m.incarnation < known.incarnation else "it has had no such life"
        raise InputRefused(
            f"node {m.node} is in life {known.incarnation} and not {m.incarnation}, {came}: "
            f"look again, and fence the life that runs now"
        )
    said = ledger.NodeDeclaredDead(node=m.node, incarnation=known.incarnation, fenced_by=m.fenced_by, user=m.user)
    if d.may(said) and m.node not in d.state.silent:
        raise InputRefused(f"node {m.node} is not silent: stop its agent instead, which ends its work in good order")
    reason = f"{ledger.DECLARED_DEAD}{m.user or 'an operator'}, fenced by: {m.fenced_by}"[:1024]
    if d.may(said):
        d.emit(said)
    vacate(d, m.node, Evidence.LEASE_ENDED, reason)
    d.emit(ledger.NodeLeft(node=m.node, incarnation=known.incarnation, reason=reason))


def granter_claimed(d: Decision, m: inbox.GranterClaimed) -> None:
    """The first claim of the next epoch gets the right; a later one of the same epoch comes too late, which is normal. Where
    it says what clocks read it is a tick as well: ledger time goes on by it, and what is over then ends."""
    named = ledger.GranterNamed(epoch=m.epoch, holder=m.holder, term_s=m.term_s, max_lease_s=m.max_lease_s)
    if m.epoch == d.state.granter_epoch + 1 and d.may(named):
        d.emit(named)
    if m.readings:
        _end_what_is_over(d)


def _kept(d: Decision, node: str) -> bool:
    return any(not d.state.jobs[job_id].lease_s for job_id in d.state.on_node.get(node, ()))


def _end_leases(d: Decision, node: str, ended_lease_s: float, silent_s: float, reason: str) -> None:
    """The parts on `node` with leases of at most this length are over, after so long a silence."""
    for job_id in list(d.state.on_node.get(node, ())):
        job = d.state.jobs[job_id]
        if 0 < job.lease_s <= ended_lease_s:
            attempt = job.current
            assert attempt is not None
            free(d, node, job, attempt, Evidence.LEASE_ENDED, reason, silent_s=silent_s)
            after_loss(d, job, attempt, Cause.PART_LOST, reason)


def tick(d: Decision, m: inbox.Tick) -> None:
    _end_what_is_over(d)


def _end_what_is_over(d: Decision) -> None:
    for job_id, end_us in list(d.state.limited.items()):
        job = d.state.jobs[job_id]
        if end_us <= d.t_us and job.current is not None and job.current.state in UNDECIDED:
            stop_at_limit(d, job)
            d.may_end_here()
    if d.state.budgets:
        budgets.renew(d)
        budgets.reached(d)
        budgets.let_go(d)
