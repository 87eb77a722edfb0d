"""What each inbox message leads to: one function per message, returning the ledger events that follow from it.

`Decision` collects events and applies each to the state at once, so that what is decided later in a batch sees what was
decided before. If the record is not committed, the state is thrown away with it (`libs.core.scheduling.decider`).

Facts may come twice, late, or from an earlier life of a node: what is already known leads to no event, what cannot be
true leads to `InputRejected` with a reason, and neither holds up the next message.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from libs.core.placement import Placed, View, find
from libs.core.placement.context import context_of, reserve_host_resources
from libs.core.placement.search.gang import cut
from libs.core.state import fold
from libs.core.state.lifecycle import PREEMPTIBLE
from libs.core.state.model import Attempt, Job, State
from schemas import inbox, ledger
from schemas.jobs import JobState
from schemas.resources import Inventory


class InputRefused(ValueError):
    """The message cannot be applied; the text says why."""


class Decision:
    """Events decided at `t_us`, each already applied to `state`."""

    def __init__(self, state: State, t_us: int) -> None:
        self.state = state
        self.t_us = t_us
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        fold.apply(self.state, event, self.t_us)
        self.events.append(event)

    def take(self, seq: int, subject: str, message: Any, error: str = "") -> None:
        """Decides one inbox message. `message` is None when it could not be read; then `error` says why."""
        try:
            if message is None:
                raise InputRefused(error or "unreadable message")
            _DECIDE[type(message)](self, message)
        except InputRefused as e:
            self.emit(ledger.InputRejected(inbox_seq=seq, subject=subject, reason=str(e)[:2048]))


def _job_admitted(d: Decision, m: inbox.JobAdmitted) -> None:
    state = d.state
    known = state.jobs[m.job_id].spec_hash if m.job_id in state.jobs else state.finished.get(m.job_id)
    if known == m.spec_hash:
        return
    if known is not None:
        raise InputRefused(f"client key {m.client_key!r} already names {m.job_id} with another body; use a new key")
    d.emit(
        ledger.JobQueued(
            job_id=m.job_id,
            team=m.team,
            spec=m.spec,
            spec_hash=m.spec_hash,
            client_key=m.client_key,
            priority=m.priority,
            preempts=m.preempts,
            submitted_us=m.submitted_us,
        )
    )


def _cancel_requested(d: Decision, m: inbox.CancelRequested) -> None:
    job = d.state.jobs.get(m.job_id)
    if job is None:
        if m.job_id in d.state.finished:
            return
        raise InputRefused(f"no job {m.job_id}")
    if job.team != m.team:
        raise InputRefused(f"no job {m.job_id} of team {m.team}")
    if job.state is JobState.QUEUED:
        _release_hold(d, job.id)
        d.emit(ledger.JobFinished(job_id=job.id, state=JobState.CANCELLED, reason=m.reason))
    elif job.state is not JobState.STOPPING:
        _stop(d, job, "cancelled", m.reason)


def _node_registered(d: Decision, m: inbox.NodeRegistered) -> None:
    name = m.inventory.node
    known = d.state.fleet.nodes.get(name)
    if known is not None and m.incarnation <= known.incarnation:
        if m.incarnation == known.incarnation and known.up:
            return
        raise InputRefused(
            f"node {name}: incarnation {m.incarnation} is not newer than {known.incarnation}; restart its agent"
        )
    _refuse_foreign(d, m.inventory)
    _vacate(d, name, "new-incarnation", f"node {name} started anew")
    d.emit(ledger.NodeJoined(incarnation=m.incarnation, inventory=m.inventory))


def _node_lost(d: Decision, m: inbox.NodeLost) -> None:
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up or known.incarnation != m.incarnation:
        return
    if m.planned:
        reason = f"node {m.node} left: its agent was stopped"
        _vacate(d, m.node, "node-left", reason)
    else:
        reason = f"node {m.node} was silent for {m.silent_s:.1f} s: its lease has ended"
        _vacate(d, m.node, "lease-ended", reason)
    d.emit(ledger.NodeLeft(node=m.node, incarnation=m.incarnation, reason=reason))


def _node_observed(d: Decision, m: inbox.NodeObserved) -> None:
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up or known.incarnation != m.incarnation:
        raise InputRefused(f"node {m.node}, incarnation {m.incarnation}, is not up: what it saw no longer counts")
    for seen in m.observations:
        job = d.state.jobs.get(seen.job_id)
        attempt = job.current if job is not None else None
        if job is None or attempt is None or attempt.number != seen.attempt or m.node not in attempt.parts:
            continue  # it has ended since: a repeated or late report
        if not attempt.parts[m.node].freed:
            _OBSERVE[type(seen)](d, m.node, job, attempt, seen)


def _started(d: Decision, node: str, job: Job, attempt: Attempt, seen: inbox.Started) -> None:
    if attempt.parts[node].started or job.state not in (JobState.GRANTED, JobState.STARTING):
        return
    if sum(not part.started for part in attempt.parts.values()) == 1:
        d.emit(ledger.AttemptRunning(job_id=job.id, attempt=attempt.number))
    else:
        d.emit(ledger.AttemptStarting(job_id=job.id, attempt=attempt.number, node=node))


def _checkpointed(d: Decision, node: str, job: Job, attempt: Attempt, seen: inbox.CheckpointTaken) -> None:
    last = job.resume
    if last is not None and (seen.checkpoint == last or seen.checkpoint.step < last.step):
        return
    d.emit(ledger.AttemptCheckpointed(job_id=job.id, attempt=attempt.number, checkpoint=seen.checkpoint))


def _released(d: Decision, node: str, job: Job, attempt: Attempt, seen: inbox.Released) -> None:
    _free(d, node, job, attempt, "released", seen.reason, seen.exit_code, seen.own_exit)
    if not attempt.cause and not (seen.own_exit and seen.exit_code == 0):
        if seen.own_exit:
            attempt_failed = f"its part on {node} exited with {seen.exit_code}"
            _stop(d, job, "part-failed", f"{attempt_failed}: {seen.reason}" if seen.reason else attempt_failed)
        else:
            _stop(d, job, "part-lost", seen.reason or f"node {node} stopped it by itself")
    _close_if_gone(d, job, attempt)


def _refused(d: Decision, node: str, job: Job, attempt: Attempt, seen: inbox.Refused) -> None:
    _free(d, node, job, attempt, "refused", seen.reason)
    _after_loss(d, job, attempt, "part-refused", f"node {node} refused it: {seen.reason}")


def _board_cut(d: Decision, m: inbox.BoardCut) -> None:
    """The first report of the recut that is under way counts; repeated and older ones say nothing new."""
    known = d.state.fleet.nodes.get(m.node)
    if known is None or not known.up or known.incarnation != m.incarnation:
        raise InputRefused(f"node {m.node}, incarnation {m.incarnation}, is not up: what it cut no longer counts")
    asked = d.state.repartitions.get(m.board)
    if asked is None or asked.node != m.node or asked.recut.number != m.number:
        if m.number <= d.state.repartition_number.get(m.board, 0):
            return
        raise InputRefused(f"node {m.node} was not asked for cut {m.number} of board {m.board}")
    if m.inventory.node != m.node:
        raise InputRefused(f"node {m.node} reports a cut with the inventory of {m.inventory.node}")
    _refuse_foreign(d, m.inventory)
    offered = {device.id for device in m.inventory.devices}
    for job_id in d.state.on_node.get(m.node, {}):
        attempt = d.state.jobs[job_id].current
        assert attempt is not None
        lost = next((c.device for c in attempt.parts[m.node].claims if c.device not in offered), None)
        if lost is not None:
            raise InputRefused(f"node {m.node} reports a cut without {lost}, which {job_id} holds")
    d.emit(
        ledger.BoardCutDone(
            node=m.node,
            incarnation=m.incarnation,
            board=m.board,
            number=m.number,
            ok=m.ok,
            reason=m.reason,
            inventory=m.inventory,
        )
    )


def _refuse_foreign(d: Decision, inventory: Inventory) -> None:
    """Raises InputRefused when a device already belongs to another node that is up."""
    fleet = d.state.fleet
    for device in inventory.devices:
        row = fleet.devices.find(device.id)
        if row >= 0 and fleet.up[row] and (owner := fleet.node_names.names[int(fleet.node[row])]) != inventory.node:
            raise InputRefused(
                f"node {inventory.node}: device {device.id} already belongs to node {owner}; device ids are unique"
            )


def _tick(d: Decision, m: inbox.Tick) -> None:
    for job_id, end_us in list(d.state.limited.items()):
        job = d.state.jobs[job_id]
        if end_us <= d.t_us and job.state is JobState.RUNNING:
            _stop(d, job, "time-limit", f"it ran for its time limit of {job.spec.time_limit_s:g} s")


def _quota_changed(d: Decision, m: inbox.QuotaChanged) -> None:
    if d.state.quotas.get(m.team) != m.limit_milli:
        d.emit(ledger.QuotaSet(team=m.team, limit_milli=m.limit_milli))


def _preemption_planned(d: Decision, m: inbox.PreemptionPlanned) -> None:
    """A plan may be stale: everything is checked again, on the fleet as it would be without the victims."""
    state = d.state
    job = state.jobs.get(m.beneficiary)
    if job is None or job.state is not JobState.QUEUED:
        raise InputRefused(f"plan {m.plan_id}: {m.beneficiary} is not waiting any more")
    if m.beneficiary in state.holds:
        raise InputRefused(f"plan {m.plan_id}: devices are already held for {m.beneficiary}")
    if not job.preempts:
        raise InputRefused(f"plan {m.plan_id}: the class of {m.beneficiary} may not preempt")
    victims = [_victim(d, m, job, victim) for victim in dict.fromkeys(m.victims)]
    view = would_be_free(state, victims)
    rows = [_plan_row(state, m, device) for device in m.devices]
    request = cut(job.shape, len(rows))
    if request is None or request.devices != len(set(rows)) or len(set(rows)) != len(rows):
        raise InputRefused(f"plan {m.plan_id}: {len(set(rows))} devices for a job of {job.shape.devices}")
    _keep_only(view, rows)
    context = context_of(state, job, d.t_us, without={victim.id for victim in victims})
    if not isinstance(find(view, request, context=context), Placed):
        raise InputRefused(f"plan {m.plan_id}: {m.beneficiary} would not fit on the planned devices")
    limit = state.quotas.get(job.team)
    if limit is not None and state.committed_milli(job.team) + request.total_milli > limit:
        raise InputRefused(f"plan {m.plan_id}: team {job.team} would exceed its quota of {limit} milli")
    for victim in victims:
        assert victim.current is not None
        d.emit(
            ledger.AttemptPreempting(
                job_id=victim.id,
                attempt=victim.current.number,
                beneficiary=job.id,
                plan_id=m.plan_id,
                reason=m.reason,
            )
        )
    d.emit(ledger.DevicesHeld(job_id=job.id, devices=m.devices))


def would_be_free(state: State, victims: list[Job]) -> View:
    """The fleet as it would be if `victims` had given everything back."""
    view = View.of(state.fleet)
    for victim in victims:
        if victim.current is None:
            continue
        for part in victim.current.parts.values():
            for claim in () if part.freed else part.claims:
                row = state.fleet.row(claim.device)
                view.free_milli[row] += claim.milli
                view.free_mib[row] += claim.memory_mib
                view.free_cpu[state.fleet.node[row]] += claim.cpu_milli
                view.free_host[state.fleet.node[row]] += claim.host_memory_mib
    reserve_host_resources(state, view)
    return view


def _keep_only(view: View, rows: list[int]) -> None:
    outside = np.ones(len(view.blocked), dtype=np.bool_)
    outside[rows] = False
    view.blocked |= outside


def _victim(d: Decision, m: inbox.PreemptionPlanned, job: Job, victim_id: str) -> Job:
    victim = d.state.jobs.get(victim_id)
    if victim is None or victim.state not in PREEMPTIBLE:
        raise InputRefused(f"plan {m.plan_id}: {victim_id} is not running any more")
    if victim.priority >= job.priority:
        raise InputRefused(f"plan {m.plan_id}: {victim_id} is not of a lower class than {job.id}")
    return victim


def _plan_row(state: State, m: inbox.PreemptionPlanned, device: str) -> int:
    row = state.fleet.devices.find(device)
    if row < 0:
        raise InputRefused(f"plan {m.plan_id}: no device {device}")
    return row


def _vacate(d: Decision, node: str, evidence: Any, reason: str) -> None:
    """A node's word, or its silence, frees everything it held; its gangs end elsewhere too."""
    for job_id in list(d.state.on_node.get(node, {})):
        job = d.state.jobs[job_id]
        attempt = job.current
        assert attempt is not None
        _free(d, node, job, attempt, evidence, reason)
        _after_loss(d, job, attempt, fold.CAUSES[evidence], reason)
    held = {device for devices in d.state.holds.values() for device in devices}
    rows = d.state.fleet.nodes[node].rows if node in d.state.fleet.nodes else []
    gone = held & {d.state.fleet.devices.names[row] for row in rows}
    for holder, devices in list(d.state.holds.items()):
        if gone & set(devices):
            _release_hold(d, holder)


