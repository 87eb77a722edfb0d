"""The keeper's loop: one agent at a time on the Unix socket, a shim for each attempt, and the deadlines of leases."""

import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from services.agent.keeper import proc, spec, wire
from services.agent.keeper.clock import now
from services.agent.keeper.contain import NAMESPACE
from services.agent.keeper.link import AgentLink
from services.agent.keeper.prepared import MAKER_PATIENCE_S, Prepared, Views
from services.agent.keeper.release import code
from services.agent.keeper.sparegroups import MemoryGroups, SpareGroups
from services.agent.keeper.table import GONE, RUNNING, HeldAttempt, StartRefused, Table
from services.agent.keeper.waiting import waiting
from services.agent.keeper.walls import FULL, NO_WALLS, Behind
from services.agent.keeper.zygote import Zygote

LONGEST_WAIT_S = 1.0
SWEEP_S = 0.05
"""Between two looks at attempts that are being killed."""
PATIENCE_S = 0.5
"""How long a shim has to end its attempt by itself before it is killed."""
AHEAD_S = 1.0
"""How long a keeper waits at its start for the views that it makes ahead. They are there later, then."""
FIRST_CALL_S = 60.0
"""How long it waits for the agent that started it."""
_BACKLOG = 4 * wire.LARGEST
"""Bytes that wait for an agent that does not read. One that lets more pile up must connect again and ask."""


