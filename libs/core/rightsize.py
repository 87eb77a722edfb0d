"""A smaller request that does the same: what it saves, and why it suffices. Only shown, never applied.

Three rules, each with a measured or computed reason:

1. *Devices*: where the measured rate grows by less than half of the devices that are added, the largest count that still
   pays is suggested. Half is the break-even of GPU-hours against a doubling; below it most of the addition is wasted.
2. *Model*: another model of the pool that finishes within the job's time limit (its deadline) for less money per step.
3. *Memory*: an inference job, or one device's, whose estimated or stated memory fits a MIG slice or a smaller card.
   Without measured rates this saves only if it need not be as fast; so it is offered for memory alone, and says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from libs.core.model import State
from libs.core.throughput import HOUR_S, Price, Throughputs, choose
from schemas.jobs import JobSpec, Workload
from schemas.queries import RightSize
from schemas.resources import WHOLE_MILLI

EFFICIENT = 0.5
"""Least marginal scaling that is worth its devices: of twice the devices, half of the doubling."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of device that the pool has; `profile` is "" for a whole one."""

    model: str
    profile: str
    memory_mib: int

    @property
    def billed(self) -> str:
        """Its name in the price book: `H100`, or `H100:1g.10gb`."""
        return f"{self.model}:{self.profile}" if self.profile else self.model


def kinds_of(state: State) -> tuple[Kind, ...]:
    """What the pool's nodes that are up offer, without CPUs; of one kind the smallest memory."""
    fleet, found = state.fleet, []
    offered = fleet.up & ~fleet.cpu
    codes = fleet.model * (len(fleet.profiles) + 1) + fleet.profile
    for code in np.unique(codes[offered]).tolist():
        model, profile = divmod(code, len(fleet.profiles) + 1)
        memory_mib = int(fleet.memory_mib[offered & (codes == code)].min())
        found.append(Kind(fleet.models.names[model], fleet.profiles.names[profile], memory_mib))
    return tuple(sorted(found, key=lambda kind: kind.billed))


def suggest(
    spec: JobSpec,
    table: Throughputs,
    price: Price,
    kinds: Sequence[Kind],
    chosen: str,
    memory_mib: int,
    steps: float | None = None,
) -> tuple[RightSize, ...]:
    """Cheaper requests for the same work, the largest saving first.

    Args:
        table, price: measured rates, and micro-units per device-hour of a billed model.
        kinds: what the pool has.
        chosen: the billed model that the job would get as it stands.
        memory_mib: what it needs on each device (stated or estimated), MiB; 0: unknown.
        steps: the steps that it has to do; with a time limit they make a deadline.
    """
    r = spec.resources
    if r.roles or r.torus or r.share_milli < WHOLE_MILLI:
        return ()
    found = [
        *_fewer(spec, table, price, chosen),
        *_cheaper_model(spec, table, price, kinds, chosen, memory_mib, steps),
        *_smaller(spec, table, price, kinds, chosen, memory_mib),
    ]
    return tuple(sorted(found, key=lambda s: (-s.saves_micros_per_hour, s.change)))


def _fewer(spec: JobSpec, table: Throughputs, price: Price, chosen: str) -> Iterator[RightSize]:
    devices, family = spec.resources.devices, spec.resources.family
    full = table.rate(family, chosen, devices)
    if full is None or len(table.counts(family, chosen)) < 2:
        return
    unit = spec.model.tensor_parallel * spec.model.pipeline_parallel if spec.model else 1
    count, rate = devices, full
    while count % 2 == 0 and (count // 2) % unit == 0:
        half = table.rate(family, chosen, count // 2)
        if half is None or rate / half - 1 >= EFFICIENT:
            break
        count, rate = count // 2, half
    if count == devices:
        return
    hour = price(chosen)
    yield RightSize(
        change=f"set resources.devices to {count}",
        why=f"measured, {devices} {chosen} are {full / rate:.2f} times as fast as {count} ({full:.3g} and {rate:.3g} steps/s)",
        saves_micros_per_hour=hour * (devices - count),
        saves_micros_per_step=hour * (devices / full - count / rate) / HOUR_S,
    )


def _cheaper_model(
    spec: JobSpec, table: Throughputs, price: Price, kinds: Sequence[Kind], chosen: str, memory_mib: int,
    steps: float | None,
) -> Iterator[RightSize]:  # fmt: skip
    """The cheapest per step of the pool's other models that holds it and, with steps, ends within its time limit."""
    r = spec.resources
    names = [k.billed for k in kinds if k.memory_mib >= memory_mib and k.profile == r.mig_profile]
    now, *_ = choose(table, price, r.family, r.devices, [chosen], "cost", steps)
    best, *_ = choose(table, price, r.family, r.devices, names or [chosen], "cost", steps)
    if now.micros_per_step is None or best.micros_per_step is None or best.model == chosen:
        return
    if best.micros_per_step >= now.micros_per_step or not (now.steps_per_s and best.steps_per_s):
        return
    if spec.time_limit_s and (best.finish_s is None or best.finish_s > spec.time_limit_s):
        return
    slower = now.steps_per_s / best.steps_per_s
    within = f", and ends in {best.finish_s:.0f} s of its {spec.time_limit_s:g} s" if spec.time_limit_s else ""
    pace = f"{slower:.2f} times as long" if slower > 1 else f"{slower:.2f} of the time"
    yield RightSize(
        change=f"set resources.types to [{best.model.partition(':')[0]}]",
        why=f"measured, {best.model} takes {pace} at {best.micros_per_step / now.micros_per_step:.0%} of the cost{within}",
        saves_micros_per_hour=(price(chosen) - price(best.model)) * r.devices,
        saves_micros_per_step=now.micros_per_step - best.micros_per_step,
    )


def _smaller(
    spec: JobSpec, table: Throughputs, price: Price, kinds: Sequence[Kind], chosen: str, memory_mib: int
) -> Iterator[RightSize]:
    """The cheapest slice or card that holds what a job of one device needs, where no rate says that it would be slow."""
    r = spec.resources
    if r.devices > 1 or not memory_mib or r.mig_profile:
        return
    if table.rate(r.family, chosen, 1) is not None:  # then `_cheaper_model` has compared what was measured
        return
    if spec.model is not None and spec.model.workload is not Workload.INFERENCE:
        return
    fitting = [k for k in kinds if k.memory_mib >= memory_mib and price(k.billed) < price(chosen)]
    if not fitting:
        return
    best = min(fitting, key=lambda k: (price(k.billed), k.memory_mib, k.billed))
    change = f"set resources.types to [{best.model}]" + (
        f" and resources.mig_profile to {best.profile}" if best.profile else ""
    )
    yield RightSize(
        change=change,
        why=f"it needs {memory_mib} MiB and {best.billed} has {best.memory_mib}; how fast it is there was not measured",
        saves_micros_per_hour=price(chosen) - price(best.billed),
    )
