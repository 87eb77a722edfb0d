"""Finds processes that an earlier agent and its keeper left, when both are gone.

There are three ways: the cgroup of a node's life, the name of the keeper's shims (`proc.shim_name`), and the marker
`BATON_PART=<node>@<agent>/<incarnation>/<attempt id>` in the initial environment of a job's processes. The marker
serves machines without cgroups on which a shim was killed: only a program that both clears its environment *and*
detaches escapes it.
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
"""Name of a cgroup for this process alone."""
_TOGETHER = "baton"
"""Name of a cgroup for all attempts of a machine."""
_LIMITING, _SHARING = ("memory", "pids"), ("cpu",)
"""Controllers that limit attempts, and those that divide contended resources among them."""
_USUAL_WEIGHT = {"cpu.shares": 1024, "cpu.weight": 100}
"""The default weight in version 1 and 2: that of a process outside all groups."""
_MOST_PROCESSORS = 100
"""Weights of version 2 allow no more processors."""
_PERIOD_US = 100_000
"""In which a bounded group may use its quota: the kernel's default."""


def marker_root(node: str, state_dir: str | Path) -> str:
    """The name of one node of one agent, so that two agents on a machine never end each other's work."""
    return f"{node}@{agent_of(state_dir)}"


def agent_of(state_dir: str | Path) -> str:
    """What the agent with this state folder is called in such names, and in those of its cgroups."""
    return _digest(str(state_dir))


@lru_cache(64)
def _digest(state_dir: str) -> str:
    """Cached: each attempt asks three times, and resolving links takes longer than starting a process."""
    return sha256(str(Path(state_dir).resolve()).encode()).hexdigest()[:12]


def _mounts_and_own() -> tuple[list[str], dict[str, str]]:
    """Lines of the mount table; and controller -> this process's cgroup, "" for version 2. Empty if the kernel does not
    say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return mounts, own_groups(Path("/proc/self/cgroup").read_text())
    except (OSError, ValueError):
        return [], {}


def own_groups(text: str) -> dict[str, str]:
    """Parses a process's cgroups: controller -> group, "" for version 2. Version 1 may have several controllers in one
    tree, e.g. `cpu,cpuacct`. Raises ValueError."""
    found = {}
    for line in text.splitlines():
        _, controllers, group = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), group))
    return found


def _limits(group: Path) -> bool:
    """Enables limits for groups below a group of version 2; returns whether they are enabled. Shares are enabled
    separately: the kernel refuses a request as a whole, and shares are refused if any group has a process of real-time
    priority."""
    there = _controllers(group / "cgroup.controllers", _LIMITING)
    try:
        _switch_on(group, there)
    except OSError:
        return False
    with suppress(OSError):
        _switch_on(group, _controllers(group / "cgroup.controllers", _SHARING))
    return bool(there)


def _switch_on(group: Path, controllers: Iterable[str]) -> None:
    """Enables controllers below a group of version 2. Raises OSError."""
    proc.write_text(f"{group}/cgroup.subtree_control", " ".join(f"+{one}" for one in controllers))


def _controllers(file: Path, wanted: Iterable[str]) -> list[str]:
    """The wanted controllers that the file names; none without the file."""
    try:
        names = file.read_text().split()
    except OSError:
        return []
    return [one for one in wanted if one in names]


def cgroup_base() -> Path | None:
    """Where this process may create cgroups: version 2 (`divided`), else below version 1's freezer; or None."""
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
    """Where cgroups of version 2 with limits can be created. `own`: this process's group; `top`: the mount; `limits`:
    see `_limits`.

    The parent of limited groups may contain no process (Linux, admin-guide/cgroup-v2, "no internal process
    constraint"), but `own` contains this one. So root creates a group at the top, beside the machine's own; others move
    this process one level down, which works if it is alone in its group, as in a container. If neither works, `own`:
    attempts are held together there, without limits.
    """
    own = own.parent if own.name == _BELOW else own  # it moved before
    there = [_controllers(group / "cgroup.controllers", _LIMITING) for group in (own, top)]
    if not any(there) or limits(own):  # at the top alone: nobody has enabled them for the groups below it
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