class Keeper:
    """Holds the attempts of one agent's nodes. `name` is what its shims are called, see `proc.shim_name`; `behind` the program
    that makes walls, and what the agent is told of them."""

    def __init__(self, listener: socket.socket, name: str, kind: str, behind: Behind = NO_WALLS) -> None:
        self.table = Table()
        self._listener, self._kind, self._behind = listener, kind, behind
        self._epoll = waiting()
        self._epoll.register(listener, select.EPOLLIN)
        self._ends, ended = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._epoll.register(self._ends, select.EPOLLIN)
        self._links: dict[int, AgentLink] = {}
        self._agent: AgentLink | None = None
        self._shims: dict[int, tuple[HeldAttempt, socket.socket]] = {}
        """By descriptor of the socket to it."""
        self._sockets: dict[str, socket.socket] = {}
        """Attempt -> the same."""
        self._dying: dict[str, float] = {}
        """Attempt -> when its shim is killed if it has not ended by then."""
        self._clean: set[str] = set()
        """Attempts whose shim has seen its last child end: it left no orphan."""
        self._last: dict[str, dict[int, int]] = {}
        """Attempt -> the exit codes that its shim said last: the agent hears them with its end."""
        self._pids: dict[int, HeldAttempt] = {}
        """Shims that are not reaped yet."""
        self._due = 0.0
        """When the deadlines are to be looked at next; 0: at once, since some of them are others."""
        self._zygote = Zygote(name, kind, behind.bwrap)
        self._views = Views(self._epoll)
        self._cpu_groups = SpareGroups(again=kind == NAMESPACE)
        self._memory_groups = MemoryGroups(again=kind == NAMESPACE)
        self._code = code()  # now: another release may take its place in the files
        self._ending = False
        self._lonely_from = now() + FIRST_CALL_S

    def prepare(self, views: Sequence[Prepared]) -> None:
        """Makes these before anybody asks for one, where attempts get prepared views. Blocks, for a second at the most."""
        if self._behind.tier == FULL:
            for wanted in views:
                self._prepare(wanted)
            self._views.await_makers(AHEAD_S)

    def run(self) -> None:
        """Until the agent ends it, or it has no agent and nothing that one could adopt."""
        while not self._done():
            self._views.turn()
            for fd, _ in self._epoll.poll(self._wait_s()):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._links:
                    self._serve(self._links[fd])
                elif fd in self._shims:
                    self._hear(fd)
                elif fd == self._ends:
                    os.read(fd, 4096)
                else:
                    self._views.heard(fd)
            self._sweep()
            for link in list(self._links.values()):
                if link.out:
                    self._flush(link)
        self._cpu_groups.remove()
        self._memory_groups.remove()

    def _done(self) -> bool:
        if self._shims or any(attempt.state != GONE for attempt in self.table.attempts.values()):
            return False
        alone = not self._links and now() >= self._lonely_from
        return self._ending or (alone and self.table.unwanted(now()))

    def _wait_s(self) -> float:
        if self._dying:
            return SWEEP_S
        return max(0.0, min(LONGEST_WAIT_S, self._due - now()))

    # ------------------------------------------------------------------------------------------------- the agent

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        if self._is_of_a_job(sock):
            sock.close()
            return
        sock.setblocking(False)
        self._links[sock.fileno()] = AgentLink(sock)
        self._epoll.register(sock, select.EPOLLIN)

    def _is_of_a_job(self, sock: socket.socket) -> bool:
        """Whether a process below a shim calls: jobs may run as the agent's user, who may open the socket."""
        (pid,) = (int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), "little", signed=True),)
        shims = {attempt.shim for attempt, _ in self._shims.values()}
        while pid > 1:
            stat = proc.read_stat(pid)
            if stat is None or pid in shims:
                return True
            pid = stat.parent
        return False

    def _serve(self, link: AgentLink) -> None:
        try:
            data = link.sock.recv(1 << 16)
            if not data:
                self._close(link)
                return
            for message in link.reader.feed(data):
                self._obey(link, message)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            self._refuse(link, f"{type(e).__name__}: {e}"[:1024])

    def _close(self, link: AgentLink) -> None:
        if self._links.pop(link.sock.fileno(), None) is not None:
            self._epoll.unregister(link.sock)
            link.sock.close()
        if self._agent is link:
            self._agent = None

    def _refuse(self, link: AgentLink, why: str) -> None:
        self._say({"is": "error", "error": why}, link)
        self._flush(link)
        self._close(link)

    def _say(self, message: wire.WireMessage, link: AgentLink | None = None) -> None:
        """To the agent. What it does not hear it learns from the table, when it is back."""
        link = link or self._agent
        if link is None or link.sock.fileno() < 0:
            return
        link.out += wire.pack(message, wire.LARGEST_TOLD)

    def _flush(self, link: AgentLink) -> None:
        """Sends what there is to say, all of one turn together."""
        try:
            with suppress(BlockingIOError):
                sent = link.sock.send(link.out)
                del link.out[:sent]
                link.first = max(0, link.first - sent)
            if len(link.out) - link.first > _BACKLOG:
                raise OSError("the agent does not read")
        except OSError:
            self._close(link)
            return
        if bool(link.out) is not link.waits:
            link.waits = bool(link.out)
            self._epoll.modify(link.sock, select.EPOLLIN | (select.EPOLLOUT if link.waits else 0))

    def _obey(self, link: AgentLink, told: wire.WireMessage) -> None:
        if not link.greeted:
            self._greet(link, told)
            return
        match told.get("do"):
            case "ping":
                self._say({"is": "pong", "n": told.get("n")}, link)
            case "life":
                self._due = 0.0
                for earlier in self.table.begin(told["node"], int(told["incarnation"])):
                    self._kill(earlier)
            case "until":
                self._due = 0.0
                for node, (incarnation, until) in told["nodes"].items():
                    if not self.table.until(node, incarnation, None if until is None else float(until), now()):
                        self._say({"is": "over", "node": node, "incarnation": incarnation}, link)
            case "start":
                self._start(told)
            case "signal":
                self._tell(told["id"], spec.signals(told["signal"], told["ranks"], told["group"]))
            case "ends-by":
                if told["id"] in self.table.attempts:
                    self._due = 0.0
                    self.table.attempts[told["id"]].ends_by = float(told["at"])
            case "kill":
                self._asked_to_kill(told["id"])
            case "note":
                if told["id"] in self.table.attempts:
                    self.table.attempts[told["id"]].note |= told["note"]
            case "node-note":
                if told["node"] in self.table.lives:
                    self.table.lives[told["node"]].note |= told["note"]
            case "forget":
                self.table.forget(told["ids"])
            case "end":
                self._ending = True
                for each in self.table.attempts.values():
                    self._kill(each)

    def _asked_to_kill(self, id: str) -> None:
        attempt = self.table.attempts.get(id)
        if attempt is None or attempt.state == GONE:
            self._say({"is": "gone", "id": id, "oom_kills": attempt.oom_kills if attempt else 0})
        else:
            self._kill(attempt)

    def _greet(self, link: AgentLink, told: wire.WireMessage) -> None:
        """The newest agent is the agent. An earlier one that still hangs on has lost its state folder's lock."""
        try:
            oldest, newest = told["speaks"]
            version = wire.agreed(int(oldest), int(newest))
        except (KeyError, TypeError, ValueError) as e:
            self._refuse(link, f"no hello that is understood: {e}")
            return
        if self._agent is not None:
            self._close(self._agent)
        self._agent, link.greeted, self._lonely_from = link, True, 0.0
        self._say(
            {
                "is": "welcome",
                "v": version,
                "containment": self._kind,
                "walls": {"tier": self._behind.tier, "why": self._behind.why},
                "code": self._code,
                "pid": os.getpid(),
                "lives": {node: life.shown() for node, life in self.table.lives.items()},
                "attempts": [attempt.shown() for attempt in self.table.attempts.values()],
            }
        )
        link.first = len(link.out)

    # ------------------------------------------------------------------------------------------------- the shims

    def _start(self, told: wire.WireMessage) -> None:
        told = told | {"group": self._group(told)}
        try:
            attempt = self.table.enter(
                told["id"],
                told["node"],
                int(told["incarnation"]),
                told["about"],
                told["group"],
                now=now(),
                early=told.get("early", 0.0),
            )
        except StartRefused as e:
            self._say(
                {"is": "failed", "id": told["id"], "refused": True, "errno": None, "error": str(e), "filename": ""}
            )
            return
        self._due = min(self._due, self.table.ends(attempt) or self._due)
        told |= {"cpu": self._cpu_group(told), "memory": self._memory_group(told)}
        attempt.note = dict(told.get("note") or {})
        attempt.memory, attempt.pids, attempt.cpu = (
            str((told.get(key) or {}).get("group", "")) for key in ("memory", "pids", "cpu")
        )
        try:
            self._spawn(attempt, {key: told.get(key) for key in spec.TOLD})
        except (OSError, ValueError) as e:
            error = e.strerror if isinstance(e, OSError) else None
            about = {
                "errno": getattr(e, "errno", None),
                "error": error or str(e),
                "filename": getattr(e, "filename", None) or "",
            }
            attempt.state, attempt.failed = GONE, about
            self._cpu_groups.give_back(attempt.cpu)
            self._memory_groups.give_back(attempt.memory, well=False)
            self._say({"is": "failed", "id": attempt.id, **attempt.failed})
            self._say({"is": "gone", "id": attempt.id, "oom_kills": 0})

    def _group(self, told: wire.WireMessage) -> str:
        """The cgroup that is to hold the attempt together. A pid namespace needs none beside the one that limits its memory."""
        return "" if self._kind == NAMESPACE and told.get("memory") else str(told.get("group") or "")

    def _cpu_group(self, told: wire.WireMessage) -> dict[str, Any] | None:
        """The group by which the attempt shares the processors: of version 2 its own, of version 1 one of ours."""
        cpu = told.get("cpu")
        if not cpu or "group" in cpu:
            return cpu
        return {"group": self._cpu_groups.take(cpu["stem"], cpu["weight"]), "weight": cpu["weight"]}

    def _memory_group(self, told: wire.WireMessage) -> dict[str, Any] | None:
        """The group that holds the attempt to its memory: of version 1 one of ours, where its pid namespace says that nothing
        is left in it."""
        memory = told.get("memory")
        if not memory or not memory.get("stem") or self._kind != NAMESPACE:
            return memory
        return {"group": self._memory_groups.take(memory["stem"], memory["bytes"]), "bytes": memory["bytes"]}

    def _spawn(self, attempt: HeldAttempt, told: dict[str, Any]) -> None:
        """Raises OSError, or ValueError when that is nothing that can be started."""
        shared = (told.get("walls") or {}).get("prepared") if self._behind.tier == FULL else None
        held = self._views.of(shared) if shared else None
        if held is None:
            attempt.shim, mine = self._zygote.spawn(spec.attempt(told))
        else:
            view, shown = held
            attempt.shim, mine = self._zygote.spawn(spec.attempt(told, shown), view)
            attempt.view = shared
        self._pids[attempt.shim] = attempt
        self._shims[mine.fileno()] = (attempt, mine)
        self._sockets[attempt.id] = mine
        self._epoll.register(mine, select.EPOLLIN)
        if shared and held is None and self._views.wanted(shared):
            self._prepare(shared)

    def _prepare(self, wanted: Prepared) -> None:
        """For the next attempts: this one does not wait for it."""
        mounts = self._views.look().lines
        try:
            maker, mine = self._zygote.prepare(spec.making(wanted["args"], wanted["sources"]))
        except (OSError, ValueError):
            self._views.failed()
            return
        self._views.making(wanted, mine, maker, mounts, now() + MAKER_PATIENCE_S)

    def _tell(self, id: str, message: bytes) -> None:
        """To the shim of an attempt. One that does not take it is killed when its patience is over, or is gone already."""
        if (sock := self._sockets.get(id)) is not None:
            try:
                sock.send(message, socket.MSG_DONTWAIT)
            except OSError:
                return

    def _hear(self, fd: int) -> None:
        attempt, sock = self._shims[fd]
        try:
            data = sock.recv(spec.LARGEST)
        except OSError:
            data = b""
        if not data:
            self._let_go(fd, 0.0)  # a shim that says nothing is dead, or as good as dead
            return
        try:
            self._take(attempt, data)
        except ValueError as e:
            # Its job spoke for it: a job of the same user may take the shim's descriptors.
            self._say({"is": "error", "error": f"attempt {attempt.id} is killed: its shim said {e!r}"[:1024]})
            proc.kill_all([attempt.shim])

    def _let_go(self, fd: int, patience_s: float) -> None:
        """Nothing more is heard of this shim but its end. If it is there after so many seconds, it is killed."""
        attempt, sock = self._shims.pop(fd)
        del self._sockets[attempt.id]
        self._epoll.unregister(sock)
        sock.close()
        self._dying.setdefault(attempt.id, now() + patience_s)

    def _take(self, attempt: HeldAttempt, said: bytes) -> None:
        """Raises ValueError when it is nothing that a shim says."""
        match said[0]:
            case spec.STARTED:
                attempt.state = RUNNING
                useless = said[1:].decode(errors="replace")
                prepared = attempt.view is not None and not useless
                if attempt.view is not None:
                    self._views.copied(attempt.view, useless)
                    attempt.view = None
                self._say({"is": "started", "id": attempt.id, "shim": attempt.shim, "prepared": prepared})
            case spec.FAILED:
                failed = spec.failure(said)
                if failed["errno"] is not None and not failed["error"]:
                    failed["error"] = os.strerror(failed["errno"])
                attempt.failed = failed
                self._say({"is": "failed", "id": attempt.id, **failed})
            case spec.EXITED:
                self._ended(attempt, _codes(said))
            case spec.GONE:
                self._last[attempt.id] = _codes(said)
                self._clean.add(attempt.id)
                self._let_go(self._sockets[attempt.id].fileno(), PATIENCE_S)
            case _:
                raise spec.BadWords(f"{said[:64]!r}")

    def _ended(self, attempt: HeldAttempt, codes: dict[int, int]) -> None:
        if codes:
            attempt.codes |= codes
            self._say({"is": "exited", "id": attempt.id, "codes": codes, **_by_us(attempt)})

    # ------------------------------------------------------------------------------------------------- the end

    def _kill(self, attempt: HeldAttempt) -> None:
        if attempt.state != GONE and attempt.id not in self._dying:
            self._tell(attempt.id, spec.KILL)
            self._dying[attempt.id] = now() + PATIENCE_S

    def _sweep(self) -> None:
        """Kills what must not run, and finds out what is gone."""
        at = now()
        if at >= self._due:
            for attempt in self.table.over(at):
                self._kill(attempt)
            self._due = self.table.next_deadline(at) or at + LONGEST_WAIT_S
        proc.kill_all(self._views.overdue(at))
        if not self._dying:
            return
        strangers = self._reap() and self._orphans()
        for id, patience in list(self._dying.items()):
            attempt = self.table.attempts[id]
            dead = not attempt.shim
            if not dead and at >= patience:
                self._ended(attempt, self._last.pop(id, {}))
                if attempt.group and os.path.isdir(attempt.group):
                    proc.kill_group(attempt.group)
                proc.kill_all([attempt.shim])
            left = (
                dead
                and bool(attempt.group)
                and os.path.isdir(attempt.group)
                and bool(proc.group_members(attempt.group))
            )
            if left:
                proc.kill_group(attempt.group)
            if dead and not left and not strangers and id not in self._sockets:
                self._gone(attempt)

    def _reap(self) -> bool:
        """Takes the ends of shims, and of orphans that one left. Returns whether there may be such orphans."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            if (attempt := self._pids.pop(pid, None)) is not None:
                attempt.shim = 0
        return not self._clean.issuperset(self._dying)

    def _orphans(self) -> bool:
        """Whether a shim that was killed has left processes to the keeper; they are killed."""
        own = {
            self._zygote.pid,
            *self._views.makers(),
            *(a.shim for a in self.table.attempts.values() if a.state != GONE),
        }
        strangers = {pid for pid in proc.children(os.getpid()) if pid not in own}
        proc.kill_all(strangers | proc.descendants(strangers))
        return bool(strangers)

    def _gone(self, attempt: HeldAttempt) -> None:
        del self._dying[attempt.id]
        self._ended(attempt, self._last.pop(attempt.id, {}))
        ended_well = attempt.id in self._clean and not any(attempt.codes.values())
        self._clean.discard(attempt.id)
        attempt.state = GONE
        for group in filter(None, dict.fromkeys((attempt.group, attempt.memory, attempt.pids))):
            attempt.oom_kills += 0 if ended_well else proc.oom_kills(group)
            if not self._memory_groups.has(group):
                proc.remove_group(group)
        self._memory_groups.give_back(attempt.memory, well=ended_well)
        self._cpu_groups.give_back(attempt.cpu)
        self._say({"is": "gone", "id": attempt.id, "oom_kills": attempt.oom_kills, **_by_us(attempt)})
        life = self.table.lives.get(attempt.node)
        if life is None or life.incarnation != attempt.incarnation:
            del self.table.attempts[attempt.id]


def _by_us(attempt: HeldAttempt) -> dict[str, bool]:
    """Whether it was ended here, and not by itself."""
    return {"doomed": attempt.doomed, "overtime": attempt.overtime}


def _codes(said: bytes) -> dict[int, int]:
    """Raises BadWords."""
    codes = spec.codes(said)
    if any(not -signal.NSIG < code < 256 for code in codes.values()):
        raise spec.BadWords(f"exit codes {codes}")
    return codes
