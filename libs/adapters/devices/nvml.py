"""NVIDIA devices through NVML (nvidia-ml-py): whole GPUs, and the MIG instances that exist, with their NVLink islands.

A board in MIG mode is offered as its instances only: the board itself cannot be used. `repartition` partitions one anew
(`nvml_mig`), which the agent asks for only where its operator lets Baton do so.
Every call after discovery may fail alone (older drivers, boards that lack a sensor): such a reading is left at its
neutral value, and so is a number that cannot be: drivers say -1, unsigned, of what they do not know. A board that is
lost (XID 79) is left out of the samples, which telemetry sees.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ctypes import byref
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pynvml

from libs.adapters.devices import nvml_mig
from libs.adapters.devices.cdi import CdiEdits, CdiSpecs
from libs.adapters.devices.handles import holders
from libs.adapters.devices.layer import NoDevices, RepartitionFailed, process_environment
from libs.core.accelerators.catalog import find_model
from libs.core.placement.mig.layouts import geometry_of, legal
from schemas.nodes import DeviceSample, Rank
from schemas.resources import MOST_MIB, Device, DeviceKind, MigBoard, MigPlace

T = TypeVar("T")
_MIB = 1024 * 1024
_MIG_OFF = 0
_HARD_THROTTLE = 0x8 | 0x40 | 0x80
"""HW slowdown, HW thermal slowdown, HW power brake: the software power cap (0x4) is normal under load."""
_MOST_ERRORS, _MOST_W = 2**53, 1_000_000
_FORM = ("SXM", "PCIE", "NVL", "HBM")


def runs_a_job(pid: int) -> bool:
    """Whether a process of this machine is a job's, by its environment; what cannot be read might be."""
    try:
        return "BATON_PART" in psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return True


_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
"""Every process that uses a GPU opens them; they reach no device by themselves."""


