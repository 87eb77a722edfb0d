"""What each ledger event changes in the state. Every valid ledger can be folded; an impossible event stops the fold.

    state' = fold(state, record)          the same ledger gives the same state, anywhere (I9)

`lifecycle.TABLE` alone moves the states of jobs and attempts. A function here does everything else that its event means,
and sees those states as they were before the event.

Errors (`Forbidden`, `Overcommitted`, `KeyError`) mean that the ledger is corrupt or was written by newer code: the
reader stops loudly and never skips.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from libs.core.state import lifecycle
from libs.core.state.boosts import Boost
from libs.core.state.early_cancels import EarlyCancel
from libs.core.state.ended import KEPT_US
from libs.core.state.limits import Limits, Suspension
from libs.core.state.model import Attempt, Job, NodePart, Quarantine, Silence, State, running
from libs.core.state.past_use import user_of
from libs.core.state.queue_tree import QueueTree
from libs.core.state.shape import shape_of
from libs.core.state.usable import (
    BY_ITSELF,
    count_parts,
    mark_cordoned,
    mark_quarantined,
    mark_repartitions,
    mark_silent,
    reopen,
    reopen_device,
    shut,
)
from libs.core.state.waiting import back_off, dequeue, enqueue, park, pass_time, unpark
from schemas import ledger as led
from schemas.attempts import Category, Cause, Evidence, Outcome, StopCause
from schemas.jobs import JobState
from schemas.queues import MOST_PER_JOB
from schemas.resources import WHOLE_MILLI, Claim, Inventory

CAUSES: dict[Evidence, StopCause] = {
    Evidence.REFUSED: Cause.PART_REFUSED,
    Evidence.LEASE_ENDED: Cause.PART_LOST,
    Evidence.NEW_INCARNATION: Cause.PART_LOST,
    Evidence.NODE_LEFT: Cause.NODE_LEFT,
}
"""Why an attempt must end when a part of it is freed by this evidence, and nothing was decided before."""

_CATEGORIES: dict[Outcome, Category] = {
    Outcome.SUCCEEDED: Category.SUCCESS,
    Outcome.FAILED: Category.USER_ERROR,
    Outcome.LOST: Category.NODE_LOST,
    Outcome.PREEMPTED: Category.PREEMPTED,
    Outcome.CANCELLED: Category.CANCELLED,
    Outcome.TIME_LIMIT: Category.TIME_LIMIT,
    Outcome.REFUSED: Category.REFUSED,
    Outcome.DRAINED: Category.DRAINED,
}
"""What an outcome counted as before records said the category."""


def apply(state: State, event: led.LedgerEvent, t_us: int) -> None:
    """Changes `state` by one event of a record decided at `t_us`. An event changes no job but the one that it is about, and
    in which queues others stand."""
    about = lifecycle.of_job(event)
    if about is None:
        _FOLD[type(event)](state, event, t_us)
    else:
        _of_job(state, about, event, t_us)
    if state.turns is not None:
        state.turns.note(state, event, t_us)


def _of_job(state: State, about: led.EventOfJob, event: led.LedgerEvent, t_us: int) -> None:
    if state.cuts:
        state.cuts.before_change(about.job_id)
    jobs, job_id = state.jobs, about.job_id
    job = jobs.get(job_id)
    job_state, attempt_state = lifecycle.after(about, *(job.states if job is not None else (None, None)))
    _FOLD[type(event)](state, event, t_us)
    job = jobs.get(job_id)
    if job is not None and job_state is not None:
        job.state = job_state
        if job.current is not None and attempt_state is not None:
            job.current.state = attempt_state


def apply_record(state: State, record: led.LedgerRecord) -> None:
    """Changes `state` by a whole valid record."""
    back = pass_time(state, record.t_us)
    if state.turns is not None:
        state.turns.begin(state, record.t_us, back)
    for event in record.events:
        apply(state, event, record.t_us)
    state.t_us = record.t_us
    state.wall_us = record.wall_us if record.wall_us is not None else record.t_us
    state.inbox_seq = record.inbox_seq


def _node_joined(state: State, e: led.NodeJoined, t_us: int) -> None:
    state.fleet.join(e.inventory, e.incarnation)
    state.silent.pop(e.inventory.node, None)
    state.on_node.setdefault(e.inventory.node, {})
    _forget_repartitions(state, e.inventory.node)
    _forget_quarantines(state, e.inventory)
    for device, known in list(state.quarantined.items()):
        if known.lifted and known.node == e.inventory.node:
            del state.quarantined[device]  # this life has said anew what is in quarantine
    mark_quarantined(state)
    mark_cordoned(state)


def _node_left(state: State, e: led.NodeLeft, t_us: int) -> None:
    state.fleet.leave(e.node)
    state.silent.pop(e.node, None)
    _forget_repartitions(state, e.node)


def _forget_repartitions(state: State, node: str) -> None:
    """Forgets the repartitions asked of a node: it starts anew or is gone."""
    for board in [board for board, asked in state.repartitions.items() if asked.node == node]:
        del state.repartitions[board]
        state.withdrawn.discard(board)


def _board_repartitioned(state: State, e: led.BoardRecut, t_us: int) -> None:
    board = e.recut.board
    for device in e.recut.destroy:
        if state.fleet.free_milli[state.fleet.row(device)] != WHOLE_MILLI:
            raise lifecycle.Forbidden(f"{device} is to be destroyed while it is in use")
    if board in state.repartitions:
        raise lifecycle.Forbidden(f"board {board} is to be repartitioned while its last repartition is under way")
    state.repartitions[board], state.repartition_number[board], state.repartition_us[board] = e, e.recut.number, t_us
    mark_repartitions(state)


def _board_cut_done(state: State, e: led.BoardCutDone, t_us: int) -> None:
    """Claims stay with their devices: rows are found by device id, and a row that joins again keeps its free amounts."""
    del state.repartitions[e.board]
    state.withdrawn.discard(e.board)
    state.fleet.join(e.inventory, e.incarnation)
    _forget_quarantines(state, e.inventory)
    mark_repartitions(state)
    mark_quarantined(state)
    mark_cordoned(state)
    mark_silent(state)


def _board_repartition_withdrawn(state: State, e: led.BoardRecutWithdrawn, t_us: int) -> None:
    """The node is asked what the board is now. Instances that it may have destroyed stay out of placement until it answers."""
    asked = state.repartitions.get(e.board)
    if asked is None or asked.recut.number != e.number:
        raise lifecycle.Forbidden(f"repartition {e.number} of board {e.board} is withdrawn and was not under way")
    state.withdrawn.add(e.board)


def _quota_set(state: State, e: led.QuotaSet, t_us: int) -> None:
    limits = Limits.of(e.limit_milli, e.by_type)
    if limits is None:
        state.quotas.pop(e.team, None)
    else:
        state.quotas[e.team] = limits


def _queues_applied(state: State, e: led.QueuesApplied, t_us: int) -> None:
    state.tree = QueueTree.said(e)
    state.past_use.begins((e.half_life_s or 0) * 1_000_000, state.used, t_us)
    state.past_use_by.begins((e.half_life_s or 0) * 1_000_000, state.used_by, t_us)
    _share_by_user(state)
    state.budgets.rebase(state.tree, _attempts(state) if state.budgets else (), t_us)


def _share_by_user(state: State) -> None:
    """Jobs stand in the queues of their users, or of their teams, as the tree says from here on."""
    by_user: dict[str, bool] = {}
    for job in state.jobs.values():
        if job.team not in by_user:
            by_user[job.team] = state.tree.by_user(job.team)
        if job.by_user is not by_user[job.team]:
            with _moved(state, job):
                job.shares(by_user[job.team])


def _prices_applied(state: State, e: led.PricesApplied, t_us: int) -> None:
    state.book = e.book


def _period_closed(state: State, e: led.PeriodClosed, t_us: int) -> None:
    state.closed_us = (state.closed_us[0] if state.closed_us else e.period.from_us, e.period.to_us)


def _budgets_applied(state: State, e: led.BudgetsApplied, t_us: int) -> None:
    state.budgets.apply(e.budgets, state.tree, _attempts(state), t_us)


def _budget_topped_up(state: State, e: led.BudgetToppedUp, t_us: int) -> None:
    state.budgets.top_up(e.budget, e.amount)


def _budget_period_began(state: State, e: led.BudgetPeriodBegan, t_us: int) -> None:
    state.budgets.turn(e.period, e.from_us, e.to_us, e.at_us, e.wall_us)


def _budget_holds_renewed(state: State, e: led.BudgetHoldsRenewed, t_us: int) -> None:
    for job_id in e.jobs:
        attempt = state.jobs[job_id].current
        if attempt is None:
            raise lifecycle.Forbidden(f"{job_id} has a hold renewed and no open attempt")
        state.budgets.renew(job_id, state.devices_of(attempt), e.hold, t_us)


def _budget_reached(state: State, e: led.BudgetReached, t_us: int) -> None:
    state.budgets.reached(e.budget, 2 if e.level == "hard" else 1)


def _attempts(state: State) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Job, team and devices of every open attempt."""
    return [(job.id, job.team, state.devices_of(job.current)) for job in running(state) if job.current is not None]


