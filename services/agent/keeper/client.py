"""The agent's side of the keeper: the connection, and a handle for each attempt that the keeper holds."""

import asyncio
import logging
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from libs.service.tasks import essential
from services.agent.keeper import find, wire
from services.agent.keeper.find import Found
from services.agent.keeper.moves import favour_moves
from services.agent.keeper.release import code
from services.agent.keeper.table import GONE, RUNNING, StartRefused
from services.agent.keeper.walls import NONE

log = logging.getLogger("baton.agent")

PING_S = 1.0
FORGET_S = 0.2
"""For so long ends that were heard are gathered, before the keeper is told to forget them."""
KILL_ANSWER_S = 2.0
"""How long the keeper may say nothing when it is asked to kill: well within what leases reckons with
(`BATON_LEASES_KILL_BOUND_S`, 5 s)."""
SILENT_PINGS = 5
"""So many pings, one after the other, without an answer: the keeper is frozen and is replaced."""


class KeptAttempt:
    """One attempt in the keeper. `codes`: rank -> exit code, minus n for signal n, in the order in which they ended."""

    def __init__(self, keeper: "KeeperClient", id: str) -> None:
        self.keeper, self.id = keeper, id
        self.codes: dict[int, int] = {}
        self.ended = asyncio.Event()
        self.doomed = False
        """Its lease had ended when the keeper told the last of it. An earlier keeper does not say."""
        self.overtime = False
        """The keeper has ended it: its time was over, and its agent away."""
        self.oom_kills = 0
        self.shim = 0
        """The process that holds it; 0: not known yet."""
        self.prepared = False
        """Its view is a copy of one that was prepared."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each piece of news."""
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started.add_done_callback(lambda future: future.cancelled() or future.exception())

    @property
    def gone(self) -> bool:
        """Nothing of it is left."""
        return self.ended.is_set()

    async def started(self) -> None:
        """Returns when its processes have been started. Raises OSError or ValueError when they could not be."""
        await asyncio.shield(self._started)

    def signal(self, number: int, ranks: Sequence[int], *, group: bool) -> None:
        """Sends a signal to these ranks; with `group` to their process groups."""
        self.keeper.send({"do": "signal", "id": self.id, "signal": number, "ranks": list(ranks), "group": group})

    def ends_by(self, at: float) -> None:
        """When it is to be killed if it runs on, seconds on the lease clock. A keeper of before does not know this."""
        self.keeper.send({"do": "ends-by", "id": self.id, "at": at})

    def note(self, **fields: Any) -> None:
        """What the next agent must know of this attempt to go on with it."""
        self.keeper.send({"do": "note", "id": self.id, "note": fields})

    async def kill(self) -> None:
        """Kills all that it is; returns when nothing of it is left, however long that takes."""
        if not self.gone:
            await self.keeper.kill(self)

    def forget(self) -> None:
        """Its end has been heard: the keeper need not tell it again."""
        self.keeper.forget(self.id)

    def take(self, news: wire.WireMessage) -> None:
        self.doomed, self.overtime = bool(news.get("doomed")), bool(news.get("overtime"))
        match news["is"]:
            case "started":
                self.shim, self.prepared = news.get("shim", 0), bool(news.get("prepared"))
                self._resolve(None)
            case "failed":
                self._resolve(_error(news))
            case "exited":
                self.codes |= {int(rank): code for rank, code in news["codes"].items()}
            case "gone":
                self.oom_kills = news.get("oom_kills", 0)
                self.ended.set()
                self._resolve(_error({"error": "it was ended while it was being started"}))
        self.changed()

    def adopt(self, row: Mapping[str, Any]) -> None:
        """What an earlier agent has left: one row of the keeper's table."""
        self.codes = {int(rank): code for rank, code in row["codes"].items()}
        self.oom_kills, self.shim, self.overtime = (
            row.get("oom_kills", 0),
            row.get("shim", 0),
            bool(row.get("overtime")),
        )
        if row["state"] == GONE:
            self.ended.set()
        if row.get("failed"):
            self._resolve(_error(row["failed"]))
        elif row["state"] in (RUNNING, GONE):
            self._resolve(None)

    def _resolve(self, error: Exception | None) -> None:
        if not self._started.done():
            if error is None:
                self._started.set_result(None)
            else:
                self._started.set_exception(error)


def packed(message: wire.WireMessage) -> bytes:
    """`wire.pack` in a quarter of the time, of what an agent has in memory and a keeper had better not."""
    try:
        return wire.framed(to_json(message))
    except PydanticSerializationError:  # a file's name that is no UTF-8
        return wire.pack(message)


def _error(told: Mapping[str, Any]) -> Exception:
    if told.get("refused"):
        return StartRefused(told["error"])
    if told.get("errno") is None:
        return ValueError(told.get("error") or "it could not be started")
    return OSError(told["errno"], told["error"], told.get("filename") or None)


