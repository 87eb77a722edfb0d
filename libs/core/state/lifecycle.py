"""The law of a job's life: which event may follow which state. What it does not allow is refused, never applied.

Source of the states: `schemas.jobs`. `stopping` is `running` on its way out; `lost` is not a state of its own, because
the job is queued again or failed in the same record in which its attempt is closed as lost.
"""

from schemas.jobs import JobState as S

ACTIVE = frozenset({S.GRANTED, S.STARTING, S.RUNNING, S.PREEMPTING, S.STOPPING})
"""States in which an attempt holds devices."""

PREEMPTIBLE = frozenset({S.GRANTED, S.STARTING, S.RUNNING})

TRANSITIONS: dict[str, dict[S, S]] = {
    "job.granted": {S.QUEUED: S.GRANTED},
    "attempt.starting": {S.GRANTED: S.STARTING, S.STARTING: S.STARTING},
    "attempt.running": {S.GRANTED: S.RUNNING, S.STARTING: S.RUNNING},
    "attempt.preempting": dict.fromkeys(PREEMPTIBLE, S.PREEMPTING),
    "attempt.stopping": dict.fromkeys((S.GRANTED, S.STARTING, S.RUNNING, S.PREEMPTING), S.STOPPING),
    "job.requeued": dict.fromkeys(ACTIVE, S.QUEUED),
}
FINISHES: dict[S, frozenset[S]] = {
    S.SUCCEEDED: ACTIVE,
    S.FAILED: ACTIVE,
    S.CANCELLED: ACTIVE | {S.QUEUED},
}


class Forbidden(ValueError):
    """An event that the job's state does not allow."""


def after(event: str, state: S) -> S:
    """The state that `event` (a ledger event kind) leads to. Raises Forbidden naming both when it is not allowed."""
    allowed = TRANSITIONS[event]
    if state not in allowed:
        raise Forbidden(f"{event} is not allowed for a job that is {state.value}; allowed from {_names(allowed)}")
    return allowed[state]


def finish(state: S, final: S) -> S:
    """`final`, if a job in `state` may end that way. Raises Forbidden otherwise."""
    if state not in FINISHES.get(final, frozenset()):
        raise Forbidden(f"a job that is {state.value} cannot become {final.value}")
    return final


def _names(states: dict[S, S]) -> str:
    return ", ".join(sorted(s.value for s in states))
