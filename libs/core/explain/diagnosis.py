"""Why a request does not fit now: the dominant reason, what each constraint removes, and what would help.

One function for `explain` (a job that waits) and `plan` (one that is not submitted yet). A change is offered only after
the placer was asked and said that the job would then run now. Smaller changes come first: how close together, which
devices, how much of their nodes or of them, how many.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

import numpy as np

from libs.core.accelerators import vram
from libs.core.placement.answer import Blocked, BlockReason, Placed
from libs.core.placement.find import find
from libs.core.placement.search.constraints import fitting
from libs.core.placement.view import Context, View
from libs.core.scheduling.limits import BudgetShort, Tally
from libs.core.state.fleet import Ints
from libs.core.state.job import Job
from libs.core.state.levels import beyond
from libs.core.state.model import State
from libs.core.state.own_network import ASKED, OWN_NETWORK
from libs.core.state.shape import Shape
from libs.core.state.usable import MOST_PARTS
from schemas.explanations import Removed
from schemas.subjects import OPERATOR

TEXT = {
    BlockReason.NO_DEVICES: "the pool has {up} usable devices and the job needs {need} at once",
    BlockReason.TYPE: "no device of an acceptable type is usable: it asks for {types}",
    BlockReason.PROFILE: "no MIG instance of profile {profile} is usable",
    BlockReason.LABELS: "no usable node carries the labels {labels}",
    BlockReason.MEMORY: "no usable device has {memory} MiB of memory",
    BlockReason.RUNTIME: "no usable device speaks {runtime}",
    BlockReason.PRECISION: "no usable device computes in {precision}",
    BlockReason.CPU: "no node has {cpu} processors for each device that are free and kept for nobody",
    BlockReason.HOST_MEMORY: "no node has {host} MiB of host memory for each device that are free and kept for nobody",
    BlockReason.SIMULATION: "it runs as a timer, and no node with simulated devices is usable",
    BlockReason.HELD: "the devices that are free are held for a job of a higher class",
    BlockReason.RESERVED: "the devices that are free are reserved for a job that has waited longer",
    BlockReason.BUSY: "{left} fitting devices are free and it needs {need} at once",
    BlockReason.PARTS: f"the nodes with free devices run {MOST_PARTS} parts each, and a node may run no more",
    BlockReason.SPREAD: "where devices are free, jobs with the spread key {spread} run already",
    BlockReason.POWER: "the racks with free devices have no power left for it",
    BlockReason.TOPOLOGY: "{left} fitting devices are free, but not {need} of them within one {level}",
    BlockReason.QUOTA: "team {team} may hold no more of what it asks for",
    BlockReason.BUDGET: "no budget of team {team} covers what it asks for",
}
"""Texts for a constraint that leaves no device."""

SOME = {
    BlockReason.TYPE: "of no type that it asks for ({types})",
    BlockReason.PROFILE: "no MIG instances of profile {profile}",
    BlockReason.LABELS: "on nodes without the labels {labels}",
    BlockReason.MEMORY: "too small for {memory} MiB of memory",
    BlockReason.RUNTIME: "not for {runtime}",
    BlockReason.PRECISION: "unable to compute in {precision}",
    BlockReason.CPU: "on nodes without {cpu} processors free for each",
    BlockReason.HOST_MEMORY: "on nodes without {host} MiB of host memory free for each",
    BlockReason.SIMULATION: "not simulated, and it runs as a timer",
    BlockReason.HELD: "held for a job of a higher class",
    BlockReason.RESERVED: "reserved for a job that has waited longer",
    BlockReason.PARTS: f"on nodes that run {MOST_PARTS} parts each, and may run no more",
    BlockReason.SPREAD: "where jobs with the spread key {spread} run already",
    BlockReason.POWER: "on racks that have no power left for them",
}
"""Texts for a constraint that leaves some devices, but too few: what the devices are that it removes."""

_WHOLE = (
    "all usable devices are MIG instances, and it asks for whole ones",
    "MIG instances, and it asks for whole ones",
)
"""Both texts for the profile of a request that has none."""

_OTHERS = (
    BlockReason.BUSY, BlockReason.HELD, BlockReason.RESERVED, BlockReason.PARTS, BlockReason.CPU, BlockReason.HOST_MEMORY,
    BlockReason.POWER,
)  # fmt: skip
"""What other jobs take, in whatever way. How it is divided is theirs: a team is told the sum, which follows from what the pool
has and what is free for it."""

_MOST = 4
_TRIED = 6


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`changes`: each of them alone would let the job run now. The smallest comes first."""

    reason: BlockReason
    text: str
    removed: tuple[Removed, ...]
    changes: tuple[str, ...]

    @property
    def suggestion(self) -> str:
        return self.changes[0] if self.changes else ""


