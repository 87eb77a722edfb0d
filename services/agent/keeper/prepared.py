"""Prepared file system views: bubblewrap makes a view once, and each attempt copies it.

Most of what a job sees is the same for all: system, interpreter, /dev. bubblewrap makes that part once for each set of
arguments, in a process of its own (the *maker*), and the keeper holds the mount namespace by a descriptor. A shim enters it,
copies it, and adds what is the attempt's own: /proc, /tmp, /dev/shm, terminals, its folders.

This is an optimization only: no attempt waits for a maker. Where there is no valid view, bubblewrap makes the attempt's whole
view, as it does without root. The most likely view is made before the keeper reports that it is ready, because in a burst of
first attempts a maker gets hardly any processor time. A view is invalid once a mount that it shows has changed (the keeper asks
the kernel before each start whether any has) or a folder that it shows was replaced (the shim checks that). Other mounts do not
matter: where containers run beside the agent there are new ones every second.
"""

import os
import select
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from services.agent.keeper.waiting import FileWaiter

MOST = 32
"""Views that a keeper holds, one for each set of devices. The one that was used least recently goes."""
MISSED = 256
"""Sets of arguments that are remembered: a view is made for one that is asked for a second time."""
MOST_FAILURES = 3
"""So many copies or makers that fail, and it is left alone: this kernel cannot do it."""
MAKER_PATIENCE_S = 30.0
"""A maker that takes longer hangs, on a dead network disk say, and is killed."""
NEWS_S = 1.0
"""Between two looks at the mounts when nobody starts anything: a look takes some ms for a thousand of them."""

_LARGEST = 65_536

Prepared = dict[str, Any]
"""`args`: bubblewrap's, of what all attempts with this view share; `sources`: what of the machine they show. Of this attempt:
`scratch`: bytes of its /tmp and its /dev/shm; `carried`: what the view has below /tmp; `stems`: empty folders of the view,
below which its own are to appear; `own`: those, each with whether it may write to it."""


class Mounts:
    """Tells that something was mounted, unmounted, moved or mounted otherwise, where this process sees it.

    The kernel counts such changes for each namespace, and tells who polls an open `/proc/self/mountinfo` once that there were
    some since the last time. So whoever waits for them has a descriptor of his own, and whoever must know for certain another.
    """

    def __init__(self) -> None:
        self._asked, self.news = (os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC) for _ in range(2))
        """`news`: for an epoll."""
        self._poll = select.poll()
        self._poll.register(self._asked, select.POLLPRI)
        self._read()

    def changed(self) -> set[bytes]:
        """The lines that have come and gone since this was last asked. A microsecond when there are none."""
        if not self._poll.poll(0):
            return set()
        before = self.lines
        self._read()
        return set(before).symmetric_difference(self.lines)

    def _read(self) -> None:
        """By the descriptor that there is: a keeper that holds as many as it may goes on."""
        os.lseek(self._asked, 0, os.SEEK_SET)
        text = b"".join(iter(lambda: os.read(self._asked, 65_536), b""))
        self.lines, self.read_at = text.splitlines(), monotonic()


def around(lines: Iterable[bytes], paths: Sequence[str]) -> list[bytes]:
    """Of the lines of a mountinfo (proc_pid_mountinfo(5)) those whose mount one of these paths lies in, or that lie below one.
    The paths: absolute, without symbolic links."""
    of_paths = [os.fsencode(path).rstrip(b"/") + b"/" for path in paths]

    def matters(line: bytes) -> bool:
        escaped = line.split(b" ", 5)[4]  # a space is \040
        point = escaped.decode("unicode_escape").encode("latin-1").rstrip(b"/") + b"/"
        return any(path.startswith(point) or point.startswith(path) for path in of_paths)

    return [line for line in lines if matters(line)]


class _Making(NamedTuple):
    """A maker at work. `mounts`: all of the machine's, from before it began; `until`: it has time."""

    key: str
    sources: Sequence[str]
    sock: socket.socket
    maker: int
    mounts: Sequence[bytes]
    until: float


class _Held(NamedTuple):
    """A view. `namespace`: its descriptor; `shown`: what it shows, in the maker's words; `paths`: the same, without symbolic
    links."""

    namespace: int
    shown: bytes
    paths: Sequence[str]


