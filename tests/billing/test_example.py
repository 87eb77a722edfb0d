"""The table in docs/billing.md, computed."""

from datetime import UTC, datetime

from libs.core.billing.pricing import Prices, bill
from libs.core.billing.usage_rows import UsageRow
from libs.core.billing.wall import DAY_US
from libs.core.state.clock import Calendar
from schemas.billing import BillQuery, Price, PriceBook

PRICES = Prices(
    PriceBook(
        currency="USD",
        prices=(
            Price(model="H100", micros_per_device_hour=2_990_000),
            Price(model="L4", micros_per_device_hour=440_000),
        ),
    )
)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def rows(job: str, model: str, milli: int, start_us: int, end_us: int) -> list[UsageRow]:
    return [
        UsageRow("research", job, 1, day, model, "experiment", milli * us)
        for day, us in Calendar().split(start_us, end_us, DAY_US)
    ]


def test_the_documented_bill() -> None:
    usage = rows("gang", "H100", 2 * 1000, at("2026-11-21T23:30:00"), at("2026-11-22T00:15:00"))
    start = at("2026-11-22T10:00:00")
    usage += rows("half", "L4", 500, start, start + 100_000_001)
    assert [(row.milli_us, PRICES.cost_micros(row)) for row in usage] == [
        (3_600_000_000_000, 2_990_000),
        (1_800_000_000_000, 1_495_000),
        (50_000_000_500, 6_111),
    ]
    by_day, by_model = (bill(usage, PRICES, BillQuery(group_by=group), 1) for group in ("day", "model"))
    assert [(r.key, r.cost_micros) for r in by_day.rows] == [("2026-11-21", 2_990_000), ("2026-11-22", 1_501_111)]
    assert [(r.key, r.cost_micros) for r in by_model.rows] == [("H100", 4_485_000), ("L4", 6_111)]
    assert by_day.total_cost_micros == by_model.total_cost_micros == 4_491_111
    assert by_day.total_milli_us == 5_450_000_000_500
