"""Enforces one attempt's limits of memory, disk and processes. A cgroup enforces a limit where possible. Other use is
measured at intervals, and an attempt over its limit is ended, with the figures in its reason. Processors are shared,
not limited."""

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from schemas.attempts import Category, KnownOfPart
from schemas.jobs import JobLimits
from schemas.nodes import DesiredPart
from services.agent.folders import MOST_ENTRIES, filled, held_open
from services.agent.keeper import proc

log = logging.getLogger("baton.agent")

_MIB = 1024 * 1024
_KEPT_FREE = 20
"""A twentieth of the machine's memory is reserved."""
SHARE = 20
"""Measuring attempts may cost a twentieth of the time."""
LONG_S = 10.0
"""In a longer gap between two measurements a job can create very many files."""


_PIDS = 4_194_304
"""The kernel's largest process id."""
_OF_PROCESSOR, _LARGEST_WEIGHT = 100, 10_000
"""Weights in units of cgroups version 2."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits in bytes. `memory_group`: the memory cgroup to create; "": none. `memory_stem`: the prefix of spare groups that
    the keeper may use instead; "": none. `processes`: the limit on processes and threads that the job requested, 0: none;
    `process_group`: like `memory_group`. `cpu_group`: the cgroup for processor shares, with weight `cpu_weight`; or
    `cpu_stem`: the prefix of such groups that the keeper creates; "": none."""

    memory: int
    disk: int
    memory_group: str = ""
    memory_stem: str = ""
    processes: int = 0
    process_group: str = ""
    cpu_group: str = ""
    cpu_stem: str = ""
    cpu_weight: int = _OF_PROCESSOR

    def start_fields(self) -> dict[str, dict[str, Any] | None]:
        """The keeper's form of it."""
        memory: dict[str, Any] = {"group": self.memory_group, "bytes": self.memory}
        memory |= {"stem": self.memory_stem} if self.memory_stem else {}
        held = self.processes and self.process_group
        return {
            "memory": memory if self.memory_group else None,
            "pids": {"group": self.process_group, "most": self.processes} if held else None,
            "cpu": self._cpu(),
        }

    def _cpu(self) -> dict[str, Any] | None:
        if self.cpu_group:
            return {"group": self.cpu_group, "weight": self.cpu_weight}
        return {"stem": self.cpu_stem, "weight": self.cpu_weight} if self.cpu_stem else None


def memory_of(part: DesiredPart) -> int:
    """Bytes of memory for a part's processes: the job's request times its devices. Without a request, or beyond what
    exists, nearly the whole machine's."""
    total = _memory_of_machine()
    most = total - total // _KEPT_FREE
    asked = part.spec.resources.host_memory_mib * _MIB * len(part.ranks)
    return min(asked, most) or most


