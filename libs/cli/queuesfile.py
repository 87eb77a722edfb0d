"""A queue file: the queues of a pool, with every problem found at once and located.

version: 3                      # raise it with every change
half_life: 7d                   # of what queues held before; without it only what they hold now counts
preemption:                     # against thrash; what is left out has its default
  min_run: 5m                   # a job runs so long before it gives way
  reclaim_grace: 1m             # on what its queue borrowed at most so long
  share_grace: 8h               # and so long before it goes so that what is lent is even; never; a twentieth of half_life
  per_job: {most: 6, within: 1h}
  per_pool: {most: 600, within: 10m}
queues:
  - name: research
    guaranteed: 64              # short for {"*": 64}; also {H100: 32, "H100:1g.10gb": 14}
    weight: 2                   # of what nobody is guaranteed or uses; 1 without it
    limit: {"*": 96}
    classes: [experiment]       # all without it
    order: shortest-remaining   # that of its parent without it
    min_run: 10m                # that of its parent without it
    default_time_limit: 4h      # of its jobs that say none; that of its parent without it
    longest_time_limit: 7d      # that its jobs may have; that of its parent without it
    boosts: {most: 4, within: 7d, longest: 1d}  # of each of its teams; those of its parent without it
  - name: vision
    parent: research
"""

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from libs.cli.grammar import whole_seconds
from libs.core.scheduling.queues import problems
from libs.core.state.queue_tree import QueueTree
from schemas.base import Name, Strict
from schemas.jobs import LONGEST_TIME_LIMIT_S
from schemas.queues import (
    LONGEST_BOOST_S,
    LONGEST_PER_POOL_S,
    MOST_BOOSTS,
    MOST_PER_JOB,
    MOST_SHARE_GRACE_S,
    AmountKey,
    BoostBudget,
    HalfLife,
    JobPreemptionRate,
    PoolPreemptionRate,
    PreemptionLimits,
    Queue,
    QueueOrder,
    ShareGrace,
)
from schemas.resources import ANY_ACCELERATOR, WHOLE_MILLI
from schemas.yamlfile import Document, YamlProblem
from schemas.yamlmodel import WrongFile, problem_at, read_model

DAY_S = 86_400


def _thousandths(amount: float) -> float:
    if abs(amount * WHOLE_MILLI - round(amount * WHOLE_MILLI)) > 1e-6:
        raise ValueError("counted in thousandths: give at most three decimals")
    return amount


def _short(amounts: Any) -> Any:
    return {ANY_ACCELERATOR: amounts} if isinstance(amounts, int | float) and not isinstance(amounts, bool) else amounts


_Amount = Annotated[float, Field(ge=0, le=1_000_000), AfterValidator(_thousandths)]
_Amounts = Annotated[dict[AmountKey, _Amount], Field(max_length=16), BeforeValidator(_short)]


_HalfLife = Annotated[HalfLife, BeforeValidator(whole_seconds)]


def _grace(said: Any) -> Any:
    if said is None or said == "never":
        return said
    fix = f"write never, or a duration of at most {MOST_SHARE_GRACE_S // DAY_S}d, as 8h"
    try:
        seconds = whole_seconds(said)
    except ValueError:
        seconds = None
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 0 <= seconds <= MOST_SHARE_GRACE_S:
        raise ValueError(f"{said!r} is no such time; {fix}")
    return seconds


_ShareGrace = Annotated[ShareGrace, BeforeValidator(_grace)]


def _as_duration(least_s: int, most_s: int) -> Any:
    """A field in seconds that may be written as a duration."""
    return Annotated[int, Field(ge=least_s, le=most_s), BeforeValidator(whole_seconds)]


_MinRun = _as_duration(0, 7 * DAY_S)
_TimeLimit = _as_duration(1, LONGEST_TIME_LIMIT_S)


class JobRateItem(Strict):
    """How often one job gives way."""

    most: Annotated[int, Field(ge=1, le=MOST_PER_JOB)] = JobPreemptionRate().most
    within: _as_duration(1, 7 * DAY_S) = JobPreemptionRate().within_s  # type: ignore[valid-type]


class PoolRateItem(Strict):
    """How often jobs of the pool give way."""

    most: Annotated[int, Field(ge=1, le=10_000)] = PoolPreemptionRate().most
    within: _as_duration(1, LONGEST_PER_POOL_S) = PoolPreemptionRate().within_s  # type: ignore[valid-type]