def diagnose(
    state: State,
    job: Job,
    outcome: Blocked,
    view: View,
    context: Context,
    most: int = _MOST,
    *,
    seen_by: str = OPERATOR,
    limit_in_time_s: int = 0,
) -> Diagnosis:
    """Why `job` got `outcome`, as `seen_by` may know it. Changes are tried on `view`; `most` of them are offered.
    `limit_in_time_s`: the time limit with which it would go before a gang, if there is one."""
    in_time = (f"set time_limit_s to {limit_in_time_s}",) if limit_in_time_s else ()
    tried = chain(in_time, _changes(state, job, outcome, view, context))
    changes = tuple(islice(tried, most)) or _fallback(state, job, outcome, view)
    removed = outcome.removed if seen_by == OPERATOR else _summed(outcome.removed)
    return Diagnosis(
        outcome.reason,
        text_of(state, job, outcome, seen_by=seen_by),
        tuple(Removed(constraint=reason.value, devices=n) for reason, n in removed),
        changes,
    )


def _summed(removed: tuple[tuple[BlockReason, int], ...]) -> tuple[tuple[BlockReason, int], ...]:
    """What others take as one number, in the place of the first of them."""
    sums: dict[BlockReason, int] = {}
    for reason, gone in removed:
        shown = BlockReason.BUSY if reason in _OTHERS else reason
        sums[shown] = sums.get(shown, 0) + gone
    return tuple(sums.items())


def text_of(state: State, job: Job, outcome: Blocked, *, seen_by: str = OPERATOR) -> str:
    """The dominant reason in a sentence, as `seen_by` may know it."""
    if outcome.reason in (BlockReason.QUOTA, BlockReason.BUDGET) and (reached := Tally(state).room(job).reached):
        return reached[0].text(job.team)
    shape = job.shape
    whole = outcome.reason is BlockReason.PROFILE and not shape.profile
    text, some = _WHOLE if whole else (TEXT[outcome.reason], SOME.get(outcome.reason, ""))
    before, gone = _counts(outcome)
    if outcome.reason is BlockReason.LABELS and shape.labels == (ASKED,):
        text = "its class has no network, and no usable node can take it from a job"
    if some and gone < before:
        counted = f"{gone} of {before}" if seen_by == OPERATOR or outcome.reason not in _OTHERS else "some"
        text = f"{counted} devices are {some}; {{left}} are left and it needs {{need}} at once"
    said = text.format(
        up=int(state.fleet.up.sum()),
        need=_devices(shape.least * shape.milli),
        types=(", ".join(shape.types) or "any accelerator") + ("" if shape.whole else ", where it is shared"),
        profile=shape.profile,
        labels=dict(shape.labels),
        memory=shape.memory_mib,
        runtime=shape.runtime,
        precision=shape.precision,
        cpu=f"{shape.cpu_milli / 1000:g}",
        host=shape.host_mib,
        left=outcome.left,
        level=shape.level,
        spread=shape.spread[0],
        team=job.team,
    )
    return said + _out_of_use(state, shape)


def _out_of_use(state: State, shape: Shape) -> str:
    """What is told of devices that it could use, were nothing else using them, and no operator keeping them."""
    fleet = state.fleet
    busy = {fleet.row(device) for device, known in state.quarantined.items() if not known.lifted}
    kept = {row for name in state.cordoned if fleet.nodes[name].up for row in fleet.nodes[name].rows} - busy
    return "".join(
        f" ({'1 more is' if count == 1 else f'{count} more are'} {why})"
        for rows, why in ((busy, "in quarantine: something that is no job uses it"), (kept, "out of use: maintenance"))
        if (count := _fitting(state, shape, rows))
    )


def _fitting(state: State, shape: Shape, rows: set[int]) -> int:
    """How many of these devices are of a kind that it asks for."""
    fleet = state.fleet
    model, profile = fleet.models.names, fleet.profiles.names
    return sum(
        (not shape.types or model[int(fleet.model[row])] in shape.types)
        and profile[int(fleet.profile[row])] == shape.profile
        for row in rows
    )


def _counts(outcome: Blocked) -> tuple[int, int]:
    """Devices that the dominant constraint found, and how many of them it took out."""
    before = outcome.left + sum(n for _, n in outcome.removed)
    for reason, gone in outcome.removed:
        if reason is outcome.reason:
            return before, gone
        before -= gone
    return 0, 0


