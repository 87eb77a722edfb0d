"""Could this job ever run in this pool? Each objection with the value and the fix; nothing when it could.

The constraints are those of `libs.core.placement.find` that waiting does not change. What is busy now is no objection.
First field by field, so that everything is told at once; when nothing is found, the placer itself is asked with every
device free (`FleetShape.verdict`), and what it cannot place is told by the field whose change helps.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice

from libs.core.accelerators import catalog, vram
from libs.core.accelerators.mig_boards import GEOMETRIES
from libs.core.accelerators.precisions import computes
from libs.core.accelerators.spelling import listed, meant
from libs.core.admission.capacity import Capacity, Need
from libs.core.admission.demand import Demand
from libs.core.admission.device_request import JOB, DeviceRequest, device_requests, with_demand
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.refusal import Refusal, RefusalCause, refuse
from libs.core.admission.unplaced import count_of, unplaced
from libs.core.state.levels import beyond, grouped
from libs.core.state.own_network import OWN_NETWORK
from libs.core.state.shape import shape_of
from schemas.jobs import JobSpec
from schemas.resources import WHOLE_MILLI, Level, Precision, Resources, TopologyPolicy

KNOWN_MODELS = catalog.models() | {"A2", "H800", "MI210", "MI300A", "P100"}
"""Models that may be listed as an alternative although the pool has none of them."""


def suitable_devices(job: JobSpec, demand: Demand, fleet: FleetShape) -> int:
    """How many devices of the pool, free or not, could serve the job or the role that has the fewest."""
    return min(fleet.capacity(request.need(job)).left[-1][1] for request in device_requests(job, demand))


def constraints_met(job: JobSpec, demand: Demand, fleet: FleetShape) -> int:
    """Of the constraints on a device, in their order, how many leave some of the pool's, for the role that gets least far."""
    return min(
        sum(1 for _, devices in fleet.capacity(request.need(job)).left if devices)
        for request in device_requests(job, demand)
    )


def unserved(job: JobSpec, demand: Demand) -> list[Refusal]:
    """What no device of the named models can do, and levels that are none: told without knowing any pool.

    A model that the catalogue does not know may do anything.
    """
    requests = device_requests(job, demand)
    return _once([*_levels(job, requests), *_incapable(requests)])


def _once(refusals: list[Refusal]) -> list[Refusal]:
    """Without repetitions: roles share what they have from the job."""
    first: dict[tuple[RefusalCause, str], Refusal] = {}
    for refusal in refusals:
        first.setdefault((refusal.why, refusal.reason.field), refusal)
    return list(first.values())


def _incapable(requests: list[DeviceRequest]) -> Iterator[Refusal]:
    """A precision or a MIG profile that none of the named models has."""
    for request in requests:
        types, precision, profile = request.r.types, request.r.precision, request.r.mig_profile
        named = ", ".join(types)
        if precision and types and not any(computes(name, precision.value) for name in types):
            able = [p.value for p in Precision if any(computes(name, p.value) for name in types)]
            yield refuse(
                RefusalCause.PRECISION, f"{JOB}.precision", precision.value, f"{named} does not compute in it",
                f"use one of: {listed(able)}",
            )  # fmt: skip
        known = [model.model for name in types if (model := catalog.find_model(name))]
        boards = [board for name, board in GEOMETRIES.items() if name.split("-")[0] in known]
        profiles = sorted({p.name for board in boards for p in board.profiles})
        if profile and profiles and len(known) == len(types) and profile not in profiles:
            yield refuse(
                RefusalCause.PROFILE, f"{JOB}.mig_profile", profile, f"{named} has no such MIG profile",
                f"{meant(profile, profiles)}use one of: {listed(profiles)}",
            )  # fmt: skip


_MOST = 50
"""Objections that are worked out: names are as many as who sends and who offers them like."""


def objections(job: JobSpec, demand: Demand, fleet: FleetShape) -> Iterator[Refusal]:
    """What the placer finds a place for has no wrong field but names that mean nothing; else constraint by constraint;
    when each can be met by itself, whether all can be met together; at last what the placer alone can tell."""
    r, requests = job.resources, device_requests(job, demand)
    unknown = (o for request in requests for o in _unknown(request, fleet))
    named = list(islice(chain(_levels(job, requests), unknown), _MOST))
    shape = shape_of(job.model_copy(update={"resources": with_demand(r, demand)}))
    blocked = fleet.verdict(shape)
    if blocked is None and not named and not fleet.repartitionable(shape.profile):
        return
    single = (o for request in requests for o in _single(job, demand, request, fleet))
    found = _once(list(islice(chain(named, single), _MOST)))
    if found:
        yield from _beyond(r, demand, fleet)
        yield from found
        return
    together = [*(_roles(job, requests, fleet) if r.roles else _together(r, fleet.capacity(requests[0].need(job))))]
    if together or blocked is None:
        yield from together
    else:
        yield from unplaced(shape, blocked, fleet)


