"""Headers that are written in a quicker way are, byte for byte, those that nats-py writes."""

from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import BadHeaderError
from nats.js.api import Header

from libs.bus.connect import BusConnection
from libs.bus.headers import encoded

PLAIN: list[dict[str, Any]] = [
    {"Nats-Msg-Id": "a1", "ce-type": "io.baton.job.queued.v1", "ce-source": "/baton/main/history"},
    {Header.EXPECTED_LAST_SUBJECT_SEQUENCE: "7", Header.ROLLUP: Header.ROLLUP},
    {"traceparent": "", "x": "grüße 日本"},
    {"a!#$%&'*+-.^_`|~b": "1: 2; \t in the middle"},
]
ODD: list[dict[str, Any]] = [
    {},
    {" ce-id ": "1"},
    {"ce-id": " 1 "},
    {"ce-id": "1\r\nNats-Rollup: all"},
    {"ce-id": "1\n2"},
    {"": "1", "b": "2"},
    {"n" * 65: "1"},
]


async def sent(kind: type[Client], headers: dict[str, Any]) -> bytes:
    """What a client of this kind hands to its connection."""
    client, out = kind(), list[bytes]()

    async def note(command: bytes, priority: bool = False) -> None:
        out.append(bytes(command))

    client._send_command = note  # type: ignore[method-assign, assignment]
    client._flush_queue = None
    await client._send_publish("a.b", "reply", b"payload", 7, headers)
    assert client.stats["out_msgs"] == 1
    return out[0]


@pytest.mark.parametrize("headers", [*PLAIN, *ODD])
async def test_the_same_bytes_are_sent(headers: dict[str, Any]) -> None:
    assert await sent(BusConnection, headers) == await sent(Client, headers)


@pytest.mark.parametrize("headers", PLAIN)
def test_plain_headers_are_written_here(headers: dict[str, Any]) -> None:
    assert encoded(headers) is not None


@pytest.mark.parametrize("name", ["a b", "a:b", "grüße"])
async def test_a_name_that_is_none_is_refused_as_before(name: str) -> None:
    with pytest.raises(BadHeaderError):
        await sent(BusConnection, {name: "1"})


@pytest.mark.parametrize("headers", ODD[1:])
def test_what_is_odd_is_left_to_nats(headers: dict[str, Any]) -> None:
    assert encoded(headers) is None
