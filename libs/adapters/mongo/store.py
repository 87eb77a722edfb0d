"""Job documents and the checkpoint of whoever writes them. See the package for what may be used of MongoDB."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Thread
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient
from pydantic import TypeAdapter
from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError, PyMongoError

from libs.core.projections.history import JobStory
from libs.ports.host import present_host
from schemas.jobs import JobEvent, JobState
from schemas.queries import JobDocument

_DATABASE = "baton"  # when the URL names none
_WAIT_MS = 2_000
_CONNECT_MS = 5_000
"""With `_WAIT_MS` a MongoDB that takes longer than that for an answer was taken for one that is away, for as long as it did."""
_SLOW_MS = 20_000
_DUPLICATE = 11000
_KEYS = 3
"""Of the keys that documents bear: 1 had none of names, 2 none of a state in all teams. Whoever moves a checkpoint says which
it writes."""
_PAGE = 500
MAX_REPLY_BYTES = 256 * 1024
"""The broker's limit is 1 MiB: an answer that would be longer is cut, and the rest asked for with the next question."""
_READ_AT_ONCE = 50

_events = TypeAdapter(tuple[JobEvent, ...])


class StoreAway(ConnectionError):
    """MongoDB did not do what it was asked: it is away, restarting or refuses. Nothing is known of the outcome."""


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """How far of the ledger is in the documents: the last valid record (`seq`, `hash`), the last sequence read, and the
    last one that changed a document: if no document is as new as that, documents were lost."""

    seq: int
    hash: str
    position: int
    changed: int = 0


