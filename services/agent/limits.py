"""What one attempt may take of its machine: memory and disk. The kernel holds it to its memory where a cgroup can be had; what
no cgroup holds is looked at from time to time, and an attempt that has taken more is ended, with the figures in its reason."""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import psutil

from libs.bus.cancel import cancel
from schemas.attempts import Category, KnownOfPart
from schemas.jobs import JobLimits
from schemas.nodes import DesiredPart
from services.agent.folders import MOST_ENTRIES, filled, held_open
from services.agent.keeper import proc

_MIB = 1024 * 1024
_KEPT_FREE = 20
"""Of the machine's memory, a twentieth is no job's."""
SHARE = 20
"""A look at an attempt's folders may cost a twentieth of the time."""
QUICK_S = 0.05
"""A look that takes longer holds others up when there are many: a folder of half a million files takes three seconds."""
LONG_S = 10.0
"""In a longer gap between two looks a job can make very many files."""


_PIDS = 4_194_304
"""The most that a kernel numbers."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Bytes. `memory_group`: the cgroup that holds the attempt to its memory, to be made; "": there is none. `processes`:
    processes and threads that its job asked to be held to, 0: its job said nothing; `process_group` as `memory_group`."""

    memory: int
    disk: int
    memory_group: str = ""
    processes: int = 0
    process_group: str = ""

    def told(self) -> dict[str, dict[str, Any] | None]:
        """As the keeper is told of it."""
        memory = {"group": self.memory_group, "bytes": self.memory} if self.memory_group else None
        held = self.processes and self.process_group
        return {"memory": memory, "pids": {"group": self.process_group, "most": self.processes} if held else None}


def memory_of(part: DesiredPart) -> int:
    """Bytes that the processes of a part may have together: what the job asks for, for each device, and where it asks for
    nothing, or more than there is, nearly the whole machine's."""
    total = _memory_of_machine()
    most = total - total // _KEPT_FREE
    asked = part.spec.resources.host_memory_mib * _MIB * len(part.ranks)
    return min(asked, most) or most


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


def limits_of(part: DesiredPart, disk: int, memory_group: str, process_group: str) -> AttemptLimits:
    """What a part is held to: what its job asked for, and of the disk no more than `disk` bytes."""
    asked = part.spec.limits or JobLimits()
    return AttemptLimits(
        memory=memory_of(part),
        disk=disk if asked.disk_mib is None else min(disk, asked.disk_mib * _MIB),
        memory_group=memory_group,
        processes=asked.processes or 0,
        process_group=process_group,
    )


class Watched:
    """One attempt's folders and processes, as they are looked at."""

    def __init__(self, limits: AttemptLimits, folders: Sequence[Path]) -> None:
        self.limits, self.folders = limits, folders
        self._next = self._gap_s = 0.0
        self._free = 0

    @property
    def is_slow(self) -> bool:
        """Whether the last look at it was."""
        return self._gap_s > SHARE * QUICK_S

    async def exceeded(self, shim: int) -> tuple[str, KnownOfPart] | None:
        """What it has taken too much of, in words, and the category of that; None: nothing.

        It is looked at earlier when its disk has lost as many files since the last look as one attempt may have: of a million
        files the looks lie minutes apart.
        """
        if time.monotonic() < self._next and (self._gap_s < LONG_S or not await asyncio.to_thread(self._many_more)):
            return None
        return await asyncio.to_thread(self._look, shim)

    def _many_more(self) -> bool:
        return self._free - _files_free(self.folders) >= MOST_ENTRIES

    def _look(self, shim: int) -> tuple[str, KnownOfPart] | None:
        began, self._free = time.monotonic(), _files_free(self.folders)
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


class LookedAt(Protocol):
    """What runs a part, as its limits are looked at."""

    @property
    def slow_to_look_at(self) -> bool: ...
    async def look_at_limits(self) -> None: ...


class LimitLooks:
    """One look after the other: who filled its folders would hold up the looks at all others, and what they write meanwhile
    nobody sees. So slow ones stand in a line of their own, which may be longer than a round."""

    def __init__(self) -> None:
        self._slow: asyncio.Task[None] | None = None

    async def round(self, parts: Iterable[LookedAt]) -> None:
        """A look at each part: at the slow ones beside it, once those of an earlier round are done. Raises what these
        raised."""
        parts = list(parts)
        slow = [part for part in parts if part.slow_to_look_at]
        if self._slow is None or self._slow.done():
            before, self._slow = self._slow, asyncio.create_task(_in_turn(slow), name="slow looks") if slow else None
            if before is not None:
                before.result()
        await _in_turn([part for part in parts if not part.slow_to_look_at])

    async def stop(self) -> None:
        """Ends a line that is under way."""
        if self._slow is not None:
            await cancel(self._slow)


async def _in_turn(parts: Iterable[LookedAt]) -> None:
    for part in parts:
        await part.look_at_limits()


def _files_free(folders: Sequence[Path]) -> int:
    """How many more files their disks take together; of one that says nothing of it, 0."""
    disks = dict[int, int]()
    for folder in folders:
        with suppress(OSError):
            disks[os.stat(folder).st_dev] = os.statvfs(folder).f_ffree
    return sum(disks.values())


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
