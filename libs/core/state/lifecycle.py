"""The lifecycle: what each ledger event does to its job, and to the job's open attempt.

A job is a request; an attempt is one run of it, from the grant of its devices until the last of them is free. While an
attempt is open the job's state says where the attempt is; between attempts the job is queued. `TABLE` has one rule per
event kind, and every fold looks events up in it. An event that it does not allow is refused, never applied. docs/lifecycle.md
is drawn from it.

There is no state `lost`: an attempt is closed with that outcome, and in the same record its job is queued again or ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from schemas import ledger as led
from schemas.jobs import JobState as J


class AttemptState(StrEnum):
    """Where an attempt stands. Its outcome is a word of the event that closes it (`schemas.attempts.Outcome`)."""

    GRANTED = "granted"
    STARTING = "starting"
    RUNNING = "running"
    PREEMPTING = "preempting"
    STOPPING = "stopping"
    CLOSED = "closed"


A = AttemptState
S = TypeVar("S", bound=StrEnum)
Moves = Mapping[S | None, frozenset[S | None]]
"""State before -> the states that may follow. None: there is no such job, or no open attempt."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one event kind does. None: it has nothing to do with jobs, or with attempts."""

    job: Moves[J] | None = None
    attempt: Moves[A] | None = None


class Forbidden(ValueError):
    """An event that the state of its job, or of the job's attempt, does not allow."""


UNDECIDED = frozenset({A.GRANTED, A.STARTING, A.RUNNING})
"""The attempt goes on; nothing has been decided about its end."""

OPEN = UNDECIDED | {A.PREEMPTING, A.STOPPING}
"""The attempt holds devices, or did until a moment ago."""

ACTIVE = frozenset(J(state) for state in OPEN)
"""The job has an open attempt, or one that was closed in the same record."""

PREEMPTIBLE = frozenset(J(state) for state in UNDECIDED)


def _to(target: S, *sources: S) -> dict[S | None, frozenset[S | None]]:
    return dict.fromkeys(sources, frozenset({target}))


def _stays(states: Iterable[S]) -> Moves[S]:
    return {state: frozenset({state}) for state in states}


def _moves(target: A, *sources: A) -> Rule:
    """The attempt moves, and its job with it."""
    return Rule(job=_to(J(target), *(J(source) for source in sources)), attempt=_to(target, *sources))


_NO_ATTEMPT: Moves[A] = {None: frozenset({None})}
_ENDS: frozenset[J | None] = frozenset({J.SUCCEEDED, J.FAILED, J.CANCELLED})
_NOTHING = Rule()
_ANYWHERE = Rule(job=_stays({J.QUEUED, *ACTIVE}), attempt={**_NO_ATTEMPT, **_stays(OPEN)})
"""Of a job that has not ended, wherever it is."""

TABLE: Mapping[type, Rule] = {
    led.JobQueued: Rule(job={None: frozenset({J.QUEUED})}, attempt=_NO_ATTEMPT),
    led.JobGranted: Rule(job=_to(J.GRANTED, J.QUEUED), attempt={None: frozenset({A.GRANTED})}),
    led.AttemptStarting: _moves(A.STARTING, A.GRANTED, A.STARTING),
    led.AttemptRunning: _moves(A.RUNNING, A.GRANTED, A.STARTING),
    led.AttemptCheckpointed: Rule(job=_stays(ACTIVE), attempt=_stays(OPEN)),
    led.AttemptProgress: Rule(job=_stays(PREEMPTIBLE), attempt=_stays(UNDECIDED)),
    led.AttemptPreempting: _moves(A.PREEMPTING, *UNDECIDED),
    led.AttemptStopping: _moves(A.STOPPING, *UNDECIDED, A.PREEMPTING),
    led.DevicesFreed: Rule(job=_stays(ACTIVE), attempt=_stays(OPEN)),
    led.AttemptClosed: Rule(job=_stays(ACTIVE), attempt=_to(A.CLOSED, *OPEN)),
    led.JobRequeued: Rule(job=_to(J.QUEUED, *ACTIVE), attempt=_NO_ATTEMPT),
    led.JobFinished: Rule(job=_to(J.CANCELLED, J.QUEUED) | dict.fromkeys(ACTIVE, _ENDS), attempt=_NO_ATTEMPT),
    led.DevicesHeld: Rule(job=_stays({J.QUEUED}), attempt=_NO_ATTEMPT),
    led.HoldReleased: Rule(job=_stays({J.QUEUED}), attempt=_NO_ATTEMPT),
    led.GangPromised: Rule(job=_stays({J.QUEUED}), attempt=_NO_ATTEMPT),
    led.JobBoosted: _ANYWHERE,
    led.BoostEnded: _ANYWHERE,
    led.NodeJoined: _NOTHING,
    led.NodeLeft: _NOTHING,
    led.QuotaSet: _NOTHING,
    led.QueuesApplied: _NOTHING,
    led.PricesApplied: _NOTHING,
    led.PeriodClosed: _NOTHING,
    led.BudgetsApplied: _NOTHING,
    led.BudgetToppedUp: _NOTHING,
    led.BudgetPeriodBegan: _NOTHING,
    led.BudgetHoldsRenewed: _NOTHING,
    led.BudgetReached: _NOTHING,
    led.TeamSuspended: _NOTHING,
    led.TeamLeft: _NOTHING,
    led.TeamResumed: _NOTHING,
    led.BoardRecut: _NOTHING,
    led.BoardCutDone: _NOTHING,
    led.BoardRecutWithdrawn: _NOTHING,
    led.PlanDeclined: _NOTHING,
    led.InputRejected: _NOTHING,
    led.ClockJumped: _NOTHING,
    led.SegmentSealed: _NOTHING,
    led.GranterNamed: _NOTHING,
    led.NodeSilence: _NOTHING,
    led.NodeHeard: _NOTHING,
    led.NodeDeclaredDead: _NOTHING,
    led.DeviceQuarantined: _NOTHING,
    led.DeviceReturned: _NOTHING,
    led.NodeCordoned: _NOTHING,
    led.NodeUncordoned: _NOTHING,
    led.DevicesReserved: _NOTHING,
    led.DevicesFragmented: _NOTHING,
    led.OperatorActed: _NOTHING,
    led.CommandRefused: _NOTHING,
    led.LedgerSummed: _NOTHING,
}
"""Event type -> its rule. `job.finished` alone leaves a choice, and says itself which state it leads to. A closed attempt
is forgotten by its job: from then on there is no open attempt."""


