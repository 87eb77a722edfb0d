"""A smaller request that does the same: what it saves, and why it suffices. Only shown, never applied.

Three rules, each with a measured or computed reason:

1. *Devices*: the measured count that is worth its devices most. A doubling of the devices has to add at least half of the
   rate; below that, most of the added devices are wasted.
2. *Model*: another model of the pool for less money per step.
3. *Memory*: an inference job, or one device's, whose estimated or stated memory fits a MIG slice or a smaller card.
   Without measured rates this saves only if it need not be as fast; so it is offered for memory alone, and says so.

Each suggestion is checked before it is made: the changed request is valid, admission would admit it, and a job with a time
limit is known to end within it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from pydantic import ValidationError

from libs.core.placement.throughput import HOUR_S, PriceOf, Throughputs, choose
from libs.core.state.model import State
from schemas.explanations import RightSize
from schemas.jobs import JobSpec
from schemas.model_shape import Workload
from schemas.resources import WHOLE_MILLI, Resources

EFFICIENT = 0.5
"""The least scaling that is worth its devices: twice the devices must add half of the rate."""

Admits = Callable[[JobSpec], bool]
"""Whether admission would let a request in."""


@dataclass(frozen=True, slots=True)
class OfferedKind:
    """A kind of device that the pool has; `profile` is "" for a whole one."""

    model: str
    profile: str
    memory_mib: int

    @property
    def billed(self) -> str:
        """Its name in the price book: `H100`, or `H100:1g.10gb`."""
        return f"{self.model}:{self.profile}" if self.profile else self.model


def kinds_of(state: State) -> tuple[OfferedKind, ...]:
    """What the pool's nodes that are up offer, without CPUs; of one kind the smallest memory."""
    fleet, found = state.fleet, []
    offered = fleet.up & ~fleet.cpu
    codes = fleet.model * (len(fleet.profiles) + 1) + fleet.profile
    for code in np.unique(codes[offered]).tolist():
        model, profile = divmod(code, len(fleet.profiles) + 1)
        memory_mib = int(fleet.memory_mib[offered & (codes == code)].min())
        found.append(OfferedKind(fleet.models.names[model], fleet.profiles.names[profile], memory_mib))
    return tuple(sorted(found, key=lambda kind: kind.billed))


def suggest(
    spec: JobSpec,
    table: Throughputs,
    price: PriceOf,
    kinds: Sequence[OfferedKind],
    chosen: str,
    *,
    memory_mib: int,
    steps: float | None = None,
    admits: Admits = lambda _: True,
) -> tuple[RightSize, ...]:
    """Cheaper requests for the same work, the largest saving first.

    Args:
        table, price: measured rates, and micro-units per device-hour of a billed model.
        kinds: what the pool has.
        chosen: the billed model that the job would get as it stands.
        memory_mib: what it needs on each device (stated or estimated), MiB; 0: unknown.
        steps: the steps that it has to do; with a time limit they make a deadline.
        admits: is asked about each changed request, before it is suggested.
    """
    r = spec.resources
    if r.roles or r.torus or r.share_milli < WHOLE_MILLI:
        return ()
    case = _Request(spec, table, price, kinds, chosen, memory_mib, steps, admits)
    found = [*_fewer(case), *_cheaper_model(case), *_smaller(case)]
    return tuple(sorted(found, key=lambda s: (-s.saves_micros_per_hour, s.change)))


@dataclass(frozen=True, slots=True)
class _Request:
    """A request and what is known about it: see `suggest`."""

    spec: JobSpec
    table: Throughputs
    price: PriceOf
    kinds: Sequence[OfferedKind]
    chosen: str
    memory_mib: int
    steps: float | None
    admits: Admits

    def rate(self, devices: int) -> float | None:
        return self.table.rate(self.spec.resources.family, self.chosen, devices)

    def in_time(self, rate: float | None) -> bool:
        """Whether it is known to end within its time limit at so many steps/s."""
        if not self.spec.time_limit_s:
            return True
        return self.steps is not None and rate is not None and self.steps / rate <= self.spec.time_limit_s

    def possible(self, billed: str, devices: int) -> bool:
        """Whether so many devices of this very kind could ever be had: rates and prices are of all of them."""
        model, _, profile = billed.partition(":")
        changed = {"types": (model,), "mig_profile": profile, "devices": devices, "min_devices": None}
        given: dict[str, Any] = self.spec.resources.model_dump()
        try:
            resources = Resources.model_validate(given | changed)
        except ValidationError:
            return False
        return self.admits(self.spec.model_copy(update={"resources": resources}))


