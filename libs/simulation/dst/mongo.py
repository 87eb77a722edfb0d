"""The simulated MongoDB: what `libs.adapters.mongo.store` asks of collections."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pymongo.errors import AutoReconnect, BulkWriteError

if TYPE_CHECKING:
    from libs.simulation.dst.process import Process
    from libs.simulation.dst.world import World

MongoDocument = dict[str, Any]


class SimMongoServer:
    """`down` refuses; `slow_s` is waited before each answer."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.collections: dict[str, dict[str, MongoDocument]] = {}
        self.down = False
        self.slow_s = 0.0

    def client(self, process: "Process") -> "SimMongo":
        return SimMongo(self, process)

    def empty(self) -> None:
        for documents in self.collections.values():
            documents.clear()
        self.world.note("MongoDB is emptied")


class SimMongo:
    """A client; also its one database."""

    def __init__(self, server: SimMongoServer, process: "Process") -> None:
        self.server, self.process = server, process

    def get_default_database(self, default: str) -> "SimMongo":
        return self

    def __getitem__(self, name: str) -> "SimCollection":
        return SimCollection(self, name)

    def close(self) -> None:
        """Nothing is open."""

    async def trip(self) -> None:
        world = self.process.world
        await asyncio.sleep(world.net.latency() + self.server.slow_s)
        if self.server.down or world.net.cut_machines.get(self.process.machine):
            raise AutoReconnect("connection closed")


class SimCollection:
    """Documents by `_id`; each is replaced as a whole."""

    def __init__(self, client: SimMongo, name: str) -> None:
        self._client = client
        self.documents = client.server.collections.setdefault(name, {})

    async def create_index(self, keys: Any, **_: Any) -> None:
        await self._client.trip()

    async def bulk_write(self, operations: Sequence[Any], ordered: bool = True) -> None:
        """Some may be written when it fails, as with the real one."""
        await self._client.trip()
        world = self._client.process.world
        torn = world.faults_on and world.random.random() < 0.02
        refused = []
        for operation in operations[: len(operations) // 2 if torn else None]:
            known = self.documents.get(operation._filter["_id"])
            if known is None or _fits(known, operation._filter):
                self.documents[operation._filter["_id"]] = dict(operation._doc)
            else:  # it would make a second document of the same id
                refused.append({"code": 11000})
        if torn:
            raise AutoReconnect("connection closed in the midst")
        if refused:
            raise BulkWriteError({"writeErrors": refused})

    async def find_one(self, query: MongoDocument) -> MongoDocument | None:
        await self._client.trip()
        return next((dict(found) for found in self._matching(query)), None)

    async def replace_one(self, query: MongoDocument, body: MongoDocument, upsert: bool = False) -> Any:
        await self._client.trip()
        found = self._matching(query)
        if found or upsert:
            self.documents[body["_id"]] = dict(body)
        return _Result(len(found))

    async def delete_one(self, query: MongoDocument) -> None:
        await self._client.trip()
        for found in self._matching(query)[:1]:
            del self.documents[found["_id"]]

    async def delete_many(self, query: MongoDocument) -> None:
        await self._client.trip()
        for found in self._matching(query):
            del self.documents[found["_id"]]

    def find(self, query: MongoDocument, fields: Any = None) -> "SimCursor":
        return SimCursor(self, query)

    def _matching(self, query: MongoDocument) -> list[MongoDocument]:
        if isinstance(query.get("_id"), str):
            found = self.documents.get(query["_id"])
            return [found] if found is not None and _fits(found, query) else []
        return [document for document in self.documents.values() if _fits(document, query)]


class SimCursor:
    """A query that is not asked yet."""

    def __init__(self, collection: SimCollection, query: MongoDocument) -> None:
        self._collection, self._query = collection, query
        self._order: list[tuple[str, int]] = []
        self._limit: int | None = None

    def sort(self, order: list[tuple[str, int]]) -> "SimCursor":
        self._order = order
        return self

    def limit(self, count: int) -> "SimCursor":
        self._limit = count
        return self

    async def to_list(self, length: int | None) -> list[MongoDocument]:
        await self._collection._client.trip()
        found = [dict(document) for document in self._collection._matching(self._query)]
        for name, way in reversed(self._order):
            found.sort(key=lambda document: document[name], reverse=way < 0)
        return found[: self._limit]


class _Result:
    def __init__(self, matched: int) -> None:
        self.matched_count = matched


def _fits(document: MongoDocument, query: MongoDocument) -> bool:
    return all(_one(document.get(name), wanted) for name, wanted in query.items())


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$in": lambda value, bound: value in bound,
    "$gt": lambda value, bound: value is not None and value > bound,
    "$gte": lambda value, bound: value is not None and value >= bound,
    "$lt": lambda value, bound: value is not None and value < bound,
    "$lte": lambda value, bound: value is not None and value <= bound,
}


def _one(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict):
        return bool(value == wanted)
    return all(_OPERATORS[operator](value, bound) for operator, bound in wanted.items())
