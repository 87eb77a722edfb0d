"""What a day in an option means does not depend on how it is written."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from libs.cli.bill_period import days_between, period_of
from libs.cli.exits import UsageFault
from libs.cli.moments import SaidAs, read

BERLIN = ZoneInfo("Europe/Berlin")


def us(*at: int) -> int:
    return int(datetime(*at, tzinfo=UTC).timestamp() * 1e6)


def test_a_month_a_day_and_a_moment_are_told_apart() -> None:
    assert read("2026-11") == (datetime(2026, 11, 1, tzinfo=UTC), SaidAs.MONTH)
    assert read("2026-11-30", BERLIN) == (datetime(2026, 11, 30, tzinfo=BERLIN), SaidAs.DAY)
    assert read("2026-11-30 12:00:30+01:00") == (datetime(2026, 11, 30, 11, 0, 30, tzinfo=UTC), SaidAs.MOMENT)


@pytest.mark.parametrize(
    "text", ["20261130", "2026-W48-1", "2026-W48", "2026", "2026-13", "2026-02-30", "2026-11-30T", "", "now"]
)
def test_other_forms_are_refused(text: str) -> None:
    """Seen: with `--to 20261130` the last day was missing in the bill, with `2026-11-30` it was not."""
    with pytest.raises(UsageFault, match=f"--to {text}: no such day; write 2026-11, 2026-11-30 or"):
        days_between(None, text, BERLIN)


def test_the_last_day_is_included_and_the_end_of_a_period_is_not() -> None:
    assert days_between("2026-11-01", "2026-11-30", BERLIN) == (us(2026, 10, 31, 23), us(2026, 11, 30, 23))
    assert days_between(None, "2026-11", BERLIN) == (None, us(2026, 11, 30, 23))
    assert days_between(None, "2026-11-30T12:00", BERLIN) == (None, us(2026, 11, 30, 11))
    assert period_of("2026-10-25", None, BERLIN, 0) == (us(2026, 10, 24, 22), us(2026, 10, 25, 23)), "a day of 25 hours"
    assert period_of("2026-11-01", "2026-11-30", BERLIN, 0)[1] == us(2026, 11, 29, 23)
    with pytest.raises(UsageFault, match="say with --to"):
        period_of("2026-11-30T12:00", None, BERLIN, 0)
