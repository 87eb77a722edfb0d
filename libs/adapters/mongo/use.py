"""Allocated against used, as documents: one a team and hour. Written by quota_billing."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from itertools import islice
from typing import Any

from pydantic_core import from_json
from pymongo import ReplaceOne

from libs.adapters.mongo.store import away, client_of, close_client, database_of
from libs.core.billing.use_hours import WHOLE, UseHour, by_user, dumped, loaded
from libs.core.billing.wall import HOUR_US

_AT_ONCE = 100


class UseStore:
    """Every method raises StoreAway when the server does not answer; all writes may be repeated."""

    def __init__(self, url: str, pool: str) -> None:
        self._client: Any = client_of(url)
        self._hours = database_of(self._client)["use"]
        self._told = database_of(self._client)["use_told"]
        self._pool = pool

    async def prepare(self) -> None:
        """Makes the indexes; those that exist stay."""
        with away():
            for field in ("by_hour", "by_team"):
                await self._hours.create_index([(field, 1)])

    def close(self) -> None:
        close_client(self._client)

    async def settled(self) -> int:
        """The first slot, since the epoch, that has not settled; 0: nothing was told yet."""
        with away():
            found = await self._told.find_one({"_id": self._pool})
        return 0 if found is None else int(found["slot"])

    async def save(self, hours: Iterable[UseHour], settled: int) -> None:
        """Replaces these hours; what is before slot `settled` will not be told again."""
        operations = [
            ReplaceOne({"_id": body["_id"]}, body, upsert=True)
            for body in (_stored(self._pool, hour) for hour in hours)
        ]
        with away():
            for start in range(0, len(operations), _AT_ONCE):
                await self._hours.bulk_write(operations[start : start + _AT_ONCE], ordered=False)
            await self._told.replace_one({"_id": self._pool}, {"_id": self._pool, "slot": settled}, upsert=True)

    async def hours(self, team: str | None, first: int, last: int, *, limit: int) -> list[UseHour]:
        """Of a team, or of all, the hours [first, last) since the epoch; at most `limit`, the earliest."""
        return [hour async for page in self.pages(team, first, last, limit=limit) for hour in page]

    async def pages(
        self, team: str | None, first: int, last: int, *, limit: int, jobs: bool = True
    ) -> AsyncGenerator[list[UseHour]]:
        """`hours`, some at a time: a hundred hours of a team may have 50,000 rows. Not `jobs`: as sums of each user, which are
        few and lie beside them."""
        field, of = ("by_hour", self._pool) if team is None else ("by_team", f"{self._pool}|{team}")
        query = {field: {"$gte": f"{of}|{first:08d}", "$lt": f"{of}|{last:08d}"}}
        cursor = (
            self._hours.find(query, None if jobs else {"slots": 0}).sort([(field, 1)]).limit(limit).batch_size(_AT_ONCE)
        )
        try:
            while True:
                with away():
                    found = await cursor.to_list(_AT_ONCE)
                if not found:
                    return
                if not jobs:
                    found = await self._with_users(found)
                yield await asyncio.to_thread(lambda some: [_read(body, jobs) for body in some], found)
        finally:
            await cursor.close()

    async def _with_users(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that were written before sums of users were are read whole."""
        if not (lacking := [body["_id"] for body in found if "users" not in body]):
            return found
        with away():
            whole = {body["_id"]: body for body in await self._hours.find({"_id": {"$in": lacking}}).to_list(None)}
        return [whole.get(body["_id"], body) for body in found if "users" in body or body["_id"] in whole]

    async def first_hour(self) -> int:
        """The first hour that is kept, since the epoch; 0: none."""
        with away():
            found = await self._hours.find(self._all()).sort([("by_hour", 1)]).limit(1).to_list(None)
        return int(found[0]["hour_us"]) // HOUR_US if found else 0

    async def bodies(self, first: int, last: int) -> list[dict[str, Any]]:
        """The documents of the hours [first, last) since the epoch, as they are kept, in order."""
        with away():
            found: list[dict[str, Any]] = await (
                self._hours.find(self._all(first, last)).sort([("by_hour", 1)]).to_list(None)
            )
        return found

    async def put(self, bodies: Iterable[dict[str, Any]]) -> int:
        """Puts documents back, each in place of what is there of its hour; how many. Raises KeyError for what is none."""
        count, rest = 0, iter(bodies)
        while some := [ReplaceOne({"_id": body["_id"]}, body, upsert=True) for body in islice(rest, _AT_ONCE)]:
            with away():
                await self._hours.bulk_write(some, ordered=False)
            count += len(some)
        return count

    def _all(self, first: int = 0, last: int = 10**8 - 1) -> dict[str, Any]:
        return {"by_hour": {"$gte": f"{self._pool}|{first:08d}", "$lt": f"{self._pool}|{last:08d}"}}

    async def forget(self, before: int) -> None:
        """Removes the hours before one, since the epoch."""
        with away():
            await self._hours.delete_many(
                {"by_hour": {"$gte": f"{self._pool}|", "$lt": f"{self._pool}|{max(0, before):08d}"}}
            )


def _read(body: Mapping[str, Any], jobs: bool) -> UseHour:
    slots = body["slots"] if jobs or "users" not in body else body["users"]
    return UseHour(body["team"], int(body["hour_us"]) // HOUR_US, loaded(from_json(slots)))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _stored(pool: str, hour: UseHour) -> dict[str, Any]:
    return {
        "_id": f"{pool}|{hour.team}|{hour.hour:08d}",
        "team": hour.team,
        "hour_us": hour.hour * HOUR_US,
        "by_hour": f"{pool}|{hour.hour:08d}|{hour.team}",
        "by_team": f"{pool}|{hour.team}|{hour.hour:08d}",
        "slots": _compact(dumped(hour.slots)),
        "users": _compact(dumped({WHOLE: by_user(hour.rows)})),
    }
