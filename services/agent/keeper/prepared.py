"""A view that bubblewrap has made once, and that each attempt copies.

Most of what a job sees is the same for all: system, interpreter, /dev. bubblewrap makes that part once for each set of
arguments, in a process of its own (the *maker*), and the keeper holds the namespace by a descriptor. A shim enters it, takes a
copy for itself, and adds what is the attempt's own: /proc, /tmp, /dev/shm, terminals, its folders.

It saves time and nothing else: nobody waits for a maker, and an attempt for which no view is there, or whose view is no longer
what the machine has, lets bubblewrap make all of its view, as without root. A view is of no more use once the machine's mounts
have changed (the keeper compares them) or a folder that it shows is another one (the shim looks).
"""

import ctypes
import errno
import json
import os
import select
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

from services.agent.keeper import proc

MOST = 32
"""Views that a keeper holds, one for each set of devices. The one that was used least recently goes."""
MISSED = 256
"""Sets of arguments that are remembered: a view is made for one that is asked for a second time."""
MOST_FAILURES = 3
"""So many copies or makers that fail, and it is left alone: this kernel cannot do it."""
MAKER_PATIENCE_S = 30.0
"""A maker that takes longer hangs, on a dead network disk say, and is killed."""

_LARGEST = 65_536
_CLONE_NEWNS, _CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_RDONLY, _MS_REMOUNT = 0x2, 0x4, 0x8, 0x1, 0x20
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = 0x1, -100, 0x1000, 0x8000
_MOVE_EMPTY_PATH = 0x4
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 0x1, 0x2, 0x4, 0x8
_MS_SLAVE = 1 << 19
_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_syscall, _mount_call, _setns, _unshare = _LIBC.syscall, _LIBC.mount, _LIBC.setns, _LIBC.unshare
"""Looked up once: each child would do it for itself."""
_Attributes = ctypes.c_uint64 * 4
"""`struct mount_attr`. A type is made once: each making of one takes longer than the call that it is for."""
_COVERED = ("sys", "sysrq-trigger", "irq", "bus")
"""Of /proc: settings of the kernel, which bubblewrap covers with themselves, read-only."""

Prepared = dict[str, Any]
"""`args`: bubblewrap's, of what all attempts with this view share; `sources`: what of the machine they show. Of this attempt:
`scratch`: bytes of its /tmp and its /dev/shm; `carried`: what the view has below /tmp; `stems`: empty folders of the view,
below which its own are to appear; `own`: those, each with whether it may write to it."""

Identities = list[tuple[int, int] | None]
"""Device and inode of each source; None: it is not there."""


def identities(sources: Iterable[str]) -> Identities:
    """May block, on a disk of the network."""
    found: Identities = []
    for source in sources:
        try:
            one = os.stat(source)
        except OSError:
            found.append(None)
        else:
            found.append((one.st_dev, one.st_ino))
    return found


def mounted() -> str:
    """What is mounted where, in short: another text as soon as anything else is."""
    text = proc.read_text("/proc/self/mountinfo").encode()
    return f"{len(text)} {crc32(text):08x}"


# ------------------------------------------------------------------------------------------------------ the keeper


class Views:
    """Those that a keeper holds, by the arguments that made them. `start` starts a maker with its end of a socket, and returns
    its process id, or raises OSError."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._held: dict[str, tuple[int, Identities, str]] = {}
        """Arguments -> the namespace's descriptor, what it shows, and what was mounted when it was made."""
        self._making: dict[int, tuple[str, socket.socket, int, float]] = {}
        """Descriptor of the socket -> arguments, the socket, the maker, and until when it has time."""
        self._missed: dict[str, None] = {}
        """Arguments for which a view was missed, oldest first."""
        self._failures = 0
        self._mounts = -1

    def makers(self) -> set[int]:
        return {pid for _, _, pid, _ in self._making.values()}

    def of(self, prepared: Prepared) -> tuple[int, Identities] | None:
        """A view of which a copy may be taken now, or None."""
        key = _key(prepared)
        if (held := self._held.pop(key, None)) is None:
            return None
        self._held[key] = held  # the youngest
        handle, shown, mounts = held
        if mounts == mounted():
            return handle, shown
        self._drop(list(self._held))
        return None

    def wanted(self, prepared: Prepared) -> bool:
        """Whether a maker is to be started for it: it was missed before, and none is at work."""
        asked = _key(prepared)
        before = asked in self._missed
        self._missed.pop(asked, None)
        self._missed[asked] = None
        if len(self._missed) > MISSED:
            del self._missed[next(iter(self._missed))]
        known = asked in self._held or any(key == asked for key, *_ in self._making.values())
        return before and not known and self._failures < MOST_FAILURES

    def making(self, prepared: Prepared, sock: socket.socket, maker: int, until: float) -> None:
        if self._mounts < 0:
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._epoll.register(self._mounts, select.EPOLLPRI)
        self._making[sock.fileno()] = (_key(prepared), sock, maker, until)
        self._epoll.register(sock, select.EPOLLIN)

    def heard(self, fd: int) -> None:
        """The kernel's news of mounts, which does not always come, or a maker's."""
        if fd == self._mounts:
            self._drop(list(self._held))
            for each, (_, sock, maker, until) in self._making.items():
                self._making[each] = ("", sock, maker, until)  # what comes is old already
        elif fd in self._making:
            self._take(fd)

    def overdue(self, now: float) -> list[int]:
        """Makers that hang, each once."""
        late = {fd: maker for fd, (_, _, maker, until) in self._making.items() if until <= now}
        for fd in late:
            self._take(fd)
        return list(late.values())

    def copied(self, prepared: Prepared, how: str) -> None:
        """What a shim says of the view that it was given: "" it took it, "changed" it is old, else why it could not."""
        if how:
            self._drop([_key(prepared)])
            self._failures += how != "changed"

    def failed(self) -> None:
        self._failures += 1

    def _take(self, fd: int) -> None:
        """A maker's last word, or none."""
        key, sock, _, _ = self._making.pop(fd)
        self._epoll.unregister(fd)
        text, handles = b"", list[int]()
        with sock, suppress(OSError):
            text, handles, _, _ = socket.recv_fds(sock, _LARGEST, 1, socket.MSG_DONTWAIT)
        if not handles:
            self._failures += 1
            return
        os.set_inheritable(handles[0], False)
        if not key:
            os.close(handles[0])
            return
        shown, mounts = json.loads(text)
        self._held[key] = (handles[0], [None if one is None else (one[0], one[1]) for one in shown], mounts)
        self._drop(list(self._held)[:-MOST])

    def _drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            if (held := self._held.pop(key, None)) is not None:
                os.close(held[0])