class PreemptionItem(Strict):
    """Limits against thrash."""

    min_run: _MinRun = 0  # type: ignore[valid-type]
    reclaim_grace: _as_duration(0, DAY_S) = 0  # type: ignore[valid-type]
    share_grace: _ShareGrace = None
    per_job: JobRateItem = JobRateItem()
    per_pool: PoolRateItem = PoolRateItem()

    @property
    def limits(self) -> PreemptionLimits:
        return PreemptionLimits(
            min_run_s=self.min_run,
            reclaim_grace_s=self.reclaim_grace,
            share_grace_s=self.share_grace,
            per_job=JobPreemptionRate(most=self.per_job.most, within_s=self.per_job.within),
            per_pool=PoolPreemptionRate(most=self.per_pool.most, within_s=self.per_pool.within),
        )


class BoostsItem(Strict):
    """How often jobs may be raised above their class."""

    most: Annotated[int, Field(ge=0, le=MOST_BOOSTS)] = BoostBudget().most
    within: _as_duration(60, 366 * DAY_S) = BoostBudget().within_s  # type: ignore[valid-type]
    longest: _as_duration(60, LONGEST_BOOST_S) = BoostBudget().longest_s  # type: ignore[valid-type]

    @property
    def budget(self) -> BoostBudget:
        return BoostBudget(most=self.most, within_s=self.within, longest_s=self.longest)


class QueueItem(Strict):
    """One queue as people write it: in devices."""

    name: Name
    parent: Name | None = None
    guaranteed: _Amounts = Field(default_factory=dict)
    weight: _Amount = 1
    limit: _Amounts = Field(default_factory=dict)
    order: QueueOrder | None = None
    min_run: _MinRun | None = None  # type: ignore[valid-type]
    default_time_limit: _TimeLimit | None = None  # type: ignore[valid-type]
    longest_time_limit: _TimeLimit | None = None  # type: ignore[valid-type]
    boosts: BoostsItem | None = None
    classes: tuple[Name, ...] | None = Field(default=None, max_length=64)

    @property
    def queue(self) -> Queue:
        return Queue(
            name=self.name,
            parent=self.parent or "",
            guaranteed=_milli(self.guaranteed),
            weight_milli=round(self.weight * WHOLE_MILLI),
            limit=_milli(self.limit),
            order=self.order,
            min_run_s=self.min_run,
            default_time_limit_s=self.default_time_limit,
            longest_time_limit_s=self.longest_time_limit,
            boosts=None if self.boosts is None else self.boosts.budget,
            classes=self.classes,
        )


class QueueFile(Strict):
    """A queue file."""

    version: Annotated[int, Field(ge=1, le=2**53)]
    order: QueueOrder | None = None
    half_life: _HalfLife = None
    preemption: PreemptionItem | None = None
    queues: Annotated[tuple[QueueItem, ...], Field(max_length=1000)]


class QueueFileError(WrongFile):
    """Raised by `read_tree`."""


def read_tree(
    text: str, name: str = "queue file", classes: Collection[str] | None = None, offered: Collection[str] = ()
) -> QueueTree:
    """The queues in a YAML text. Raises QueueFileError.

    Args:
        classes: the existing priority classes; None: unknown.
        offered: kinds of device in the pool, besides those of the catalogue.
    """
    return tree_of(_read(text, name, classes, offered)[0])


def _read(
    text: str, name: str, classes: Collection[str] | None, offered: Collection[str]
) -> tuple[QueueFile, tuple[Queue, ...]]:
    document, file = read_model(text, name, QueueFile, QueueFileError, "write `version: 1` and `queues: [...]`")
    queues = tuple(item.queue for item in file.queues)
    wrong = wrong_queues(document, file, classes, offered)
    if document.problems or wrong:
        raise QueueFileError(name, [*document.problems, *wrong])
    return file, queues


def wrong_queues(
    document: Document,
    file: QueueFile,
    classes: Collection[str] | None = None,
    offered: Collection[str] = (),
    under: tuple[str | int, ...] = (),
) -> list[YamlProblem]:
    """Problems of a tree whose parts are valid; `under`: its path in `document`."""
    queues = tuple(item.queue for item in file.queues)
    places = {item.name: number for number, item in enumerate(file.queues)}
    return [
        problem_at(
            document,
            (*under, "queues", places[p.queue], *p.field.split(".", 1)),
            f"queue {p.queue}: {p.value}: {p.problem}" if p.value else f"queue {p.queue}: {p.problem}",
            p.fix,
        )
        for p in problems(queues, classes, offered)
    ]


def tree_of(file: QueueFile, version: int | None = None) -> QueueTree:
    """The tree of a file, as this version or its own."""
    limits = None if file.preemption is None else file.preemption.limits
    queues = tuple(item.queue for item in file.queues)
    return QueueTree.of(queues, version or file.version, file.order, file.half_life, limits)


def _milli(amounts: dict[str, float]) -> dict[str, int]:
    return {key: round(amount * WHOLE_MILLI) for key, amount in amounts.items()}