def of_job(event: led.LedgerEvent) -> led.EventOfJob | None:
    """The event, if it is about a job; None if it moves neither a job nor an attempt. Raises KeyError for a kind that
    the table lacks."""
    return None if TABLE[type(event)].job is None else event  # type: ignore[return-value]


def after(event: led.EventOfJob, job: J | None, attempt: A | None) -> tuple[J | None, A | None]:
    """The states of job and attempt after `event`. Raises Forbidden naming state and event when they do not allow it."""
    moves = _MOVES.get(type(event))
    if moves is not None and job in moves[0] and attempt in moves[1]:
        return moves[0][job], moves[1][attempt]
    rule = TABLE[type(event)]
    wanted = event.state if isinstance(event, led.JobFinished) else None
    return _next(event, "unknown", rule.job, job, wanted), _next(event, "no open attempt", rule.attempt, attempt, None)


def job_after(event: led.EventOfJob, job: J | None) -> J | None:
    """The job's half of `after`, for readers that keep no attempts."""
    wanted = event.state if isinstance(event, led.JobFinished) else None
    return _next(event, "unknown", TABLE[type(event)].job, job, wanted)


def leads_to(event: led.EventOfJob) -> J | None:
    """The state in which `event` leaves its job, wherever that was; None: it stays where it was."""
    return event.state if isinstance(event, led.JobFinished) else _LEADS_TO[type(event)]


def allows(event: type, job: J | None, attempt: A | None) -> bool:
    """Whether an event of this type may come now."""
    rule = TABLE[event]
    return (rule.job is None or job in rule.job) and (rule.attempt is None or attempt in rule.attempt)


def _next(event: led.EventOfJob, nobody: str, moves: Moves[S] | None, state: S | None, wanted: S | None) -> S | None:
    if moves is None:
        return state
    targets = moves.get(state)
    if targets is not None:
        if wanted is None:
            (target,) = targets
            return target
        if wanted in targets:
            return wanted
    what = f"{event.kind} to {wanted.value}" if wanted is not None else event.kind
    now = state.value if state is not None else nobody
    raise Forbidden(f"{event.job_id}: {what} is not allowed when it is {now}; allowed from {_names(moves, nobody)}")


def _names(moves: Moves[S], nobody: str) -> str:
    return ", ".join(sorted(state.value if state is not None else nobody for state in moves))


def _target(rule: Rule) -> J | None:
    targets = {target for before, after in (rule.job or {}).items() for target in after if target != before}
    return targets.pop() if len(targets) == 1 else None


def _only(moves: Moves[S]) -> dict[S | None, S | None]:
    return {before: next(iter(after)) for before, after in moves.items() if len(after) == 1}


_MOVES: Mapping[type, tuple[dict[J | None, J | None], dict[A | None, A | None]]] = {
    event: (_only(rule.job), _only(rule.attempt))
    for event, rule in TABLE.items()
    if rule.job is not None and rule.attempt is not None and event is not led.JobFinished
}
"""Of events that leave no choice: where each state leads, of job and attempt."""

_LEADS_TO: Mapping[type, J | None] = {event: _target(rule) for event, rule in TABLE.items()}
