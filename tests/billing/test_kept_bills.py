"""Bills that are kept in MongoDB are those that were posted, up to the record that they name, and can be made again."""

import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from pymongo import MongoClient

from libs.core.billing.kept_bills import DayOfBill, kept_bills, months_of
from libs.core.billing.metering import Meter
from libs.embedded.servers import MONGO
from schemas.ledger import PricesApplied
from services.quota_billing.app import make_app as make_billing
from services.quota_billing.settings import QuotaBillingSettings
from tests.admission.running import running
from tests.billing.ledgers import priced_world
from tests.billing.test_service import billed, environment
from tests.core.builders import World
from tests.history.written import Service, Written, until
from tests.kit.background import ServerInBackground


def folded(world: World, upto: int | None = None) -> Meter:
    meter = Meter()
    for seq, record in enumerate(world.records[:upto], start=1):
        meter.apply(record, seq)
    return meter


def bills(meter: Meter) -> dict[tuple[str, str], dict[DayOfBill, int]]:
    money = meter.money
    found = kept_bills(money, months_of(money.touched), pool="p", upto_seq=meter.seq, head="ab")
    return {(bill.team, bill.month): dict.fromkeys(bill.rows, bill.upto_seq) for bill in found}


def test_a_month_is_the_sum_of_its_rows_and_a_later_price_is_a_correction_where_it_is_posted() -> None:
    world = priced_world()
    second = [n for n, r in enumerate(world.records) for e in r.events if isinstance(e, PricesApplied)][1]
    before, after = folded(world, second), folded(world, second + 1)
    assert {month for _, month in bills(after)} == {"2026-10", "2026-11"}
    assert bills(before)["research", "2026-10"].keys() == bills(after)["research", "2026-10"].keys()
    for meter in (before, after, folded(world)):
        for team, rows in meter.money.rows.items():
            cost = sum(row.cost_micros for (who, _), some in bills(meter).items() if who == team for row in some)
            assert cost == sum(row[0] for days in rows.values() for row in days.values()) == meter.money.totals[team]
    again = Meter.load(iter(list(after.dump())))
    assert again.money.sums == after.money.sums
    assert bills(again) == bills(after), "all of them are unwritten after a start"


@asynccontextmanager
async def billing(nats_url: str, pool: str, mongo: str) -> AsyncIterator[None]:
    settings = QuotaBillingSettings(nats_url=nats_url, pool=pool, mongo_url=mongo, keep_bills_s=0.05)
    async with running(make_billing(settings)):
        yield


async def test_what_is_kept_names_its_record_and_is_made_again_from_the_ledger(
    nats: Client, nats_url: str, mongo_url: str, pool: str
) -> None:
    world, written, mongo = priced_world(), Written(nats.jetstream(), pool), f"{mongo_url}/{pool}"
    half = len(world.records) - 3
    await written.write(world.records[:half])
    with MongoClient(mongo) as client:
        kept = client.get_default_database()["bills"]

        async def upto(seq: int) -> dict[str, Any]:
            async def there() -> dict[str, Any]:
                found = {body["_id"]: body for body in kept.find({})}
                newest = max((body["upto_seq"] for body in found.values()), default=0)
                return found if newest >= seq else {}

            return await until(there, f"bills up to {seq}")  # type: ignore[no-any-return]

        async with billing(nats_url, pool, mongo):
            first = await upto(half)
            await written.write(world.records[half:])
            changed = await upto(len(world.records))
        assert any(changed[key] != first.get(key) for key in changed)
        hashes = [record.prev_hash for _, record in written.records[1:]] + [written._head.hash]
        meter = folded(world)
        for body in changed.values():
            assert (body["from_seq"], body["head"]) == (1, hashes[body["upto_seq"] - 1])
            assert body["cost_micros"] == sum(row["cost_micros"] for row in body["rows"])
            assert (body["currency"], body["pool"]) == ("USD", pool)
        mine = sum(body["cost_micros"] for body in changed.values() if body["team"] == "research")
        assert mine == meter.money.totals["research"]

        kept.drop()
        async with billing(nats_url, pool, mongo):
            again = await upto(len(world.records))
        months = {key: body["rows"] for key, body in changed.items()}
        assert {key: body["rows"] for key, body in again.items()} == months
        assert {body["upto_seq"] for body in again.values()} == {len(world.records)}

        newer = again[f"{pool}|blue|2026-11"] | {"upto_seq": 10**6, "rows": []}
        kept.replace_one({"_id": newer["_id"]}, newer)
        async with billing(nats_url, pool, mongo):
            await upto(len(world.records))
            await until(lambda: _is(kept, f"{pool}|research|2026-11", len(world.records)), "the other is written")
        assert kept.find_one({"_id": newer["_id"]}) == newer, "another process has written it, of a later record"


async def test_bills_wait_for_no_mongodb_and_are_kept_once_it_answers(
    nats: Client, nats_url: str, pool: str, tmp_path: Path
) -> None:
    """MongoDB is frozen, the service is killed and begins anew, and answers; then MongoDB goes on, and has each bill once."""
    world, written = priced_world(), Written(nats.jetstream(), pool)
    half = len(world.records) - 3
    await written.write(world.records[:half])
    with ServerInBackground(MONGO, tmp_path) as mongo, MongoClient(mongo.url) as client, ExitStack() as frozen:

        async def newest() -> dict[tuple[str, str], list[dict[str, Any]]]:
            found = client[pool]["bills"].find({"upto_seq": written.records[-1][0]})
            return {(body["team"], body["month"]): body["rows"] for body in found}

        where = environment(nats_url, pool, tmp_path) | {
            "BATON_MONGO_URL": f"{mongo.url}/{pool}", "BATON_QUOTA_BILLING_KEEP_BILLS_S": "0.05",
        }  # fmt: skip
        async with Service("quota_billing", **where) as service:
            await until(newest, "bills of the first half")
            frozen.enter_context(mongo.frozen())
            await written.write(world.records[half:])
            told = await billed(nats, pool, written, "research")
            assert await service.end(signal.SIGKILL) == -signal.SIGKILL
        async with billing(nats_url, pool, f"{mongo.url}/{pool}"):
            assert await billed(nats, pool, written, "research") == told
            frozen.close()
            wanted = {team_month: [row._asdict() for row in rows] for team_month, rows in bills(folded(world)).items()}

            async def whole() -> bool:
                return await newest() == wanted

            await until(whole, "all bills, as of the last record")
            assert client[pool]["bills"].count_documents({}) == len(wanted)


async def _is(kept: Any, key: str, seq: int) -> bool:
    found = kept.find_one({"_id": key})
    return found is not None and found["upto_seq"] == seq