class NvmlLayer:
    """The NVIDIA devices of this machine. `api` is the `pynvml` module, or a recorded one in tests.

    `is_job` tells whether a process (its pid) belongs to a job: then free memory is not measured.
    `dynamic`: boards in MIG mode may be repartitioned. `root`: where /proc is, elsewhere in tests.

    Raises NoDevices when there is no driver, saying how to go on without.
    """

    at_once = False

    def __init__(
        self,
        api: Any = pynvml,
        is_job: Callable[[int], bool] = runs_a_job,
        dynamic: bool = False,
        root: Path = Path("/"),
    ) -> None:
        self._api, self._root = api, root
        self._specs = CdiSpecs(root)
        self._is_job = is_job
        self._dynamic = dynamic
        self._boards_by_id: dict[str, Any] = {}
        self._mig_boards: tuple[MigBoard, ...] = ()
        self._lock = threading.RLock()
        """Held while handles are found, used or made invalid: samples are taken in another thread than repartitions."""
        self._handles: dict[str, Any] = {}
        self._models: dict[str, str] = {}
        self._parents: dict[str, Any] = {}
        self._devices: dict[str, Device] = {}
        try:
            self._api.nvmlInit()
        except self._api.NVMLError as e:
            raise NoDevices(
                f"no NVIDIA driver answers ({e}); install one, or set BATON_AGENT_DEVICES=cpu to offer the processors, "
                "or none with BATON_AGENT_FLEET for simulated devices"
            ) from None

    def discover(self) -> tuple[Device, ...]:
        with self._lock:
            return self._discover()

    def _discover(self) -> tuple[Device, ...]:
        self._handles, self._models, self._parents, self._boards_by_id = {}, {}, {}, {}
        mig: list[MigBoard] = []
        boards = self._boards()
        islands = self._islands(boards)
        found: list[Device] = []
        for number, (board, island) in enumerate(zip(boards, islands, strict=True)):
            if self._in_mig_mode(board):
                instances = list(self._instances(board, len(found)))
                found.extend(instances)
                mig.extend(self._mig_board(board, number, instances))
            else:
                found.append(self._gpu(board, len(found), island))
        self._mig_boards = tuple(mig)
        if not found and not any(board.dynamic for board in mig):
            raise NoDevices("the NVIDIA driver answers but offers no device; create MIG instances or leave MIG mode")
        self._devices = {device.id: device for device in found}
        return tuple(found)

    def boards(self) -> tuple[MigBoard, ...]:
        return self._mig_boards

    def _mig_board(self, board: Any, number: int, instances: Sequence[Device]) -> Iterator[MigBoard]:
        """The board, unless the driver does not tell its geometry and where all its instances are (older ones do not,
        nor do some without root), or they are such as Baton does not repartition: then it stays as it is."""
        nothing: tuple[nvml_mig.Offer, ...] = ()
        known = self._try(lambda: nvml_mig.offers(self._api, board), nothing)
        starts = [self._start(board, self._handles[instance.id]) for instance in instances]
        if not known or None in starts:
            return
        uuid, profiles = _text(self._api.nvmlDeviceGetUUID(board)), tuple(offer.profile for offer in known)
        found = MigBoard(
            id=uuid,
            index=number,
            model=short_model(self._api.nvmlDeviceGetName(board)),
            memory_mib=self._memory(board)[1],
            slices=max(p.memory_slices + max(p.starts) for p in profiles),
            profiles=profiles,
            dynamic=self._dynamic,
        )
        if legal(geometry_of(found), [(instance.mig_profile, instance.mig_start) for instance in instances]):
            self._boards_by_id[uuid] = board
            yield found

    def _start(self, board: Any, instance: Any) -> int | None:
        return self._try(lambda: nvml_mig.start_of(self._api, board, instance), None)

    def repartition(self, board: str, destroy: tuple[str, ...], create: tuple[MigPlace, ...]) -> None:
        """Devices that go must have no process. What fails is undone."""
        with self._lock:
            handle = self._boards_by_id.get(board)
            if handle is None:
                raise RepartitionFailed(f"{board} is no MIG board of this machine whose geometry is known")
            instances = {d.id: self._handles[d.id] for d in self._devices.values() if d.parent == board}
            gone = [name for name in destroy if name not in instances]
            if gone:
                raise RepartitionFailed(f"board {board} has no instance {gone[0]}")
            nvml_mig.repartition(self._api, handle, instances, destroy, create)

    def _boards(self) -> list[Any]:
        """Handles of the boards that answer; one that fell off the bus, or has no memory that can be, is left out."""
        boards = []
        for index in range(self._api.nvmlDeviceGetCount()):
            try:
                board = self._api.nvmlDeviceGetHandleByIndex(index)
                if 0 <= self._memory(board)[1] <= MOST_MIB:
                    boards.append(board)
            except self._api.NVMLError:
                continue
        return boards

    def _in_mig_mode(self, board: Any) -> bool:
        return bool(self._try(lambda: self._api.nvmlDeviceGetMigMode(board)[0], _MIG_OFF) != _MIG_OFF)

    def _gpu(self, board: Any, index: int, island: str) -> Device:
        uuid, model = _text(self._api.nvmlDeviceGetUUID(board)), short_model(self._api.nvmlDeviceGetName(board))
        self._remember(uuid, board, model)
        return Device(
            id=uuid,
            index=index,
            kind=DeviceKind.GPU,
            model=model,
            memory_mib=self._memory(board)[1],
            memory_free_mib=self._free_mib(board),
            nvlink_domain=island,
            fabric=self._fabric(board),
            power_limit_w=_told(
                self._try(lambda: self._api.nvmlDeviceGetEnforcedPowerLimit(board), 0) // 1000, _MOST_W
            ),
        )

    def _instances(self, board: Any, first: int) -> Iterator[Device]:
        """MIG instances of a board; no peer-to-peer exists between them, so they share no NVLink island."""
        parent, model = _text(self._api.nvmlDeviceGetUUID(board)), short_model(self._api.nvmlDeviceGetName(board))
        index = first
        for slot in range(self._api.nvmlDeviceGetMaxMigDeviceCount(board)):
            try:
                instance = self._api.nvmlDeviceGetMigDeviceHandleByIndex(board, slot)
            except self._api.NVMLError:
                continue  # no instance in this slot
            uuid, total_mib = _text(self._api.nvmlDeviceGetUUID(instance)), self._memory(instance)[1]
            self._remember(uuid, instance, model)
            self._parents[uuid] = board
            yield Device(
                id=uuid,
                index=index,
                kind=DeviceKind.MIG,
                model=model,
                memory_mib=total_mib,
                memory_free_mib=self._free_mib(instance),
                mig_profile=self._profile(instance, total_mib),
                parent=parent,
                mig_start=self._start(board, instance) or 0,
            )
            index += 1

    def _profile(self, instance: Any, total_mib: int) -> str:
        """The profile's name: from the instance's own name ("... MIG 1g.10gb"), else from its attributes."""
        name = _text(self._try(lambda: self._api.nvmlDeviceGetName(instance), ""))
        if " MIG " in name:
            return name.rsplit(" MIG ", 1)[1].strip()
        attributes = self._try(lambda: self._api.nvmlDeviceGetAttributes(instance), None)
        slices = getattr(attributes, "gpuInstanceSliceCount", 0)
        return f"{slices}g.{-(-total_mib // 1024)}gb" if slices else ""

    def _islands(self, boards: Sequence[Any]) -> list[str]:
        """One name per board; equal names can reach each other over NVLink alone, "" when a board has no active link.

        Boards that share an NVSwitch fabric report the switch as remote, so peers are asked for pair by pair: the PCIe
        topology call says nothing about NVLink.
        """
        group = list(range(len(boards)))
        linked = [self._active_links(board) > 0 for board in boards]
        for a in range(len(boards)):
            for b in range(a):
                if linked[a] and linked[b] and group[a] != group[b] and self._peers(boards[a], boards[b]):
                    merged, gone = group[b], group[a]
                    group = [merged if g == gone else g for g in group]
        return [f"nvl{group[i]}" if linked[i] else "" for i in range(len(boards))]

    def _active_links(self, board: Any) -> int:
        links = 0
        for link in range(self._api.NVML_NVLINK_MAX_LINKS):
            try:
                links += self._api.nvmlDeviceGetNvLinkState(board, link) == self._api.NVML_FEATURE_ENABLED
            except self._api.NVMLError:
                break  # not supported, or beyond the last link of this board
        return links

    def _peers(self, a: Any, b: Any) -> bool:
        api = self._api
        return bool(
            self._try(lambda: api.nvmlDeviceGetP2PStatus(a, b, api.NVML_P2P_CAPS_INDEX_NVLINK), None)
            == api.NVML_P2P_STATUS_OK
        )

    def _remember(self, uuid: str, handle: Any, model: str) -> None:
        self._handles[uuid] = handle
        self._models[uuid] = model

    def sample(self, busy: Mapping[str, int]) -> tuple[DeviceSample, ...]:
        out = []
        with self._lock:
            for uuid, handle in self._handles.items():
                try:
                    out.append(self._read(uuid, handle))
                except self._api.NVMLError:
                    continue  # lost: its silence is the message
        return tuple(out)

    def _read(self, uuid: str, handle: Any) -> DeviceSample:
        """Memory is asked of the device itself and must answer; board sensors of a MIG instance are its parent's."""
        api, board = self._api, self._parents.get(uuid, handle)
        used_mib = self._memory(handle)[0]
        return DeviceSample(
            device=uuid,
            model=self._models[uuid],
            utilization_pct=float(_told(self._try(lambda: api.nvmlDeviceGetUtilizationRates(handle).gpu, 0), 100)),
            memory_used_mib=used_mib,
            power_w=self._try(lambda: api.nvmlDeviceGetPowerUsage(board) / 1000, 0.0),
            temperature_c=self._try(lambda: float(api.nvmlDeviceGetTemperature(board, api.NVML_TEMPERATURE_GPU)), 0.0),
            ecc_errors=_told(
                self._try(
                    lambda: api.nvmlDeviceGetTotalEccErrors(
                        board, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, api.NVML_VOLATILE_ECC
                    ),
                    0,
                ),
                _MOST_ERRORS,
            ),
            throttled=bool(self._try(lambda: api.nvmlDeviceGetCurrentClocksEventReasons(board), 0) & _HARD_THROTTLE),
        )

    def users(self, devices: Collection[str]) -> dict[str, frozenset[int]]:
        """Processes with a context on the device (compute, graphics, MPS). Of a whole GPU also those that have its file
        open: instances of a board share one."""
        with self._lock:
            known = [(device, self._handles[device]) for device in devices if device in self._handles]
            found = {device: pids for device, handle in known if (pids := self._contexts(handle)) is not None}
            files = {device: file for device, handle in known if (file := self._file(device, handle))}
        opened = holders(files.values(), self._root)
        return {device: pids | opened.get(files.get(device, ""), frozenset()) for device, pids in found.items()}

    def _contexts(self, handle: Any) -> frozenset[int] | None:
        """None when the driver cannot tell of compute processes: then it cannot tell at all."""
        pids: set[int] = set()
        for kind in ("Compute", "Graphics", "MPSCompute"):
            ask = getattr(self._api, f"nvmlDeviceGet{kind}RunningProcesses", None)
            try:
                pids.update(process.pid for process in (ask(handle) if ask is not None else ()))
            except self._api.NVMLError:
                if kind == "Compute":
                    return None
        return frozenset(pids)

    def files(self, devices: Collection[str]) -> tuple[str, ...]:
        """A GPU's own file; of a MIG instance its board's, with the two that give the right to the instance. Beside them the
        driver's control files, and what a CDI spec of the machine names."""
        with self._lock:
            found: list[str] = []
            for device in devices:
                if (handle := self._handles.get(device)) is None:
                    continue
                board = self._parents.get(device)
                minor = self._minor(handle if board is None else board)
                found += [] if minor is None else [f"/dev/nvidia{minor}"]
                if board is not None and minor is not None:
                    found += self._rights(minor, handle)
            said = self._edits(devices).files
        if not found and not said:
            return ()
        return tuple(dict.fromkeys((*found, *(f"/dev/{name}" for name in _CONTROL), *said)))

    def _edits(self, devices: Collection[str]) -> CdiEdits:
        """Specs name a device by its UUID or, `nvidia-ctk`'s usual way, a whole GPU by its number."""
        said = CdiEdits()
        for device in devices if self._specs.any() else ():
            if (handle := self._handles.get(device)) is not None:
                board = self._parents.get(device)
                number = "" if board is not None else self._number(handle)
                minor = self._minor(handle if board is None else board)
                said += self._specs.of_gpu([device, number], f"/dev/nvidia{minor}")
        return said

    def _number(self, handle: Any) -> str:
        return str(self._try(lambda: self._api.nvmlDeviceGetIndex(handle), ""))

    def _rights(self, minor: int, instance: Any) -> list[str]:
        """The files of /dev/nvidia-caps without which a MIG instance cannot be opened."""
        one = self._try(lambda: self._api.nvmlDeviceGetGpuInstanceId(instance), None)
        inner = self._try(lambda: self._api.nvmlDeviceGetComputeInstanceId(instance), None)
        at = self._root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{one}"
        found = []
        for access in (at / "access", at / f"ci{inner}/access"):
            try:
                lines = dict(line.split(":", 1) for line in access.read_text().splitlines() if ":" in line)
                found.append(f"/dev/nvidia-caps/nvidia-cap{int(lines['DeviceFileMinor'])}")
            except (OSError, ValueError, KeyError):
                continue
        return found

    def _minor(self, handle: Any) -> int | None:
        minor: int | None = self._try(lambda: self._api.nvmlDeviceGetMinorNumber(handle), None)
        return minor

    def _file(self, device: str, handle: Any) -> str:
        minor = None if device in self._parents else self._minor(handle)
        return "" if minor is None else f"/dev/nvidia{minor}"

    def _memory(self, handle: Any) -> tuple[int, int]:
        """(used, usable) in MiB. Version 2 tells what the driver keeps for itself, which no job can use."""
        try:
            info = self._api.nvmlDeviceGetMemoryInfo(handle, self._api.nvmlMemory_v2)
            return info.used // _MIB, (info.total - info.reserved) // _MIB
        except (self._api.NVMLError, AttributeError):
            info = self._api.nvmlDeviceGetMemoryInfo(handle)
            return info.used // _MIB, info.total // _MIB

    def _free_mib(self, handle: Any) -> int | None:
        """What is free beside processes that are no jobs, MiB; None while a job may run there: it will give it back."""
        api = self._api
        pids = self._try(lambda: [process.pid for process in api.nvmlDeviceGetComputeRunningProcesses(handle)], None)
        if pids is None or any(self._is_job(pid) for pid in pids):
            return None
        used, usable = self._memory(handle)
        return max(0, usable - used)

    def _fabric(self, board: Any) -> str:
        """Cluster uuid and clique of an NVLink fabric that spans nodes (NVL72), "" without one.

        The switches of a single node (HGX) also complete a registration, with a cluster uuid of zeros: all such nodes
        would look like one fabric.
        """
        api = self._api
        info = api.c_nvmlGpuFabricInfo_v2_t()
        try:
            api.nvmlDeviceGetGpuFabricInfoV(board, byref(info))
        except api.NVMLError:
            return ""  # an older driver, or a board without NVLink
        cluster = bytes(info.clusterUuid)
        if info.state != api.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != api.NVML_SUCCESS or not any(cluster):
            return ""
        return f"{cluster.hex()}-{info.cliqueId}"

    def _try(self, read: Callable[[], T], otherwise: T) -> T:
        """What `read` gives, or the neutral value when this driver or board cannot tell."""
        try:
            return read()
        except self._api.NVMLError as e:
            if getattr(e, "value", None) == getattr(self._api, "NVML_ERROR_GPU_IS_LOST", 15):
                raise
            return otherwise

    def environment(self, ranks: Sequence[Rank]) -> dict[str, str]:
        """What a CDI spec says, too; the variables that make devices visible are ours."""
        with self._lock:
            said = dict(self._edits(sorted({rank.device for rank in ranks})).environment)
        return said | process_environment(ranks, self._devices)


def short_model(name: str | bytes) -> str:
    """The model as jobs ask for it: `NVIDIA H100 80GB HBM3` is H100, `Tesla T4` is T4, `NVIDIA RTX A6000` is RTX-A6000.

    Boards that the catalogue doesn't know are named by the driver's words without maker, form and memory.
    """
    known = find_model(_text(name))
    if known is not None:
        return known.model
    words = _text(name).replace("-", " ").split()
    kept: list[str] = []
    for word in words:
        if word in ("NVIDIA", "Tesla", "GeForce", "Quadro"):
            continue
        if kept and (word.upper().startswith(_FORM) or word.upper().endswith("GB")):
            break
        kept.append(word)
    return "-".join(kept) or _text(name)


def _told(number: int, most: int) -> int:
    """The number, or 0 when no device has so much."""
    return number if number <= most else 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
