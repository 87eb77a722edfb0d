"""Teams' lines and the sums over them, as documents: what a team's proofs are made of. Written by one history, read by all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo import ReplaceOne

from libs.adapters.mongo.store import JobStore, away, database_of, replace_older
from libs.core.proofs.chains import JudgedSum
from libs.core.proofs.lines import TeamLine
from schemas.proofs import Sum

_AT_ONCE = 500
_FIRST = 8
"""Lines that are read before it is known how long a team's are."""
_UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class KeptSum:
    """A sum with what its proofs are made of: `leaves` are the teams', sorted."""

    sum: Sum
    nonce: bytes
    leaves: tuple[bytes, ...]


class ProofStore:
    """Every method raises StoreAway when the server does not answer; all writes may be repeated."""

    def __init__(self, beside: JobStore) -> None:
        """By the client of another store, whose end is its end: a client has threads of its own."""
        database = database_of(beside.client)
        self._lines, self._sums, self._places = database["lines"], database["sums"], database["checkpoints"]

    async def prepare(self) -> None:
        """Makes the indexes; those that exist stay."""
        with away():
            for collection in (self._lines, self._sums):
                for field in ("key", "age"):
                    await collection.create_index([(field, 1)])

    # -------------------------------------------------------------------------------------------------------- writing

    async def save(self, pool: str, lines: Iterable[TeamLine], sums: Iterable[JudgedSum]) -> None:
        """Writes them, also over themselves. Some may be written when StoreAway is raised."""
        with away():
            for collection, made in (
                (self._lines, [_line(pool, line) for line in lines]),
                (self._sums, [_sum(pool, one) for one in sums]),
            ):
                for start in range(0, len(made), _AT_ONCE):
                    operations = [
                        ReplaceOne({"_id": body["_id"]}, body, upsert=True) for body in made[start : start + _AT_ONCE]
                    ]
                    await collection.bulk_write(operations, ordered=False)

    async def begin(self, pool: str) -> int:
        """The record up to which all lines are written. It stands there from now on, so that it is missed when the store is
        emptied."""
        name = _place(pool)
        with away():
            first = ReplaceOne({"_id": name, "seq": {"$lte": 0}}, {"_id": name, "seq": 0}, upsert=True)
            await replace_older(self._places, [first])
        return await self.written_to(pool)

    async def place(self, pool: str) -> int | None:
        """That record; None: none stands there."""
        with away():
            found = await self._places.find_one({"_id": _place(pool)})
        return int(found["seq"]) if found is not None else None

    async def written_to(self, pool: str) -> int:
        """That record; 0: none is."""
        return await self.place(pool) or 0

    async def note(self, pool: str, before: int, seq: int) -> bool:
        """Lines are written up to this record. False, and nothing is changed, when another one than `before` stands there: the
        store was emptied, or somebody else writes too. So what was sent long ago, and arrives now over a connection that
        nobody waits on, changes nothing: a place that goes back looks like lines that were lost."""
        name = _place(pool)
        with away():
            result = await self._places.replace_one({"_id": name, "seq": before}, {"_id": name, "seq": seq})
        return bool(result.matched_count)

    async def forget(self, pool: str, before_us: int, needed: Mapping[str, int]) -> None:
        """Deletes what is older, in ledger time; of lines only those of records before what is `needed` of their team. Some at
        a time: a command that deletes a year takes longer than an answer of MongoDB is waited for."""
        first, end = f"{pool}|", f"{pool}|{before_us:020d}"
        ties = 0  # lines that stay, and have the age of the last one that was read
        with away():
            while True:
                some = _AT_ONCE + ties
                old = self._lines.find({"age": {"$gte": first, "$lt": end}}, {"team": 1, "seq": 1, "age": 1})
                found = await old.sort([("age", 1)]).limit(some).to_list(None)
                stays = [body for body in found if body["seq"] >= needed.get(body["team"], 0)]
                kept = {body["_id"] for body in stays}
                if gone := [body["_id"] for body in found if body["_id"] not in kept]:
                    await self._lines.delete_many({"_id": {"$in": gone}})
                if len(found) < some:
                    break
                first = found[-1]["age"]
                ties = sum(body["age"] == first for body in stays)
            await self._sums.delete_many({"age": {"$gte": f"{pool}|", "$lt": end}})

    # -------------------------------------------------------------------------------------------------------- reading

    async def lines(self, pool: str, team: str, after: int, limit: int, size: int = _UNBOUNDED) -> list[TeamLine]:
        """The team's lines of records after `after`, oldest first, until they have `size` characters. Most have some hundred;
        one that says that thousands of devices were granted has a million, and a thousand of those are not read."""
        found: list[TeamLine] = []
        some, taken = _FIRST, 0
        while len(found) < limit and taken < size:
            some = min(some, limit - len(found))
            page = await self._found(pool, team, f"{after + 1:020d}", "~", 1, some)
            found += page
            if len(page) < some:
                break
            after, taken = page[-1].seq, taken + sum(len(line.text) for line in page)
            some = min(_AT_ONCE, max(1, (size - taken) * len(found) // max(1, taken)))
        return found

    async def line_before(self, pool: str, team: str, seq: int) -> TeamLine | None:
        """The team's last line of records before `seq`."""
        found = await self._found(pool, team, "", f"{seq:020d}", -1, 1)
        return found[0] if found else None

    async def _found(self, pool: str, team: str, first: str, end: str, way: int, limit: int) -> list[TeamLine]:
        if limit < 1:
            return []
        key = {"$gte": f"{pool}|{team}|{first}", "$lt": f"{pool}|{team}|{end}"}
        with away():
            found = await self._lines.find({"key": key}).sort([("key", way)]).limit(limit).to_list(None)
        return [TeamLine(b["team"], b["seq"], b["t_us"], b["count"], b["text"], b["head"], b["before"]) for b in found]

    async def sum_of(self, pool: str, number: int | None) -> KeptSum | None:
        """That sum, or the newest; None when there is none."""
        if number is None:
            return await self._last_sum(pool, -1)
        with away():
            found = await self._sums.find_one({"_id": _sum_key(pool, number)})
        return _kept(found) if found is not None else None

    async def oldest_sum(self, pool: str) -> KeptSum | None:
        return await self._last_sum(pool, 1)

    async def _last_sum(self, pool: str, way: int) -> KeptSum | None:
        key = {"$gte": f"{pool}|", "$lt": f"{pool}|~"}
        with away():
            found = await self._sums.find({"key": key}).sort([("key", way)]).limit(1).to_list(None)
        return _kept(found[0]) if found else None

    async def sums(self, pool: str, numbers: Sequence[int]) -> list[Sum]:
        """Those of the sums that are kept, in this order."""
        keys = [_sum_key(pool, number) for number in numbers]
        with away():
            found = await self._sums.find({"_id": {"$in": keys}}).to_list(None)
        by_key = {body["_id"]: Sum.model_validate_json(body["sum"]) for body in found}
        return [by_key[key] for key in keys if key in by_key]


def _place(pool: str) -> str:
    return f"proofs-{pool}"


def _sum_key(pool: str, number: int) -> str:
    return f"{pool}|{number:012d}"


def _line(pool: str, line: TeamLine) -> dict[str, Any]:
    key = f"{pool}|{line.team}|{line.seq:020d}"
    return {
        "_id": key, "key": key, "age": f"{pool}|{line.t_us:020d}", "team": line.team, "seq": line.seq, "t_us": line.t_us,
        "count": line.count, "text": line.text, "head": line.head, "before": line.before,
    }  # fmt: skip


def _sum(pool: str, one: JudgedSum) -> dict[str, Any]:
    key = _sum_key(pool, one.sum.number)
    return {
        "_id": key, "key": key, "age": f"{pool}|{one.sum.t_us:020d}", "sum": one.sum.model_dump_json(),
        "nonce": one.nonce.hex(), "leaves": b"".join(one.leaves).hex(),
    }  # fmt: skip


def _kept(body: dict[str, Any]) -> KeptSum:
    leaves = bytes.fromhex(body["leaves"])
    each = tuple(leaves[at : at + 32] for at in range(0, len(leaves), 32))
    return KeptSum(Sum.model_validate_json(body["sum"]), bytes.fromhex(body["nonce"]), each)
