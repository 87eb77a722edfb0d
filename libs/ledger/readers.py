"""The readers of a pool's ledger: their positions, the format that each understands, and the format that the writer may use.

Each reader declares itself every few seconds, in a bucket whose entries expire after an hour: its name and process, its
release, the newest format that it understands (`libs.core.state.formats`), how far it has read, and from where it would
continue after a restart. It also marks its consumer with the format. A consumer without a mark is a reader of 0.1.0, which had
no declarations.

`FormatGate` is the writer's side. A pool has a format, which is kept in the bucket of cursors and never lowered. The gate
raises it to the newest format that all readers understand, once they have done so for as long as a restart of an older one may
take; in an empty ledger at once.

From then on an older reader that comes back stops at the first event of a newer kind, and says so. An operator sees the
readers with `baton ledger readers`, and raises the format by hand with `baton ledger upgrade`.
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libs.bus import listing
from libs.bus.cursors import Cursors
from libs.bus.retry import UNAVAILABLE
from libs.bus.table import READERS, READERS_BUCKET
from libs.core.state.formats import FIRST, NEWEST
from libs.ledger.segments import last_seq, readable
from libs.ledger.tail import MARK
from libs.ports.clock import until_turn
from libs.ports.host import present_host
from schemas.subjects import token

log = logging.getLogger("baton.ledger")

DECLARE_S = 10.0
ANY = 1_000_000
"""The format of a reader that passes over every kind of event that it does not need."""
KNOWN: Final = frozenset(name for names in READERS.values() for name in names)
"""The readers that a pool has with all services."""
HOLD_S = 600.0
"""How long no older reader may have been seen before the format is raised: a restart of one takes less."""
_POLL_S = 5.0
_TRIES = 3
_NO_TOKEN = re.compile(r"[^A-Za-z0-9_-]")


class Declared(BaseModel):
    """What one reader says of itself."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    pool: str
    name: str = Field(description="the projection's, e.g. quota_billing")
    process: str = Field(description="which of the processes that keep this projection")
    release: str = Field(description="of Baton")
    format: int = Field(ge=1, description="the newest format of the ledger that it understands")
    position: int = Field(ge=0, description="the last ledger sequence that it has read")
    resume: int = Field(ge=0, description="it goes on behind this sequence after a restart: its last snapshot's, or 0")
    leaving: bool = Field(default=False, description="it was stopped in good order; its format does not count any more")

    @property
    def key(self) -> str:
        return f"{token(self.pool)}.{token(self.name)}.{self.process}"


