"""Moments as people read them."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_CALENDAR_US: Final = 250_000_000_000_000_000
"""In the year 9892."""


@lru_cache(maxsize=4096)
def text_of(us: int) -> str:
    """`2026-11-01T00:00:00Z`, with as many digits of a second as it has; a time that no calendar has as it is."""
    if us >= _NO_CALENDAR_US:
        return f"{us} us"
    moment = _EPOCH + timedelta(microseconds=us)
    fraction = f".{us % 1_000_000:06d}".rstrip("0") if us % 1_000_000 else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