def _team_suspended(state: State, e: led.TeamSuspended, t_us: int) -> None:
    known = state.suspended.get(e.team)
    state.suspended[e.team] = Suspension(known.since_us if known is not None else t_us, e.reason, e.user)
    park(state, e.team)


def _team_resumed(state: State, e: led.TeamResumed, t_us: int) -> None:
    del state.suspended[e.team]
    state.resumed.pop(e.team, None)
    state.resumed = {team: at for team, at in state.resumed.items() if at >= t_us - KEPT_US} | {e.team: t_us}
    unpark(state, e.team)


def _job_queued(state: State, e: led.JobQueued, t_us: int) -> None:
    if state.finished.knows(e.job_id, t_us):
        raise lifecycle.Forbidden(f"{e.job_id} is queued a second time")
    job = Job(
        e.job_id, e.team, e.spec, e.spec_hash, e.priority, e.preempts, submitted_us=e.submitted_us, queued_us=t_us,
        shape=shape_of(e.spec, e.network),
        latency=e.latency, lease_s=e.lease_s, network=e.network, user=e.user, by_user=state.tree.by_user(e.team),
    )  # fmt: skip
    state.jobs[e.job_id] = job
    state.early_cancels.forget(e.job_id)
    enqueue(state, job)


def _job_granted(state: State, e: led.JobGranted, t_us: int) -> None:
    job = state.jobs[e.job_id]
    if e.attempt != job.attempts + 1:
        raise lifecycle.Forbidden(f"{e.job_id}: attempt {e.attempt} follows attempt {job.attempts}")
    state.fleet.take(e.claims)
    state.reserved.pop(e.job_id, None)
    dequeue(state, job)
    by_node: dict[str, list[Claim]] = {}
    for claim in e.claims:
        by_node.setdefault(claim.node, []).append(claim)
    parts = {node: NodePart(node, tuple(claims)) for node, claims in by_node.items()}
    job.attempts = e.attempt
    job.current = Attempt(e.attempt, e.claims, parts, granted_us=t_us, span=e.span)
    job.first_grant_us = job.first_grant_us or t_us
    for node in parts:
        state.on_node[node][job.id] = None
        count_parts(state, node)
    if job.shape.spread[0]:
        state.spread_peers.setdefault((job.team, job.shape.spread[0]), {})[job.id] = None
    _count_use(state, job, e.claims, 1, t_us)
    if e.hold is not None and state.budgets.covering(job.team):
        state.budgets.open(job.id, job.team, state.devices_of(job.current), e.hold, t_us)
    state.grants += 1


