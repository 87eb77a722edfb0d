"""Could this job ever run in this pool? Each objection with the value and the fix; nothing when it could.

The constraints are those of `libs.core.placement.find` that waiting does not change. What is busy now is no objection.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from libs.core import vram
from libs.core.accelerators import catalog
from libs.core.accelerators.precisions import computes
from libs.core.fleet_shape import LEVELS, Capacity, FleetShape, Need, level_of
from libs.core.refusal import Refusal, Why, meant, refuse
from schemas.jobs import JobSpec
from schemas.resources import WHOLE_MILLI, Precision, Resources, TopologyPolicy

KNOWN_MODELS = catalog.models() | {"A2", "H800", "MI210", "MI300A", "P100"}
"""Models that may be listed as an alternative although the pool has none of them."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Memory per device that the job needs (MiB), and the estimate behind it."""

    memory_mib: int
    estimate: vram.Estimate | None = None
    refusals: tuple[Refusal, ...] = ()


def demand_of(job: JobSpec) -> Demand:
    """What the job asks for or, where it describes its model, what the model needs at least, if that is more."""
    asked = job.resources.memory_mib
    if job.model is None:
        return Demand(asked)
    try:
        estimate = vram.estimate(job.model, job.resources.devices)
    except vram.Impossible as e:
        path = f"job.model.{e.field}"
        refusal = refuse(Why.MODEL, path, getattr(job.model, e.field), e.problem, e.fix)
        return Demand(asked, refusals=(refusal,))
    need = estimate.total_mib
    if job.resources.share_milli < WHOLE_MILLI and 0 < asked < need:
        refusal = refuse(
            Why.MODEL,
            "job.resources.memory_mib",
            asked,
            f"the share holds {asked} MiB, but the model needs at least {need} MiB: {estimate.text}",
            f"set memory_mib to {need} or more, or leave it out",
        )
        return Demand(asked, estimate, (refusal,))
    return Demand(max(asked, need), estimate)


def objections(job: JobSpec, demand: Demand, fleet: FleetShape) -> Iterator[Refusal]:
    """Constraint by constraint; only when each can be met by itself, whether all can be met together."""
    r = job.resources
    need = Need(
        r.types, r.mig_profile, demand.memory_mib, frozenset(r.labels.items()), job.simulation is not None,
        r.runtime.value if r.runtime else "", r.precision.value if r.precision else "", r.cpu_milli, r.host_memory_mib,
    )  # fmt: skip
    capacity = fleet.capacity(need)
    single = [
        *_level(r),
        *_types(r, capacity, fleet),
        *_profile(r, capacity, fleet),
        *_memory(job, demand, fleet),
        *_labels(r, capacity, fleet),
        *_simulation(job, capacity),
        *_runtime(r, capacity, fleet),
        *_precision(r, capacity, fleet),
        *_hosts(r, capacity, fleet),
    ]
    if single:
        yield from _beyond(r, demand, capacity, fleet)
    yield from single or (_roles(job, demand, fleet) if r.roles else _together(r, capacity))


def _level(r: Resources) -> Iterator[Refusal]:
    """Levels that placement does not tell from a node."""
    level = r.topology.level
    if level_of(level) != level.value:
        yield refuse(
            Why.TOPOLOGY, "job.resources.topology.level", level.value, "jobs are not placed by this level",
            "use nvlink, node, leaf, spine, zone or pool",
        )  # fmt: skip