def _fewer(case: _Request) -> Iterator[RightSize]:
    """The measured count with the most rate, where each doubling of the devices has to bring `EFFICIENT` more of it."""
    r, chosen = case.spec.resources, case.chosen
    counts = case.table.counts(r.family, chosen)
    full = case.rate(r.devices)
    if full is None or len(counts) < 2:
        return
    best, count, rate = _worth(r.devices, full), r.devices, full
    for fewer in sorted(counts, reverse=True):
        there = case.rate(fewer)
        if not (r.min_devices or 1) <= fewer < r.devices or there is None or _worth(fewer, there) <= best:
            continue
        if case.in_time(there) and case.possible(chosen, fewer):
            best, count, rate = _worth(fewer, there), fewer, there
    if count == r.devices:
        return
    hour = case.price(chosen)
    if hour is None:
        return
    within = "" if case.steps is None else _within(case.spec, case.steps / rate)
    yield RightSize(
        change=f"set resources.devices to {count}",
        why=f"measured, {r.devices} {chosen} are {full / rate:.2f} times as fast as {count} "
        f"({full:.3g} and {rate:.3g} steps/s){within}",
        saves_micros_per_hour=hour * (r.devices - count),
        saves_micros_per_step=hour * (r.devices / full - count / rate) / HOUR_S,
    )


def _worth(devices: int, rate: float) -> float:
    """Equal for two counts when each doubling from one to the other brings exactly `EFFICIENT` more rate."""
    return rate / float(devices ** log2(1 + EFFICIENT))


def _within(spec: JobSpec, finish_s: float) -> str:
    return f", and ends in {finish_s:.0f} s of its {spec.time_limit_s:g} s" if spec.time_limit_s else ""


def _cheaper_model(case: _Request) -> Iterator[RightSize]:
    """The cheapest per step of the pool's other models that holds it and ends within its time limit."""
    r, price, chosen = case.spec.resources, case.price, case.chosen
    names = [k.billed for k in case.kinds if k.memory_mib >= case.memory_mib and k.profile == r.mig_profile]
    now, *_ = choose(case.table, price, r.family, r.devices, [chosen], "cost", steps=case.steps)
    if now.micros_per_step is None or not now.steps_per_s:
        return
    for best in choose(case.table, price, r.family, r.devices, names, "cost", steps=case.steps):
        if best.micros_per_step is None or not best.steps_per_s or best.micros_per_step >= now.micros_per_step:
            return
        if best.model == chosen or not case.in_time(best.steps_per_s) or not case.possible(best.model, r.devices):
            continue
        hour, there = price(chosen), price(best.model)
        if hour is None or there is None:
            continue
        slower = now.steps_per_s / best.steps_per_s
        within = "" if best.finish_s is None else _within(case.spec, best.finish_s)
        pace = f"{slower:.2f} times as long" if slower > 1 else f"{slower:.2f} of the time"
        yield RightSize(
            change=f"set resources.types to [{best.model.partition(':')[0]}]",
            why=f"measured, {best.model} takes {pace} at {best.micros_per_step / now.micros_per_step:.0%} of the cost{within}",
            saves_micros_per_hour=(hour - there) * r.devices,
            saves_micros_per_step=now.micros_per_step - best.micros_per_step,
        )
        return


def _smaller(case: _Request) -> Iterator[RightSize]:
    """The cheapest slice or card that holds what a job of one device needs, where no rate says that it would be slow."""
    spec, r, price, need = case.spec, case.spec.resources, case.price, case.memory_mib
    if r.devices > 1 or not need or r.mig_profile or not case.in_time(None):
        return
    if case.rate(1) is not None:  # then `_cheaper_model` has compared what was measured
        return
    if spec.model is not None and spec.model.workload is not Workload.INFERENCE:
        return
    if (hour := price(case.chosen)) is None:
        return
    priced = [(there, k) for k in case.kinds if k.memory_mib >= need and (there := price(k.billed)) is not None]
    cheaper = sorted(
        ((there, k) for there, k in priced if there < hour), key=lambda c: (c[0], c[1].memory_mib, c[1].billed)
    )
    found = next((c for c in cheaper if case.possible(c[1].billed, 1)), None)
    if found is None:
        return
    there, best = found
    change = f"set resources.types to [{best.model}]" + (
        f" and resources.mig_profile to {best.profile}" if best.profile else ""
    )
    yield RightSize(
        change=change,
        why=f"it needs {need} MiB and {best.billed} has {best.memory_mib}; how fast it is there was not measured",
        saves_micros_per_hour=hour - there,
    )