def _changes(state: State, job: Job, outcome: Blocked, view: View, context: Context) -> Iterator[str]:
    """Changes with which `find` places the job on `view`, within its team's limits."""

    def capped(shape: Shape) -> Shape:
        return _capped(state, tally, job, shape)

    tally = Tally(state)
    if outcome.reason is BlockReason.BUDGET:
        yield from _shorter(tally, job, view, context)
    job = job.but(shape=capped(job.shape))
    if _runs(view, job.shape, context):  # it fits, so something else keeps it out, and any change would seem to help
        return
    for words, shape in _looser(job.shape):
        if _runs(view, shape, context):
            yield words
    if context.avoid and _runs(view, job.shape, replace(context, avoid=())):
        yield "leave out resources.spread"
    if job.shape.roles:
        yield from _fewer_groups(view, job.shape, context, job.shape.least - 1)
        return
    yield from _other_types(view, job.shape, context)
    for words, shape in (*_labels(job.shape), *_less_memory(view, job), *_profiles(view, job.shape)):
        if _runs(view, capped(shape), context):
            yield words
    yield from _less_of_host(view, job.shape, context)
    yield from _smaller_share(view, job.shape, context, capped)
    yield from _fewer(view, job, context, job.shape.least - 1)


def _shorter(tally: Tally, job: Job, view: View, context: Context) -> Iterator[str]:
    """The longest time limit whose hold is covered, in whole seconds."""
    reached = tally.room(job).reached
    covered = [
        max(0, short.available) * short.window_us // short.asked for short in reached if isinstance(short, BudgetShort)
    ]
    limit_s = max(covered, default=0) // 1_000_000
    if not limit_s:
        return
    shorter = job.but(spec=job.spec.model_copy(update={"time_limit_s": float(limit_s)}))
    request = tally.room(shorter).request
    if request is not None and _runs(view, request, context):
        yield f"set time_limit_s to {limit_s}"


def _capped(state: State, tally: Tally, job: Job, shape: Shape) -> Shape:
    """`shape` with the caps that the limits of `job`'s team set on every model of the pool, so that a change of types keeps
    to them as well."""
    if not tally.limited(job.team):
        return shape
    anywhere = shape if shape.roles else replace(shape, types=tuple(state.fleet.models.names))
    return replace(shape, caps=tally.room(job, anywhere).caps)


