"""Days and moments in options: one form each, so that there is no ambiguity."""

import re
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

_FORM = re.compile(r"\d{4}-\d{2}(?P<day>-\d{2}(?P<time>[T ]\d{2}:\d{2}.*)?)?", re.ASCII)


class TimeForm(StrEnum):
    """The precision of a text."""

    MONTH = "month"
    DAY = "day"
    MOMENT = "moment"


def read(text: str, zone: tzinfo = UTC) -> tuple[datetime, TimeForm]:
    """The first moment of a month (`2026-11`) or a day (`2026-11-30`), or a moment (`2026-11-30T12:00`), in its own
    zone or else `zone`. Raises ValueError, also for other forms of ISO 8601."""
    form = _FORM.fullmatch(text)
    try:
        if form is None:
            raise ValueError
        moment = datetime.fromisoformat(text if form["day"] else f"{text}-01")
    except ValueError:
        raise ValueError("no such day; write 2026-11, 2026-11-30 or 2026-11-30T12:00:00+01:00") from None
    said = TimeForm.MOMENT if form["time"] else TimeForm.DAY if form["day"] else TimeForm.MONTH
    return moment if moment.tzinfo else moment.replace(tzinfo=zone), said
