"""Bills that the service answers are those of exports, to the millionth, whatever book comes later."""

import asyncio
import json
from collections import Counter
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest

from libs.bus.queries import InvalidQuestion
from libs.core.billing import in_days
from libs.core.billing.charges import charges
from libs.core.billing.credited import CreditedPart
from libs.core.billing.metering import Meter
from libs.core.billing.posted import AppliedBook, PostedMoney
from libs.core.billing.pricing import Prices, bill, days_of
from libs.core.billing.use_lines import lines as use_lines
from libs.core.billing.use_lines.line import AlikeUses
from libs.core.billing.use_lines.lines import UseLines
from libs.core.billing.wall import DAY_US, HOUR_US, day_text
from schemas.billing import BillQuery, BillReply, Price, PriceBook
from schemas.ledger import DevicesFreed, JobGranted, PricesApplied
from schemas.prices import ContractRate, CreditCause, ListRate, RateBook, RateTier
from schemas.subjects import OPERATOR
from services.quota_billing import handlers
from services.quota_billing.handlers import get_bill
from services.quota_billing.metrics import BillingMetrics
from tests.billing.ledgers import DECEMBER, NOVEMBER, ask, over_the_month, priced_world
from tests.core.builders import World, node

FILE = Prices(PriceBook(currency="EUR", prices=(Price(model="H100", micros_per_device_hour=77),)))


