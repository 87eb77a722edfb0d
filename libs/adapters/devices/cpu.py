"""This machine's processors as one device of kind cpu: so that CPU jobs queue, share and are billed like any other."""

from collections.abc import Collection, Mapping, Sequence

import psutil

from libs.adapters.devices.layer import NoMig, process_environment
from schemas.nodes import DeviceSample, Rank
from schemas.resources import Device, DeviceKind, Runtime

MODEL = "CPU"
_MIB = 1024 * 1024


class CpuLayer(NoMig):
    """One device: all processors and the memory of the host. Jobs share it by thousandths."""

    at_once = True

    def __init__(self, node: str) -> None:
        self._id = f"{node}-cpu0"

    def discover(self) -> tuple[Device, ...]:
        memory_mib = psutil.virtual_memory().total // _MIB
        return (
            Device(id=self._id, index=0, kind=DeviceKind.CPU, model=MODEL, memory_mib=memory_mib, runtime=Runtime.CPU),
        )

    def sample(self, busy: Mapping[str, int]) -> tuple[DeviceSample, ...]:
        """Utilisation since the last call, in per cent of all processors."""
        used_pct = min(100.0, max(0.0, psutil.cpu_percent(None)))
        used_mib = psutil.virtual_memory().used // _MIB
        return (DeviceSample(device=self._id, model=MODEL, utilization_pct=used_pct, memory_used_mib=used_mib),)

    def users(self, devices: Collection[str]) -> dict[str, frozenset[int]]:
        """All processes use the processors: that says nothing of one that was left behind."""
        return {}

    def files(self, devices: Collection[str]) -> tuple[str, ...]:
        return ()

    def environment(self, ranks: Sequence[Rank]) -> dict[str, str]:
        """No accelerator is visible; thread pools are told how many processors the share amounts to."""
        devices = {device.id: device for device in self.discover()}
        threads = max(1, (psutil.cpu_count() or 1) * ranks[0].milli // 1000)
        return process_environment(ranks, devices) | {"OMP_NUM_THREADS": str(threads)}
