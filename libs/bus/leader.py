"""Leader election between equal processes, so that work is done once; another process takes over when the leader is gone.

The role is a key in the bucket `baton-cursors`, changed by compare-and-set on its revision. The leader replaces the key every
third of `ttl_s`. A standby reads it as often, and takes it when it has not changed for `ttl_s` on its own monotonic clock, so
no clocks of two machines are compared. A leader that could not replace the key gives up sooner than that, counted from before
its last successful request. A leader that is stopped gives the role back at once. The role of one that was killed is taken at
once by a standby on the same machine, which can see that the process is gone (`libs.ports.processes`).

With a slow broker a leader would lose its role between two renewals, and its work would begin anew each time. So each leader
writes its term into the key, for which standbys wait: `ttl_s`, or a multiple of the duration of its last request where that is
longer. A longer term counts only once it is stored.

This is no fence: a process that is frozen between asking `held` and acting acts late. So all that a leader does must be
harmless when it is done twice or late: message ids, guarded writes (`JobStore.save`, `Cursors.move`).
"""

import asyncio
import json
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from libs.bus.cancel import cancel
from libs.bus.retry import UNAVAILABLE
from libs.bus.table import CURSORS_BUCKET
from libs.ports.clock import until_turn
from libs.ports.host import present_host
from libs.ports.processes import is_gone, this_process

log = logging.getLogger("baton.leader")

TTL_S = 3.0

_TRUST = 0.8
"""The part of its term for which a leader trusts its role: clocks of two machines run at different rates."""

_REQUESTS = 4
"""A term is so many times as long as a request takes, at the least: two of them are from one renewal's beginning to the next
one's end, and a part of the term is not trusted."""

_LONGEST_S = 5.0
"""So long an answer is waited for at the most; nats-py does not wait longer."""

_LONGEST_TERM_S = 60.0
"""As `BATON_LEADER_TTL_S` at the most."""

A = TypeVar("A")


class Leadership:
    """`run` as a task; then `held` says whether this process leads, and `lead(work)` does `work` while it does.

    `name` is the role's, `<service>.<pool>`: that service alone may write what begins so (`libs.walls.roles`). `holder` names
    this process (default: host, process id, a random part).
    """

    def __init__(self, js: JetStreamContext, name: str, holder: str = "", *, ttl_s: float = TTL_S) -> None:
        self.name = name
        self.holder = holder or _own_name()
        self.leader = ""
        """Who leads, as far as is known."""
        self._js = js
        self._ttl_s = ttl_s
        self._revision = 0  # of the key as we wrote it; 0: it is not ours
        self._until = 0.0
        self._seen = (0, 0.0)  # (revision of another's key, when it had been first seen)
        self._took_s = 0.0  # the last request
        self._gained = asyncio.Event()
        self._bucket: KeyValue | None = None

    @property
    def held(self) -> bool:
        """Whether this process leads now."""
        return asyncio.get_running_loop().time() < self._until

    @property
    def stands_by(self) -> bool:
        """Whether another process leads, as far as is known."""
        return self.leader not in ("", self.holder) and not self.held

    async def run(self) -> None:
        """Keeps the role, or waits for it, for ever. While the broker is unavailable the role expires."""
        try:
            while True:
                try:
                    await self._turn()
                except ConnectionClosedError:
                    raise
                except UNAVAILABLE as error:
                    log.debug("role %s: %r", self.name, error)
                if not self.held or self._took_s < self._ttl_s / 3:
                    await asyncio.sleep(until_turn(self._ttl_s / 3))
        finally:
            self._until = 0.0
            if self._revision:
                with suppress(*UNAVAILABLE):
                    async with asyncio.timeout(self._ttl_s / 2):
                        await self._write("", self._revision)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does `work` whenever this process leads, from its beginning each time, and cancels it when the role is lost.

        Returns when it returns, and raises what it raises.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self._gained.wait()
            task = asyncio.ensure_future(work())
            try:
                while self.held and not task.done():
                    await asyncio.wait({task}, timeout=max(0.01, self._until - loop.time()))
                if task.done():
                    return task.result()
            finally:
                await cancel(task)
            log.warning("role %s is lost: another leads, or the broker is away", self.name)
            if not self.held:
                self._gained.clear()

    async def _turn(self) -> None:
        if self._revision and await self._take():
            return
        # Another wrote; or we did, and it was stored but not acknowledged in time: then the key has our name, and is ours.
        if not await self._free() or not await self._take():
            self._until = 0.0
            self._gained.clear()

    async def _take(self) -> bool:
        term_s = min(max(self._ttl_s, _REQUESTS * self._took_s), _LONGEST_TERM_S)
        began = asyncio.get_running_loop().time()
        try:
            self._revision = await self._answered(self._write(self.holder, self._revision, term_s))
        except KeyWrongLastSequenceError:
            self._revision = 0
            return False
        self._hold(began + term_s * _TRUST)
        return True

    async def _free(self) -> bool:
        """Whether the role may be taken; `_revision` is then what is to be replaced."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        try:
            entry = await self._answered(self._read())
        except KeyNotFoundError:
            return True
        found = json.loads(entry.value or b"{}")
        self.leader = str(found.get("holder", ""))
        revision = int(entry.revision or 0)
        if self._seen[0] != revision:
            self._seen = (revision, loop.time())  # it may have been written while we waited for the answer
        told_s = float(found.get("term_s", 0.0))  # an older release tells none
        term_s = max(self._ttl_s, min(told_s, _LONGEST_TERM_S))
        gone = is_gone(str(found.get("process", "")))
        if gone or self.leader in ("", self.holder) or asked - self._seen[1] >= term_s:
            self._revision = revision
            return True
        return False

    async def _answered(self, request: Awaitable[A]) -> A:
        """What it is answered, waited for twice as long as the last one. Raises as the request, and TimeoutError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(self._ttl_s / 2, min(2 * self._took_s, _LONGEST_S))):
                return await request
        finally:
            self._took_s = loop.time() - began  # or longer, where it was waited for in vain

    def _hold(self, until: float) -> None:
        if self.leader != self.holder:
            log.info("role %s: %s leads", self.name, self.holder)
        self.leader = self.holder
        self._until = until
        self._gained.set()

    async def _write(self, holder: str, last: int, term_s: float = 0.0) -> int:
        said = {"holder": holder, "term_s": term_s, "process": this_process() if holder else ""}
        kv, value = await self._kv(), json.dumps(said).encode()
        return await (kv.update(self.name, value, last=last) if last else kv.create(self.name, value))

    async def _read(self) -> KeyValue.Entry:
        return await (await self._kv()).get(self.name)

    async def _kv(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._js.key_value(CURSORS_BUCKET)
        return self._bucket


def _own_name() -> str:
    """This life of this process: a new one on the same machine may have the same number."""
    host = present_host()
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}" if host is None else host.process_name()
