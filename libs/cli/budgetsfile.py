"""A budgets file: who may spend how much in a period, with every problem found at once and located.

version: 2                      # raise it with every change
time_zone: Europe/Berlin        # in which days, weeks and months begin; UTC without it
renewal: 15m                    # how long a hold lasts of a job without a time limit
budgets:
  - {team: vision, unit: gpu-hours, period: month, soft: 800, hard: 1000, carry_over: 100}
  - {queue: research, unit: money, period: month, hard: 50000.00, when_spent: continue}

Amounts are GPU-hours, or the price book's currency: decimals with at most six places, as they stand.
"""

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from libs.cli.grammar import whole_seconds
from libs.cli.yaml_numbers import millionths, whole
from libs.core.billing.budgets import problems
from schemas.base import Name, Strict
from schemas.budgets import (
    BudgetAmount,
    BudgetPeriod,
    BudgetSet,
    BudgetsVersion,
    BudgetUnit,
    SpendingBudget,
    TimeZone,
    WhenSpent,
)
from schemas.yamlfile import Broken, read
from schemas.yamlmodel import WrongFile, problem_at, read_model

_AMOUNTS = ("soft", "hard", "carry_over")


def read_amount(text: Any) -> int:
    """Millionths of a decimal text. Raises ValueError with the fix."""
    return millionths(text, "an amount", "leave it out for none", "1000 or 12.5")


_Millionths = Annotated[BudgetAmount, BeforeValidator(read_amount)]


class BudgetItem(Strict):
    """One budget as people write it."""

    team: Name | None = None
    queue: Name | None = None
    unit: BudgetUnit
    period: BudgetPeriod
    soft: _Millionths | None = None
    hard: _Millionths | None = None
    carry_over: _Millionths = 0
    when_spent: WhenSpent = WhenSpent.STOP


class BudgetsFile(Strict):
    """A budgets file."""

    version: Annotated[BudgetsVersion, BeforeValidator(whole)]
    time_zone: TimeZone = "UTC"
    renewal: Annotated[int, Field(ge=10, le=86_400), BeforeValidator(whole_seconds)] = 900
    budgets: Annotated[tuple[BudgetItem, ...], Field(max_length=1000)]


class BudgetsFileError(WrongFile):
    """Raised by `read_budgets`."""


def is_budgets(text: str) -> bool:
    """Whether a file for `apply` contains budgets."""
    return "budgets" in top_names(text)


def top_names(text: str) -> Collection[str]:
    """The fields of a file's first document; empty if it is no mapping."""
    try:
        documents = read(text)
    except Broken:
        return ()
    return documents[0].data.keys() if documents and isinstance(documents[0].data, dict) else ()


def read_budgets(text: str, name: str = "budgets file", queues: Collection[str] = ()) -> BudgetSet:
    """The budgets of a YAML text. Raises BudgetsFileError.

    Args:
        queues: names of the pool's queues.
    """
    document, file = read_model(
        text, name, BudgetsFile, BudgetsFileError, "write `version: 1` and `budgets: [...]`", _AMOUNTS
    )
    budgets = BudgetSet(
        version=file.version,
        time_zone=file.time_zone,
        renewal_s=file.renewal,
        budgets=tuple(SpendingBudget(**item.model_dump()) for item in file.budgets),
    )
    wrong = [problem_at(document, p.place, f"{p.value} {p.problem}".strip(), p.fix) for p in problems(budgets, queues)]
    if document.problems or wrong:
        raise BudgetsFileError(name, [*document.problems, *wrong])
    return budgets
