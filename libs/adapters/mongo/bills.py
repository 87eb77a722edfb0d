"""Teams' bills by month, as documents: one a team and month, replaced as it grows. Written by quota_billing."""

from collections.abc import Iterable
from typing import Any

from pymongo import ReplaceOne

from libs.adapters.mongo.store import away, client_of, close_client, database_of, replace_older
from libs.core.billing.kept_bills import DayOfBill, KeptBill

_AT_ONCE = 100


class BillStore:
    """Every method raises StoreAway when the server does not answer; all writes may be repeated."""

    def __init__(self, url: str) -> None:
        self._client: Any = client_of(url)
        self._bills = database_of(self._client)["bills"]

    def close(self) -> None:
        close_client(self._client)

    async def save(self, bills: Iterable[KeptBill]) -> None:
        """Replaces these, but for those that are of a later record: another process has written them. Some may be written when
        StoreAway is raised."""
        operations = [
            ReplaceOne({"_id": body["_id"], "upto_seq": {"$lte": body["upto_seq"]}}, body, upsert=True)
            for body in map(_stored, bills)
        ]
        with away():
            for start in range(0, len(operations), _AT_ONCE):
                await replace_older(self._bills, operations[start : start + _AT_ONCE])

    async def bill(self, pool: str, team: str, month: str) -> KeptBill | None:
        """The team's bill of that month ("2026-11"), or None."""
        with away():
            found = await self._bills.find_one({"_id": f"{pool}|{team}|{month}"})
        if found is None:
            return None
        rows = tuple(DayOfBill(**row) for row in found["rows"])
        return KeptBill(**{name: found[name] for name in KeptBill._fields if name != "rows"}, rows=rows)


def _stored(bill: KeptBill) -> dict[str, Any]:
    body = bill._asdict() | {"rows": [row._asdict() for row in bill.rows]}
    return {"_id": f"{bill.pool}|{bill.team}|{bill.month}", "from_seq": 1, "cost_micros": bill.cost_micros, **body}
