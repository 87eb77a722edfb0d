"""NVIDIA's MIG boards through NVML: which profiles a board has and where they may start, and repartitioning it.

A GPU instance is made with its placement, and one compute instance over all of it. What was done is undone in reverse
order when a step fails. Creating and destroying needs root, or the capability `mig/config`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref, c_uint
from dataclasses import dataclass
from typing import Any

from libs.adapters.devices.layer import RepartitionFailed
from schemas.resources import MigPlace, MigProfile

_PROFILES = range(10)
"""1 to 8 slices, and their +me and double-memory forms. Those with graphics or without media are not offered."""
_MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class Offer:
    """A profile of a board, and the driver's number for it."""

    number: int
    profile: MigProfile


@dataclass(slots=True)
class _Instance:
    """A GPU instance: where it is, and the profiles of its compute instances, by which it can be made again."""

    name: str
    number: int
    start: int
    size: int
    computes: tuple[int, ...]
    handle: Any


def offers(api: Any, board: Any) -> tuple[Offer, ...]:
    """What the driver would make of a board. Raises the api's NVMLError."""
    return tuple({offer.profile.name: offer for offer in reversed(list(_offers(api, board)))}.values())[::-1]


def _offers(api: Any, board: Any) -> Iterator[Offer]:
    for kind in _PROFILES:
        info = _profile_info(api, board, kind)
        if info is None:
            continue
        places = _placements(api, board, info.id)
        if places:
            yield Offer(
                info.id,
                MigProfile(
                    name=_name(info),
                    compute_slices=info.sliceCount,
                    memory_slices=places[0][1],
                    memory_mib=info.memorySizeMB,
                    starts=tuple(sorted(start for start, _ in places)),
                    limit=max(1, min(8, info.instanceCount)),
                ),
            )


def _profile_info(api: Any, board: Any, kind: int) -> Any:
    """None when the board has no such profile. Version 1, of older drivers, has no name."""
    for version in (2, 1):
        try:
            return api.nvmlDeviceGetGpuInstanceProfileInfo(board, kind, version)
        except api.NVMLError:
            continue
    return None


def _name(info: Any) -> str:
    name = getattr(info, "name", b"")
    text: str = name.decode() if isinstance(name, bytes) else name
    return text.removeprefix("MIG ").strip() or f"{info.sliceCount}g.{-(-info.memorySizeMB // _MIB_PER_GIB)}gb"


def _placements(api: Any, board: Any, number: int) -> list[tuple[int, int]]:
    """(start, size) of each legal place."""
    count = c_uint(0)
    api.nvmlDeviceGetGpuInstancePossiblePlacements(board, number, None, byref(count))
    places = (api.c_nvmlGpuInstancePlacement_t * count.value)()
    if count.value:
        api.nvmlDeviceGetGpuInstancePossiblePlacements(board, number, places, byref(count))
    return [(place.start, place.size) for place in places[: count.value]]


def start_of(api: Any, board: Any, instance: Any) -> int:
    """The first memory slice of a MIG device. Raises the api's NVMLError, e.g. without the right to ask."""
    number = api.nvmlDeviceGetGpuInstanceId(instance)
    gpu_instance = api.nvmlDeviceGetGpuInstanceById(board, number)
    return int(api.nvmlGpuInstanceGetInfo(gpu_instance).placement.start)


def repartition(
    api: Any, board: Any, instances: Mapping[str, Any], destroy: Sequence[str], create: Sequence[MigPlace]
) -> None:
    """Repartitions `board`. `instances`: all its MIG devices, by id. Raises RepartitionFailed; nothing is touched
    before all that can be checked was."""
    undo: list[Callable[[], object]] = []
    step = "reading the board"
    try:
        for name in destroy:
            step = f"asking who uses {name}"
            if pids := [process.pid for process in api.nvmlDeviceGetComputeRunningProcesses(instances[name])]:
                raise RepartitionFailed(f"instance {name} is in use by process {pids[0]}")
        step = "reading the board"
        going = _going(api, board, instances, destroy)
        coming = _coming(offers(api, board), create)
        for one in going:
            step = f"destroying {one.name}"
            _destroy(api, board, one, undo)
        for offer, place in coming:
            step = f"creating {place.profile} at {place.start}"
            _create(api, board, offer, place.start, undo)
    except api.NVMLError as e:
        left = _undo(api, undo)
        state = f"not all of it could be put back: {left}" if left else "the board is as it was"
        raise RepartitionFailed(f"{step}: {e}; {state}") from None


