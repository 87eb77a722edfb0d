"""Finding and killing every process of a part, whatever it did to get away. Standard library only: the guard uses it.

Two ways to know what belongs to a part:
- a cgroup (v2) of its own, where the agent may make one: membership is inherited by every fork and cannot be shed by
  setsid or double-forking, and the kernel kills all of it at once;
- the marker `BATON_PART=<node>@<agent>/<incarnation>/<attempt id>` in its initial environment, which every descendant
  inherits, plus sessions and parents. A program that clears its environment *and* detaches can shed this one.

A part's device is free only when nothing of it is left, so callers wait until `members` is empty, however long.
"""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

MARKER = "BATON_PART"


def marker_root(node: str, state_dir: str | Path) -> str:
    """Names one node of one agent, so that two agents on a machine never end each other's work."""
    return f"{node}@{sha256(str(Path(state_dir).resolve()).encode()).hexdigest()[:12]}"


def cgroup_base() -> Path | None:
    """Where this process may make cgroups of version 2, or None."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        own = next(x for x in Path("/proc/self/cgroup").read_text().splitlines() if x.startswith("0::"))[3:]
    except (OSError, StopIteration):
        return None
    for line in mounts:
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            base = Path(left.split()[4] + own.rstrip("/"))
            probe = base / f"baton-probe-{os.getpid()}"
            try:
                probe.mkdir()
                probe.rmdir()
            except OSError:
                continue
            return base
    return None


@dataclass(slots=True)
class PartCgroup:
    """What holds the processes of one part together. `group` is its cgroup, if there is one."""

    marker: str
    group: Path | None = None
    sessions: set[int] = field(default_factory=set)
    """Process ids of the ranks: each leads a session of its own."""

    def open(self) -> None:
        """Makes the cgroup. Without the right to (or when it fails) the marker alone is used."""
        if self.group is not None:
            try:
                self.group.mkdir(parents=True, exist_ok=True)
            except OSError:
                self.group = None

    def entrance(self) -> Callable[[], None] | None:
        """What a new process must call between fork and exec to be inside, or None."""
        if self.group is None:
            return None
        procs = os.open(self.group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

        def enter() -> None:
            os.write(procs, b"0")

        return _Closing(enter, procs)

    def members(self) -> set[int]:
        """Process ids that are alive (not zombies) and belong to the part."""
        if self.group is not None:
            return group_members(self.group)
        return marked(self.marker + "\0", self.sessions)

    def kill(self) -> set[int]:
        """Kills all members at once; returns those that were there. Call again until it returns nothing."""
        return kill_group(self.group) if self.group is not None else kill_all(self.members())

    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for memory; 0 where the memory controller is off or there is no
        cgroup. To be asked before `close`. (Linux, admin-guide/cgroup-v2, `memory.events`: `oom_kill`.)"""
        if self.group is None:
            return 0
        try:
            lines = (self.group / "memory.events").read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def close(self) -> None:
        """Removes the cgroup; the last member must be gone."""
        if self.group is not None:
            remove_group(self.group)


class _Closing:
    """A callable that closes its descriptor when it is dropped, in the parent."""

    __slots__ = ("_call", "_fd")

    def __init__(self, call: Callable[[], None], fd: int) -> None:
        self._call, self._fd = call, fd

    def __call__(self) -> None:
        self._call()

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._fd)


def group_members(group: Path) -> set[int]:
    """Live process ids in a cgroup and those below it."""
    pids: set[int] = set()
    for folder in (group, *_below(group)):
        with suppress(OSError):
            pids.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    return {pid for pid in pids if alive(pid)}


def kill_group(group: Path) -> set[int]:
    """Kills a cgroup with everything below it; returns the members that were there."""
    found = group_members(group)
    if found:
        try:
            (group / "cgroup.kill").write_text("1")
        except OSError:  # kernels before 5.14: one by one, again and again by the caller
            kill_all(found)
    return found


def remove_group(group: Path) -> None:
    for folder in (*sorted(_below(group), reverse=True), group):
        with suppress(OSError):
            folder.rmdir()


def _below(group: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(group) if folder != str(group)]


def kill_all(pids: Iterable[int]) -> set[int]:
    found = set(pids)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return found


def marked(prefix: str | None, sessions: Iterable[int] = ()) -> set[int]:
    """Live processes whose initial environment has the marker with this prefix, or whose session is one of `sessions`,
    and all descendants of these. A prefix that ends in a NUL is the whole value; None looks at sessions alone."""
    wanted = None if prefix is None else f"{MARKER}={prefix}".encode()
    leaders = set(sessions)
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    own = os.getpid()
    for pid in _pids():
        stat = read_stat(pid)
        if stat is None or stat.state in "ZX":
            continue
        children.setdefault(stat.parent, []).append(pid)
        if pid != own and (stat.session in leaders or (wanted is not None and _has(pid, wanted))):
            found.add(pid)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found and child != own:
                found.add(child)
                waiting.append(child)
    return found


def _has(pid: int, wanted: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return environment.startswith(wanted) or b"\0" + wanted in environment


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


@dataclass(frozen=True, slots=True)
class Stat:
    """Of /proc/<pid>/stat: state letter, parent, session, start time in clock ticks since boot."""

    state: str
    parent: int
    session: int
    started: int


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    parts = text[text.rindex(")") + 2 :].split()
    return Stat(state=parts[0], parent=int(parts[1]), session=int(parts[3]), started=int(parts[19]))


def alive(pid: int) -> bool:
    """A zombie has given everything back but its number: it is not alive."""
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZX"
