"""How fast a family of jobs runs on how many devices of which model, and what that is worth.

    Throughputs(rows).rate(family, model, devices)                    -> steps/s, or None when it was never measured
    choose(table, price, family, devices, models, objective)          -> models, best first, each with time and cost
    Chooser(table, price).order(objective, family, devices, profile, models)   the same for the placer: names only

Rates are measured, not modelled. Between two measured counts the rate is interpolated linearly; below the smallest it is
in proportion; beyond the largest it goes on with the slope of the last measured stretch, which is never taken for more
than proportional nor for less than nothing. So no rate is ever better than linear in the devices of a measured one.

What was not measured is *unknown*: it comes last, in the order in which it was listed. A guess would send jobs to
devices for a reason that nobody can check.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from pydantic import Field

from schemas.base import Strict
from schemas.resources import Objective

HOUR_S = 3600

PriceOf = Callable[[str], int | None]
"""Millionths of the currency unit per device and hour, of a billed model (`H100`, or `H100:1g.10gb`); None: no price."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement: `steps_per_s` of the whole job on `devices` devices of `model`, alone on them."""

    family: str
    model: str
    devices: int
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model for a job. `finish_s` is None when the number of steps is, `micros_per_step` when the price is; all three
    are None when it is unknown."""

    model: str
    steps_per_s: float | None = None
    micros_per_step: float | None = None
    finish_s: float | None = None


class Scaling(Strict):
    """A family's rates on one device model, by number of devices."""

    family: str = Field(min_length=1, max_length=128)
    model: str = Field(min_length=1, description="as the price book names it: H100, or H100:1g.10gb")
    steps_per_s: dict[int, float] = Field(min_length=1, description="devices -> measured steps per second")


class ThroughputBook(Strict):
    """`deploy/throughputs.yaml`. `source` says who measured it, and under which licence it is used."""

    source: str = ""
    throughputs: tuple[Scaling, ...] = ()

    def rows(self) -> list[Measured]:
        return [
            Measured(entry.family, entry.model, devices, rate)
            for entry in self.throughputs
            for devices, rate in entry.steps_per_s.items()
        ]


class Throughputs:
    """The table. Rates of zero or less mean that it did not run there (out of memory): they are left out."""

    def __init__(self, rows: Iterable[Measured] = ()) -> None:
        curves: dict[tuple[str, str], dict[int, float]] = {}
        for row in rows:
            if row.steps_per_s > 0 and row.devices > 0:
                curves.setdefault((row.family, row.model), {})[row.devices] = row.steps_per_s
        self._curves = {key: sorted(curve.items()) for key, curve in curves.items()}

    def __bool__(self) -> bool:
        return bool(self._curves)

    def rate(self, family: str, model: str, devices: int) -> float | None:
        """Steps/s of `devices` devices; None when the family was never measured on the model."""
        curve = self._curves.get((family, model))
        if curve is None:
            return None
        at = bisect_left(curve, (devices, 0.0))
        if at < len(curve) and curve[at][0] == devices:
            return curve[at][1]
        if at == 0:
            return curve[0][1] * devices / curve[0][0]
        if at == len(curve):
            return _beyond(curve, devices)
        (few, slow), (many, fast) = curve[at - 1], curve[at]
        return slow + (fast - slow) * (devices - few) / (many - few)

    def models(self, family: str) -> tuple[str, ...]:
        """The models on which the family was measured."""
        return tuple(sorted(model for known, model in self._curves if known == family))

    def counts(self, family: str, model: str) -> tuple[int, ...]:
        """The measured device counts."""
        return tuple(devices for devices, _ in self._curves.get((family, model), ()))


def _beyond(curve: Sequence[tuple[int, float]], devices: int) -> float:
    last, rate = curve[-1]
    proportional = rate * devices / last
    if len(curve) == 1:
        return proportional
    ((few, slow), (many, fast)) = list(pairwise(curve))[-1]
    slope = max(0.0, (fast - slow) / (many - few))
    return min(proportional, rate + slope * (devices - last))


def choose(
    table: Throughputs,
    price: PriceOf,
    family: str,
    counts: Mapping[str, int] | int,
    models: Sequence[str],
    objective: str,
    *,
    steps: float | None = None,
) -> list[ModelChoice]:
    """`models`, the best for `objective` first; ties and what is unknown in the listed order, the unknown last.

    Args:
        counts: devices of the job, on each model if they differ.
        objective: `finish`: soonest end; `cost`: least money per step; `listed`: as they are listed.
        steps: how many steps the job has, for `finish_s`; the order does not depend on it.
    """
    choices = []
    for model in models:
        devices = counts if isinstance(counts, int) else counts[model]
        rate = table.rate(family, model, devices)
        if rate is None:
            choices.append(ModelChoice(model))
            continue
        hour = price(model)
        micros = None if hour is None else hour * devices / HOUR_S / rate
        choices.append(ModelChoice(model, rate, micros, None if steps is None else steps / rate))
    if objective == Objective.LISTED:
        return choices
    return sorted(choices, key=lambda c: (c.steps_per_s is None, _weight(c, objective)))


def _weight(choice: ModelChoice, objective: str) -> float:
    if choice.steps_per_s is None:
        return 0.0
    if objective == Objective.COST:  # what has no price comes after what has one
        return inf if choice.micros_per_step is None else choice.micros_per_step
    return 1 / choice.steps_per_s


class Chooser:
    """What the placer asks for the order of device models. Answers are kept: a cycle asks the same again and again."""

    def __init__(self, table: Throughputs, price: PriceOf) -> None:
        self.table, self.price = table, price
        self._known: dict[tuple[str, str, int, str, tuple[str, ...]], tuple[str, ...]] = {}

    def order(
        self, objective: str, family: str, devices: int, profile: str, models: tuple[str, ...]
    ) -> tuple[str, ...]:
        """`models`, best first. `profile`: the MIG profile asked for, whose instances have rates of their own."""
        key = (objective, family, devices, profile, models)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            billed = {f"{model}:{profile}" if profile else model: model for model in models}
            ranked = choose(self.table, self.price, family, devices, list(billed), objective)
            known = self._known[key] = tuple(billed[choice.model] for choice in ranked)
        return known

    def price_of(self, model: str, profile: str) -> int | None:
        """Millionths of the currency unit per device and hour; None when the price book has none."""
        return self.price(f"{model}:{profile}" if profile else model)


_REMEMBERED = 4096