class JobStore:
    """Every method raises StoreAway when the server does not answer; all writes may be repeated."""

    def __init__(self, url: str) -> None:
        self.client: Any = client_of(url)
        database = database_of(self.client)
        self._jobs = database["jobs"]
        self._checkpoints = database["checkpoints"]

    async def prepare(self, name: str) -> None:
        """Makes the indexes; those that exist stay. Where a release before has moved the checkpoint of that name last, all
        documents get the keys that it has not written."""
        with away():
            for field in ("by_team", "by_state", "by_stated", "by_name", "by_named", "submitted_us", "by_seq"):
                await self._jobs.create_index([(field, 1)])
            found = await self._checkpoints.find_one({"_id": name})
            if found is not None and found.get("keys", 1) < _KEYS:
                await self._add_keys()

    def close(self) -> None:
        close_client(self.client)

    # -------------------------------------------------------------------------------------------------------- writing

    async def save(self, stories: Iterable[JobStory]) -> dict[str, int]:
        """Replaces these jobs' documents, in no particular order, but for those that are of a later record: another process
        has written them. Some may be written when StoreAway is raised. How long each is, in characters."""
        bodies = [_stored(story) for story in stories]
        operations = [
            ReplaceOne({"_id": body["_id"], "seq": {"$lte": body["seq"]}}, body, upsert=True) for body in bodies
        ]
        if operations:
            with away():
                await replace_older(self._jobs, operations)
        return {body["_id"]: len(body["document"]) + len(body["events"]) for body in bodies}

    async def checkpoint(self, name: str) -> ReaderPosition | None:
        """The checkpoint of that name, or None."""
        with away():
            found = await self._checkpoints.find_one({"_id": name})
        if found is None:
            return None
        return ReaderPosition(int(found["seq"]), found["hash"], int(found["position"]), int(found["changed"]))

    async def move_checkpoint(self, name: str, before: ReaderPosition | None, after: ReaderPosition) -> bool:
        """Replaces `before` by `after`. False, and nothing is changed, when the store has another one than `before`:
        it was emptied or restored, or somebody else writes too."""
        body = {"_id": name, **asdict(after), "keys": _KEYS}
        with away():
            if before is None:
                if await self._checkpoints.find_one({"_id": name}) is not None:
                    return False
                await self._checkpoints.replace_one({"_id": name}, body, upsert=True)
                return True
            result = await self._checkpoints.replace_one({"_id": name, "position": before.position}, body)
            return bool(result.matched_count)

    async def forget_checkpoint(self, name: str) -> None:
        """The documents will be written again from the ledger's beginning."""
        with away():
            await self._checkpoints.delete_one({"_id": name})

    # -------------------------------------------------------------------------------------------------------- reading

    async def load(self, job_ids: Sequence[str]) -> dict[str, JobStory]:
        """Those of the jobs that are stored."""
        if not job_ids:
            return {}
        with away():
            found = await self._jobs.find({"_id": {"$in": list(job_ids)}}).to_list(None)
        return {body["_id"]: _story(body) for body in found}

    async def story(self, job_id: str, team: str | None = None) -> JobStory | None:
        """One job, of `team` where one is named, or None. Of another team's no more is read than of none."""
        key = {"_id": job_id}
        with away():
            found = await self._jobs.find_one(key if team is None else key | _range(f"{team}|", "~", "by_team"))
        return _story(found) if found else None

    async def last_seq(self, pool: str) -> int:
        """The highest sequence of the pool's ledger in any document; 0 when there is none."""
        of_pool = {"by_seq": {"$gte": f"{pool}|", "$lt": f"{pool}|~"}}
        with away():
            found = await self._jobs.find(of_pool, {"seq": 1}).sort([("by_seq", -1)]).limit(1).to_list(None)
        return int(found[0]["seq"]) if found else 0

    async def jobs(
        self,
        team: str | None,
        *,
        states: Sequence[JobState] = (),
        name: str = "",
        before_us: int | None = None,
        limit: int = 100,
    ) -> list[JobDocument]:
        """Jobs of `team` (None: of every team), newest submit first, at most `limit`."""
        # NX-27017 sorts by an index where the range is of the same field: so keys are text that holds all that is filtered
        # and sorted by, and each state is a range of its own.
        before = "~" if before_us is None else f"{before_us:020d}"
        if team is None and name:
            query: dict[str, Any] = {"state": {"$in": [state.value for state in states]}} if states else {}
            return (await self._newest(query | _range(f"{name}|", before, "by_named"), "by_named", limit))[0]
        if team is None and not states:
            query = {"submitted_us": {"$lt": before_us}} if before_us is not None else {}
            return (await self._newest(query, "submitted_us", limit))[0]
        keys = [(f"{team}|", "by_team")]
        if team is None:  # of millions that have ended few run: a walk from the newest on would read them all
            keys = [(f"{state.value}|", "by_stated") for state in states]
        elif name:
            keys = [(f"{team}|{name}|{state.value}|", "by_name") for state in states or JobState]
        elif states:
            keys = [(f"{team}|{state.value}|", "by_state") for state in states]
        found, since_us = list[JobDocument](), 0
        for prefix, field in keys:
            some, cut = await self._newest(_range(prefix, before, field), field, limit)
            if cut:  # of that state none is here from before its last one, so none of another is told either
                since_us = max(since_us, some[-1].submitted_us)
            found = sorted(found + some, key=lambda document: document.submitted_us, reverse=True)[:limit]
        return [document for document in found if document.submitted_us >= since_us]

    async def _add_keys(self) -> None:
        """To all documents that lack some, page by page, by the key of an index: by `_id` NX-27017 walks all for each page."""
        first, ties = "", 0  # ties: documents that were read and have the key of the last one
        while True:
            some = _PAGE + ties
            found = self._jobs.find({"by_seq": {"$gte": first}}).sort([("by_seq", 1)]).limit(some)
            page = await found.to_list(None)
            lacking = [
                ReplaceOne({"_id": body["_id"], "seq": {"$lte": body["seq"]}}, body | _later_keys(body))
                for body in page
                if not _later_keys(body).items() <= body.items()
            ]
            if lacking:
                await replace_older(self._jobs, lacking)
            if len(page) < some:
                return
            first = page[-1]["by_seq"]
            ties = sum(body["by_seq"] == first for body in page)

    async def _newest(self, query: dict[str, Any], order: str, limit: int) -> tuple[list[JobDocument], bool]:
        """No more than an answer takes, `MAX_REPLY_BYTES`, and whether there are more of them for that reason; at least one.
        Page by page, each from where the last one ended: jobs come and change meanwhile."""
        found: dict[str, JobDocument] = {}
        size = ties = 0  # ties: documents that were read and have the key of the last one
        while len(found) < limit and size <= MAX_REPLY_BYTES:
            some = min(_READ_AT_ONCE, limit - len(found)) + ties
            with away():
                page = self._jobs.find(query, {"document": 1, order: 1}).sort([(order, -1)]).limit(some)
                bodies = await page.to_list(None)
            for body in bodies:
                if body["_id"] in found:
                    continue
                size += len(body["document"])
                if size > MAX_REPLY_BYTES and found:
                    return list(found.values()), True
                found[body["_id"]] = JobDocument.model_validate_json(body["document"])
            if len(bodies) < some:
                break
            last = bodies[-1][order]
            ties = sum(body[order] == last for body in bodies)
            query = query | {
                order: {key: value for key, value in query.get(order, {}).items() if key != "$lt"} | {"$lte": last}
            }
        return list(found.values()), size > MAX_REPLY_BYTES