class Readers:
    """The declarations of all pools' readers. Every method raises nats errors when the broker is away."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._cursors = Cursors(js)
        self._bucket: KeyValue | None = None

    async def declare(self, declared: Declared) -> None:
        await (await self._kv()).put(declared.key, declared.model_dump_json().encode())

    async def declared(self, pool: str) -> list[Declared]:
        """Those of `pool` that have not expired, by name. One whose text cannot be read is left out and logged; one that the
        broker does not tell raises: what is done then must not be done as if that reader were none."""
        bucket = await self._kv()
        stem = f"$KV.{READERS_BUCKET}."
        held = await self._js.stream_info(f"KV_{READERS_BUCKET}", subjects_filter=f"{stem}{token(pool)}.>")
        keys = [subject.removeprefix(stem) for subject in held.state.subjects or {}]
        found = []
        for entry in await asyncio.gather(*(_entry(bucket, key) for key in sorted(keys)), return_exceptions=True):
            if isinstance(entry, KeyNotFoundError):
                continue  # it has gone meanwhile
            if isinstance(entry, BaseException):
                raise entry
            try:
                found.append(Declared.model_validate_json(entry.value or b""))
            except ValidationError as error:
                log.warning("a reader's declaration %s cannot be read: %s", entry.key, error)
        return found

    async def resumes(self, pool: str, *, without: Collection[str] = ()) -> dict[str, int | None]:
        """Reader of `pool` -> the sequence behind which all of its processes go on after a restart. None: it is one that every
        pool has, but for those `without` it, and it has not declared itself: it has not begun yet, or is away for so long that
        its declaration has expired."""
        found: dict[str, int | None] = dict.fromkeys(sorted(KNOWN - set(without)))
        for one in await self.declared(pool):
            known = found.get(one.name)
            found[one.name] = one.resume if known is None else min(one.resume, known)
        return found

    async def forget(self, declared: Declared) -> None:
        await (await self._kv()).delete(declared.key)

    async def unmarked(self, pool: str) -> list[str]:
        """Names of the consumers of the ledger whose readers do not say what they understand: older ones."""
        infos = [info for s in await readable(self._js, pool) for info in await listing.consumers(self._js, s.name)]
        return [info["name"] for info in infos if MARK not in (info["config"].get("metadata") or {})]

    async def format(self, pool: str) -> int:
        """The newest format that the writer of `pool` may use."""
        kept = await self._cursors.load(_cursor(pool))
        return int((kept or {}).get("format", FIRST))

    async def raise_format(self, pool: str, to: int, by: str) -> None:
        """For good. `by`: what allowed it, for people."""
        await self._cursors.save(_cursor(pool), {"format": to, "by": by})
        log.info("the ledger of pool %s is written in format %d from now on: %s", pool, to, by)

    async def _kv(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._js.key_value(READERS_BUCKET)
        return self._bucket


async def _entry(bucket: KeyValue, key: str) -> KeyValue.Entry:
    """Asked again when nothing is heard: of many questions at once one may be lost, and with it all were asked for nothing."""
    for _ in range(_TRIES - 1):
        with suppress(NatsTimeout):
            return await bucket.get(key)
    return await bucket.get(key)


class Declarer:
    """Declares one reader, again and again. `place`: (last sequence read, sequence that a restart goes on behind)."""

    def __init__(
        self,
        js: JetStreamContext,
        pool: str,
        name: str,
        place: Callable[[], tuple[int, int]],
        understands: int = NEWEST,
    ) -> None:
        self._format = understands
        self._readers = Readers(js)
        self._pool, self._name, self._place = pool, name, place
        self._said_away = False

    async def run(self) -> None:
        """Until cancelled. A declaration that fails is made again with the next; it stops nobody."""
        while True:
            await self.declare()
            await asyncio.sleep(until_turn(DECLARE_S))

    async def leave(self) -> None:
        """The reader was stopped in good order. Raises nothing."""
        await self.declare(leaving=True)

    async def declare(self, leaving: bool = False) -> None:
        """Once, now. Raises nothing: a broker that is away hears it the next time."""
        position, resume = self._place()
        declared = Declared(
            pool=self._pool, name=self._name, process=process_name(), release=release(), format=self._format,
            position=position, resume=resume, leaving=leaving,
        )  # fmt: skip
        try:
            async with asyncio.timeout(5.0):
                await self._readers.declare(declared)
            self._said_away = False
        except UNAVAILABLE as error:
            if not self._said_away:
                log.warning("reader %s of pool %s could not declare itself: %r", self._name, self._pool, error)
            self._said_away = True


class FormatGate:
    """Which format the writer of `pool` may use now: `allowed`. To be asked for the first time (`poll`) before it writes."""

    def __init__(self, js: JetStreamContext, pool: str, *, hold_s: float = HOLD_S, newest: int = NEWEST) -> None:
        """`newest`: the newest format that this writer knows."""
        self.allowed = FIRST
        self.holding = ""
        """Why it is not the newest; "" when it is."""
        self._js = js
        self._readers = Readers(js)
        self._pool = pool
        self._hold_s = hold_s
        self._newest = newest
        self._old_seen: dict[int, float] = {}
        """Format -> when there may have been a reader last that does not understand it; without an entry: not looked yet."""

    async def run(self) -> None:
        """Until the newest format may be used: then there is nothing more to find out."""
        while self.allowed < self._newest:
            await asyncio.sleep(until_turn(min(_POLL_S, max(0.05, self._hold_s / 4))))
            await self.poll()

    async def poll(self) -> None:
        """Looks once. While the broker is away, what was allowed stays."""
        now = asyncio.get_running_loop().time()
        try:
            self.allowed = max(self.allowed, min(self._newest, await self._readers.format(self._pool)))
            if self.allowed >= self._newest:
                self.holding = ""
                return
            older = await self._older()
            empty = not await last_seq(self._js, self._pool)
        except UNAVAILABLE as error:
            self._old_seen = dict.fromkeys(range(self.allowed + 1, self._newest + 1), now)
            self.holding = f"the broker does not say who reads: {error!r}"
            return
        to = self.allowed
        for newer in range(self.allowed + 1, self._newest + 1):
            if any(format_ < newer for format_ in older.values()) or (newer not in self._old_seen and not empty):
                self._old_seen[newer] = now
            if newer not in self._old_seen or now - self._old_seen[newer] >= self._hold_s:
                to = newer
        if to > self.allowed:
            by = "the ledger is empty" if empty else f"no older reader for {self._hold_s:g} s"
            try:
                await self._readers.raise_format(self._pool, to, by)
            except UNAVAILABLE as error:
                self.holding = f"the broker does not keep the format: {error!r}"
                return
            self.allowed = to
        old = [name for name, format_ in older.items() if format_ < self._newest]
        self.holding = f"older readers: {', '.join(old)}" if old else "older readers may be restarting"
        if self.allowed >= self._newest:
            self.holding = ""

    async def _older(self) -> dict[str, int]:
        """Readers by name -> the newest format that each understands."""
        declared = [one for one in await self._readers.declared(self._pool) if not one.leaving]
        found = {f"{one.name} ({one.process}, {one.release})": one.format for one in declared}
        return found | {f"consumer {name}": FIRST for name in await self._readers.unmarked(self._pool)}


@cache
def release() -> str:
    """The release of this code; "source" when it is not installed."""
    try:
        return version("baton")
    except PackageNotFoundError:
        return "source"


def process_name() -> str:
    """This process among all that run Baton, as one token."""
    host = present_host()
    return process_name_of(f"{socket.gethostname()[:40]}-{os.getpid()}" if host is None else host.process_name())


def process_name_of(own: str) -> str:
    """What a process is called in declarations."""
    return _NO_TOKEN.sub("-", own)


def _cursor(pool: str) -> str:
    """A token for the pool: operators may write these cursors and no others (`schemas.subjects.operator_may`)."""
    return f"ledger-format.{token(pool)}"
