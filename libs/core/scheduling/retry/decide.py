"""Category x budget: whether a job runs again after an attempt has ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from libs.core.scheduling.retry.losses import survived
from schemas.attempts import Category, Outcome
from schemas.jobs import JobState, RetryPolicy


class Budget(StrEnum):
    """Who pays for a further attempt."""

    USER = "user"
    """The job failed: `retry.on_failure` of its spec."""
    INFRASTRUCTURE = "infrastructure"
    """What it ran on failed: nobody, as long as that does not happen again and again (`losses`)."""
    FREE = "free"
    """Nobody: it is always tried again."""
    NEVER = "never"
    """There is no further attempt."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """One row of the table. `final`: the state in which the job ends when there is no further attempt."""

    budget: Budget
    outcome: Outcome
    final: JobState = JobState.FAILED


POLICY: Mapping[Category, RetryRule] = {
    Category.SUCCESS: RetryRule(Budget.NEVER, Outcome.SUCCEEDED, JobState.SUCCEEDED),
    Category.CANCELLED: RetryRule(Budget.NEVER, Outcome.CANCELLED, JobState.CANCELLED),
    Category.TIME_LIMIT: RetryRule(Budget.NEVER, Outcome.TIME_LIMIT),
    Category.PREEMPTED: RetryRule(Budget.FREE, Outcome.PREEMPTED),
    Category.DRAINED: RetryRule(Budget.FREE, Outcome.DRAINED),
    Category.NODE_LOST: RetryRule(Budget.INFRASTRUCTURE, Outcome.LOST),
    Category.HARDWARE: RetryRule(Budget.INFRASTRUCTURE, Outcome.LOST),
    Category.REFUSED: RetryRule(Budget.INFRASTRUCTURE, Outcome.REFUSED),
    Category.INPUT_MISSING: RetryRule(Budget.USER, Outcome.FAILED),
    Category.OUT_OF_MEMORY: RetryRule(Budget.USER, Outcome.FAILED),
    Category.DISK_LIMIT: RetryRule(Budget.USER, Outcome.FAILED),
    Category.USER_ERROR: RetryRule(Budget.USER, Outcome.FAILED),
}


def decide(category: Category, endings: Mapping[Category, int], retry: RetryPolicy, losses: int) -> JobState:
    """`queued` when the job runs again after an end of `category`, else the state in which it ends.

    `endings`: how many of its attempts came to each kind of end, and `losses`: how many were lost in a row, this one included.
    """
    rule = POLICY[category]
    if rule.budget is Budget.FREE:
        return JobState.QUEUED
    if rule.budget is Budget.NEVER:
        return rule.final
    if rule.budget is Budget.INFRASTRUCTURE:
        return JobState.QUEUED if survived(losses, retry) else rule.final
    return JobState.QUEUED if used(rule.budget, endings) <= retry.on_failure else rule.final


def used(budget: Budget, endings: Mapping[Category, int]) -> int:
    """How many attempts `budget` has paid for, or would have to."""
    return sum(count for category, count in endings.items() if POLICY[category].budget is budget)