def _looser(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """A wider topology: the next levels first, then no level at all."""
    if not shape.required:
        return
    for level in beyond(shape.level)[:-1]:
        yield f"set resources.topology.level to {level.value}", replace(shape, level=level)
    yield "set resources.topology.policy to preferred", replace(shape, required=False, widen_us=0)


def _other_types(view: View, shape: Shape, context: Context) -> Iterator[str]:
    if not shape.types:
        return
    placed = find(view, replace(shape, types=()), context=context)
    if isinstance(placed, Placed):
        yield f"add {view.fleet.models.names[int(view.fleet.model[placed.rows[0]])]} to resources.types"


def _labels(shape: Shape) -> Iterator[tuple[str, Shape]]:
    for name, value in shape.labels:
        if name == OWN_NETWORK:  # its class demands it
            continue
        rest = tuple(label for label in shape.labels if label != (name, value))
        yield f"leave out resources.labels.{name}", replace(shape, labels=rest)


def _less_memory(view: View, job: Job) -> Iterator[tuple[str, Shape]]:
    """The sizes of device that there are, largest first, but not less than its model is known to need."""
    shape, need = job.shape, _need_mib(job, job.shape.devices)
    sizes = view.fleet.memory_mib if shape.whole else view.free_mib
    for size in _falling(sizes[view.fleet.up], need, shape.memory_mib):
        yield f"set resources.memory_mib to {size}", replace(shape, memory_mib=size)


def _profiles(view: View, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Smaller MIG instances than the one asked for, largest first."""
    if not shape.profile:
        return
    fleet = view.fleet
    sizes: dict[str, int] = {}
    for code in np.unique(fleet.profile[fleet.up]).tolist():
        sizes[fleet.profiles.names[code]] = int(fleet.memory_mib[fleet.up & (fleet.profile == code)].max())
    asked = sizes.get(shape.profile, 1 << 40)
    for name in sorted(sizes, key=lambda n: (-sizes[n], n))[:_TRIED]:
        if name and name != shape.profile and sizes[name] <= asked:
            yield f"set resources.mig_profile to {name}", replace(shape, profile=name)


def _less_of_host(view: View, shape: Shape, context: Context) -> Iterator[str]:
    """The most processors, then host memory, per device with which it runs."""
    cpu = _parts(view, view.free_cpu, shape, shape.cpu_milli)
    good = _most(len(cpu), lambda n: _runs(view, replace(shape, cpu_milli=cpu[n - 1]), context))
    if good:
        yield f"set resources.cpu_milli to {cpu[good - 1]}"
    host = _parts(view, view.free_host, shape, shape.host_mib)
    good = _most(len(host), lambda n: _runs(view, replace(shape, host_mib=host[n - 1]), context))
    if good:
        yield f"set resources.host_memory_mib to {host[good - 1]}"


def _parts(view: View, free: Ints, shape: Shape, asked: int) -> list[int]:
    """What nodes have free for each of 1, 2, ... devices, rising, under `asked`: between these nothing changes."""
    if not asked:
        return []
    ranks = min(max(1, shape.devices), int(np.bincount(view.fleet.node[view.fleet.up], minlength=1).max()))
    amounts = np.unique(np.maximum(0, free)[:, None] // np.arange(1, max(1, ranks) + 1))
    return [int(amount) for amount in amounts[(amounts >= 1) & (amounts < asked)]]


def _smaller_share(view: View, shape: Shape, context: Context, capped: Callable[[Shape], Shape]) -> Iterator[str]:
    """The largest free share of a device on which it runs."""
    if shape.whole:
        return
    for share in _falling(view.free_milli[fitting(view, shape)], 1, shape.milli):
        if _runs(view, capped(replace(shape, milli=share)), context):
            yield f"set resources.share_milli to {share}"
            return


def _fewer_groups(view: View, shape: Shape, context: Context, most: int) -> Iterator[str]:
    """Of each role alone, the most groups with which the job runs on at most `most` devices at the least."""
    for i, role in enumerate(shape.roles):
        fewest = role.min_count - max(1, -(-(shape.least - most) // role.devices))
        good = _most(fewest, partial(_runs_with, view, shape, context, i))
        if good:
            field = "min_count" if role.min_count < role.count else "count"
            yield f"set resources.roles.{i}.{field} to {good}"


def _runs_with(view: View, shape: Shape, context: Context, i: int, count: int) -> bool:
    """Whether it runs with `count` groups of role `i`, and the fewest of each other."""
    roles = tuple(replace(r, count=r.min_count) for r in shape.roles)
    roles = (*roles[:i], replace(roles[i], count=count, min_count=count), *roles[i + 1 :])
    return _runs(view, replace(shape, roles=roles, devices=sum(r.count * r.devices for r in roles)), context)


def _most(most: int, works: Callable[[int], bool]) -> int:
    """The largest n of 1..`most` for which `works`, which never works again as n grows; 0 when it never does."""
    good, bad = 0, most + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if works(middle) else (good, middle)
    return good


def _fewer(view: View, job: Job, context: Context, most: int) -> Iterator[str]:
    """The most devices, of at most `most`, with which it runs. What fits with n fits with fewer, so by bisection."""
    shape = job.shape
    if shape.torus or shape.roles:
        return
    model = job.spec.model
    unit = model.devices_per_replica if model else 1

    def works(units: int) -> bool:
        memory = max(job.spec.resources.memory_mib if model else shape.memory_mib, _need_mib(job, units * unit))
        fewer = replace(shape, devices=units * unit, min_devices=0, memory_mib=memory)
        return _runs(view, fewer, context)

    good = _most(most // unit, works)
    if good:
        field = "min_devices" if shape.min_devices else "devices"
        yield f"set resources.{field} to {good * unit}"


def _need_mib(job: Job, devices: int) -> int:
    """What the described model needs on each of `devices` devices, MiB; 0 without a description."""
    if job.spec.model is None:
        return 0
    try:
        return vram.estimate(job.spec.model, devices).total_mib
    except vram.Impossible:
        return 0


def _fallback(state: State, job: Job, outcome: Blocked, view: View) -> tuple[str, ...]:
    """Used when no change was found: how much its budget lacks; or how many such devices there are at all, if that is too
    few."""
    shorts = [short for short in Tally(state).room(job).reached if isinstance(short, BudgetShort)]
    if outcome.reason is BlockReason.BUDGET and shorts:
        short = shorts[0]
        return (
            f"ask the operators for {short.lacks_micros / 1e6:.12g} more {short.budget.unit.value} of {short.budget.label}",
        )
    if outcome.reason is BlockReason.LABELS and job.shape.labels == (ASKED,):
        return ("use a class with network, or ask the operators for nodes with walls around jobs",)
    if job.shape.roles:
        return ()
    possible = int(np.count_nonzero(fitting(view, job.shape)))
    if possible >= job.shape.least:
        return ()
    fleet = state.fleet
    models = sorted(fleet.models.names[code] for code in np.unique(fleet.model[fleet.up]).tolist())
    return (f"only {possible} such devices are up; the pool has the types {', '.join(models)}",) if models else ()


def _runs(view: View, shape: Shape, context: Context) -> bool:
    return isinstance(find(view, shape, context=context), Placed)


def _falling(values: Ints, least: int, below: int) -> list[int]:
    """The few largest different values from `least` to under `below`."""
    inside = values[(values >= max(least, 1)) & (values < below)]
    return [int(value) for value in np.unique(inside)[::-1][:_TRIED]]


def _devices(milli: int) -> str:
    return f"{milli / 1000:g}"
