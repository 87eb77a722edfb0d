"""The projection's seam: apply a batch, replace everything, read. One function call per batch, whole or not at all."""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import islice
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from libs.adapters.redis import keys
from libs.core.projections.hot_state import TABLES, Delta, Row, encode
from libs.ports.host import present_host

_FILL = 1000
"""Rows per call of a rebuild: a few ms of Redis' one thread, and some 20 ms of ours."""

_NUMBER = {name: str(i) for i, name in enumerate(TABLES, 1)}

Unavailable = (RedisError, OSError, TimeoutError)
"""Redis is away, starting, or full: the same call works later."""


class NeedRebuild(RuntimeError):
    """What stands in Redis is not the state before this batch (emptied, rolled back, of another ledger): write it anew."""


class Projection:
    """One pool's projection. Methods raise what `Unavailable` lists while Redis is away; they never retry by themselves.

    Args:
        timeout_s: how long one call may take, connecting included.
    """

    def __init__(self, redis_url: str, pool: str, *, timeout_s: float = 5.0) -> None:
        self.pool = pool
        self._redis: Any = _client(redis_url, timeout_s)
        self._live = [keys.meta(pool), *keys.tables(pool)]

    async def close(self) -> None:
        await self._redis.aclose()

    async def apply(self, entries: Sequence[tuple[int, str, list[Delta]]], before: str) -> int:
        """Applies consecutive records; returns the sequence that the projection now stands at.

        Args:
            entries: (sequence, hash of the last valid record up to it, deltas); a void record has none and keeps the hash.
            before: the hash of the last valid record before the first entry.

        Raises:
            NeedRebuild: Redis does not hold the state before the first entry.
        """
        if not entries:
            return await self.position()
        rows = {(d.table, d.key): d for _, _, deltas in entries for d in deltas}  # the last value of each row
        arguments = [str(entries[0][0]), str(entries[-1][0]), before, entries[-1][1], *_flat(rows.values())]
        status, seq = await self._call("baton_apply", self._live, arguments)
        if status < 0:
            what = "stands at" if status == -1 else "holds another ledger at"
            raise NeedRebuild(f"the projection {what} {seq}, the batch begins at {entries[0][0]}")
        return int(seq)

    async def rebuild(self, seq: int, hash_: str, rows: Iterable[Delta]) -> None:
        """Replaces everything by `rows`, the state at `seq`. Readers see the old view until the new one is complete.

        Raises NeedRebuild when Redis lost a part of it on the way.
        """
        staging = keys.staging(self.pool, secrets.token_hex(8))
        todo = iter(rows)
        count = 0
        while (part := list(islice(todo, _FILL))) or count == 0:
            await self._call("baton_fill", staging, ["0" if count else "1", *_flat(part)])
            count += len(part)
            if len(part) < _FILL:
                break
        if not await self._call("baton_flip", [*self._live, *staging], [str(seq), hash_, str(count)]):
            raise NeedRebuild("Redis lost a part of the new view before it was complete")

    async def position(self) -> int:
        """The ledger sequence that the projection stands at; 0 when there is none."""
        return (await self.head())[0]

    async def head(self) -> tuple[int, str]:
        """(sequence, hash of the last valid record up to it); (0, "") when there is none."""
        seq, hash_ = await self._redis.hmget(self._live[0], ["seq", "hash"])
        return int(seq or 0), str(hash_ or "")

    async def nodes(self) -> dict[str, Row]:
        """Rows of all nodes by name; columns in keys.py."""
        return await self._table("nodes")

    async def devices(self) -> dict[str, Row]:
        """Rows of all devices by id."""
        return await self._table("devices")

    async def teams(self) -> dict[str, Row]:
        return await self._table("teams")

    async def jobs(self) -> dict[str, Row]:
        """Rows of the jobs that have not ended, by id."""
        return await self._table("jobs")

    async def _table(self, name: str) -> dict[str, Row]:
        rows = await self._redis.hgetall(keys.table(self.pool, name))
        return {str(key): json.loads(row) for key, row in rows.items()}

    async def _call(self, function: str, names: Sequence[str], arguments: Sequence[str]) -> Any:
        """FCALL; the library is loaded when Redis does not know it (a fresh one, or one that was restored)."""
        try:
            return await self._redis.fcall(function, len(names), *names, *arguments)
        except ResponseError as e:
            if "function not found" not in str(e).lower():
                raise
        source = files("libs.adapters.redis").joinpath("functions.lua").read_text(encoding="utf-8")
        await self._redis.function_load(source, replace=True)
        return await self._redis.fcall(function, len(names), *names, *arguments)


def _client(url: str, timeout_s: float) -> Any:
    if (host := present_host()) is not None:
        return host.redis()
    return Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )


def _flat(deltas: Iterable[Delta]) -> Iterator[str]:
    for table, key, row in deltas:
        yield _NUMBER[table]
        yield key
        yield "" if row is None else encode(row)
