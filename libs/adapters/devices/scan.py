"""Accelerators of this machine that no NVML knows, found in /sys and /dev.

    AMD       /sys/class/kfd/kfd/topology/nodes/*/properties, in KFD's order, which HIP counts by
    TPU       /sys/bus/pci/devices/*, vendor 1ae0; sysfs doesn't tell the place in the pod, so each host is offered as a
              torus of its own, and slices of several hosts are not
    Gaudi     /sys/class/accel/accel*/device, vendor 1da3 (Intel's own NPUs have accel nodes as well)
    Neuron    neuron-ls --json-output, and the machine's product name for the generation
    FPGA      /sys/bus/pci/devices/*, vendor 10ee; one card is one slot with several functions
    Hailo     /dev/hailo*        Coral   /dev/apex_*

What is not in the catalogue is not offered: its memory, and what a process must be told to see only it, are not known.
All paths are below `root`, so that tests read a recorded tree. No machine with these devices has been at hand: the
layouts are those of the drivers' documentation and of the collected facts.
"""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from libs.adapters.devices.handles import holders
from libs.adapters.devices.layer import NoDevices, NoMig, process_environment
from libs.core.accelerators.catalog import Accelerator, catalog, find_model, find_pci, tpu_generations
from libs.core.accelerators.vendors import VENDORS
from schemas.nodes import DeviceSample, Rank
from schemas.resources import Device

_MIB = 1024 * 1024
_HOST_LIMIT_S = 10.0
_HOST_BOXES = {(2, 1): (1, 1), (2, 4): (2, 2), (2, 8): (2, 4), (3, 1): (1, 1, 1), (3, 4): (2, 2, 1)}
"""(dimensions of the torus, chips of the host): the host's box. That indices count along it row by row is assumed."""
_VIDEO_MEMORY = (1, 2)
"""KFD heap types: frame buffer, visible to the host or not."""


