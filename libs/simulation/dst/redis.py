"""The simulated Redis: the hashes of the projection, and `functions.lua` in Python. tests/simulation compares the two."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import TimeoutError as RedisSlow

if TYPE_CHECKING:
    from libs.simulation.dst.process import Process
    from libs.simulation.dst.world import World


class SimRedisServer:
    """`down` refuses, `frozen` answers nobody, `flush` empties; `keep` and `restore` are an old copy that comes back."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.hashes: dict[str, dict[str, str]] = {}
        self.down = False
        self.frozen = False

    def client(self, process: "Process") -> "SimRedis":
        return SimRedis(self, process)

    def flush(self) -> None:
        self.hashes.clear()
        self.world.note("Redis is emptied")

    def keep(self) -> dict[str, dict[str, str]]:
        return {name: dict(rows) for name, rows in self.hashes.items()}

    def restore(self, kept: dict[str, dict[str, str]]) -> None:
        self.hashes = {name: dict(rows) for name, rows in kept.items()}
        self.world.note("Redis has an old state again")

    # ------------------------------------------------------------------------------------------------- functions.lua

    def call(self, function: str, keys: Sequence[str], args: Sequence[str]) -> Any:
        return {"baton_apply": self._apply, "baton_fill": self._fill, "baton_flip": self._flip}[function](keys, args)

    def _write(self, tables: Sequence[str], args: Sequence[str]) -> None:
        for at in range(0, len(args), 3):
            name = tables[int(args[at]) - 1]
            if args[at + 2] == "":
                rows = self.hashes.get(name, {})
                rows.pop(args[at + 1], None)
                if not rows:
                    self.hashes.pop(name, None)
            else:
                self.hashes.setdefault(name, {})[args[at + 1]] = args[at + 2]

    def _apply(self, keys: Sequence[str], args: Sequence[str]) -> list[int]:
        meta = self.hashes.get(keys[0], {})
        seq, hash_ = int(meta.get("seq", 0)), meta.get("hash", "")
        first, last = int(args[0]), int(args[1])
        if last <= seq:
            return [0, seq]
        if first > seq + 1:
            return [-1, seq]
        if first == seq + 1 and hash_ != args[2]:
            return [-2, seq]
        self._write(keys[1:5], args[4:])
        self.hashes.setdefault(keys[0], {}).update(seq=str(last), hash=args[3])
        return [1, last]

    def _fill(self, keys: Sequence[str], args: Sequence[str]) -> int:
        if args[0] == "1":
            for key in keys:
                self.hashes.pop(key, None)
        self._write(keys[1:5], args[1:])
        meta = self.hashes.setdefault(keys[0], {})
        meta["rows"] = str(int(meta.get("rows", 0)) + (len(args) - 1) // 3)
        return 1

    def _flip(self, keys: Sequence[str], args: Sequence[str]) -> int:
        if self.hashes.get(keys[5], {}).get("rows") != args[2]:
            return 0
        for at in range(1, 5):
            self.hashes.pop(keys[at], None)
            if keys[at + 5] in self.hashes:
                self.hashes[keys[at]] = self.hashes.pop(keys[at + 5])
        self.hashes.pop(keys[5], None)
        self.hashes.setdefault(keys[0], {}).update(seq=args[0], hash=args[1])
        return 1


class SimRedis:
    """A client: what `libs.adapters.redis` calls."""

    def __init__(self, server: SimRedisServer, process: "Process") -> None:
        self._server, self._process = server, process

    async def _trip(self) -> SimRedisServer:
        world = self._process.world
        await asyncio.sleep(world.net.latency() / 2)
        if self._server.frozen or world.net.cut_machines.get(self._process.machine):
            await asyncio.sleep(1.0)
            raise RedisSlow("Timeout reading from socket")
        if self._server.down:
            raise RedisAway("Connection refused")
        return self._server

    async def fcall(self, function: str, numkeys: int, *keys_and_args: str) -> Any:
        server = await self._trip()
        return server.call(function, keys_and_args[:numkeys], keys_and_args[numkeys:])

    async def function_load(self, code: str, replace: bool = False) -> Any:
        await self._trip()

    async def hmget(self, name: str, keys: Sequence[str]) -> list[Any]:
        rows = (await self._trip()).hashes.get(name, {})
        return [rows.get(key) for key in keys]

    async def hgetall(self, name: str) -> dict[str, str]:
        return dict((await self._trip()).hashes.get(name, {}))

    async def aclose(self) -> None:
        """Nothing is open."""
