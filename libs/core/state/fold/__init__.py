"""What each ledger event changes in the state. Every valid ledger can be folded; an impossible event stops the fold.

    state' = fold(state, record)          the same ledger gives the same state, anywhere (I9)

`lifecycle.TABLE` alone moves the states of jobs and attempts. A function here does everything else that its event means,
and sees those states as they were before the event.

Errors (`Forbidden`, `Overcommitted`, `KeyError`) mean that the ledger is corrupt or was written by newer code: the
reader stops loudly and never skips.

| file | which events |
|---|---|
| `jobs.py` | of jobs and their attempts |
| `nodes.py` | of nodes, boards and devices |
| `teams.py` | of queues, quotas, budgets and prices |
| here | of the ledger itself, and of what was asked |
"""

from collections.abc import Callable
from typing import Any

from libs.core.state import lifecycle
from libs.core.state.early_cancels import EarlyCancel
from libs.core.state.fold import jobs, nodes, teams
from libs.core.state.model import State
from libs.core.state.waiting import pass_time
from schemas import ledger as led


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
    job = state.jobs.get(about.job_id)
    job_state, attempt_state = lifecycle.after(about, *(job.states if job is not None else (None, None)))
    _FOLD[type(event)](state, event, t_us)
    job = state.jobs.get(about.job_id)
    if job is not None and job_state is not None:
        job.state = job_state
        if job.current is not None and attempt_state is not None:
            job.current.state = attempt_state


def apply_record(state: State, record: led.LedgerRecord) -> None:
    """Changes `state` by a whole valid record."""
    state.wall_us = record.wall_us if record.wall_us is not None else record.t_us
    back = pass_time(state, record.t_us)
    if state.turns is not None:
        state.turns.begin(state, record.t_us, back)
    for event in record.events:
        apply(state, event, record.t_us)
    state.t_us = record.t_us
    state.inbox_seq = record.inbox_seq


def _input_rejected(state: State, e: led.InputRejected, t_us: int) -> None:
    """Nothing changes but that a cancel that cannot act yet is remembered: its job may be on its way, or being stopped."""
    asked = e.request
    if asked is None or asked.what != "cancel":
        return
    job = state.jobs.get(asked.job_id)
    if not asked.known or (job is not None and job.team == asked.team and job.may_come_back):
        cancel = EarlyCancel(asked.team, asked.user, asked.text, asked.stored_us)
        state.early_cancels.note(asked.job_id, cancel)


def _plan_declined(state: State, e: led.PlanDeclined, t_us: int) -> None:
    """Nothing changes: the record only answers whoever planned."""


def _clock_jumped(state: State, e: led.ClockJumped, t_us: int) -> None:
    """It is remembered for stamps of before: ledger time is the record's, and did not jump."""
    state.jumps.note(e, t_us, state.wall_us)


def _segment_sealed(state: State, e: led.SegmentSealed, t_us: int) -> None:
    """Nothing changes: where records are stored is no part of the state."""


def _granter_named(state: State, e: led.GranterNamed, t_us: int) -> None:
    if e.epoch <= state.granter_epoch:
        raise lifecycle.Forbidden(f"epoch {e.epoch} of leases follows {state.granter_epoch}")
    state.granter_epoch = e.epoch


def _devices_fragmented(state: State, e: led.DevicesFragmented, t_us: int) -> None:
    state.fragmented = e.units


def _for_auditors(state: State, e: led.OperatorActed | led.CommandRefused | led.LedgerSummed, t_us: int) -> None:
    """Nothing changes: it is kept for who reads the ledger."""


_FOLD: dict[type, Callable[[State, Any, int], None]] = {
    **nodes.FOLD,
    **teams.FOLD,
    **jobs.FOLD,
    led.InputRejected: _input_rejected,
    led.PlanDeclined: _plan_declined,
    led.ClockJumped: _clock_jumped,
    led.SegmentSealed: _segment_sealed,
    led.GranterNamed: _granter_named,
    led.DevicesFragmented: _devices_fragmented,
    led.OperatorActed: _for_auditors,
    led.CommandRefused: _for_auditors,
    led.LedgerSummed: _for_auditors,
}

HANDLED = led.kinds_of(_FOLD)
IGNORED: frozenset[str] = frozenset()
"""The state folds every kind: each moves something here, or stands in the table with the reason why it does not."""