def _attempt_starting(state: State, e: led.AttemptStarting, t_us: int) -> None:
    _, attempt = _current(state, e.job_id, e.attempt)
    part = attempt.parts[e.node]
    attempt.unstarted -= not part.started
    part.started = True


def _attempt_running(state: State, e: led.AttemptRunning, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    attempt.running_us = t_us
    for part in attempt.parts.values():
        part.started = True
    attempt.unstarted = 0
    if job.spec.time_limit_s:
        state.limited[job.id] = t_us + int(job.spec.time_limit_s * 1_000_000)


def _attempt_checkpointed(state: State, e: led.AttemptCheckpointed, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    attempt.checkpoint, attempt.checkpoint_us = e.checkpoint, t_us
    job.resume = e.checkpoint


def _attempt_progress(state: State, e: led.AttemptProgress, t_us: int) -> None:
    _, attempt = _current(state, e.job_id, e.attempt)
    attempt.progress, attempt.progress_us = e.progress, t_us


def _job_boosted(state: State, e: led.JobBoosted, t_us: int) -> None:
    job = state.jobs[e.job_id]
    own = job.priority if job.boost is None else job.boost.own_priority
    job.boost = Boost(own, e.until_us, e.reason, e.user)
    state.boosted[job.id] = e.until_us
    state.boosts_had.note(job.team, t_us)
    _ranks(state, job, e.priority)


def _boost_ended(state: State, e: led.BoostEnded, t_us: int) -> None:
    job = state.jobs[e.job_id]
    job.boost = None
    state.boosted.pop(job.id, None)
    _ranks(state, job, e.priority)


def _ranks(state: State, job: Job, priority: int) -> None:
    with _moved(state, job):
        job.ranks(priority)


@contextmanager
def _moved(state: State, job: Job) -> Iterator[None]:
    """Its queue is another one after this; it stands in none meanwhile."""
    waits = job.state is JobState.QUEUED and job.id not in state.backing_off
    if waits:
        dequeue(state, job)
    yield
    if waits:
        enqueue(state, job)


def _attempt_preempting(state: State, e: led.AttemptPreempting, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    attempt.ended_us = t_us
    attempt.cause, attempt.reason, attempt.beneficiary = Cause.PREEMPTED, e.reason, e.beneficiary
    attempt.cost_device_s = e.cost_device_s
    job.preemptions += 1
    job.preempted_us = (*job.preempted_us, t_us)[-MOST_PER_JOB:]
    state.preemptions += 1
    state.preempted.note(t_us)


def _attempt_stopping(state: State, e: led.AttemptStopping, t_us: int) -> None:
    _, attempt = _current(state, e.job_id, e.attempt)
    attempt.ended_us = attempt.ended_us or t_us
    attempt.cause, attempt.reason = e.cause, e.reason


def _devices_freed(state: State, e: led.DevicesFreed, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    part = attempt.parts[e.node]
    if part.freed:
        raise lifecycle.Forbidden(f"{e.job_id}.{e.attempt}: its part on {e.node} is freed twice")
    part.freed, part.exit_code, part.own_exit = True, e.exit_code, e.own_exit
    attempt.unfreed -= 1
    if attempt.cause is None and not (e.own_exit and e.exit_code == 0):
        attempt.ended_us = state.silent[e.node].since_us if e.node in state.silent else t_us
        attempt.failed_category = e.category
        attempt.failed_code = e.exit_code if e.own_exit else None
        if e.evidence in CAUSES:
            attempt.cause, attempt.reason = CAUSES[e.evidence], e.reason
    state.fleet.give_back(part.claims)
    state.on_node[e.node].pop(job.id, None)
    count_parts(state, e.node)
    _count_use(state, job, part.claims, -1, t_us)
    if job.id in state.budgets.holds:
        state.budgets.freed(job.id, state.devices_of(attempt), t_us)


def _attempt_closed(state: State, e: led.AttemptClosed, t_us: int) -> None:
    job, attempt = _current(state, e.job_id, e.attempt)
    if attempt.unfreed:
        raise lifecycle.Forbidden(f"{e.job_id}.{e.attempt} is closed while a part of it still holds devices")
    category = e.category or _CATEGORIES[e.outcome]
    job.endings = {**job.endings, category: job.endings.get(category, 0) + 1}
    job.closed()
    if job.shape.spread[0]:
        _leave_spread_peers(state, job)
    state.limited.pop(job.id, None)


def _job_requeued(state: State, e: led.JobRequeued, t_us: int) -> None:
    job = state.jobs[e.job_id]
    job.resume, job.losses, job.not_before_us = e.resume, e.losses, e.not_before_us or 0
    if job.not_before_us > t_us:
        back_off(state, job)
    else:
        enqueue(state, job)


def _job_finished(state: State, e: led.JobFinished, t_us: int) -> None:
    job = state.jobs[e.job_id]
    if job.state is JobState.QUEUED:
        dequeue(state, job)
    del state.jobs[e.job_id]
    state.boosted.pop(e.job_id, None)
    state.reserved.pop(e.job_id, None)
    state.finished.add(e.job_id, job.spec_hash, t_us)
    state.finished_by_state[e.state.value] = state.finished_by_state.get(e.state.value, 0) + 1


def _devices_held(state: State, e: led.DevicesHeld, t_us: int) -> None:
    state.holds[e.job_id] = e.devices
    mark_holds(state)


def _hold_released(state: State, e: led.HoldReleased, t_us: int) -> None:
    state.holds.pop(e.job_id, None)
    mark_holds(state)


def _gang_promised(state: State, e: led.GangPromised, t_us: int) -> None:
    """Nothing changes here: what follows the fold keeps it (`State.turns`)."""


def _input_rejected(state: State, e: led.InputRejected, t_us: int) -> None:
    """Nothing changes but that a cancel whose job is unknown is remembered: the job may be on its way."""
    asked = e.request
    if asked is not None and asked.what == "cancel" and not asked.known:
        cancel = EarlyCancel(asked.team, asked.user, asked.text, asked.stored_us)
        state.early_cancels.note(asked.job_id, cancel)


def _plan_declined(state: State, e: led.PlanDeclined, t_us: int) -> None:
    """Nothing changes: the record only answers whoever planned."""


def _clock_jumped(state: State, e: led.ClockJumped, t_us: int) -> None:
    """Nothing changes: ledger time is the record's, and did not jump."""


def _segment_sealed(state: State, e: led.SegmentSealed, t_us: int) -> None:
    """Nothing changes: where records are stored is no part of the state."""


def _granter_named(state: State, e: led.GranterNamed, t_us: int) -> None:
    if e.epoch <= state.granter_epoch:
        raise lifecycle.Forbidden(f"epoch {e.epoch} of leases follows {state.granter_epoch}")
    state.granter_epoch = e.epoch


def _node_silent(state: State, e: led.NodeSilence, t_us: int) -> None:
    known = state.silent.get(e.node)
    since_us = known.since_us if known is not None else max(0, t_us - int(e.silent_s * 1_000_000))
    state.silent[e.node] = Silence(since_us, e.kept, e.ended_lease_s)
    mark_silent(state)


def _node_heard(state: State, e: led.NodeHeard, t_us: int) -> None:
    del state.silent[e.node]
    reopen(state, e.node)


def _device_quarantined(state: State, e: led.DeviceQuarantined, t_us: int) -> None:
    state.quarantined[e.device] = Quarantine(e.node, e.users, e.since_us)
    shut(state, e.device)


def _device_returned(state: State, e: led.DeviceReturned, t_us: int) -> None:
    known = state.quarantined.pop(e.device, None)
    if known is None:
        return
    if e.user:
        state.quarantined[e.device] = known._replace(lifted=True)
    if e.node not in state.silent:
        reopen_device(state, e.node, e.device)


def _node_cordoned(state: State, e: led.NodeCordoned, t_us: int) -> None:
    state.cordoned[e.node] = f"{e.user or BY_ITSELF}: {e.reason}"
    mark_cordoned(state)


def _node_uncordoned(state: State, e: led.NodeUncordoned, t_us: int) -> None:
    del state.cordoned[e.node]
    if e.node not in state.silent:
        reopen(state, e.node)


def _devices_reserved(state: State, e: led.DevicesReserved, t_us: int) -> None:
    if e.devices:
        state.reserved[e.gang] = e.devices
    else:
        state.reserved.pop(e.gang, None)


def _devices_fragmented(state: State, e: led.DevicesFragmented, t_us: int) -> None:
    state.fragmented = e.units


def _forget_quarantines(state: State, inventory: Inventory) -> None:
    """Of devices that the node no longer has, or has from another one."""
    offered = {device.id for device in inventory.devices}
    for device, known in list(state.quarantined.items()):
        if (device in offered) is not (known.node == inventory.node):
            del state.quarantined[device]


def _node_declared_dead(state: State, e: led.NodeDeclaredDead, t_us: int) -> None:
    """Nothing changes by this: what it held is freed, and the node leaves, in events of the same record."""


def _for_auditors(state: State, e: led.OperatorActed | led.CommandRefused | led.LedgerSummed, t_us: int) -> None:
    """Nothing changes: it is kept for who reads the ledger."""


def hold_code(state: State, job_id: str) -> int:
    """The code that marks devices held for `job_id` in `fleet.held`; -1 when it holds none."""
    return next((code for code, beneficiary in enumerate(state.holds) if beneficiary == job_id), -1)


def mark_holds(state: State) -> None:
    """Rewrites `fleet.held` from `state.holds` (few at any time)."""
    state.fleet.held[:] = -1
    for code, devices in enumerate(state.holds.values()):
        for device in devices:
            state.fleet.held[state.fleet.row(device)] = code


def _current(state: State, job_id: str, number: int) -> tuple[Job, Attempt]:
    job = state.jobs.get(job_id)
    if job is None or job.current is None or job.current.number != number:
        raise lifecycle.Forbidden(f"{job_id}.{number} is not a running attempt")
    return job, job.current


def _leave_spread_peers(state: State, job: Job) -> None:
    key = (job.team, job.shape.spread[0])
    del state.spread_peers[key][job.id]
    if not state.spread_peers[key]:
        del state.spread_peers[key]


def _count_use(state: State, job: Job, claims: Iterable[Claim], sign: int, t_us: int) -> None:
    kinds: dict[str, int] = {}
    for claim in claims:
        kind = state.fleet.kind(state.fleet.row(claim.device))
        kinds[kind] = kinds.get(kind, 0) + sign * claim.milli
    for name, everyone, past in (
        (job.team, state.used, state.past_use),
        (user_of(job.team, job.user), state.used_by, state.past_use_by),
    ):
        used = everyone.setdefault(name, {})
        past.changes(name, used, everyone, t_us)
        for kind, milli in kinds.items():
            used[kind] = used.get(kind, 0) + milli
            if not used[kind]:
                del used[kind]
        if not used:
            del everyone[name]


_FOLD: dict[type, Callable[[State, Any, int], None]] = {
    led.NodeJoined: _node_joined,
    led.NodeLeft: _node_left,
    led.QuotaSet: _quota_set,
    led.QueuesApplied: _queues_applied,
    led.PricesApplied: _prices_applied,
    led.PeriodClosed: _period_closed,
    led.BudgetsApplied: _budgets_applied,
    led.BudgetToppedUp: _budget_topped_up,
    led.BudgetPeriodBegan: _budget_period_began,
    led.BudgetHoldsRenewed: _budget_holds_renewed,
    led.BudgetReached: _budget_reached,
    led.TeamSuspended: _team_suspended,
    led.TeamResumed: _team_resumed,
    led.JobQueued: _job_queued,
    led.JobBoosted: _job_boosted,
    led.BoostEnded: _boost_ended,
    led.JobGranted: _job_granted,
    led.AttemptStarting: _attempt_starting,
    led.AttemptRunning: _attempt_running,
    led.AttemptCheckpointed: _attempt_checkpointed,
    led.AttemptProgress: _attempt_progress,
    led.AttemptPreempting: _attempt_preempting,
    led.AttemptStopping: _attempt_stopping,
    led.DevicesFreed: _devices_freed,
    led.AttemptClosed: _attempt_closed,
    led.JobRequeued: _job_requeued,
    led.JobFinished: _job_finished,
    led.DevicesHeld: _devices_held,
    led.HoldReleased: _hold_released,
    led.GangPromised: _gang_promised,
    led.BoardRecut: _board_repartitioned,
    led.BoardCutDone: _board_cut_done,
    led.BoardRecutWithdrawn: _board_repartition_withdrawn,
    led.InputRejected: _input_rejected,
    led.PlanDeclined: _plan_declined,
    led.ClockJumped: _clock_jumped,
    led.SegmentSealed: _segment_sealed,
    led.GranterNamed: _granter_named,
    led.NodeSilence: _node_silent,
    led.NodeHeard: _node_heard,
    led.NodeDeclaredDead: _node_declared_dead,
    led.DeviceQuarantined: _device_quarantined,
    led.DeviceReturned: _device_returned,
    led.NodeCordoned: _node_cordoned,
    led.NodeUncordoned: _node_uncordoned,
    led.DevicesReserved: _devices_reserved,
    led.DevicesFragmented: _devices_fragmented,
    led.OperatorActed: _for_auditors,
    led.CommandRefused: _for_auditors,
    led.LedgerSummed: _for_auditors,
}

HANDLED = led.kinds_of(_FOLD)
IGNORED: frozenset[str] = frozenset()
"""The state folds every kind: each moves something here, or stands in the table with the reason why it does not."""
