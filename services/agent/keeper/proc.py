"""Processes as /proc and cgroups show them: who lives, who descends from whom, who is in a group, and killing them."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from zlib import crc32


class Stat:
    """Of /proc/<pid>/stat: name (15 bytes of it), state letter, parent, session, start time in clock ticks since boot."""

    __slots__ = ("name", "parent", "session", "started", "state")

    def __init__(self, name: str, state: str, parent: int, session: int, started: int) -> None:
        self.name, self.state, self.parent, self.session, self.started = name, state, parent, session, started


def read_text(path: str) -> str:
    """A small file of the kernel's. Without Python's file objects, which take a multiple of the time. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(fd, 65_536):
            pieces.append(piece)
    finally:
        os.close(fd)
    return b"".join(pieces).decode(errors="replace")


def write_text(path: str, text: str) -> None:
    """Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        text = read_text(f"/proc/{pid}/stat")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(") ")
    parts = rest.split()
    return Stat(name, parts[0], int(parts[1]), int(parts[3]), int(parts[19]))


def shim_name(folder: str) -> str:
    """What the shims of the keeper that has this folder are called, as `ps` shows it. No other process of this machine is: it
    is how those are found that a keeper left."""
    return f"baton-{crc32(os.fsencode(os.path.realpath(folder))):08x}"


def alive(pid: int) -> bool:
    """A zombie has given everything back but its number: it is not alive."""
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZX"


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    """Direct children, zombies too. Reads what the kernel keeps for each thread, or else all of /proc."""
    try:
        texts = [read_text(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        stats = ((other, read_stat(other)) for other in pids())
        return [other for other, stat in stats if stat is not None and stat.parent == pid]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


def descendants(of: Iterable[int]) -> set[int]:
    """Everything below these processes, without themselves."""
    found: set[int] = set()
    waiting = list(of)
    while waiting:
        for child in children(waiting.pop()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def kill_all(wanted: Iterable[int]) -> set[int]:
    """Sends SIGKILL to each; returns all of them."""
    found = set(wanted)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    return found


# ------------------------------------------------------------------------------------------------------ cgroups


def threads(pid: int) -> int:
    """How many threads a process has; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def group_members(group: str) -> set[int]:
    """Live process ids in a cgroup and those below it."""
    found: set[int] = set()
    for folder in (group, *_below(group)):
        try:
            found.update(int(line) for line in read_text(f"{folder}/cgroup.procs").split())
        except OSError:
            continue
    return {pid for pid in found if alive(pid)}


def kill_group(group: str) -> set[int]:
    """Kills a cgroup with everything below it; returns the members that were there. Call again until there are none.

    Version 2 kills all at once (`cgroup.kill`, since Linux 5.14). With version 1 the group is frozen first, so that no
    member forks between being seen and being killed. Without either the members are killed one by one.
    """
    found = group_members(group)
    if not found:
        return found
    try:
        write_text(f"{group}/cgroup.kill", "1")
        return found
    except OSError:
        pass
    frozen = f"{group}/freezer.state"
    try:
        write_text(frozen, "FROZEN")
        found |= kill_all(group_members(group))
        write_text(frozen, "THAWED")
    except OSError:
        kill_all(found)
    return found


def remove_group(group: str) -> None:
    """Removes the empty group with what is below it. What is not empty stays."""
    for folder in (*sorted(_below(group), reverse=True), group):
        try:
            os.rmdir(folder)
        except OSError:
            continue


def oom_kills(group: str) -> int:
    """How many of its processes the kernel has killed for memory; 0 where the memory controller is off. To be asked before
    the group is removed. (Linux, admin-guide/cgroup-v2, `memory.events`: `oom_kill`; of version 1 `memory.oom_control`.)"""
    for name in ("memory.events", "memory.oom_control"):
        try:
            return oom_kills_of(read_text(f"{group}/{name}"))
        except OSError:
            continue
    return 0


def oom_kills_of(told: str) -> int:
    """The same, of what the kernel has told."""
    return sum(int(line.split()[1]) for line in told.splitlines() if line.startswith("oom_kill "))


def _below(group: str) -> list[str]:
    with suppress(OSError):
        if os.stat(group).st_nlink == _WITHOUT_FOLDERS:
            return []
    return [folder for folder, _, _ in os.walk(group) if folder != group]


_WITHOUT_FOLDERS = 2
"""Links to a folder of the kernel's that has no others in it: its name, and its own `.`. Groups have some thirty files."""
