"""Periods of bills: from one day or moment to another, in a time zone with daylight saving."""

from datetime import UTC, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from libs.cli.exits import UsageFault
from libs.cli.moments import TimeForm, read
from libs.core.billing.wall import HOUR_US, us_of

Until = Annotated[str | None, typer.Option("--to", help="Last day or month, included; or a full hour, which is not.")]
DaysOf = Annotated[str, typer.Option("--time-zone", help="Whose days, e.g. Europe/Berlin.")]


def zone_of(name: str) -> ZoneInfo:
    """A time zone by name, e.g. Europe/Berlin. Raises UsageFault."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageFault(
            f"--time-zone {name}: there is no such zone here; write one of the IANA names, e.g. UTC or Europe/Berlin"
        ) from None


def period_of(start: str | None, end: str | None, zone: ZoneInfo, now_us: int) -> tuple[int, int]:
    """[start, end) in microseconds since the epoch; by default the month of `now_us` in the zone.

    A day means its first moment in the zone; `2026-11` the whole month. A day or month as the end is included, a moment
    is excluded. Raises UsageFault.
    """
    if start is not None:
        first, said = _moment("--from", start, zone)
    else:
        now = datetime.fromtimestamp(now_us // 1_000_000, UTC).astimezone(zone)
        first, said = datetime(now.year, now.month, 1, tzinfo=zone), TimeForm.MONTH
    if end is not None:
        last = _end_of(*_moment("--to", end, zone), zone)
    elif said is TimeForm.MOMENT:
        raise UsageFault("--from is a moment: say with --to when the period ends")
    else:
        last = _end_of(first, said, zone)
    return _span(start, first, end, last)


def days_between(start: str | None, end: str | None, zone: ZoneInfo) -> tuple[int | None, int | None]:
    """As `period_of`, but an omitted end is open."""
    first = None if start is None else _moment("--from", start, zone)[0]
    last = None if end is None else _end_of(*_moment("--to", end, zone), zone)
    if first is not None and last is not None:
        return _span(start, first, end, last)
    return us_of(first) if first is not None else None, us_of(last) if last is not None else None


def forecast_end(start: str | None, end: str | None, zone: ZoneInfo, now_us: int) -> int:
    """The end of a forecast: as given, or that of the month of `now_us`. Raises UsageFault."""
    first, last = days_between(start, end, zone)
    if last is not None:
        return last
    last = period_of(None, None, zone, now_us)[1]
    if first is not None and first >= last:
        raise UsageFault(
            f"--from {start} is after this month, at whose end a forecast ends: say with --to when it does"
        )
    return last


def _span(start: str | None, first: datetime, end: str | None, last: datetime) -> tuple[int, int]:
    found = us_of(first), us_of(last)
    if found[1] <= found[0]:
        raise UsageFault(
            f"--to {end} is not after --from {start}: a period ends after it begins"
            if start is not None
            else f"--to {end} is before this month, with which a period begins: say with --from when it does"
        )
    return found


def _moment(flag: str, text: str, zone: ZoneInfo) -> tuple[datetime, TimeForm]:
    try:
        moment, said = read(text, zone)
    except ValueError as error:
        raise UsageFault(f"{flag} {text}: {error}") from None
    if not 1970 <= moment.year < 2100:
        raise UsageFault(f"{flag} {text}: lies outside 1970 to 2100; correct the year")
    if said is TimeForm.MOMENT and (over := us_of(moment) % HOUR_US):
        before = (moment.astimezone(UTC) - timedelta(microseconds=over)).astimezone(moment.tzinfo)
        after = (before.astimezone(UTC) + timedelta(hours=1)).astimezone(moment.tzinfo)
        raise UsageFault(
            f"{flag} {text}: bills are kept by the hour, and this is within one; write {before.isoformat()} or "
            f"{after.isoformat()}"
        )
    return moment, said


def _end_of(first: datetime, said: TimeForm, zone: ZoneInfo) -> datetime:
    """The end of the month or day that begins then; a moment is its own end."""
    match said:
        case TimeForm.MONTH:
            return _next_month(first)
        case TimeForm.DAY:
            return (first.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone)
        case TimeForm.MOMENT:
            return first


def _next_month(first: datetime) -> datetime:
    return first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