def _beyond(r: Resources, demand: Demand, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    """What stays impossible whatever else is corrected: more devices than there are, more memory than any has."""
    if r.devices > capacity.total:
        yield refuse(
            Why.CAPACITY, "job.resources.devices", r.devices, f"this pool has {_count(capacity.total)} of all kinds",
            f"ask for at most {_count(capacity.total)}",
        )  # fmt: skip
    acceptable = fleet.capacity(Need(r.types, r.mig_profile))
    largest = max(fleet.models().values())
    if acceptable.left[1][1] == 0 and demand.memory_mib > largest:  # else `_memory` has compared
        yield refuse(
            Why.MEMORY, "job.resources.memory_mib", demand.memory_mib,
            f"no device of this pool has so much memory; the largest has {largest} MiB",
            f"ask for at most {largest} MiB per device, or split the job over more devices",
        )  # fmt: skip


def _count(devices: int, what: str = "") -> str:
    return f"{devices} {what}device{'s' if devices != 1 else ''}"


def _types(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    models = fleet.models()
    there = ", ".join(models)
    for i, name in enumerate(r.types):
        if name not in models and name not in KNOWN_MODELS:
            yield refuse(
                Why.TYPE, f"job.resources.types.{i}", name, "no device model of this name is known",
                f"{meant(name, [*models, *KNOWN_MODELS])}this pool has {there}",
            )  # fmt: skip
    if not capacity.alone["type"] and r.types and all(name in KNOWN_MODELS for name in r.types):
        yield refuse(
            Why.TYPE, "job.resources.types", ", ".join(r.types), "no node of this pool has such a device",
            f"this pool has {there}",
        )  # fmt: skip
    if not capacity.alone["type"] and not r.types:
        yield refuse(
            Why.TYPE, "job.resources.types", "", "this pool has no accelerator, and CPUs are used only when named",
            f"set types to [{there}]",
        )  # fmt: skip


def _profile(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    if capacity.alone["profile"]:
        return
    profiles = fleet.profiles()
    fix = f"{meant(r.mig_profile, profiles)}this pool has {', '.join(profiles) or 'no MIG instance'}"
    problem = "no device of this pool is a MIG instance of this profile"
    if not r.mig_profile:
        problem = "every device of this pool is a MIG instance, and none is granted unless its profile is named"
        fix = f"set mig_profile to one of: {', '.join(profiles)}"
    yield refuse(Why.PROFILE, "job.resources.mig_profile", r.mig_profile, problem, fix)


def _memory(job: JobSpec, demand: Demand, fleet: FleetShape) -> Iterator[Refusal]:
    """Against the largest device that is of an acceptable type and profile."""
    r = job.resources
    acceptable = fleet.capacity(Need(r.types, r.mig_profile))
    if acceptable.left[1][1] == 0 or fleet.capacity(Need(r.types, r.mig_profile, demand.memory_mib)).left[2][1]:
        return
    largest = max(
        b.memory_mib for blocks in fleet.blocks.values() for b in blocks
        if (b.model in r.types if r.types else not b.cpu) and b.profile == r.mig_profile
    )  # fmt: skip
    if demand.estimate is not None and demand.memory_mib > r.memory_mib:
        assert job.model is not None
        fix = vram.remedy(job.model, r.devices, largest)
        yield refuse(
            Why.MODEL,
            "job.model",
            f"{demand.memory_mib} MiB per device",
            f"needs more than the {largest} MiB of the largest acceptable device: {demand.estimate.text}",
            fix or "split the model further, use a smaller precision, or leave out job.model if it is not right",
        )
        return
    yield refuse(
        Why.MEMORY,
        "job.resources.memory_mib",
        demand.memory_mib,
        f"no acceptable device has so much memory; the largest has {largest} MiB",
        f"ask for at most {largest} MiB per device, or split the job over more devices",
    )


def _labels(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    if capacity.alone["labels"]:
        return
    for name, value in sorted(r.labels.items()):
        values = fleet.label_values(name)
        if value in values:
            continue
        if values:
            fix = f"{meant(value, values)}nodes have {name}={' or '.join(values[:8])}"
        else:
            names = fleet.label_names()
            fix = f"{meant(name, names)}labels of this pool's nodes: {', '.join(names[:16]) or 'none'}"
        yield refuse(Why.LABELS, f"job.resources.labels.{name}", value, "no node carries this label", fix)
    if all(value in fleet.label_values(name) for name, value in r.labels.items()):
        yield refuse(
            Why.LABELS, "job.resources.labels", ", ".join(f"{k}={v}" for k, v in sorted(r.labels.items())),
            "no single node carries all of these labels", "remove one of them",
        )  # fmt: skip


def _simulation(job: JobSpec, capacity: Capacity) -> Iterator[Refusal]:
    if not capacity.alone["simulation"]:
        yield refuse(
            Why.SIMULATION,
            "job.simulation",
            f"duration_s={job.simulation.duration_s:g}" if job.simulation else "",
            "timer jobs run on simulated nodes, and this pool has none",
            "give a command instead of a simulation, or submit to a pool with simulated nodes",
        )


def _roles(job: JobSpec, demand: Demand, fleet: FleetShape) -> Iterator[Refusal]:
    """Each role by itself: enough fitting devices, and one group of them within the level that it requires."""
    r = job.resources
    for i, role in enumerate(r.roles):
        memory = role.memory_mib or demand.memory_mib
        need = Need(
            role.types or r.types, "", memory, frozenset(r.labels.items()), job.simulation is not None,
            r.runtime.value if r.runtime else "", r.precision.value if r.precision else "",
            role.cpu_milli or r.cpu_milli, role.host_memory_mib or r.host_memory_mib,
        )  # fmt: skip
        capacity = fleet.capacity(need)
        left, least = capacity.left[-1][1], (role.min_count or role.count) * role.devices
        if left < least:
            yield refuse(
                Why.CAPACITY, f"job.resources.roles.{i}", f"{role.name}: {_count(least)}",
                f"this pool has {_count(left, 'fitting ')} even when all are free", f"ask for at most {_count(left)}",
            )  # fmt: skip
            continue
        level = level_of(role.topology.level)
        most, model = capacity.best[level]
        if role.topology.policy is TopologyPolicy.REQUIRED and most < role.devices:
            yield refuse(
                Why.TOPOLOGY, f"job.resources.roles.{i}.topology", f"{_count(role.devices)} within one {level}",
                f"the largest {level} has {_count(most, 'fitting ')} of one model ({model})",
                f"ask for groups of at most {most}, for a wider level, or for policy preferred",
            )  # fmt: skip


def _runtime(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    if r.runtime is not None and not capacity.alone["runtime"]:
        yield refuse(
            Why.RUNTIME, "job.resources.runtime", r.runtime.value, "no device of this pool has this runtime",
            f"this pool has {', '.join(fleet.runtimes())}; leave runtime out if the binary serves any of them",
        )  # fmt: skip


def _precision(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    if r.precision is not None and not capacity.alone["precision"]:
        models = fleet.models()
        able = [p.value for p in Precision if any(computes(model, p.value) for model in models)]
        yield refuse(
            Why.PRECISION, "job.resources.precision", r.precision.value,
            f"no device of this pool computes in it; it has {', '.join(models)}",
            f"use one of: {', '.join(able)}",
        )  # fmt: skip


def _hosts(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    """Processors and host memory that no node has, even for one device of the job."""
    most_cpu, most_mib = fleet.hosts()
    if not capacity.alone["processors"]:
        yield refuse(
            Why.CPU, "job.resources.cpu_milli", r.cpu_milli,
            f"no node has so many processors; the largest has {most_cpu / 1000:g}",
            f"ask for at most {most_cpu} thousandths per device" if most_cpu else _UNTOLD.format(what="cpu_milli"),
        )  # fmt: skip
    if not capacity.alone["host memory"]:
        yield refuse(
            Why.HOST_MEMORY, "job.resources.host_memory_mib", r.host_memory_mib,
            f"no node has so much host memory; the largest has {most_mib} MiB",
            f"ask for at most {most_mib} MiB per device" if most_mib else _UNTOLD.format(what="host_memory_mib"),
        )  # fmt: skip


_UNTOLD = "leave {what} out: the nodes of this pool do not tell what they have"


def _together(r: Resources, capacity: Capacity) -> Iterator[Refusal]:
    left = capacity.left[-1][1]
    if left == 0:
        steps = ", ".join(f"{name} leaves {count}" for name, count in capacity.left)
        yield refuse(
            Why.CAPACITY, "job.resources", _asked(r), "no device of this pool meets all demands together",
            f"loosen one of them; of {_count(capacity.total)} {steps}",
        )  # fmt: skip
        return
    required = r.topology.policy is TopologyPolicy.REQUIRED
    level = level_of(r.topology.level) if required else "pool"
    most, model = capacity.best[level]
    least = r.min_devices or r.devices
    if most >= least:
        return
    wider = next((x for x in LEVELS[LEVELS.index(level) :] if capacity.best[x][0] >= least), None)
    if wider is not None:
        yield refuse(
            Why.TOPOLOGY,
            "job.resources.topology",
            f"{_count(least)} within one {level}",
            f"the largest {level} has {_count(most, 'fitting ')} of one model ({model})",
            f"set topology.level to {wider}, or policy to preferred, or ask for at most {_count(most)}",
        )
        return
    yield refuse(
        Why.CAPACITY,
        "job.resources.devices",
        r.devices,
        f"this pool has {_count(most, 'fitting ')} of one model ({model}){f' within one {level}' if required else ''}, "
        "even when all are free",
        f"ask for at most {_count(most)}",
    )


def _asked(r: Resources) -> str:
    return ", ".join(f"{k}={v}" for k, v in r.model_dump(mode="json", exclude_defaults=True).items()) or "1 device"