def neuron_ls() -> str:
    """What neuron-ls prints; empty where it is not installed or fails."""
    try:
        done = subprocess.run(
            ["neuron-ls", "--json-output"], capture_output=True, text=True, timeout=_HOST_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


class ScannedLayer(NoMig):
    """The devices found below `root` on the node `node`. `neuron` gives what neuron-ls prints."""

    at_once = False

    def __init__(self, node: str, root: Path = Path("/"), neuron: Callable[[], str] = neuron_ls) -> None:
        self._node, self._root, self._neuron = node, root, neuron
        self._devices: dict[str, Device] = {}

    def discover(self) -> tuple[Device, ...]:
        self._devices = {device.id: device for device in self._find()}
        if not self._devices:
            raise NoDevices(
                "no accelerator in /sys or /dev (AMD, TPU, Gaudi, Neuron, Alveo, Hailo, Coral); set "
                "BATON_AGENT_DEVICES=cpu to offer the processors"
            )
        return tuple(self._devices.values())

    def _find(self) -> Iterator[Device]:
        for find in (amd, tpu, gaudi, fpga, hailo, coral):
            yield from find(self._node, self._root)
        yield from neuron(self._node, self._root, self._neuron())

    def sample(self, busy: Mapping[str, int]) -> tuple[DeviceSample, ...]:
        """Which devices are still there. Only AMD's driver tells more in sysfs; the others' readings stay at zero."""
        there = {device.id: device for device in self._find()}
        readings = amd_readings(self._root)
        out = []
        for device in self._devices.values():
            if device.id in there:
                used_pct, used_mib = readings.get(device.index, (0.0, 0)) if device.runtime == "rocm" else (0.0, 0)
                out.append(
                    DeviceSample(
                        device=device.id, model=device.model, utilization_pct=used_pct, memory_used_mib=used_mib
                    )
                )
        return tuple(out)

    def users(self, devices: Collection[str]) -> dict[str, frozenset[int]]:
        """Processes that have the device's file open. Devices without a file of their own (FPGA slots) are left out."""
        files = device_files(self._node, self._root)
        wanted = {device: files[device] for device in devices if device in files and device in self._devices}
        opened = holders(wanted.values(), self._root)
        return {device: opened[file] for device, file in wanted.items()}

    def files(self, devices: Collection[str]) -> tuple[str, ...]:
        """Those of the devices, and what AMD's and Habana's libraries open beside them. Slots of FPGAs have none."""
        known = device_files(self._node, self._root)
        mine = [known[device] for device in devices if device in known]
        beside = [
            "/dev/kfd" if file.startswith("/dev/dri/") else file.replace("accel/accel", "accel/accel_controlD")
            for file in mine
            if file.startswith(("/dev/dri/", "/dev/accel/"))
        ]
        return tuple(dict.fromkeys(mine + beside))

    def environment(self, ranks: Sequence[Rank]) -> dict[str, str]:
        return process_environment(ranks, self._devices)


def amd(node: str, root: Path) -> Iterator[Device]:
    """GPUs, or the partitions of one, in KFD's order; memory as the driver counts it. Partitions share a unique id."""
    seen: Counter[str] = Counter()
    for index, (path, properties) in enumerate(_kfd_gpus(root)):
        model = find_pci("amd", f"{int(properties.get('device_id', '0')):04x}")
        if model is None:
            continue
        banks = (_properties(bank) for bank in sorted(path.glob("mem_banks/*/properties")))
        sizes = [int(b.get("size_in_bytes", "0")) for b in banks if int(b.get("heap_type", "0")) in _VIDEO_MEMORY]
        unique = f"{int(properties.get('unique_id', '0')):x}"
        name = f"gpu-{unique}-{seen[unique]}" if unique != "0" else f"gpu{index}"
        seen[unique] += 1
        yield _device(node, name, index, model, sum(sizes) // _MIB, island="xgmi0")


def amd_readings(root: Path) -> dict[int, tuple[float, int]]:
    """Index -> (busy per cent, memory used in MiB), as far as amdgpu tells."""
    out = {}
    for index, (_, properties) in enumerate(_kfd_gpus(root)):
        device = root / "sys/class/drm" / f"renderD{properties.get('drm_render_minor', '')}" / "device"
        busy, used = _text(device / "gpu_busy_percent"), _text(device / "mem_info_vram_used")
        if busy.isdigit() or used.isdigit():
            out[index] = (min(100.0, float(busy or 0)), int(used or 0) // _MIB)
    return out


def device_files(node: str, root: Path) -> dict[str, str]:
    """Device id -> the file in /dev that a process has open while it uses the device."""
    gpus = {device.index: device.id for device in amd(node, root)}
    out = {
        gpus[index]: f"/dev/dri/renderD{properties['drm_render_minor']}"
        for index, (_, properties) in enumerate(_kfd_gpus(root))
        if index in gpus and "drm_render_minor" in properties
    }
    out |= {device.id: f"/dev/accel{device.index}" for device in tpu(node, root)}
    for path in _numbered(root / "sys/class/accel", "accel"):
        module = _text(path / "device/module_id")
        out[f"{node}-hpu{module if module.isdigit() else _number(path)}"] = f"/dev/accel/{path.name}"
    for pattern in ("hailo", "apex_"):
        out |= {f"{node}-{path.name}": f"/dev/{path.name}" for path in _numbered(root / "dev", pattern)}
    return out | {f"{node}-nd{_number(path)}": f"/dev/{path.name}" for path in _numbered(root / "dev", "neuron")}


def tpu(node: str, root: Path) -> Iterator[Device]:
    """Chips by PCI address, which is the order of their indices."""
    found = [(at, m) for at, device_id in _pci(root, "google") if (m := find_pci("google", device_id)) is not None]
    for index, (address, model) in enumerate(found):
        chip = _device(node, f"tpu-{address}", index, model)
        shape = _HOST_BOXES.get((tpu_generations()[model.model].dims, len(found)), ())
        at = tuple(int(x) for x in np.unravel_index(index, shape)) if shape else ()
        yield chip.model_copy(update={"torus": node if shape else "", "torus_shape": shape, "torus_at": at})


def gaudi(node: str, root: Path) -> Iterator[Device]:
    """The index is the module id, as HABANA_VISIBLE_MODULES counts; without one the accel number."""
    found = []
    for path in _numbered(root / "sys/class/accel", "accel"):
        if _hex(path / "device/vendor") not in _pci_vendors("intel"):
            continue
        model = find_pci("intel", _hex(path / "device/device"))
        module = _text(path / "device/module_id")
        if model is not None:
            found.append((int(module) if module.isdigit() else _number(path), model))
    for index, model in sorted(found, key=lambda f: f[0]):
        yield _device(node, f"hpu{index}", index, model, island="roce0")


def neuron(node: str, root: Path, listed: str) -> Iterator[Device]:
    """`listed` is neuron-ls's JSON: a list of chips with `neuron_device` and `memory_size` (bytes)."""
    generation = re.match(r"(trn|inf)\d+", _text(root / "sys/devices/virtual/dmi/id/product_name"))
    model = find_model(generation.group(0)) if generation else None
    try:
        chips = json.loads(listed or "[]")
    except json.JSONDecodeError:
        return
    if model is None or not isinstance(chips, list):
        return
    for chip in sorted(chips, key=lambda c: int(c["neuron_device"])):
        index = int(chip["neuron_device"])
        yield _device(node, f"nd{index}", index, model, int(chip.get("memory_size", 0)) // _MIB, island="neuronlink0")


def fpga(node: str, root: Path) -> Iterator[Device]:
    """One device per slot: management and user functions belong to one card."""
    cards: dict[str, Accelerator] = {}
    for address, device_id in _pci(root, "fpga"):
        model = find_pci("fpga", device_id)
        if model is not None:
            cards.setdefault(address.rpartition(".")[0], model)
    for index, (slot, model) in enumerate(cards.items()):
        yield _device(node, f"fpga-{slot}", index, model)


def hailo(node: str, root: Path) -> Iterator[Device]:
    for path in _numbered(root / "dev", "hailo"):
        yield _device(node, path.name, _number(path), catalog()["Hailo-8"])


def coral(node: str, root: Path) -> Iterator[Device]:
    for path in _numbered(root / "dev", "apex_"):
        yield _device(node, path.name, _number(path), catalog()["Coral"])


def _device(node: str, name: str, index: int, model: Accelerator, memory_mib: int = 0, island: str = "") -> Device:
    """Memory is the driver's where it tells, else the label's."""
    return Device(
        id=f"{node}-{name}",
        index=index,
        kind=model.kind,
        model=model.model,
        memory_mib=memory_mib or int(model.memory_gib * 1024),
        nvlink_domain=island,
        power_limit_w=int(model.tdp_w or 0),
        runtime=model.runtime,
    )


def _kfd_gpus(root: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """KFD nodes with compute units: the others are processors."""
    for path in _numbered(root / "sys/class/kfd/kfd/topology/nodes", ""):
        properties = _properties(path / "properties")
        if int(properties.get("simd_count", "0")) > 0:
            yield path, properties


def _pci(root: Path, vendor: str) -> Iterator[tuple[str, str]]:
    """(address, device id) of the PCI functions of a vendor, by address."""
    for path in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _hex(path / "vendor") in _pci_vendors(vendor):
            yield path.name, _hex(path / "device")


def _pci_vendors(vendor: str) -> tuple[str, ...]:
    return next(v.pci_vendors for v in VENDORS if v.name == vendor)


def _numbered(folder: Path, prefix: str) -> list[Path]:
    """`<prefix><number>` in a folder, by number; nothing when there is no such folder."""
    return sorted((p for p in folder.glob(f"{prefix}*") if p.name.removeprefix(prefix).isdigit()), key=_number)


def _number(path: Path) -> int:
    found = re.search(r"\d+$", path.name)
    return int(found.group(0)) if found else 0


def _properties(path: Path) -> dict[str, str]:
    """KFD's `name value` lines."""
    return dict(line.split(None, 1) for line in _text(path).splitlines() if len(line.split()) == 2)


def _hex(path: Path) -> str:
    return _text(path).lower().removeprefix("0x")


def _text(path: Path) -> str:
    """The file's text without its newline; empty when it cannot be read, as of a device that just went."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
