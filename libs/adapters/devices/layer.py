"""The seam between Baton and the drivers of a node's accelerators: find them, read them, hand them to a process."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from schemas.nodes import DeviceSample, Rank
from schemas.resources import WHOLE_MILLI, Device


class NoDevices(RuntimeError):
    """The driver or the devices are not there; the text says what was tried and what to do."""


class DeviceLayer(Protocol):
    """One node's devices. Calls may block for some milliseconds (a driver answers them)."""

    def discover(self) -> tuple[Device, ...]:
        """All devices that may be granted now, in index order, each with a stable id. Raises NoDevices."""

    def sample(self, busy: Mapping[str, int]) -> tuple[DeviceSample, ...]:
        """One reading per device that answers. `busy` (device id -> granted milli) is used by simulated ones only."""

    def environment(self, ranks: Sequence[Rank]) -> dict[str, str]:
        """The variables that make exactly the devices of `ranks` visible to a process, in rank order.

        Raises NoDevices naming a device that is not on this node.
        """


def share_environment(ranks: Sequence[Rank]) -> dict[str, str]:
    """The variables that tell a process its part of a shared device, for NVIDIA MPS and for the job itself.

    `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` (1 to 100) can only lower what the MPS daemon allows; without a daemon it has no
    effect, and the share is what the job keeps to by itself. Whole devices get no such variable.
    """
    first = ranks[0]
    out = {"BATON_DEVICES": ",".join(r.device for r in ranks), "BATON_SHARE_MILLI": str(first.milli)}
    if first.milli < WHOLE_MILLI:
        out["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, first.milli // 10))
        if first.memory_mib:
            out["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={first.memory_mib}M"
    return out
