"""Devices that are still used when their attempt is gone: they are kept from other jobs until they are free.

Nothing of an attempt outlives its shim. But a device may have another user: a container that the job had a daemon start, a
process that was handed an open descriptor, a driver that hangs in the end of a process. What is to be believed is the device.
"""

import asyncio
import json
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from libs.adapters.devices import DeviceLayer, NoDevices
from libs.ports import clock
from schemas.inbox import BusyDevice
from services.agent.keeper import proc

WATCHERS = frozenset(
    {"nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-smi", "nvidia-fabricm", "amd-smi", "rocm-smi", "Xorg"}
)
"""Programs that have devices open without working on them, by their short names (at most 15 characters)."""


log = logging.getLogger("baton.agent")

GRACE_S = 10.0
"""A driver may need so long to let go of a process that was killed."""


@dataclass(frozen=True, slots=True)
class DeviceInUse:
    """A device in quarantine. `users`: "name (pid 123)" of each; `since`: of the attempt that it was granted to last."""

    since: "Since"
    users: tuple[str, ...]
    since_us: int = field(default_factory=clock.wall_us)
    """When it was seen first: names this quarantine of the device."""

    def told(self, device: str) -> BusyDevice:
        """As the pool is told of it."""
        return BusyDevice(device=device, users=", ".join(self.users)[:512], since_us=self.since_us)


@dataclass(frozen=True, slots=True)
class Since:
    """When an attempt began, in clock ticks since boot: who used its devices before that is not of it."""

    ticks: int

    @classmethod
    def now(cls) -> "Since":
        return cls(int(clock.boot_s() * os.sysconf("SC_CLK_TCK")))


class QuarantineFile:
    """What is in quarantine, for the next agent of this machine: it would call devices free that are not. After a boot
    nothing of it holds, for nobody who used a device is left."""

    def __init__(self, path: Path, boot: str) -> None:
        self._path, self._boot = path, boot
        self._nodes: dict[str, Mapping[str, DeviceInUse]] = self._read()

    def of(self, node: str) -> dict[str, DeviceInUse]:
        return dict(self._nodes.get(node, {}))

    def had(self, node: str) -> bool:
        """Whether it had any since the boot."""
        return node in self._nodes

    def keep(self, node: str, busy: Mapping[str, DeviceInUse]) -> None:
        """A disk that is full must end nothing: then the next agent does not know."""
        self._nodes[node] = busy
        rows = {
            name: {device: [one.since.ticks, one.users, one.since_us] for device, one in devices.items()}
            for name, devices in self._nodes.items()
        }
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps({"boot": self._boot, "nodes": rows}))
            new.replace(self._path)
        except OSError as e:
            log.warning("what is in quarantine cannot be written down: %s", e)

    def _read(self) -> dict[str, Mapping[str, DeviceInUse]]:
        try:
            kept = json.loads(self._path.read_text())
            if kept["boot"] != self._boot:
                return {}
            return {
                name: {
                    device: DeviceInUse(Since(int(ticks)), tuple(map(str, users)), int(since_us))
                    for device, (ticks, users, since_us) in rows.items()
                }
                for name, rows in kept["nodes"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            log.warning("what an earlier agent had in quarantine cannot be read: %s", e)
            return {}


async def still_busy(
    layer: DeviceLayer, devices: Collection[str], since: Since, kept: Collection[int], grace_s: float
) -> dict[str, DeviceInUse]:
    """The devices that strangers still use after `grace_s`; returns as soon as there are none."""
    if layer.at_once and not any(layer.users(devices).values()):
        return {}
    loop = asyncio.get_running_loop()
    end, pause_s = loop.time() + grace_s, 0.02
    while found := await asyncio.to_thread(strangers, layer, devices, since, kept):
        if loop.time() >= end:
            break
        await asyncio.sleep(min(pause_s, max(0.0, end - loop.time())))
        pause_s = min(0.5, pause_s * 2)
    return {device: DeviceInUse(since, tuple(users)) for device, users in found.items()}


def strangers(
    layer: DeviceLayer, devices: Collection[str], since: Since, kept: Collection[int]
) -> dict[str, list[str]]:
    """Device -> who uses it and should not: processes that began after `since`, are not below one of `kept` (shims of living
    attempts, and this agent) and are no watchers. Each as "name (pid 123)". Blocks for some milliseconds."""
    try:
        users = layer.users(devices)
    except (NoDevices, OSError):
        return {}
    if not any(users.values()):
        return {}
    ours = set(kept) | proc.descendants(kept)
    found = {
        device: [_called(pid) for pid in sorted(pids - ours) if _counts(pid, since)] for device, pids in users.items()
    }
    return {device: called for device, called in found.items() if called}


def _counts(pid: int, since: Since) -> bool:
    """A process that the driver names and that cannot be seen from here counts: it is in a container, or is ending."""
    stat = proc.read_stat(pid)
    if stat is None:
        return True
    return stat.state not in "ZX" and stat.started >= since.ticks and _name(pid) not in WATCHERS


def _name(pid: int) -> str:
    try:
        return proc.read_text(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def _called(pid: int) -> str:
    return f"{_name(pid) or 'a process'} (pid {pid})"