def _single(job: JobSpec, demand: Demand, request: DeviceRequest, fleet: FleetShape) -> Iterator[Refusal]:
    """What a device, or its node, cannot do, each demand by itself."""
    capacity = fleet.capacity(request.need(job))
    yield from _types(request, capacity, fleet)
    yield from _sharing(request.r, fleet)
    yield from _profile(request.r, capacity, fleet)
    yield from _memory(job, demand, request, fleet)
    yield from _labels(job, request.r, capacity, fleet)
    yield from _simulation(job, capacity)
    yield from _runtime(request.r, capacity, fleet)
    yield from _precision(request.r, capacity, fleet)
    yield from _hosts(request, capacity, fleet)


def _levels(job: JobSpec, requests: list[DeviceRequest]) -> Iterator[Refusal]:
    """Levels that placement does not tell from a node, of the job and of each role."""
    levels = {JOB: job.resources.topology.level} | {request.path: request.r.topology.level for request in requests}
    for path, level in levels.items():
        if grouped(level) is not level:
            yield refuse(
                RefusalCause.TOPOLOGY, f"{path}.topology.level", level.value, "jobs are not placed by this level",
                "use nvlink, node, leaf, spine, zone or pool",
            )  # fmt: skip


def _beyond(r: Resources, demand: Demand, fleet: FleetShape) -> Iterator[Refusal]:
    """What stays impossible whatever else is corrected: more devices than there are, more memory than any has."""
    acceptable = fleet.capacity(Need(r.types, r.mig_profile))
    if _least(r) > acceptable.total:
        yield refuse(
            RefusalCause.CAPACITY, "job.resources.devices", r.devices,
            f"this pool has {count_of(acceptable.total)} of all kinds",
            f"ask for at most {count_of(acceptable.total)}",
        )  # fmt: skip
    largest = max(fleet.models().values())
    if not r.roles and acceptable.left[1][1] == 0 and demand.memory_mib > largest:  # else `_memory` has compared
        yield refuse(
            RefusalCause.MEMORY, "job.resources.memory_mib", demand.memory_mib,
            f"no device of this pool has so much memory; the largest has {largest} MiB",
            f"ask for at most {largest} MiB per device, or split the job over more devices",
        )  # fmt: skip


def _unknown(request: DeviceRequest, fleet: FleetShape) -> Iterator[Refusal]:
    """Names of device models that neither the pool nor the catalogue has."""
    models = fleet.models()
    for i, name in enumerate(request.r.types):
        if name not in models and name not in KNOWN_MODELS:
            yield refuse(
                RefusalCause.TYPE, f"{request.at('types')}.{i}", name, "no device model of this name is known",
                f"{meant(name, [*models, *KNOWN_MODELS])}this pool has {listed(models)}",
            )  # fmt: skip


