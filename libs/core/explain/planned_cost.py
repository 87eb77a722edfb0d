"""What a planned job costs where it would run, and which cheaper requests do the same work."""

from collections.abc import Callable
from dataclasses import dataclass

from libs.core.billing.pricing import Prices
from libs.core.explain.right_sizing import kinds_of, suggest
from libs.core.placement.throughput import HOUR_S, Throughputs
from libs.core.scheduling.limits import prices_of
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas.explanations import PlannedCost, PlanReply, RightSize
from schemas.jobs import JobSpec
from schemas.resources import WHOLE_MILLI


@dataclass(frozen=True, slots=True)
class PlannedPrices:
    """What devices cost a job: `of` gives millionths of `currency` per device and hour by the name of a kind, None without a
    price."""

    currency: str
    of: Callable[[str], int | None]


def prices_for(state: State, job: Job, listed: Prices) -> PlannedPrices:
    """By the book that the pool's bills go by; by `listed` where no book was applied."""
    if state.book is None:
        return PlannedPrices(listed.currency, lambda kind: listed.of(kind, job.spec.priority_class))
    held = prices_of(state, job)
    return PlannedPrices(state.book.currency, lambda kind: held.of({kind}).get(kind))


def cost_of(
    job: Job, answer: PlanReply, prices: PlannedPrices, table: Throughputs, steps: float | None
) -> PlannedCost | None:
    """What it costs where it would run; without a place, on the first acceptable model. None: that has no price."""
    billed = _billed(job, answer)
    if billed is None:
        return None
    spec, devices = job.spec, sum(len(n.devices) for n in answer.nodes) or job.shape.devices
    hour = prices.of(billed)
    if hour is None:
        return None
    milli = devices * job.shape.milli
    rate = table.rate(spec.resources.family, billed, devices)
    run_s: float | None = None
    basis = ""
    if steps is not None and rate is not None:
        run_s, basis = steps / rate, f"steps: {steps:g} at {rate:.4g} per s, measured"
    elif spec.simulation is not None:
        run_s, basis = spec.simulation.duration_s, "simulation"
    if spec.time_limit_s and (run_s is None or run_s > spec.time_limit_s):
        run_s, basis = spec.time_limit_s, "time-limit: at most"
    return PlannedCost(
        currency=prices.currency,
        micros_per_device_hour=hour,
        micros_per_hour=round(hour * milli / WHOLE_MILLI),
        run_s=run_s,
        run_basis=basis,
        total_micros=None if run_s is None else round(hour * milli / WHOLE_MILLI * run_s / HOUR_S),
        micros_per_step=None if rate is None else hour * milli / WHOLE_MILLI / HOUR_S / rate,
    )


def right_sizes(
    state: State,
    job: Job,
    answer: PlanReply,
    prices: PlannedPrices,
    table: Throughputs,
    *,
    steps: float | None,
    admits: Callable[[JobSpec], bool],
) -> tuple[RightSize, ...]:
    """Cheaper requests that admission would admit, the largest saving first; none when the billed model is unknown."""
    billed = _billed(job, answer)
    if billed is None:
        return ()
    return suggest(
        job.spec, table, prices.of, kinds_of(state), billed,
        memory_mib=job.shape.memory_mib, steps=steps, admits=admits,
    )  # fmt: skip


def _billed(job: Job, answer: PlanReply) -> str | None:
    """The price book's name of what it would run on; the first listed type when that is not known."""
    model = answer.nodes[0].model if answer.nodes else next(iter(job.shape.types), None)
    if model is None:
        return None
    return f"{model}:{job.shape.profile}" if job.shape.profile else model