def _after_loss(d: Decision, job: Job, attempt: Attempt, cause: Any, reason: str) -> None:
    if job.state is not JobState.STOPPING and job.state is not JobState.PREEMPTING:
        _stop(d, job, cause, reason)
    _close_if_gone(d, job, attempt)


def _free(
    d: Decision,
    node: str,
    job: Job,
    attempt: Attempt,
    evidence: Any,
    reason: str,
    exit_code: int | None = None,
    own_exit: bool = False,
) -> None:
    d.emit(
        ledger.DevicesFreed(
            job_id=job.id,
            attempt=attempt.number,
            node=node,
            devices=tuple(c.device for c in attempt.parts[node].claims),
            evidence=evidence,
            exit_code=exit_code,
            own_exit=own_exit,
            reason=reason,
        )
    )


def _stop(d: Decision, job: Job, cause: Any, reason: str) -> None:
    attempt = job.current
    assert attempt is not None
    d.emit(ledger.AttemptStopping(job_id=job.id, attempt=attempt.number, cause=cause, reason=reason[:1024]))


def _close_if_gone(d: Decision, job: Job, attempt: Attempt) -> None:
    """The last part is gone: the attempt's outcome, and what becomes of the job."""
    if not all(part.freed for part in attempt.parts.values()):
        return
    codes = [part.exit_code for part in attempt.parts.values() if part.own_exit]
    done = len(codes) == len(attempt.parts) and not any(codes)
    code = next((c for c in (p.exit_code for p in attempt.parts.values()) if c), 0 if done else None)
    outcome: Any = "succeeded" if done and attempt.cause in ("", "preempted") else _OUTCOMES[attempt.cause]
    d.emit(ledger.AttemptClosed(job_id=job.id, attempt=attempt.number, outcome=outcome))
    again = {
        "preempted": True,
        "drained": True,
        "lost": job.lost <= job.spec.retry.on_lost,
        "refused": job.lost <= job.spec.retry.on_lost,
        "failed": job.failures <= job.spec.retry.on_failure,
    }
    if again.get(outcome, False):
        d.emit(ledger.JobRequeued(job_id=job.id, reason=attempt.reason or outcome, resume=job.resume))
        return
    state = {"succeeded": JobState.SUCCEEDED, "cancelled": JobState.CANCELLED}.get(outcome, JobState.FAILED)
    d.emit(ledger.JobFinished(job_id=job.id, state=state, reason=attempt.reason, exit_code=code))


def _release_hold(d: Decision, job_id: str) -> None:
    if job_id in d.state.holds:
        d.emit(ledger.HoldReleased(job_id=job_id))


_OUTCOMES: dict[str, Any] = {
    "": "failed",
    "cancelled": "cancelled",
    "time-limit": "time-limit",
    "preempted": "preempted",
    "part-failed": "failed",
    "part-lost": "lost",
    "node-left": "drained",
    "part-refused": "refused",
}
_DECIDE: dict[type, Callable[[Decision, Any], None]] = {
    inbox.JobAdmitted: _job_admitted,
    inbox.CancelRequested: _cancel_requested,
    inbox.NodeRegistered: _node_registered,
    inbox.NodeObserved: _node_observed,
    inbox.NodeLost: _node_lost,
    inbox.BoardCut: _board_cut,
    inbox.Tick: _tick,
    inbox.QuotaChanged: _quota_changed,
    inbox.PreemptionPlanned: _preemption_planned,
}
_OBSERVE: dict[type, Callable[[Decision, str, Job, Attempt, Any], None]] = {
    inbox.Started: _started,
    inbox.CheckpointTaken: _checkpointed,
    inbox.Released: _released,
    inbox.Refused: _refused,
}
