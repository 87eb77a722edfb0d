"""The protocol between agent and keeper: JSON objects over a Unix socket, each after its length in four bytes.

The first message of an agent is `hello` with the oldest and the newest version of the protocol that it speaks. The keeper
answers with the one that both use from then on. Within a version fields may be added: a reader ignores fields that it does not
know, and takes a missing field for its default. A version that drops or changes a field has a new number, and a keeper keeps
speaking the one before, because it may be older than its agent by months.
"""

import json
import struct
from typing import Any

OLDEST, NEWEST = 1, 1
"""Versions that this code speaks."""
LARGEST = 8 * 1024 * 1024
"""Bytes of one message that an agent sends. The largest is a gang's start: a command line and an environment for each rank."""
LARGEST_TOLD = 1024 * 1024 * 1024
"""Of one that a keeper sends: its welcome has all attempts with all that their jobs asked for, of which one may be a megabyte
as it is written here. An agent that could not take it would end the work of all."""

WireMessage = dict[str, Any]
_LENGTH = struct.Struct(">I")
_WRITER = json.JSONEncoder(separators=(",", ":"))


class BadMessage(ValueError):
    """What came is not the protocol. The connection cannot go on, as it is not known where the next message begins."""


class TooOld(ValueError):
    """The two sides have no version in common."""


def agreed(oldest: int, newest: int) -> int:
    """The newest version that both sides speak. Raises TooOld."""
    version = min(newest, NEWEST)
    if version < max(oldest, OLDEST):
        raise TooOld(f"the other side speaks versions {oldest} to {newest}, this one {OLDEST} to {NEWEST}")
    return version


def pack(message: WireMessage, most: int = 0) -> bytes:
    """`most`: bytes; 0: as an agent may say."""
    return framed(_WRITER.encode(message).encode(), most)


def framed(data: bytes, most: int = 0) -> bytes:
    """A message that is written already."""
    if len(data) > (most := most or LARGEST):
        raise BadMessage(f"a message of {len(data)} bytes: at most {most} may be sent")
    return _LENGTH.pack(len(data)) + data


class Reader:
    """Takes bytes as they come and gives whole messages, of `most` bytes each; 0: as an agent may say."""

    def __init__(self, most: int = 0) -> None:
        self._buffer = bytearray()
        self._most = most or LARGEST

    def feed(self, data: bytes) -> list[WireMessage]:
        """The messages that `data` completes. Raises BadMessage."""
        self._buffer += data
        out = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._most:
                raise BadMessage(f"a message of {length} bytes: at most {self._most} are taken")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            out.append(_parsed(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return out


def _parsed(data: bytes) -> WireMessage:
    try:
        # as `json` itself reads bytes, without a guess at their encoding
        message = json.loads(str(data, "utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as e:
        raise BadMessage(f"not JSON: {e}") from None
    if not isinstance(message, dict):
        raise BadMessage("a message is a JSON object")
    return message