def tops() -> list[Path]:
    """Where cgroups are mounted of which attempts may have some: version 2, and version 1's controllers."""
    found = []
    for line in _mounts_and_own()[0]:
        left, _, right = line.partition(" - ")
        kind, options = right.split(" ", 1)[0], right.split()[-1].split(",")
        if kind == "cgroup2" or (kind == "cgroup" and {"freezer", *_LIMITING, *_SHARING} & {*options}):
            found.append(Path(left.split()[4]))
    return found


def make_limited(group: Path, base: Path) -> None:
    """Creates a group two levels below `base` whose children can have the limits of `base`'s children. Raises OSError."""
    controllers = _controllers(base / "cgroup.subtree_control", (*_LIMITING, *_SHARING))
    for folder in (group.parent, group):
        folder.mkdir(exist_ok=True)
        _switch_on(folder, controllers)


def limit_base(controller: str, group_base: Path | None) -> Path | None:
    """Where this process may create cgroups of a controller, e.g. `memory`: in version 1, or below `group_base` if it
    is enabled there; None: nowhere. Groups with processor shares have one common parent: otherwise every other group of
    the machine would have only a small share."""
    mounts, own = _mounts_and_own()
    for line in mounts:
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup ") and controller in right.split()[-1].split(",") and controller in own:
            base = Path(left.split()[4] + own[controller].rstrip("/"))
            if _may_make_groups(base):
                return _common_group(base) if controller in _SHARING else base
    limited = group_base is not None and _controllers(group_base / "cgroup.subtree_control", (controller,))
    return group_base if limited else None


def _common_group(base: Path) -> Path | None:
    """The common group in version 1. None: it exists, and belongs to another user."""
    group = base / _TOGETHER
    try:
        group.mkdir(exist_ok=True)
        weigh_as_processors(group)
    except OSError:
        return None
    return group if _may_make_groups(group) else None


def weigh_as_processors(group: Path, processors: int = os.cpu_count() or 1) -> None:
    """Gives all attempts together as many shares as the machine has processors, so that on each they weigh as much as a
    service. With more, services would wait for them; with fewer, they for everything else. Raises OSError."""
    for name, usual in _USUAL_WEIGHT.items():
        if (group / name).exists():
            proc.write_text(f"{group}/{name}", str(usual * min(processors, _MOST_PROCESSORS)))


def leave_processors(group: Path, reserved: float, processors: int = os.cpu_count() or 1) -> None:
    """Bounds what all attempts together have of the processors: everything else has `reserved` of them for itself. 0 takes
    the bound away. Weights alone do not hold attempts that switch all the time. Raises OSError."""
    quota = round((processors - reserved) * _PERIOD_US) if reserved else None
    if (group / "cpu.max").exists():
        proc.write_text(f"{group}/cpu.max", f"{'max' if quota is None else quota} {_PERIOD_US}")
        return
    proc.write_text(f"{group}/cpu.cfs_period_us", str(_PERIOD_US))
    proc.write_text(f"{group}/cpu.cfs_quota_us", "-1" if quota is None else str(quota))


def _may_make_groups(base: Path) -> bool:
    probe = base / f"baton-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def marked(prefix: str) -> set[int]:
    """Live processes whose initial environment has the marker with this prefix, and all their descendants. A prefix
    that ends in NUL is the whole value."""
    wanted = f"{MARKER}={prefix}".encode()
    return _with_descendants(lambda pid, stat: _has_marker(pid, wanted))


def named(name: str) -> set[int]:
    """Live processes of this name, and all their descendants."""
    return _with_descendants(lambda pid, stat: stat.name == name)


def _with_descendants(is_one: Callable[[int, proc.Stat], bool]) -> set[int]:
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


def _has_marker(pid: int, wanted: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return environment.startswith(wanted) or b"\0" + wanted in environment