def cpu_weight_of(part: DesiredPart) -> int:
    """The attempt's share of contended processors: a hundred per requested processor, or per device if that is more."""
    asked = part.spec.resources.cpu_milli * len(part.ranks)
    milli = max(asked, sum(rank.milli for rank in part.ranks))
    return max(1, min(milli * _OF_PROCESSOR // 1000, _LARGEST_WEIGHT))


@cache
def _memory_of_machine() -> int:
    """Bytes."""
    return int(psutil.virtual_memory().total)


def processes_of_machine() -> int:
    """The most processes and threads of all users together."""
    most = _PIDS
    for name in ("pid_max", "threads-max"):
        with suppress(OSError, ValueError):
            most = min(most, int(proc.read_text(f"/proc/sys/kernel/{name}")))
    return most


def limits_of(
    part: DesiredPart,
    disk: int,
    *,
    memory_group: str,
    process_group: str,
    cpu_group: str,
    cpu_stem: str,
    memory_stem: str = "",
) -> AttemptLimits:
    """The limits of a part: the job's requests, and at most `disk` bytes."""
    asked = part.spec.limits or JobLimits()
    return AttemptLimits(
        memory=memory_of(part),
        disk=disk if asked.disk_mib is None else min(disk, asked.disk_mib * _MIB),
        memory_group=memory_group,
        memory_stem=memory_stem,
        processes=asked.processes or 0,
        process_group=process_group,
        cpu_group=cpu_group,
        cpu_stem=cpu_stem,
        cpu_weight=cpu_weight_of(part),
    )


class Watched:
    """One attempt's folders and processes, as measured."""

    def __init__(self, limits: AttemptLimits, folders: Sequence[Path]) -> None:
        self.limits, self.folders = limits, folders
        self.exceeded: tuple[str, KnownOfPart] | None = None
        """The exceeded limit in words, with its category."""
        self._next = self._gap_s = 0.0
        self._free = _Free()
        self._unknown = False
        self._left = 0
        """Bytes still unused at the last measurement."""

    @property
    def slow_check_due(self) -> float | None:
        """For measurements that take long: when the next is due. None: measuring is quick."""
        return self._next if self._gap_s >= LONG_S else None

    async def look(self, shim: int) -> bool:
        """Measures if it is time, into `exceeded`; returns whether it did. Where the agent lacks what it needs to look, that is
        held against nobody, and it looks again.

        It is time earlier if the disk lost, since the last measurement, as many files as one attempt may have, or as
        many bytes as this one had unused: measurements of very many files are minutes apart.
        """
        if time.monotonic() < self._next and (
            self._gap_s < LONG_S or not await asyncio.to_thread(self._disk_shrank_much)
        ):
            return False
        try:
            self.exceeded = await asyncio.to_thread(self._look, shim)
        except OSError as error:
            if not self._unknown:
                log.warning("what an attempt has is not known, and it is looked again: %s", error)
            self._unknown = True
            return False
        self._unknown = False
        return True

    def _disk_shrank_much(self) -> bool:
        free = _free(self.folders)
        lost = self._free.bytes - free.bytes
        return self._free.files - free.files >= MOST_ENTRIES or lost > max(self._left, free.of_all // SHARE)

    def _look(self, shim: int) -> tuple[str, KnownOfPart] | None:
        began, self._free = time.monotonic(), _free(self.folders)
        try:
            limits = self.limits
            if limits.processes and not limits.process_group and shim:
                count = sum(map(proc.threads, proc.descendants([shim])))
                if count > limits.processes:
                    return (
                        f"process limit: it had {count} processes and threads, and may have {limits.processes}",
                        Category.USER_ERROR,
                    )
            if not self.limits.memory_group and shim:
                used = memory_used(proc.descendants([shim]))
                if used > self.limits.memory:
                    return (
                        f"it used {mib(used)} of memory, and may use {mib(self.limits.memory)}",
                        Category.OUT_OF_MEMORY,
                    )
            held = held_open(proc.descendants([shim]) if shim else (), self.folders)
            found = filled(self.folders, self.limits.disk - held.bytes)
            if why := held.why or found.why:
                return f"disk limit: {why}", Category.DISK_LIMIT
            used = held.bytes + found.bytes
            self._left = self.limits.disk - used
            if used > self.limits.disk:
                return (
                    f"disk limit: its folders hold {mib(used)}, and may hold {mib(self.limits.disk)} (limits.disk_mib)",
                    Category.DISK_LIMIT,
                )
            return None
        finally:
            ended = time.monotonic()
            self._gap_s = SHARE * (ended - began)
            self._next = ended + self._gap_s


@dataclass(frozen=True, slots=True)
class _Free:
    """Free files and bytes of several disks together, and their total bytes."""

    files: int = 0
    bytes: int = 0
    of_all: int = 0


def _free(folders: Iterable[Path]) -> _Free:
    """A disk that reports no number of files counts 0."""
    disks = dict[int, os.statvfs_result]()
    for folder in folders:
        with suppress(OSError):
            disks[os.stat(folder).st_dev] = os.statvfs(folder)
    return _Free(
        files=sum(disk.f_ffree for disk in disks.values()),
        bytes=sum(disk.f_bfree * disk.f_frsize for disk in disks.values()),
        of_all=sum(disk.f_blocks * disk.f_frsize for disk in disks.values()),
    )


def memory_used(pids: Iterable[int]) -> int:
    """Bytes of memory of these processes; shared memory is divided among its users."""
    total = 0
    for pid in pids:
        try:
            lines = proc.read_text(f"/proc/{pid}/smaps_rollup").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def mib(count: int) -> str:
    """Mebibytes, for people."""
    return f"{count / _MIB:,.0f} MiB"