def database_of(client: Any) -> Any:
    """The database that the client's URL names, or ours."""
    return client.get_default_database(default=_DATABASE)


def client_of(url: str) -> Any:
    """A client of MongoDB; in a simulation, of that world's."""
    if (host := present_host()) is not None:
        return host.mongo()
    return AsyncIOMotorClient(
        url,
        appname="baton-history",
        maxPoolSize=8,
        serverSelectionTimeoutMS=_WAIT_MS,
        connectTimeoutMS=_CONNECT_MS,
        socketTimeoutMS=_SLOW_MS,
        retryWrites=False,
        retryReads=False,
    )


def close_client(client: Any) -> None:
    """Gives the client's sessions back to the server, in a thread: a server that does not answer holds nobody up, and forgets
    them by itself."""
    if present_host() is not None:
        client.close()
    else:
        Thread(target=client.close, name="end of a client of MongoDB", daemon=True).start()


def _range(prefix: str, before: str, field: str) -> dict[str, Any]:
    return {field: {"$gte": prefix, "$lt": prefix + before}}


def _later_keys(body: dict[str, Any]) -> dict[str, str]:
    """Those that earlier releases did not write. No name has a `|`, nor anything behind it in the order of characters."""
    team, name, state, submitted_us = (body[field] for field in ("team", "name", "state", "submitted_us"))
    return {
        "by_name": f"{team}|{name}|{state}|{submitted_us:020d}",
        "by_named": f"{name}|{submitted_us:020d}",
        "by_stated": f"{state}|{submitted_us:020d}",
    }


def _stored(story: JobStory) -> dict[str, Any]:
    document = story.document
    body = {
        "_id": document.job_id,
        "team": document.team,
        "name": document.name,
        "state": document.state.value,
        "priority_class": document.priority_class,
        "by_team": f"{document.team}|{document.submitted_us:020d}",
        "by_state": f"{document.team}|{document.state.value}|{document.submitted_us:020d}",
        "submitted_us": document.submitted_us,
        "finished_us": document.finished_us,
        "seq": document.seq,
        "by_seq": f"{document.pool}|{document.seq:020d}",
        "document": document.model_dump_json(),
        "events": _events.dump_json(story.events).decode(),
    }
    return body | _later_keys(body)


def _story(body: dict[str, Any]) -> JobStory:
    return JobStory(JobDocument.model_validate_json(body["document"]), _events.validate_json(body["events"]))


async def replace_older(collection: Any, operations: Sequence[ReplaceOne]) -> None:
    """Each replaces, or makes, the document of an id where it is of no later record. Raises what the client raises."""
    try:
        await collection.bulk_write(operations, ordered=False)
    except BulkWriteError as error:
        # No document with this id and an earlier record, and one with this id: it is of a later one.
        if any(problem.get("code") != _DUPLICATE for problem in error.details.get("writeErrors", ())):
            raise


@contextmanager
def away() -> Iterator[None]:
    """What the driver raises becomes StoreAway."""
    try:
        yield
    except PyMongoError as error:
        raise StoreAway(f"MongoDB: {type(error).__name__}: {str(error)[:200]}") from error
