"""Quarantine: devices still in use after their attempt has ended are not granted until they are free.

No process of an attempt outlives its shim. But a device may have another user: a container started by a daemon for the
job, a process that received an open descriptor, a driver that hangs while a process exits. So the device itself is
checked.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from libs.adapters.devices import DeviceLayer, NoDevices
from libs.ports import clock
from schemas.inbox import BusyDevice, NodeQuarantine
from schemas.nodes import LiftedQuarantine
from services.agent.keeper import proc
from services.agent.living import LivingNode

WATCHERS = frozenset(
    {"nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-smi", "nvidia-fabricm", "amd-smi", "rocm-smi", "Xorg"}
)
"""Programs that open devices without working on them, by their short names (at most 15 characters)."""


log = logging.getLogger("baton.agent")

AGAIN_S = 60.0
"""How often a node that had devices in quarantine in this life repeats the report."""
GRACE_S = 10.0
"""A driver may take this long to release a killed process."""


@dataclass(frozen=True, slots=True)
class DeviceInUse:
    """A device in quarantine. `users`: "name (pid 123)" of each; `since`: start of the attempt that last had it."""

    since: "Since"
    users: tuple[str, ...]
    since_us: int = field(default_factory=clock.wall_us)
    """When it was first seen; identifies this quarantine of the device."""

    def as_busy_device(self, device: str) -> BusyDevice:
        """The pool's form of it."""
        return BusyDevice(device=device, users=", ".join(self.users)[:512], since_us=self.since_us)


@dataclass(frozen=True, slots=True)
class Since:
    """When an attempt began, in clock ticks since boot. Processes that began earlier are not the attempt's."""

    ticks: int

    @classmethod
    def now(cls) -> "Since":
        return cls(int(clock.boot_s() * os.sysconf("SC_CLK_TCK")))


@dataclass(frozen=True, slots=True)
class KeptQuarantine:
    """Quarantined devices of a node, from earlier agents since boot."""

    devices: Mapping[str, DeviceInUse] = field(default_factory=dict)
    had: bool = False
    """Whether there were any since boot."""
    keep: Callable[[Mapping[str, DeviceInUse]], None] = lambda devices: None
    """Stores the present ones for the next agent."""


class NodeInQuestion(LivingNode, Protocol):
    """The node, for its quarantine."""

    def shut(self, users: Mapping[str, str]) -> None:
        """Starts no part on these devices; `users`: device -> who uses it."""
        ...

    def tell(self, seen: NodeQuarantine) -> None:
        """Reports to placement."""
        ...


class DeviceQuarantine:
    """The quarantine of one node. Devices stay in it over lives of the node until they are free; placement gets reports
    of it."""

    def __init__(self, node: NodeInQuestion, kept: KeptQuarantine) -> None:
        self.devices = dict(kept.devices)
        self._node, self._keep = node, kept.keep
        self._had = kept.had  # in this life, or since boot: placement may still list devices
        self._told_at = 0.0

    def begin(self) -> None:
        """Starts a new life of the node."""
        self._had = bool(self.devices)

    def users(self) -> dict[str, str]:
        """Device -> who uses it."""
        return {device: ", ".join(one.users) for device, one in self.devices.items()}

    def add(self, busy: Mapping[str, DeviceInUse]) -> None:
        """Foreign processes use these devices: no part is started there until they are free."""
        new = {device: one for device, one in busy.items() if device not in self.devices}
        for device, one in new.items():
            log.error("%s: device %s is in quarantine: %s still uses it", self._node.name, device, ", ".join(one.users))
        if new:
            self._set(self.devices | new)

    def free(self, devices: Iterable[str]) -> None:
        """These devices are free again."""
        gone = self.devices.keys() & set(devices)
        for device in sorted(gone):
            log.warning("%s: device %s is free again", self._node.name, device)
        if gone:
            self._set({device: one for device, one in self.devices.items() if device not in gone})

    def lift(self, lifted: Iterable[LiftedQuarantine]) -> None:
        """An operator releases these devices, whoever uses them now."""
        known = self.devices
        over = {one.device for one in lifted if one.device in known and known[one.device].since_us == one.since_us}
        for device in sorted(over):
            log.warning("%s: an operator has lifted the quarantine of device %s", self._node.name, device)
        if over:
            self._set({device: one for device, one in known.items() if device not in over})

    def _set(self, devices: dict[str, DeviceInUse]) -> None:
        self.devices, self._had = devices, True
        self._node.shut(self.users())
        self._keep(devices)
        self.tell()

    def tell_again(self) -> None:
        """Repeats the report. It may not have been recorded: older readers of the ledger hold it back, and nothing
        signals their end. Or an outdated report arrived late and keeps a free device blocked."""
        if (self.devices or self._had) and self._node.now() - self._told_at >= AGAIN_S:
            self.tell()

    def tell(self) -> None:
        """Reports now, except between two lives: the registration that begins the next one contains it."""
        if not self._node.dying:
            self._node.tell(
                NodeQuarantine(node=self._node.name, incarnation=self._node.incarnation, devices=self.to_report())
            )

    def to_report(self) -> tuple[BusyDevice, ...]:
        """The report's content; marks it as reported now."""
        self._told_at = self._node.now()
        return tuple(one.as_busy_device(device) for device, one in self.devices.items())


class QuarantineFile:
    """The quarantine, stored for this machine's next agent, which would otherwise take these devices for free. It is
    void after a boot, which ends all users."""

    def __init__(self, path: Path, boot: str) -> None:
        self._path, self._boot = path, boot
        self._nodes: dict[str, Mapping[str, DeviceInUse]] = self._read()

    def of(self, node: str) -> KeptQuarantine:
        return KeptQuarantine(self._nodes.get(node, {}), node in self._nodes, partial(self.keep, node))

    def keep(self, node: str, busy: Mapping[str, DeviceInUse]) -> None:
        """A full disk must end nothing. The next agent then lacks this information."""
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
    """Devices that strangers still use after `grace_s`; returns earlier when there are none."""
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
    """Device -> unauthorised users: processes that began after `since`, are not below one of `kept` (shims of live
    attempts, and this agent) and are no watchers. Each as "name (pid 123)". Blocks for some milliseconds."""
    try:
        users = layer.users(devices)
    except (NoDevices, OSError):
        return {}
    if not any(users.values()):
        return {}
    ours = set(kept) | proc.descendants(kept)
    found = {
        device: [_short_name(pid) for pid in sorted(pids - ours) if _is_user(pid, since)]
        for device, pids in users.items()
    }
    return {device: called for device, called in found.items() if called}


def _is_user(pid: int, since: Since) -> bool:
    """A process that the driver names but that is invisible here counts: it is in a container, or is ending."""
    stat = proc.read_stat(pid)
    if stat is None:
        return True
    return stat.state not in "ZX" and stat.started >= since.ticks and _name(pid) not in WATCHERS


def _name(pid: int) -> str:
    try:
        return proc.read_text(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def _short_name(pid: int) -> str:
    return f"{_name(pid) or 'a process'} (pid {pid})"
