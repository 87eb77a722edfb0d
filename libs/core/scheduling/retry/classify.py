"""What kind of end an attempt came to, from what the ledger knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from libs.core.state.attempt import Attempt
from schemas.attempts import Category, Cause


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of an attempt whose last part is gone."""

    cause: Cause | None
    """What ended it first; None: its parts ended by themselves, one after the other."""
    done: bool
    """The processes of every part ended by themselves with exit code 0."""
    known: Category | None = None
    """What the agent of the first part that failed knows of why."""
    exit_code: int | None = None
    """Of the first part that failed, if its processes ended by themselves; 128 + n: signal n."""


def ending_of(attempt: Attempt) -> Ending:
    """What the state knows of `attempt`, all of whose parts are free."""
    done = all(part.own_exit and part.exit_code == 0 for part in attempt.parts.values())
    return Ending(attempt.cause, done, attempt.failed_category, attempt.failed_code)


def classify(ending: Ending) -> Category:
    """The category of an ended attempt.

    What was decided counts first, since a process that is told to end may end in any way: only a job that was asked to
    give way and finished its work instead has succeeded. Then what the agent knows. Then the exit code, where the system
    gives one a meaning; a job that uses such a code otherwise is told a wrong kind of failure, of the same budget.
    """
    if ending.done and ending.cause in (None, Cause.PREEMPTED, Cause.SUSPENDED, Cause.BUDGET_SPENT):
        return Category.SUCCESS
    if ending.cause in _DECIDED:
        return _DECIDED[ending.cause]
    if ending.known is not None:
        return ending.known
    if ending.cause in _PLACES_FAULT:
        return _PLACES_FAULT[ending.cause]
    return _EXIT_CODES.get(ending.exit_code, Category.USER_ERROR)


_DECIDED: Mapping[Cause | None, Category] = {
    Cause.CANCELLED: Category.CANCELLED,
    Cause.TIME_LIMIT: Category.TIME_LIMIT,
    Cause.PREEMPTED: Category.PREEMPTED,
    Cause.NODE_LEFT: Category.DRAINED,
    Cause.SUSPENDED: Category.DRAINED,
    Cause.BUDGET_SPENT: Category.DRAINED,
}
_PLACES_FAULT: Mapping[Cause | None, Category] = {
    Cause.PART_LOST: Category.NODE_LOST,
    Cause.PART_REFUSED: Category.REFUSED,
}
_EXIT_CODES: Mapping[int | None, Category] = {
    127: Category.INPUT_MISSING,  # POSIX shells: command not found
    137: Category.OUT_OF_MEMORY,  # SIGKILL that no agent sent: nearly always the kernel's, for memory
}