@dataclass
class Kept:
    """A meter, as a follower has it."""

    projection: Meter

    def still(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()


def metered(world: World, upto: int | None = None) -> Meter:
    meter = Meter()
    for seq, record in enumerate(world.records[:upto], start=1):
        meter.apply(record, seq)
    return meter


def test_a_bill_is_the_sum_of_an_exports_rows_by_team_day_job_and_device() -> None:
    world, meter = priced_world(), metered(priced_world())
    rows = list(charges(lambda: list(enumerate(world.records, start=1))))
    for by, key in (
        ("team", lambda c: c.use.team),
        ("job", lambda c: c.use.job_id),
        ("attempt", lambda c: f"{c.use.job_id}.{c.use.attempt}"),
        ("model", lambda c: c.use.device_kind),
        ("day", lambda c: ("2026-10-31", "2026-11-01")[c.billed_us // 86_400_000_000 - 20_757]),
    ):
        told = bill(meter.usage(), FILE, BillQuery(group_by=by), meter.seq, "USD")
        money: Counter[str] = Counter()
        for charge in rows:
            money[key(charge)] += charge.amount.cost_micros
        found: Counter[str] = Counter()
        for row in told.rows:
            found[row.key] += row.cost_micros
        assert +found == +money, by
        assert told.currency == "USD"
        assert told.total_milli_us == sum(c.amount.units for c in rows)
        assert told.unpriced_milli_us == sum(c.amount.units for c in rows if c.amount.quote is None) > 0


def test_a_price_that_comes_later_rewrites_no_day_that_was_billed() -> None:
    world = priced_world()
    second = [n for n, r in enumerate(world.records) for e in r.events if isinstance(e, PricesApplied)][1]
    before, after = metered(world, second), metered(world, second + 1)
    october = {row: row.posted for row in before.usage() if row.day == 20_757}
    assert october
    assert {row: row.posted for row in after.usage() if row.day == 20_757} == october
    costs = [sum(row.posted[0] for row in meter.usage("research") if row.posted) for meter in (before, after)]
    assert costs[1] < costs[0], "the correction is there, on its own day"


def test_tiers_are_used_up_claim_by_claim_also_of_unlike_claims() -> None:
    """The second claim is a share: the third one is the first's like, and uses the tiers up after both."""
    world = World(node("n0", 3))
    world.send(after_us=NOVEMBER - HOUR_US - world.now_us)
    runs = ask(world, "runs", 3)
    world.send(after_us=2 * HOUR_US)
    world.released(runs)
    tiers = tuple(RateTier(above_hours=hours, micros=micros) for hours, micros in ((0, 1_000_000), (2, 7_000_000)))
    book = RateBook(
        version=1, currency="USD", prices=(ListRate(device="H100", micros=9_000_000, from_us=0),),
        contracts=(ContractRate(team="research", contract="c-1", device="H100", from_us=0, tiers=tiers),),
    )  # fmt: skip
    for n, record in enumerate(world.records):
        events = [PricesApplied(book=book, user="olga")] if n == 0 else []
        for e in record.events:
            if isinstance(e, JobGranted):
                claims = (e.claims[0], e.claims[1].model_copy(update={"milli": 400}), e.claims[2])
                events.append(e.model_copy(update={"claims": claims}))
            else:
                events.append(e)
        world.records[n] = record.model_copy(update={"events": tuple(events)})
    wanted: Counter[int] = Counter()
    for c in charges(lambda: list(enumerate(world.records, start=1))):
        wanted[c.billed_us // DAY_US] += c.amount.cost_micros
    told: Counter[int] = Counter()
    for _, key, row in metered(world).money.all_rows():
        told[key[2]] += row[0]
    assert told == wanted
    assert len(wanted) == 2


@pytest.mark.parametrize("restart", [False, True])
def test_a_book_that_leaves_a_contract_as_it_was_opens_nothing_and_its_tiers_go_on(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second book changes a price of another device; two hours of the contract's first tier are used up by then."""
    world = World(node("n0", 1))
    world.send(after_us=NOVEMBER - HOUR_US - world.now_us)
    for name in ("before", "after"):
        runs = ask(world, name, 1)
        world.send(after_us=3 * HOUR_US)
        world.released(runs)
    tiers = tuple(RateTier(above_hours=hours, micros=micros) for hours, micros in ((0, 1_000_000), (4, 7_000_000)))
    book = RateBook(
        version=1, currency="USD", prices=(ListRate(device="H100", micros=9_000_000, from_us=0),),
        contracts=(ContractRate(team="research", contract="c-1", device="H100", from_us=0, tiers=tiers),),
    )  # fmt: skip
    second = book.model_copy(
        update={"version": 2, "prices": (*book.prices, ListRate(device="A100", micros=1, from_us=0))}
    )
    ended = next(n for n, r in enumerate(world.records) if any(isinstance(e, DevicesFreed) for e in r.events))
    for n, one in ((0, book), (ended + 1, second)):
        record = world.records[n]
        events = (PricesApplied(book=one, user="olga"), *record.events)
        world.records[n] = record.model_copy(update={"events": events})
    monkeypatch.setattr(use_lines, "FRESH", 1)
    opened: list[int] = []
    open_ = UseLines._open
    monkeypatch.setattr(UseLines, "_open", lambda self, block: opened.append(block.first) or open_(self, block))
    meter = Meter()
    for seq, record in enumerate(world.records, start=1):
        if restart and seq == ended + 2:
            meter = Meter.load(meter.dump())
        meter.apply(record, seq)
    assert meter.money.lines.blocks
    assert not opened, "neither by the book nor by the restart"
    cost = sum(c.amount.cost_micros for c in charges(lambda: list(enumerate(world.records, start=1))))
    assert meter.money.totals == {"research": cost}
    assert round(cost, -3) == (1 + 4 + 7) * 1_000_000, (
        "an hour of October; four of November's first tier, one of its second"
    )


def test_days_that_nobody_asks_for_are_passed_over_and_the_others_are_whole() -> None:
    world = priced_world()
    meter, until = metered(world), world.now_us + 3_600_000_000
    for start, end in (
        ("2026-10-31", "2026-10-31"),
        ("2026-11-01", "2026-11-30"),
        (None, "2026-10-31"),
        ("2026-12-01", None),
    ):
        query = BillQuery(group_by="day", from_day=start, to_day=end)
        some = list(meter.usage(open_until_us=until, of_day=days_of(query)))
        whole = [r for r in meter.usage(open_until_us=until) if (start or "") <= day_text(r.day) <= (end or "9")]
        assert sorted(some) == sorted(whole)
        assert bill(some, FILE, query, meter.seq, "USD") == bill(
            meter.usage(open_until_us=until), FILE, query, meter.seq, "USD"
        )


def test_a_bill_by_team_day_or_device_walks_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = metered(priced_world())
    for by in ("team", "day", "model"):
        for team in ("research", OPERATOR):
            query = BillQuery(group_by=by, open_until_us=1_800_000_000_000_000)
            walked = meter.usage(None if team == OPERATOR else team, open_until_us=query.open_until_us)
            wanted = bill(walked, FILE, query, meter.seq, "USD")
            with monkeypatch.context() as patch:
                patch.setattr(Meter, "usage", None)
                assert get_bill(meter, FILE, query, team) == wanted


def test_a_bill_by_job_that_is_too_long_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = metered(priced_world())
    monkeypatch.setattr(handlers, "MAX_ROWS", 1)
    monkeypatch.setattr(Meter, "usage", None)
    for by, rows in (("job", 3), ("attempt", 3)):
        with pytest.raises(InvalidQuestion) as refused:
            get_bill(meter, FILE, BillQuery(group_by=by), "research")
        assert f"the bill has {rows} rows" in refused.value.reasons[0].problem


def test_a_bill_of_any_zone_is_a_statement_and_of_utc_the_one_by_days() -> None:
    """With what runs to the end of the period, as a statement forecasts it."""
    world = over_the_month()
    meter = metered(world)
    start, end = NOVEMBER - 5 * HOUR_US, DECEMBER - HOUR_US
    for by in ("team", "user", "job", "attempt", "model", "class", "day"):
        days = {"from_day": "2026-10-30", "to_day": "2026-11-30"}
        wanted = get_bill(meter, FILE, BillQuery(group_by=by, forecast_until_us=DECEMBER, **days), OPERATOR)
        span = {"from_us": NOVEMBER - 2 * DAY_US, "to_us": DECEMBER}
        told = get_bill(meter, FILE, BillQuery(group_by=by, forecast_until_us=DECEMBER, **span), OPERATOR)
        assert told == wanted
        zoned = BillQuery(group_by=by, time_zone="Africa/Abidjan", forecast_until_us=DECEMBER, **span)
        told = get_bill(meter, FILE, zoned, OPERATOR)
        assert told == wanted, "a zone that is UTC by another name"
        assert told.total_forecast_micros > 0 < told.total_cost_micros
        berlin = BillQuery(group_by=by, time_zone="Europe/Berlin", from_us=start, to_us=end)
        one = get_bill(meter, FILE, berlin, "research")
        assert {row.team for row in one.rows} == {"research"}
        assert one.total_cost_micros == sum(
            c.amount.cost_micros
            for c in charges(lambda: list(enumerate(world.records, start=1)))
            if c.use.team == "research" and start <= c.billed_us < end
        )


def test_a_bill_of_a_zone_that_is_of_too_many_uses_is_refused_and_others_uses_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = Meter.load(metered(over_the_month()).dump())
    teams = {row.team: row.attempts for row in get_bill(meter, FILE, BillQuery(group_by="team"), OPERATOR).rows}
    assert len(teams) > 1
    monkeypatch.setattr(in_days, "MOST_USES", sum(teams.values()) - 1)
    berlin = BillQuery(time_zone="Europe/Berlin")
    with pytest.raises(InvalidQuestion) as refused:
        get_bill(meter, FILE, berlin, OPERATOR)
    assert [(r.field, r.value) for r in refused.value.reasons] == [("time_zone", "Europe/Berlin")]
    for team in teams:
        assert {row.team for row in get_bill(meter, FILE, berlin, team).rows} == {team}


def test_a_bill_that_would_look_through_too_many_old_attempts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use_lines, "FRESH", 1)
    meter = metered(over_the_month())
    days = sorted({row.day for row in meter.usage()})
    one_day = {"from_day": day_text(days[0]), "to_day": day_text(days[0])}
    few = meter.money.lines.opens(None, lambda day: day == days[0], None)
    assert 0 < few < len(meter.money.lines)
    monkeypatch.setattr(handlers, "MAX_LINES", few)
    for asked in ({"group_by": "user"}, {"group_by": "class"}):
        with pytest.raises(InvalidQuestion) as refused:
            get_bill(meter, FILE, BillQuery(**asked), OPERATOR)
        assert [(r.field, r.value) for r in refused.value.reasons] == [("group_by", asked["group_by"])]
        assert get_bill(meter, FILE, BillQuery(**asked, **one_day), OPERATOR).rows
    for by in ("team", "day", "model"):
        assert get_bill(meter, FILE, BillQuery(group_by=by), OPERATOR).rows
    job = next(iter(meter.usage())).job_id
    assert len(get_bill(meter, FILE, BillQuery(group_by="job", job_id=job), OPERATOR).rows) == 1


@pytest.mark.parametrize(
    "asked", [{"time_zone": "Europe/Berlin"}, {"open_until_us": DECEMBER}, {"forecast_until_us": DECEMBER}]
)
async def test_a_bill_that_takes_long_holds_up_no_other_question(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """It walks all uses of its span: a team with many of them could stop all bills for seconds, again and again."""
    other_answered, made, long = Event(), handlers.get_bill, BillQuery.model_validate(asked)

    def slow(meter: Meter, prices: Prices, query: BillQuery, team: str, **now: int) -> BillReply:
        if query == long and not other_answered.wait(60):
            raise AssertionError("the other question waits")
        return made(meter, prices, query, team, **now)

    monkeypatch.setattr(handlers, "get_bill", slow)
    kept = Kept(metered(priced_world()))
    asking = asyncio.create_task(handlers.answer_bill(kept, FILE, long, "research"))
    await asyncio.sleep(0)
    other = await handlers.answer_bill(kept, FILE, BillQuery(), "research")
    other_answered.set()
    told = await asking
    assert told == made(kept.projection, FILE, long, "research")
    assert long.open_until_us is not None or told.total_cost_micros == other.total_cost_micros


@pytest.mark.parametrize(
    ("asked", "field", "problem"),
    [
        ({"time_zone": "Mars/Olympus"}, "time_zone", "no zone that is known"),
        ({"time_zone": "../../etc/passwd"}, "time_zone", "no zone that is known"),
        ({"from_us": 5, "to_us": 5}, "from_us", "is not before to_us"),
        ({"from_us": 5, "to_day": "2026-11-01"}, "from_day", "beside a zone or moments"),
        ({"from_day": "2026-02-30"}, "from_day", "no such day"),
        (
            {"open_until_us": 2**63 - 1},
            "open_until_us",
            "is more than 400 days ahead",
        ),  # seen: it counted hours for ever
        ({"forecast_until_us": 2**63 - 1}, "forecast_until_us", "is more than 400 days ahead"),
    ],
)
def test_a_question_of_impossible_days_is_refused(asked: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidQuestion) as refused:
        get_bill(metered(priced_world()), FILE, BillQuery.model_validate(asked), "research")
    assert [(r.field, problem in r.problem) for r in refused.value.reasons] == [(field, True)]


def test_a_meter_that_was_saved_goes_on_as_it_would_have() -> None:
    world = priced_world()
    for cut in range(0, len(world.records), 3):
        loaded = Meter.load(list(metered(world, cut).dump()))
        for seq, record in enumerate(world.records, start=1):
            loaded.apply(record, seq)
        assert list(loaded.dump()) == list(metered(world).dump()), cut


def test_what_is_credited_after_a_start_is_what_it_cost_and_not_what_the_contract_would_take_for_it_now() -> None:
    """The first hour was of the dearer tier; rated anew, it would be of the tier that the contract has reached."""
    tiers = (RateTier(above_hours=0, micros=4_000_000), RateTier(above_hours=1, micros=1_000_000))
    book = RateBook(
        version=1,
        currency="EUR",
        prices=(ListRate(device="H100", micros=5_000_000, from_us=0),),
        contracts=(ContractRate(team="research", contract="c-1", device="H100", from_us=0, tiers=tiers),),
    )
    money = PostedMoney()
    money.apply(AppliedBook(1, 0, book))
    for seq, job in ((2, "first"), (3, "second")):
        hour = (0, HOUR_US, 0)
        money.post(
            AlikeUses("research", "ann", job, 1, "H100", "experiment", 1000, 1, seq, HOUR_US, (hour,)), [f"n0-{job}"]
        )
    about, tables = json.loads(
        json.dumps([(dump := money.dump())[0], {name: [*rows] for name, rows in dump[1].items()}])
    )
    loaded = PostedMoney()
    for table, rows in tables.items():
        loaded.load_rows(table, rows)
    loaded.loaded(about)
    given_back = {("first", 1, "n0-first"): (CreditedPart(CreditCause.NODE_LOST, "n0 was lost", 1000, 0, HOUR_US),)}
    for one in (money, loaded):
        one.give_back(given_back, 4, 2 * HOUR_US)
        assert one.totals == {"research": 1_000_000}


def test_without_a_book_in_the_ledger_the_file_prices_as_before() -> None:
    world = priced_world()
    for record in world.records:
        object.__setattr__(record, "events", tuple(e for e in record.events if not isinstance(e, PricesApplied)))
    meter = metered(world)
    told = bill(meter.usage(), FILE, BillQuery(), meter.seq)
    assert (told.currency, told.total_cost_micros > 0) == ("EUR", True)


def test_what_is_held_still_is_asked_for_and_never_posted() -> None:
    world = priced_world()
    number = next(n for n, r in enumerate(world.records) if any(e.kind == "devices.freed" for e in r.events))
    meter = metered(world, number)
    until = world.records[number].t_us
    asked = bill(meter.usage(open_until_us=until), FILE, BillQuery(), meter.seq, "USD")
    again = bill(meter.usage(), FILE, BillQuery(), meter.seq, "USD")
    assert asked.total_cost_micros > again.total_cost_micros == 0


def test_prometheus_sees_what_was_posted_and_the_series_of_opencost() -> None:
    world = priced_world()
    meter = metered(
        world, next(n for n, r in enumerate(world.records) if any(e.kind == "devices.freed" for e in r.events))
    )
    seen = {family.name: family.samples for family in BillingMetrics(lambda: meter, FILE, lambda: DECEMBER).collect()}
    assert [(s.labels["node"], s.labels["gpu_type"], s.value) for s in seen["node_gpu_hourly_cost"]] == [
        ("n0", "H100", 3.333333)
    ]
    held = {(s.labels["namespace"], s.labels["gpu_type"]): s.value for s in seen["container_gpu_allocation"]}
    assert held == {("research", "H100"): 2.0, ("blue", "H100"): 0.333, ("research", "A100"): 1.0}
    meter = metered(world)
    seen = {family.name: family.samples for family in BillingMetrics(lambda: meter, FILE, lambda: DECEMBER).collect()}
    money = {s.labels["team"]: s.value for s in seen["baton_cost"] if s.name.endswith("_total")}
    rows = list(charges(lambda: list(enumerate(world.records, start=1))))
    assert money == {t: sum(c.amount.cost_micros for c in rows if c.use.team == t) / 1e6 for t in ("research", "blue")}
    assert {s.labels["currency"] for s in seen["baton_cost"]} == {"USD"}
