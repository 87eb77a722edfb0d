"""Bugs of what follows from an operator's word."""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from libs.bus import outbox
from libs.core.scheduling import decider
from libs.core.scheduling.reactions import _REACTIONS, telemetry
from libs.core.scheduling.reactions.attempts import after_loss, free
from libs.core.state import fold
from libs.core.state.job import Job
from libs.simulation.dst.machine import Machine
from schemas import inbox, ledger
from schemas.attempts import Cause, Evidence
from services.agent.quarantine import DeviceQuarantine
from tests.simulation.bug import bug, set_on


def _react(stack: ExitStack, message: type, reaction: Any) -> None:
    stack.enter_context(patch.dict(_REACTIONS, {message: reaction}))


def _fold(stack: ExitStack, event: type, folded: Any) -> None:
    stack.enter_context(patch.dict(fold._FOLD, {event: folded}))


def _nothing(*_: Any) -> None:
    pass


@bug("a boost has no end", "operators")
def boost_without_end(stack: ExitStack) -> None:
    set_on(stack, decider, "end_boosts", _nothing)


@bug("jobs of a suspended team are granted devices", "operators")
def suspended_goes_on(stack: ExitStack) -> None:
    _fold(stack, ledger.TeamSuspended, _nothing)


@bug("a suspended team goes on when its suspension is said again", aim="paused twice")
def suspended_again_goes_on(stack: ExitStack) -> None:
    real = fold._FOLD[ledger.TeamSuspended]

    def team_suspended(state: Any, e: ledger.TeamSuspended, t_us: int) -> None:
        if e.team in state.suspended:
            fold._FOLD[ledger.TeamResumed](state, ledger.TeamResumed(team=e.team), t_us)
        else:
            real(state, e, t_us)

    _fold(stack, ledger.TeamSuspended, team_suspended)


@bug("a cancel of a job that is being stopped changes nothing", aim="cancelled while stopped")
def cancel_of_what_stops_is_forgotten(stack: ExitStack) -> None:
    set_on(stack, Job, "may_come_back", False)


@bug("a team has left while jobs of it wait or run", aim="teams leave")
def leaves_with_jobs(stack: ExitStack) -> None:
    def offboard_team(d: Any, m: inbox.OffboardTeam) -> None:
        if m.team in d.state.suspended and m.team not in d.state.left:
            d.emit(ledger.TeamLeft(team=m.team, reason=m.reason, user=m.user))

    _react(stack, inbox.OffboardTeam, offboard_team)


@bug("an older price book replaces a newer one", "operators")
def older_prices(stack: ExitStack) -> None:
    def prices_applied(d: Any, m: inbox.ApplyPrices) -> None:
        d.emit(ledger.PricesApplied(book=m.book, reason=m.reason, user=m.user))

    _react(stack, inbox.ApplyPrices, prices_applied)


@bug("what a budget was topped up by is not counted", "operators")
def top_up_forgotten(stack: ExitStack) -> None:
    _fold(stack, ledger.BudgetToppedUp, _nothing)


@bug("a quota that is lifted still holds", "operators")
def quota_not_lifted(stack: ExitStack) -> None:
    real = _REACTIONS[inbox.QuotaChanged]

    def quota_changed(d: Any, m: inbox.QuotaChanged) -> None:
        if m.limit_milli is not None:
            real(d, m)

    _react(stack, inbox.QuotaChanged, quota_changed)


@bug("a silence ends work that is kept", "nodes", findings=(4,))
def kept_is_given_up(stack: ExitStack) -> None:
    real = telemetry._end_leases

    def end_leases(d: Any, node: str, ended_lease_s: float, silent_s: float, reason: str) -> None:
        real(d, node, ended_lease_s, silent_s, reason)
        for job in [d.state.jobs[job_id] for job_id in d.state.on_node.get(node, ())]:
            if not job.lease_s:
                free(d, node, job, job.current, Evidence.LEASE_ENDED, reason, silent_s=silent_s)
                after_loss(d, job, job.current, Cause.PART_LOST, reason)

    set_on(stack, telemetry, "_end_leases", end_leases)


@bug("the keeper ends work that is kept with its node's lease", "nodes", findings=(4,))
def keeper_ends_what_is_kept(stack: ExitStack) -> None:
    real = Machine.start

    def start(self: Machine, *args: Any) -> Any:
        process = real(self, *args)
        process.kept = False
        return process

    set_on(stack, Machine, "start", start)


@bug("a device that something else uses is granted and used", "nodes", findings=(8,))
def quarantine_ignored(stack: ExitStack) -> None:
    _fold(stack, ledger.DeviceQuarantined, _nothing)
    set_on(stack, DeviceQuarantine, "_set", _nothing)


@bug("what is sent again before the first of it is stored is taken for refused")
def repeat_is_a_refusal(stack: ExitStack) -> None:
    set_on(stack, outbox, "_IN_PROCESS", 0)
