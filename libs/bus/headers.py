"""Headers of a message as bytes, quicker than nats-py writes them.

It strips, translates and matches each name and each value of each message: that was a seventh of what history did. Names come
again and again, so each is judged once; a value is only looked at. Whatever is not plain (blanks around it, a line break, a
name that is none) is left to nats-py, which decides what becomes of it.
"""

from collections.abc import Mapping
from functools import lru_cache

from nats.aio.client import _HEADER_KEY_RE

_FIRST = "NATS/1.0\r\n"
_LONGEST_NAME = 64
"""Names are remembered, and senders choose some of them."""


def encoded(headers: Mapping[str, str]) -> bytes | None:
    """The header block of a message; None: nats-py is to write it."""
    parts = [_FIRST]
    for name, value in headers.items():
        if len(name) > _LONGEST_NAME or not (start := _start(name)):
            return None
        if "\n" in value or "\r" in value or value != value.strip():
            return None
        parts += (start, value, "\r\n")
    parts.append("\r\n")
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError:
        return None


@lru_cache(maxsize=256)
def _start(name: str) -> str:
    """The beginning of a header's line; "" for a name that is not plain."""
    # No f-string: nats-py's own names are members of an enum, which would be written as `Header.ROLLUP`.
    return name + ": " if _HEADER_KEY_RE.fullmatch(name) else ""
