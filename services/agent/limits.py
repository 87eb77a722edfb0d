"""Enforces one attempt's limits of memory and disk. A cgroup limits memory where one can be had; what no cgroup limits is
measured at intervals, and an attempt over its limit is ended, with the figures in its reason. Processors are not limited
but shared."""

import asyncio
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

_MIB = 1024 * 1024
_KEPT_FREE = 20
"""Of the machine's memory, a twentieth is no job's."""
SHARE = 20
"""A look at what attempts take may cost a twentieth of the time."""
LONG_S = 10.0
"""In a longer gap between two looks a job can make very many files."""


_PIDS = 4_194_304
"""The most that a kernel numbers."""
_OF_PROCESSOR, _LARGEST_WEIGHT = 100, 10_000
"""Weights as version 2 of cgroups has them."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Bytes. `memory_group`: the cgroup that holds the attempt to its memory, to be made; "": there is none. `memory_stem`:
    with this begin names of groups that the keeper may take in its place; "": it may take none. `processes`: processes and
    threads that its job asked to be held to, 0: its job said nothing; `process_group` as `memory_group`. `cpu_group`: likewise,
    by which the kernel shares the processors, by `cpu_weight`; or else `cpu_stem`, with which the names begin of such groups
    that the keeper makes; "": there is none."""

    memory: int
    disk: int
    memory_group: str = ""
    memory_stem: str = ""
    processes: int = 0
    process_group: str = ""
    cpu_group: str = ""
    cpu_stem: str = ""
    cpu_weight: int = _OF_PROCESSOR

    def told(self) -> dict[str, dict[str, Any] | None]:
        """As the keeper is told of it."""
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
    """Bytes that the processes of a part may have together: what the job asks for, for each device, and where it asks for
    nothing, or more than there is, nearly the whole machine's."""
    total = _memory_of_machine()
    most = total - total // _KEPT_FREE
    asked = part.spec.resources.host_memory_mib * _MIB * len(part.ranks)
    return min(asked, most) or most


def cpu_weight_of(part: DesiredPart) -> int:
    """Of processors that several want, its attempt has so large a share: a hundred for each that its job asked for, or for each
    device that it holds where that is more."""
    asked = part.spec.resources.cpu_milli * len(part.ranks)
    milli = max(asked, sum(rank.milli for rank in part.ranks))
    return max(1, min(milli * _OF_PROCESSOR // 1000, _LARGEST_WEIGHT))


@cache
def _memory_of_machine() -> int:
    """Bytes."""
    return int(psutil.virtual_memory().total)


def processes_of_machine() -> int:
    """So many processes and threads it can have together, of all users."""
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
    """What a part is held to: what its job asked for, and of the disk no more than `disk` bytes."""
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
    """One attempt's folders and processes, as they are looked at."""

    def __init__(self, limits: AttemptLimits, folders: Sequence[Path]) -> None:
        self.limits, self.folders = limits, folders
        self.exceeded: tuple[str, KnownOfPart] | None = None
        """What it has taken too much of, in words, and the category of that."""
        self._next = self._gap_s = 0.0
        self._free = _Free()
        self._left = 0
        """Bytes that it might have taken at the last look."""

    @property
    def waits_since(self) -> float | None:
        """Where a look takes long, when the next one was or will be due; None: it is done in a moment."""
        return self._next if self._gap_s >= LONG_S else None

    async def look(self, shim: int) -> bool:
        """Whether it was looked at, for `exceeded`, as it is time.

        It is earlier when its disk has lost as many files since the last look as one attempt may have, or as many bytes as this
        one might have taken: of very many files the looks lie minutes apart.
        """
        if time.monotonic() < self._next and (self._gap_s < LONG_S or not await asyncio.to_thread(self._much_more)):
            return False
        self.exceeded = await asyncio.to_thread(self._look, shim)
        return True

    def _much_more(self) -> bool:
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
    """Of disks together: files and bytes that they have room for, and the bytes of all of them."""

    files: int = 0
    bytes: int = 0
    of_all: int = 0


def _free(folders: Iterable[Path]) -> _Free:
    """Of one that says nothing of files, 0."""
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
    """Bytes of memory of these processes, what they share divided between those who share it."""
    total = 0
    for pid in pids:
        try:
            lines = proc.read_text(f"/proc/{pid}/smaps_rollup").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def mib(count: int) -> str:
    """For people."""
    return f"{count / _MIB:,.0f} MiB"
