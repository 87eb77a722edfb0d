"""Wall time in UTC to the microsecond, and as text. Pure, and without floats."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_US = 3_600_000_000
_QUARTER_US = HOUR_US // 4  # all zone offsets are multiples of it
DAY_US = 24 * HOUR_US
ENDLESS_US = 4_102_444_800_000_000
"""2100-01-01, later than every period."""


@lru_cache(maxsize=4096)
def day_text(day: int) -> str:
    """A day since 1970-01-01 as `YYYY-MM-DD`."""
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


def us_of(moment: datetime) -> int:
    """Microseconds since the epoch of a datetime with a time zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def month_of(us: int) -> tuple[int, int]:
    """(year, month) in UTC."""
    moment = _EPOCH + timedelta(microseconds=us)
    return moment.year, moment.month


@lru_cache(maxsize=4096)
def billing_month(hour: int) -> tuple[int, int]:
    """Start and end of the UTC month that contains an hour since the epoch."""
    return month_us(*month_of(hour * HOUR_US))


def month_us(year: int, month: int) -> tuple[int, int]:
    """Start and end of a UTC month."""
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return us_of(datetime(year, month, 1, tzinfo=UTC)), us_of(datetime(*following, 1, tzinfo=UTC))


@lru_cache(maxsize=64)
def days_of_zone(name: str) -> Callable[[int], int]:
    """A function from a moment to its day (since 1970-01-01) in a time zone. Raises ValueError for an unknown zone."""
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(str(error)) from None

    @lru_cache(maxsize=20_000)
    def of_quarter(quarter: int) -> int:
        return (datetime.fromtimestamp(quarter * 900, UTC).astimezone(zone).date() - _EPOCH.date()).days

    def day_of(wall_us: int) -> int:
        return of_quarter(wall_us // _QUARTER_US)

    return day_of
