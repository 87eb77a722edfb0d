"""What a day in an option means does not depend on how it is written."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from libs.cli.bill_period import days_between, forecast_end, period_of
from libs.cli.exits import UsageFault
from libs.cli.moments import TimeForm, read

BERLIN = ZoneInfo("Europe/Berlin")


def us(*at: int) -> int:
    return int(datetime(*at, tzinfo=UTC).timestamp() * 1e6)


def test_a_month_a_day_and_a_moment_are_told_apart() -> None:
    assert read("2026-11") == (datetime(2026, 11, 1, tzinfo=UTC), TimeForm.MONTH)
    assert read("2026-11-30", BERLIN) == (datetime(2026, 11, 30, tzinfo=BERLIN), TimeForm.DAY)
    assert read("2026-11-30 12:00:30+01:00") == (datetime(2026, 11, 30, 11, 0, 30, tzinfo=UTC), TimeForm.MOMENT)


@pytest.mark.parametrize(
    "text", ["20261130", "2026-W48-1", "2026-W48", "2026", "2026-13", "2026-02-30", "2026-11-30T", "", "now"]
)
def test_other_forms_are_refused(text: str) -> None:
    """Seen: with `--to 20261130` the last day was missing in the bill, with `2026-11-30` it was not."""
    with pytest.raises(UsageFault, match=f"--to {text}: no such day; write 2026-11, 2026-11-30 or"):
        days_between(None, text, BERLIN)


def test_a_day_or_month_that_is_named_as_the_end_is_included_and_a_moment_is_the_end() -> None:
    """Seen: of `bill --to 2026-11-30` and of `bill export --to 2026-11-30` one had the day and one had not."""
    assert days_between("2026-11-01", "2026-11-30", BERLIN) == (us(2026, 10, 31, 23), us(2026, 11, 30, 23))
    assert days_between(None, "2026-11", BERLIN) == (None, us(2026, 11, 30, 23))
    assert days_between(None, "2026-11-30T12:00", BERLIN) == (None, us(2026, 11, 30, 11))
    assert period_of("2026-10-25", None, BERLIN, 0) == (us(2026, 10, 24, 22), us(2026, 10, 25, 23)), "a day of 25 hours"
    for start, end in (("2026-11", "2026-11"), ("2026-11-01", "2026-11-30"), ("2026-11-01", "2026-12-01T00:00")):
        assert (
            period_of(start, end, BERLIN, 0)
            == days_between(start, end, BERLIN)
            == (us(2026, 10, 31, 23), us(2026, 11, 30, 23))
        )


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("2026-11-30T12:00", None, "--from is a moment: say with --to"),
        (
            "2026-11-30T12:00",
            "2026-11-30T12:00",
            "--to 2026-11-30T12:00 is not after --from 2026-11-30T12:00: a period",
        ),
        ("2026-11-30", "2026-11-29", "--to 2026-11-29 is not after --from 2026-11-30: a period"),
        (None, "2026-10", "--to 2026-10 is before this month, with which a period begins: say with --from"),
        ("2026-11-30T12:00", "2026-11-30T12:20:30", r"write 2026-11-30T12:00:00\+01:00 or 2026-11-30T13:00:00\+01:00$"),
        (
            "2026-11-30T12:00:00.5",
            None,
            "--from 2026-11-30T12:00:00.5: bills are kept by the hour, and this is within one",
        ),
        ("2026-11-30T12:00+05:30", None, r"write 2026-11-30T11:30:00\+05:30 or 2026-11-30T12:30:00\+05:30$"),
        ("2026-10-25T02:30", None, r"write 2026-10-25T02:00:00\+02:00 or 2026-10-25T02:00:00\+01:00$"),
    ],
)
def test_a_period_that_cannot_be_is_told_in_the_words_that_were_said(
    start: str | None, end: str | None, says: str
) -> None:
    with pytest.raises(UsageFault, match=says):
        period_of(start, end, BERLIN, us(2026, 11, 28))


def test_a_forecast_ends_with_the_month_and_one_that_begins_later_is_told_so() -> None:
    now_us = us(2026, 11, 28)
    assert forecast_end("2026-11-28", None, BERLIN, now_us) == us(2026, 11, 30, 23)
    assert forecast_end("2026-12", "2026-12", BERLIN, now_us) == us(2026, 12, 31, 23)
    with pytest.raises(
        UsageFault, match="--from 2026-12 is after this month, at whose end a forecast ends: say with --to"
    ):
        forecast_end("2026-12", None, BERLIN, now_us)