@dataclass(eq=False, slots=True)
class KeeperClient:
    """Connects when it is first needed. `clear` kills what a keeper that is gone may have left, and returns when nothing is.
    Of a keeper that is no more, with everything that it held, `on_dying` is told at once, before anything of it looks like an
    end of its own, and `on_loss` when nothing is left. `on_over` is told of a node and its incarnation: a renewal came for a
    life whose lease had ended with nothing that is kept, and the keeper starts nothing in it any more. `on_found` is told
    when there is a keeper, also in the place of another: what it can do is known then."""

    folder: Path
    kind: str
    """The containment that is asked for, or "auto"."""
    group: str
    """Where cgroups may be made, or ""."""
    clear: Callable[[], Awaitable[None]]
    behind: str = ""
    """The walls that a new keeper should try, see `keeper.__main__`."""
    quick: bool = False
    """Before a keeper is started, the machine is asked to favour moves between cgroups."""
    on_found: Callable[[], None] = lambda: None
    on_dying: Callable[[], None] = lambda: None
    on_loss: Callable[[], Awaitable[None]] | None = None
    on_over: Callable[[str, int], None] = lambda node, incarnation: None
    attempts: dict[str, KeptAttempt] = field(default_factory=dict)
    _lives: dict[str, int] = field(default_factory=dict)
    _until: dict[str, float | None] = field(default_factory=dict)
    _notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    _writer: asyncio.StreamWriter | None = None
    _process: subprocess.Popen[bytes] | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _out: list[bytes] = field(default_factory=list)
    """What two turns of the loop have to say: it goes together."""
    _forgotten: list[str] = field(default_factory=list)
    _pong: int = 0
    _heard: int = 0
    pid: int = 0
    containment: str = ""
    """What holds attempts together here, as the keeper says (`keeper.contain`)."""
    tier: str = NONE
    """Of the walls that the keeper can put up (`keeper.walls`), and why it is no higher."""
    why: str = ""
    same_release: bool = True
    """The keeper's code is what this agent has: after an upgrade it may be another's."""
    _closing: bool = False

    def connected(self) -> bool:
        return self._writer is not None

    def needed(self) -> bool:
        return bool(self._lives)

    async def attach(self, found: Found) -> None:
        """Goes on with a keeper that was found at the start."""
        reader, self._writer = await asyncio.open_unix_connection(sock=found.sock)
        self._out.clear()  # what an earlier keeper was to hear
        self._process, self._pong = found.process, 0
        self.containment, self.pid = found.welcome["containment"], found.welcome["pid"]
        # A keeper of before there were walls would start a job without any, whatever it is told.
        walls = found.welcome.get("walls") or {"tier": NONE, "why": "the keeper is of an earlier version of Baton"}
        self.tier, self.why = walls["tier"], walls["why"]
        self.same_release = found.welcome.get("code") == code()
        self.on_found()
        for name, work in (("hearing", self._hear(reader, found.reader)), ("watch", self._watch(self._writer))):
            running = essential(asyncio.create_task(work, name=f"{name} of the keeper"))
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def ensure(self) -> None:
        """There is a keeper, and it knows the lives that it must. Raises NoKeeper."""
        if self._writer is not None and not self._opening.locked():
            return
        async with self._opening:
            if self._writer is not None:
                return
            await self.attach(await asyncio.to_thread(self._begin))
            for node, incarnation in self._lives.items():
                self.send({"do": "life", "node": node, "incarnation": incarnation})
                self.send({"do": "node-note", "node": node, "note": self._notes.get(node, {})})
            self._tell_until(self._until)

    def _begin(self) -> Found:
        if self.quick and self.group:
            favour_moves(self.group)
        return find.start(self.folder, self.kind, self.group, self.behind)

    # ------------------------------------------------------------------------------------------- what is told

    def send(self, message: wire.WireMessage) -> None:
        """To the keeper, if there is one: what it held is gone otherwise. Of one that has just ended we may not have heard."""
        if self._writer is not None:
            if not self._out:
                asyncio.get_running_loop().call_soon(self._flush_soon)
            self._out.append(packed(message))

    def _flush_soon(self) -> None:
        """What was begun in this turn, the start of an attempt say, has more to tell in the next: the keeper is woken once."""
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        if data and self._writer is not None and not self._writer.is_closing():  # uvloop raises when it is closed
            self._writer.write(data)

    def knows(self, node: str) -> bool:
        return node in self._lives

    def life(self, node: str, incarnation: int, until: float | None = 0.0) -> None:
        """This life of the node may have attempts from now on; those of earlier ones are killed."""
        self._lives[node], self._until[node] = incarnation, until
        self._notes.pop(node, None)
        for id in [id for id in self.attempts if id.startswith(f"{node}/")]:
            del self.attempts[id]
        self.send({"do": "life", "node": node, "incarnation": incarnation})
        self._tell_until({node: until})

    def adopted(self, node: str, incarnation: int, until: float | None) -> None:
        """The keeper knew this life before."""
        self._lives[node], self._until[node] = incarnation, until

    def until(self, node: str, until: float | None) -> None:
        """The lease of this node, seconds on the lease clock; None: its work is not ended by a lease."""
        if node in self._lives:
            self._until[node] = until
            self._tell_until({node: until})

    def node_note(self, node: str, note: Mapping[str, Any]) -> None:
        """What the next agent must know of this life of the node to go on with it."""
        self._notes[node] = {**self._notes.get(node, {}), **note}
        self.send({"do": "node-note", "node": node, "note": note})

    def _tell_until(self, deadlines: Mapping[str, float | None]) -> None:
        told = {node: [self._lives[node], until] for node, until in deadlines.items() if until != 0.0}
        if told:
            self.send({"do": "until", "nodes": told})

    def attempt(self, id: str) -> KeptAttempt:
        made = self.attempts[id] = KeptAttempt(self, id)
        return made

    async def start(self, attempt: KeptAttempt, message: wire.WireMessage) -> None:
        """Returns when its processes run. Raises OSError or ValueError when they could not be started (StartRefused: the
        keeper does not let them), or NoKeeper."""
        await self.ensure()
        self.send({"do": "start", "id": attempt.id, **message})
        await attempt.started()

    async def kill(self, attempt: KeptAttempt) -> None:
        """A keeper that is asked to kill and says nothing at all is killed itself: it may not outlive a lease's end."""
        while self.connected() and not attempt.gone:
            heard = self._heard
            self.send({"do": "kill", "id": attempt.id})
            self.send({"do": "ping", "n": self._pong})
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_ANSWER_S):
                    await attempt.ended.wait()
            if not attempt.gone and heard == self._heard:
                await asyncio.to_thread(find.kill, self.folder, self.pid)
        if not attempt.gone:
            await self.clear()
            attempt.take({"is": "gone"})

    def forget(self, id: str) -> None:
        self.attempts.pop(id, None)
        if not self._forgotten:
            asyncio.get_running_loop().call_later(FORGET_S, self._forget_all)
        self._forgotten.append(id)

    def _forget_all(self) -> None:
        if self._forgotten:
            self.send({"do": "forget", "ids": list(self._forgotten)})
            self._forgotten.clear()

    # ------------------------------------------------------------------------------------------- what is heard

    async def _hear(self, stream: asyncio.StreamReader, reader: wire.Reader) -> None:
        problem = "it is gone"
        with suppress(OSError):
            while data := await stream.read(1 << 18):
                try:
                    for news in reader.feed(data):
                        self._take(news)
                except wire.BadMessage as e:
                    problem = str(e)
                    break
        if not self._closing:
            await self._lost(problem)

    def _take(self, news: wire.WireMessage) -> None:
        self._heard += 1
        match news.get("is"):
            case "pong":
                self._pong = news["n"]
            case "over":
                self.on_over(news["node"], news["incarnation"])
            case "error":
                log.error("the keeper says: %s", news.get("error"))
            case _:
                if (attempt := self.attempts.get(news.get("id", ""))) is not None:
                    try:
                        attempt.take(news)
                    except Exception:  # it must not keep the agent from hearing of the others
                        log.exception("what is said of attempt %s cannot be taken in: %s", attempt.id, news)

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        """A keeper that answers none of several pings is frozen: it is killed, which ends what it holds."""
        sent = 0
        while self._writer is writer:
            if sent - self._pong >= SILENT_PINGS:
                log.error("the keeper has not answered %d pings: killing it", sent - self._pong)
                await asyncio.to_thread(find.kill, self.folder, self.pid)
                return
            sent += 1
            self.send({"do": "ping", "n": sent})
            await asyncio.sleep(PING_S)

    async def _lost(self, problem: str) -> None:
        """Its shims die with it. What they held is made sure of before anyone is told."""
        log.error("the connection to the keeper has ended (%s)", problem)
        self.on_dying()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        await asyncio.to_thread(find.kill, self.folder, self.pid)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
        await self.clear()
        for attempt in list(self.attempts.values()):
            attempt.take({"is": "gone"})
        if self.on_loss is not None:
            await self.on_loss()

    async def close(self, *, keep: bool = False) -> None:
        """Ends the keeper with all that it holds; with `keep` it goes on alone."""
        self._closing = True
        if self._writer is None:
            return
        self._forget_all()
        if not keep:
            self.send({"do": "end"})
        self._flush()
        with suppress(OSError):
            await self._writer.drain()
            if keep:
                self._writer.close()
        tasks = list(self._tasks)
        if not keep:
            await asyncio.to_thread(
                self._process.wait if self._process is not None else partial(find.wait, self.folder, self.pid)
            )
        self._writer.close()
        self._writer = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