class Views:
    """Those that a keeper holds, by the arguments that made them. `start` starts a maker with its end of a socket, and returns
    its process id, or raises OSError."""

    def __init__(self, epoll: FileWaiter) -> None:
        self._epoll = epoll
        self._held: dict[str, _Held] = {}
        """By the arguments that made them."""
        self._making: dict[int, _Making] = {}
        """By the descriptor of the socket."""
        self._missed: dict[str, None] = {}
        """Arguments for which a view was missed, oldest first."""
        self._failures = 0
        self._mounts: Mounts | None = None
        self._news = False
        """Mounts have changed, and nobody has looked whether a view shows them."""
        self._spoken = set[int]()
        """Makers that have said their last word and may not have ended yet."""

    def turn(self) -> None:
        """Takes the ends of makers, and drops views of before a change that they show."""
        if self._news and self._mounts is not None and monotonic() - self._mounts.read_at >= NEWS_S:
            self.look()
        for maker in list(self._spoken):
            with suppress(ChildProcessError):  # taken with all others
                if not os.waitpid(maker, os.WNOHANG)[0]:
                    continue
            self._spoken.discard(maker)

    def await_makers(self, patience_s: float) -> None:
        """Until those at work have said their last word, or for so long. Blocks."""
        until = monotonic() + patience_s
        while self._making and (left_s := until - monotonic()) > 0:
            for sock in select.select([each.sock for each in self._making.values()], (), (), left_s)[0]:
                self._take(sock.fileno())

    def makers(self) -> set[int]:
        return {each.maker for each in self._making.values()}

    def of(self, prepared: Prepared) -> tuple[int, bytes] | None:
        """A view of which a copy may be taken now, or None."""
        self.look()
        key = _key(prepared)
        if (held := self._held.pop(key, None)) is not None:
            self._held[key] = held  # the youngest
            return held.namespace, held.shown
        return None

    def look(self) -> Mounts:
        """Before a maker begins, and before what it made is used: views of before a change of what they show are old. Returns
        the mounts that there are."""
        if self._mounts is None:
            self._mounts = Mounts()
            self._epoll.register(self._mounts.news, select.EPOLLPRI)
        elif changed := self._mounts.changed():
            self._drop([key for key, each in self._held.items() if around(changed, each.paths)])
        self._news = False
        return self._mounts

    def wanted(self, prepared: Prepared) -> bool:
        """Whether a maker is to be started for it: it was missed before, and none is at work."""
        asked = _key(prepared)
        before = asked in self._missed
        self._missed.pop(asked, None)
        self._missed[asked] = None
        if len(self._missed) > MISSED:
            del self._missed[next(iter(self._missed))]
        known = asked in self._held or any(each.key == asked for each in self._making.values())
        return before and not known and self._failures < MOST_FAILURES

    def making(
        self, prepared: Prepared, sock: socket.socket, maker: int, mounts: Sequence[bytes], until: float
    ) -> None:
        """`mounts`: what `look` said before it began."""
        self._making[sock.fileno()] = _Making(_key(prepared), prepared["sources"], sock, maker, mounts, until)
        self._epoll.register(sock, select.EPOLLIN)

    def heard(self, fd: int) -> None:
        """The kernel's news of mounts: views that show them are dropped soon, so that a disk can be unmounted. Or a maker's."""
        if self._mounts is not None and fd == self._mounts.news:
            self._news = True
        elif fd in self._making:
            self._take(fd)

    def overdue(self, now: float) -> list[int]:
        """Makers that hang, each once."""
        late = {fd: each.maker for fd, each in self._making.items() if each.until <= now}
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
        making = self._making.pop(fd)
        self._spoken.add(making.maker)
        self._epoll.unregister(fd)
        shown, handles = b"", list[int]()
        with making.sock, suppress(OSError):
            shown, handles, _, _ = socket.recv_fds(making.sock, _LARGEST, 1, socket.MSG_DONTWAIT)
        if not handles:
            self._failures += 1
            return
        os.set_inheritable(handles[0], False)
        paths = [
            os.path.realpath(source) for source in making.sources
        ]  # the maker has just looked there: nothing blocks
        if around(set(making.mounts).symmetric_difference(self.look().lines), paths):
            os.close(handles[0])
            return
        self._held[making.key] = _Held(handles[0], shown, paths)
        self._drop(list(self._held)[:-MOST])

    def _drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            if (held := self._held.pop(key, None)) is not None:
                os.close(held.namespace)


def _key(prepared: Prepared) -> str:
    return "\0".join(prepared["args"])