def _types(request: DeviceRequest, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    r, at, there = request.r, request.at("types"), listed(fleet.models())
    if not capacity.alone["type"] and r.types and all(name in KNOWN_MODELS for name in r.types):
        yield refuse(
            RefusalCause.TYPE, at, listed(r.types), "no node of this pool has such a device",
            f"this pool has {there}",
        )  # fmt: skip
    if not capacity.alone["type"] and not r.types:
        yield refuse(
            RefusalCause.TYPE, at, "", "this pool has no accelerator, and CPUs are used only when named",
            f"set types to [{there}]",
        )  # fmt: skip


def _sharing(r: Resources, fleet: FleetShape) -> Iterator[Refusal]:
    """Where there are devices of an acceptable type and profile, and none of them is shared."""
    (*_, (_, there), (_, shared)) = fleet.capacity(
        Need(r.types, r.mig_profile, whole=r.share_milli == WHOLE_MILLI)
    ).left
    if there and not shared:
        yield refuse(
            RefusalCause.TYPE, "job.resources.share_milli", r.share_milli,
            "no node of this pool gives out shares of its accelerators",
            "leave share_milli out, name a mig_profile, or ask for a share of a CPU",
        )  # fmt: skip


def _profile(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    if capacity.alone["profile"]:
        return
    profiles = fleet.profiles()
    fix = f"{meant(r.mig_profile, profiles)}this pool has {listed(profiles) or 'no MIG instance'}"
    problem = "no device of this pool is a MIG instance of this profile"
    if not r.mig_profile:
        problem = "every device of this pool is a MIG instance, and none is granted unless its profile is named"
        fix = f"set mig_profile to one of: {listed(profiles)}"
    yield refuse(RefusalCause.PROFILE, "job.resources.mig_profile", r.mig_profile, problem, fix)


def _memory(job: JobSpec, demand: Demand, request: DeviceRequest, fleet: FleetShape) -> Iterator[Refusal]:
    """Against the largest device that is of an acceptable type and profile."""
    r = request.r
    acceptable = fleet.capacity(Need(r.types, r.mig_profile))
    if acceptable.left[1][1] == 0 or fleet.capacity(Need(r.types, r.mig_profile, request.memory_mib)).left[2][1]:
        return
    largest = max(
        b.memory_mib for blocks in fleet.blocks.values() for b in blocks
        if (b.model in r.types if r.types else not b.cpu) and b.profile == r.mig_profile
    )  # fmt: skip
    if demand.estimate is not None and request.memory_mib == demand.estimate.total_mib:
        assert job.model is not None
        enough = _fewest(job, largest)
        fix = (
            f"set min_devices to {enough}: on fewer devices each must hold more"
            if enough
            else vram.remedy(job.model, job.resources.devices, largest, acceptable.left[1][1])
        )
        yield refuse(
            RefusalCause.MODEL,
            "job.model",
            f"{demand.memory_mib} MiB per device",
            f"needs more than the {largest} MiB of the largest acceptable device: {demand.estimate.text}",
            fix or "split the model further, use a smaller precision, or leave out job.model if it is not right",
        )
        return
    yield refuse(
        RefusalCause.MEMORY,
        request.at("memory_mib"),
        request.memory_mib,
        f"no acceptable device has so much memory; the largest has {largest} MiB",
        f"ask for at most {largest} MiB per device, or split the job over more devices",
    )


def _fewest(job: JobSpec, largest_mib: int) -> int | None:
    """The fewest devices of an elastic job on which its model fits; None when it is not elastic or never fits."""
    r, model = job.resources, job.model
    if r.min_devices is None or model is None:
        return None
    for devices in range(r.min_devices, r.devices + 1):
        with suppress(vram.Impossible):
            if vram.estimate(model, devices).total_mib <= largest_mib:
                return devices
    return None


def _labels(job: JobSpec, r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    if capacity.alone["labels"]:
        return
    for name, value in sorted(r.labels.items()):
        values = fleet.label_values(name)
        if value in values:
            continue
        if name == OWN_NETWORK:
            yield refuse(
                RefusalCause.LABELS, "job.priority_class", job.priority_class,
                "its jobs have no network, and no node of this pool can take it from them: none has walls around jobs",
                "use a class with network, or ask the operators for nodes with walls (docs/jobs-walls.md)",
            )  # fmt: skip
            continue
        if values:
            fix = f"{meant(value, values)}nodes have {name}={' or '.join(values[:8])}"
        else:
            names = fleet.label_names()
            fix = f"{meant(name, names)}labels of this pool's nodes: {', '.join(names[:16]) or 'none'}"
        yield refuse(RefusalCause.LABELS, f"job.resources.labels.{name}", value, "no node carries this label", fix)
    if all(value in fleet.label_values(name) for name, value in r.labels.items()):
        yield refuse(
            RefusalCause.LABELS, "job.resources.labels", ", ".join(f"{k}={v}" for k, v in sorted(r.labels.items())),
            "no single node carries all of these labels", "remove one of them",
        )  # fmt: skip


def _simulation(job: JobSpec, capacity: Capacity) -> Iterator[Refusal]:
    if not capacity.alone["simulation"]:
        yield refuse(
            RefusalCause.SIMULATION,
            "job.simulation",
            f"duration_s={job.simulation.duration_s:g}" if job.simulation else "",
            "timer jobs run on simulated nodes, and this pool has none",
            "give a command instead of a simulation, or submit to a pool with simulated nodes",
        )


def _roles(job: JobSpec, requests: list[DeviceRequest], fleet: FleetShape) -> Iterator[Refusal]:
    """Each role by itself: enough fitting devices, and one group of them within the level that it requires."""
    for role, request in zip(job.resources.roles, requests, strict=True):
        capacity = fleet.capacity(request.need(job))
        left, least = capacity.left[-1][1], (role.min_count or role.count) * role.devices
        if left == 0:
            yield refuse(
                RefusalCause.CAPACITY, request.path, role.name,
                "no device of this pool meets all demands of this role together",
                _loosen(capacity),
            )  # fmt: skip
            continue
        if left < least:
            yield refuse(
                RefusalCause.CAPACITY, request.path, f"{role.name}: {count_of(least)}",
                f"this pool has {count_of(left, 'fitting ')} even when all are free", f"ask for at most {count_of(left)}",
            )  # fmt: skip
            continue
        level = grouped(role.topology.level)
        most, model = capacity.best[level]
        if role.topology.policy is TopologyPolicy.REQUIRED and most < role.devices:
            yield refuse(
                RefusalCause.TOPOLOGY, f"{request.path}.topology", f"{count_of(role.devices)} within one {level}",
                f"the largest {level} has {count_of(most, 'fitting ')} of one model ({model})",
                f"ask for groups of at most {most}, for a wider level, or for policy preferred",
            )  # fmt: skip


def _runtime(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    if r.runtime is not None and not capacity.alone["runtime"]:
        yield refuse(
            RefusalCause.RUNTIME, "job.resources.runtime", r.runtime.value, "no device of this pool has this runtime",
            f"this pool has {listed(fleet.runtimes())}; leave runtime out if the binary serves any of them",
        )  # fmt: skip


def _precision(r: Resources, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    if r.precision is not None and not capacity.alone["precision"]:
        models = fleet.models()
        able = [p.value for p in Precision if any(computes(model, p.value) for model in models)]
        yield refuse(
            RefusalCause.PRECISION, "job.resources.precision", r.precision.value,
            f"no device of this pool computes in it; it has {listed(models)}",
            f"use one of: {listed(able)}",
        )  # fmt: skip


def _hosts(request: DeviceRequest, capacity: Capacity, fleet: FleetShape) -> Iterator[Refusal]:
    """Processors and host memory that no node has, even for one device of the job."""
    if capacity.alone["processors"] and capacity.alone["host memory"]:
        return
    most_cpu, most_mib = fleet.hosts()
    if not capacity.alone["processors"]:
        yield refuse(
            RefusalCause.CPU, request.at("cpu_milli"), request.r.cpu_milli,
            f"no node has so many processors; the largest has {most_cpu / 1000:g}",
            f"ask for at most {most_cpu} thousandths per device" if most_cpu else _UNTOLD.format(what="cpu_milli"),
        )  # fmt: skip
    if not capacity.alone["host memory"]:
        yield refuse(
            RefusalCause.HOST_MEMORY, request.at("host_memory_mib"), request.r.host_memory_mib,
            f"no node has so much host memory; the largest has {most_mib} MiB",
            f"ask for at most {most_mib} MiB per device" if most_mib else _UNTOLD.format(what="host_memory_mib"),
        )  # fmt: skip


_UNTOLD = "leave {what} out: the nodes of this pool do not tell what they have"


def _together(r: Resources, capacity: Capacity) -> Iterator[Refusal]:
    left = capacity.left[-1][1]
    if left == 0:
        yield refuse(
            RefusalCause.CAPACITY, "job.resources", _asked(r), "no device of this pool meets all demands together",
            _loosen(capacity),
        )  # fmt: skip
        return
    required = r.topology.policy is TopologyPolicy.REQUIRED
    if r.torus and not required:  # how many chips there are says little of boxes
        return
    level = grouped(r.topology.level) if required else Level.POOL
    most, model = capacity.best[level]
    least = _least(r)
    if most >= least:
        return
    wider = next((x for x in (level, *beyond(level)) if capacity.best[x][0] >= least), None)
    if wider is not None:
        yield refuse(
            RefusalCause.TOPOLOGY,
            "job.resources.topology",
            f"{count_of(least)} within one {level}",
            f"the largest {level} has {count_of(most, 'fitting ')} of one model ({model})",
            f"set topology.level to {wider}, or policy to preferred, or ask for at most {count_of(most)}",
        )
        return
    yield refuse(
        RefusalCause.CAPACITY,
        "job.resources.devices",
        r.devices,
        f"this pool has {count_of(most, 'fitting ')} of one model ({model}){f' within one {level}' if required else ''}, "
        "even when all are free",
        f"ask for at most {count_of(most)}",
    )


def _loosen(capacity: Capacity) -> str:
    steps = ", ".join(f"{name} leaves {count}" for name, count in capacity.left)
    return f"loosen one of them; of {count_of(capacity.total)} {steps}"


def _least(r: Resources) -> int:
    """The fewest devices that are of use."""
    return sum((role.min_count or role.count) * role.devices for role in r.roles) or r.min_devices or r.devices


def _asked(r: Resources) -> str:
    return ", ".join(f"{k}={v}" for k, v in r.model_dump(mode="json", exclude_defaults=True).items()) or "1 device"
