"""Finds processes that an earlier agent and its keeper left, when both are gone.

There are three ways: the cgroup of a life of a node, the name of the keeper's shims (`proc.shim_name`), and the marker
`BATON_PART=<node>@<agent>/<incarnation>/<attempt id>` in the environment that a job's processes began with. The last is for
machines without cgroups on which a shim was killed: only a program that clears its environment *and* detaches can escape it.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from services.agent.keeper import proc

MARKER = "BATON_PART"
_BELOW = "baton-agent"
"""A cgroup for this process alone."""
_TOGETHER = "baton"
"""One for all attempts of a machine."""
_LIMITING, _SHARING = ("memory", "pids"), ("cpu",)
"""Controllers that attempts are limited by, and those by which they share what all of them want."""
_USUAL_WEIGHT = {"cpu.shares": 1024, "cpu.weight": 100}
"""Of a group of version 1 and 2: that of one process outside of groups."""
_MOST_PROCESSORS = 100
"""Version 2 knows no larger weight than theirs."""


def marker_root(node: str, state_dir: str | Path) -> str:
    """Names one node of one agent, so that two agents on a machine never end each other's work."""
    return f"{node}@{_digest(str(state_dir))}"


@lru_cache(64)
def _digest(state_dir: str) -> str:
    """Looked up once: each attempt asks three times, and following a path's links takes longer than starting a process."""
    return sha256(str(Path(state_dir).resolve()).encode()).hexdigest()[:12]


def _mounts_and_own() -> tuple[list[str], dict[str, str]]:
    """What is mounted, a line each; and this process's cgroup by controllers, "" for version 2. Empty where no kernel says."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return mounts, own_groups(Path("/proc/self/cgroup").read_text())
    except (OSError, ValueError):
        return [], {}


def own_groups(told: str) -> dict[str, str]:
    """Of what the kernel tells of a process: its cgroup by controller, "" for version 2. Of version 1 several may be in one
    tree, e.g. `cpu,cpuacct`. Raises ValueError."""
    found = {}
    for line in told.splitlines():
        _, controllers, group = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), group))
    return found


def _limits(group: Path) -> bool:
    """Asks a group of version 2 to limit those below it, and says whether it does now. That they share is asked for apart:
    the kernel refuses all of one question, and this one where a process with real-time priority is in any of its groups."""
    there = _controllers(group / "cgroup.controllers", _LIMITING)
    try:
        _switch_on(group, there)
    except OSError:
        return False
    with suppress(OSError):
        _switch_on(group, _controllers(group / "cgroup.controllers", _SHARING))
    return bool(there)


def _switch_on(group: Path, controllers: Iterable[str]) -> None:
    """For those below a group of version 2. Raises OSError."""
    proc.write_text(f"{group}/cgroup.subtree_control", " ".join(f"+{one}" for one in controllers))


def _controllers(file: Path, wanted: Iterable[str]) -> list[str]:
    """Those of the wanted ones that it names; none where the file is not there."""
    try:
        told = file.read_text().split()
    except OSError:
        return []
    return [one for one in wanted if one in told]


def cgroup_base() -> Path | None:
    """Where this process may make cgroups: of version 2 (`divided`), else below the freezer of version 1; or None."""
    mounts, own = _mounts_and_own()
    for kind, option, controller in (("cgroup2", "", ""), ("cgroup", "freezer", "freezer")):
        for line in mounts:
            left, _, right = line.partition(" - ")
            if right.startswith(f"{kind} ") and option in right and controller in own:
                top = left.split()[4]
                base = Path(top + own[controller].rstrip("/"))
                if _may_make_groups(base):
                    return divided(base, Path(top)) if kind == "cgroup2" else base
    return None


def divided(own: Path, top: Path, limits: Callable[[Path], bool] = _limits) -> Path:
    """Of version 2, where groups can be made that are limited. `own` is this process's group, `top` where the tree is mounted;
    `limits`: see `_limits`.

    Such a group holds no process itself (Linux, admin-guide/cgroup-v2, "no internal process constraint"), and `own` has this
    one. So root makes one beside those that the machine has at the top; else this process moves one down, which does where it
    is alone in its group, as in a container. Where neither does, `own`: attempts are held together there, and not limited.
    """
    own = own.parent if own.name == _BELOW else own  # it has moved before
    if not _controllers(own / "cgroup.controllers", _LIMITING) or limits(own):
        return own
    beside, below = top / _TOGETHER, own / _BELOW
    with suppress(OSError):
        if limits(top):
            beside.mkdir(exist_ok=True)
            if limits(beside):
                with suppress(OSError):
                    weigh_as_processors(beside)
                return beside
    with suppress(OSError):
        below.mkdir(exist_ok=True)
        proc.write_text(f"{below}/cgroup.procs", "0")
        if limits(own):
            return own
        proc.write_text(f"{own}/cgroup.procs", "0")
    with suppress(OSError):
        below.rmdir()
    return own


def make_limited(group: Path, base: Path) -> None:
    """Makes a group two below `base`, whose own can be limited by what limits those of `base`. Raises OSError."""
    controllers = _controllers(base / "cgroup.subtree_control", (*_LIMITING, *_SHARING))
    for folder in (group.parent, group):
        folder.mkdir(exist_ok=True)
        _switch_on(folder, controllers)


def limit_base(controller: str, group_base: Path | None) -> Path | None:
    """Where this process may make cgroups of a controller, e.g. `memory`: of version 1, or below `group_base` where those are
    limited by it; None: nowhere. Those that share the processors lie in one group: beside each of them whatever else
    runs on the machine would have a small share."""
    mounts, own = _mounts_and_own()
    for line in mounts:
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup ") and controller in right.split()[-1].split(",") and controller in own:
            base = Path(left.split()[4] + own[controller].rstrip("/"))
            if _may_make_groups(base):
                return _together(base) if controller in _SHARING else base
    limited = group_base is not None and _controllers(group_base / "cgroup.subtree_control", (controller,))
    return group_base if limited else None


def _together(base: Path) -> Path | None:
    """Of version 1. None: it is there, and another's."""
    group = base / _TOGETHER
    try:
        group.mkdir(exist_ok=True)
        weigh_as_processors(group)
    except OSError:
        return None
    return group if _may_make_groups(group) else None


def weigh_as_processors(group: Path, processors: int = os.cpu_count() or 1) -> None:
    """All attempts together have as many shares as the machine has processors: on each of these they weigh as much as a service
    beside them. With more the services would wait for them, with fewer they for everything else. Raises OSError."""
    for name, usual in _USUAL_WEIGHT.items():
        if (group / name).exists():
            proc.write_text(f"{group}/{name}", str(usual * min(processors, _MOST_PROCESSORS)))


def _may_make_groups(base: Path) -> bool:
    probe = base / f"baton-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def marked(prefix: str) -> set[int]:
    """Live processes whose initial environment has the marker with this prefix, and all descendants of these. A prefix that
    ends in a NUL is the whole value."""
    wanted = f"{MARKER}={prefix}".encode()
    return _found(lambda pid, stat: _has(pid, wanted))


def named(name: str) -> set[int]:
    """Live processes of this name, and all their descendants."""
    return _found(lambda pid, stat: stat.name == name)


def _found(is_one: Callable[[int, proc.Stat], bool]) -> set[int]:
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    own = os.getpid()
    for pid in proc.pids():
        stat = proc.read_stat(pid)
        if stat is None or stat.state in "ZX":
            continue
        children.setdefault(stat.parent, []).append(pid)
        if pid != own and is_one(pid, stat):
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