def _key(prepared: Prepared) -> str:
    return "\0".join(prepared["args"])


# ------------------------------------------------------------------------------------------------------- the shim


def copy(handle: int, shown: Identities, prepared: Prepared, namespaces: Sequence[str]) -> str:
    """This process, the first of its pid namespace, sees a copy of the view from now on, with its own folders in it. Returns
    "", or why it still sees what it saw: "changed", when the machine has not what the view shows."""
    if identities(prepared["sources"]) != [None if one is None else tuple(one) for one in shown]:
        return "changed"
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    own = list[int]()
    try:
        for path, writable in prepared["own"]:
            own.append(_cut(path, recursive=True))
            _restrict(own[-1], _NOSUID | _NODEV | (0 if writable else _RDONLY), recursive=True)
        _checked(_setns(handle, 0), "setns")
        try:
            _checked(_unshare(_CLONE_NEWNS | (_CLONE_NEWIPC if "ipc" in namespaces else 0)), "unshare")
            _complete(prepared, own)
        except OSError as e:
            _checked(_setns(before, 0), "setns")
            return str(e)
        return ""
    except OSError as e:
        return str(e)
    finally:
        for fd in (before, *own):
            os.close(fd)


def _complete(prepared: Prepared, own: Sequence[int]) -> None:
    """Mounts what each attempt has for itself. Raises OSError."""
    mask = os.umask(0o022)
    try:
        _mount("proc", "/proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        for name in _COVERED:
            if os.path.exists(path := f"/proc/{name}"):
                _show(path, _cut(path), _RDONLY | _NOSUID | _NODEV | _NOEXEC)
        _mount("devpts", "/dev/pts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        carried = [(path, _cut(path, recursive=True)) for path in prepared["carried"] if os.path.exists(path)]
        scratch = f"mode=1777,size={prepared['scratch']}"
        _mount("tmpfs", "/tmp", _MS_NOSUID | _MS_NODEV, scratch)
        _mount("tmpfs", "/dev/shm", _MS_NOSUID | _MS_NODEV, scratch)
        there = {"/tmp", *prepared["stems"]}
        for path, fd in carried:
            _make(path, there)
            _show(path, fd)
        for stem in prepared["stems"]:
            _mount("tmpfs", stem, _MS_NOSUID | _MS_NODEV, "mode=755,size=64k")
        for (path, _), fd in zip(prepared["own"], own, strict=True):
            _make(path, there)
            _move(fd, path)
        for stem in prepared["stems"]:
            _mount("tmpfs", stem, _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "")
    finally:
        os.umask(mask)


def _make(path: str, there: set[str]) -> None:
    """A folder, and those above it as far as they are not known to be `there`; all of them are from now on."""
    above = path.rpartition("/")[0]
    if path in there or not above:
        return
    if above not in there:
        _make(above, there)
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)
    there.add(path)


def _show(path: str, fd: int, attributes: int = 0) -> None:
    try:
        if attributes:
            _restrict(fd, attributes)
        _move(fd, path)
    finally:
        os.close(fd)


def _cut(path: str, recursive: bool = False) -> int:
    """A copy of what is mounted there, that is nowhere yet."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _checked(int(_syscall(_OPEN_TREE, _AT_FDCWD, path.encode(), flags)), path)


def _restrict(fd: int, attributes: int, recursive: bool = False) -> None:
    wanted = _Attributes(attributes, 0, _MS_SLAVE, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    _checked(int(_syscall(_MOUNT_SETATTR, fd, b"", flags, wanted, ctypes.sizeof(wanted))), "mount_setattr")


def _move(fd: int, path: str) -> None:
    _checked(int(_syscall(_MOVE_MOUNT, fd, b"", _AT_FDCWD, path.encode(), _MOVE_EMPTY_PATH)), path)


def _mount(kind: str, path: str, flags: int, options: str = "") -> None:
    _checked(_mount_call(kind.encode(), path.encode(), kind.encode(), flags, options.encode() or None), path)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number or errno.EIO, os.strerror(number or errno.EIO), what)
    return result