def _coming(known: Sequence[Offer], create: Sequence[MigPlace]) -> list[tuple[Offer, MigPlace]]:
    by_name = {offer.profile.name: offer for offer in known}
    for place in create:
        if place.profile not in by_name:
            raise RepartitionFailed(f"the board has no profile {place.profile}; it has {', '.join(by_name)}")
        if place.start not in (starts := by_name[place.profile].profile.starts):
            raise RepartitionFailed(
                f"{place.profile} cannot start at {place.start}; only at {', '.join(map(str, starts))}"
            )
    return [(by_name[place.profile], place) for place in create]


def _going(api: Any, board: Any, instances: Mapping[str, Any], destroy: Sequence[str]) -> list[_Instance]:
    """The GPU instances of the devices that go. One that also holds a device that stays cannot go."""
    holders = {name: api.nvmlDeviceGetGpuInstanceId(handle) for name, handle in instances.items()}
    out = []
    for number in dict.fromkeys(holders[name] for name in destroy):
        inside = [name for name, holder in holders.items() if holder == number]
        stays = [name for name in inside if name not in destroy]
        if stays:
            raise RepartitionFailed(f"instance {stays[0]} stays, and shares GPU instance {number} with one that goes")
        handle = api.nvmlDeviceGetGpuInstanceById(board, number)
        info = api.nvmlGpuInstanceGetInfo(handle)
        place = info.placement
        computes = tuple(api.nvmlDeviceGetComputeInstanceId(instances[name]) for name in inside)
        out.append(_Instance(", ".join(inside), info.profileId, place.start, place.size, computes, handle))
    return out


def _destroy(api: Any, board: Any, one: _Instance, undo: list[Callable[[], object]]) -> None:
    """Compute instances first, then the GPU instance."""
    for number in one.computes:
        compute = api.nvmlGpuInstanceGetComputeInstanceById(one.handle, number)
        kind = api.nvmlComputeInstanceGetInfo(compute).profileId
        api.nvmlComputeInstanceDestroy(compute)
        undo.append(lambda kind=kind: api.nvmlGpuInstanceCreateComputeInstance(one.handle, kind))  # type: ignore[misc]
    api.nvmlGpuInstanceDestroy(one.handle)

    def again() -> None:
        one.handle = _make(api, board, one.number, one.start, one.size)

    undo.append(again)


def _create(api: Any, board: Any, offer: Offer, start: int, undo: list[Callable[[], object]]) -> None:
    handle = _make(api, board, offer.number, start, offer.profile.memory_slices)
    undo.append(lambda: api.nvmlGpuInstanceDestroy(handle))
    compute = api.nvmlGpuInstanceCreateComputeInstance(handle, _whole(api, handle, offer.profile.compute_slices))
    undo.append(lambda: api.nvmlComputeInstanceDestroy(compute))


def _make(api: Any, board: Any, number: int, start: int, size: int) -> Any:
    place = api.c_nvmlGpuInstancePlacement_t(start, size)
    return api.nvmlDeviceCreateGpuInstanceWithPlacement(board, number, byref(place))


def _whole(api: Any, handle: Any, slices: int) -> int:
    """The number of the compute profile that takes all `slices` of a GPU instance. Raises the api's NVMLError."""
    problem: Exception | None = None
    for kind in range(api.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        for version in (2, 1):
            try:
                info = api.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    handle, kind, api.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version
                )
            except api.NVMLError as e:
                problem = e
                continue
            if info.sliceCount == slices:
                return int(info.id)
            break
    raise problem or api.NVMLError(api.NVML_ERROR_NOT_FOUND)


def _undo(api: Any, undo: list[Callable[[], object]]) -> str:
    """Undoes the steps, last first, whatever fails. Returns the first failure, or ""."""
    problems = []
    for step in reversed(undo):
        try:
            step()
        except api.NVMLError as e:
            problems.append(str(e))
    return problems[0] if problems else ""
