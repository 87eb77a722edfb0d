"""Who speaks the broker's protocol without a client: what the client would have prevented is refused by the broker."""

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from libs.bus.connect import Address, close, connect
from libs.walls.claims import KeyPair
from libs.walls.keyring import Keyring
from schemas import subjects
from tests.walls.world import broker

WAIT_S = 30.0


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("protocol")) as made:
        yield made


@dataclass
class Raw:
    """A connection of which every byte is ours."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    nonce: str

    def say(self, text: str | bytes) -> None:
        self.writer.write(text.encode() if isinstance(text, str) else text)

    def introduce(self, ring: Keyring, team: str, nonce: str) -> None:
        """With the claim of `team`, and `nonce` signed by its key."""
        lines = (ring.creds / f"{team}.creds").read_text().splitlines()
        signed = base64.urlsafe_b64encode(KeyPair(lines[5]).sign(nonce.encode())).decode().rstrip("=")
        about = {"verbose": False, "pedantic": False, "headers": True, "lang": "x", "version": "1", "protocol": 1}
        self.say(f"CONNECT {json.dumps({**about, 'jwt': lines[1], 'sig': signed})}\r\nPING\r\n")

    async def until_said(self, text: bytes) -> bytes:
        """What the broker says, until that is in it, or it hangs up."""
        said = b""
        async with asyncio.timeout(WAIT_S):
            while text not in said and (more := await self.reader.read(65536)):
                said += more
        return said


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Raw]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1 << 20)
    try:
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        yield Raw(reader, writer, info["nonce"])
    finally:
        writer.close()


async def works(bus: tuple[str, Keyring], team: str) -> None:
    """Somebody of `team` submits, and the request is stored."""
    url, ring = bus
    other = await connect(Address(url, ring.team(team)), name=team, inbox_prefix=subjects.reply_prefix(team, "ana"))
    ack = await other.request(subjects.submit(team, "ana"), secrets.token_bytes(8), timeout=20)
    assert json.loads(ack.data)["stream"] == "REQUESTS"
    await close(other)


async def test_a_signature_of_another_connection_is_refused(bus: tuple[str, Keyring]) -> None:
    """Whoever has heard one cannot use it again: each connection has a nonce."""
    url, ring = bus
    async with raw(url) as first, raw(url) as second:
        first.introduce(ring, "green", first.nonce)
        assert b"PONG" in await first.until_said(b"PONG")
        second.introduce(ring, "green", first.nonce)
        assert b"Authorization Violation" in await second.until_said(b"PONG")


async def test_who_says_nothing_is_cut_off(bus: tuple[str, Keyring]) -> None:
    async with raw(bus[0]) as silent:
        assert b"Authentication Timeout" in await silent.until_said(b"nothing")


@pytest.mark.parametrize(
    "words",
    [
        b"\x00\xff" * 4096,
        b"PUB baton.led.pool.v1.record.main 2\r\n{}\r\n",
        b"SUB > 1\r\n",
        b"CONNECT {" + b'"a":{' * 10_000 + b"\r\n",
        b"CONNECT " + b"x" * 100_000 + b"\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"RS+ $G > 1\r\n",
        b"LS+ > 1\r\n",
    ],
    ids=["rubbish", "a record", "listening", "deep", "a long line", "a browser", "a route's words", "a leaf's words"],
)
async def test_who_has_not_said_who_it_is_is_heard_by_nobody(bus: tuple[str, Keyring], words: bytes) -> None:
    async with raw(bus[0]) as stranger:
        stranger.say(words)
        with_end = await stranger.until_said(b"-ERR")
        assert b"-ERR" in with_end or not with_end
        assert b"PONG" not in with_end
    await works(bus, "green")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"PUB baton.cmd.job.v1.submit.blue.eve 100000000\r\n" + b"x" * 1_000_000, b"Maximum Payload"),
        (b"PUB baton.cmd.job.v1.submit.blue.eve 400000\r\n" + b"x" * 400_000 + b"\r\n", b"Maximum Payload"),
        (b"HPUB baton.cmd.job.v1.submit.blue.eve 900000 900000\r\n", b"Maximum Payload"),
        (b"PUB baton.cmd.job.v1.submit.blue.eve -5\r\n", b"-ERR"),
        (b"\x00\xff" * 4096, b"-ERR"),
        (b"RS+ $G > 1\r\n", b"-ERR"),
        (b"PUB baton.led.pool.v1.record.main 2\r\n{}\r\n", b"Permissions Violation"),
        (b"SUB baton.evt.*.v1.*.green 1\r\n", b"Permissions Violation"),
    ],
    ids=["100 MB", "400 kB", "headers", "a negative size", "rubbish", "a route", "a record", "others' events"],
)
async def test_words_that_no_client_says_are_refused(bus: tuple[str, Keyring], words: bytes, told: bytes) -> None:
    """Somebody of blue; meanwhile, and afterwards, green works."""
    url, ring = bus
    async with raw(url) as bad:
        bad.introduce(ring, "blue", bad.nonce)
        await bad.until_said(b"PONG")
        bad.say(words)
        said = await bad.until_said(told)
        assert told in said or (not said and bad.reader.at_eof()), "it is told, or the broker hangs up"
        await works(bus, "green")


async def test_who_announces_a_message_and_sends_half_of_it_holds_up_nobody(bus: tuple[str, Keyring]) -> None:
    """On all connections that a team may have: the broker holds what came, 300 KiB of each at the most."""
    url, ring = bus
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(40):
            bad = await stack.enter_async_context(raw(url))
            bad.introduce(ring, "blue", bad.nonce)
            await bad.until_said(b"PONG")
            bad.say(b"PUB baton.cmd.job.v1.submit.blue.eve 260000\r\n" + b"x" * 130_000)
        await works(bus, "green")


@pytest.mark.parametrize("subject", ["baton.cmd.job.v1.*.blue.*", "baton.cmd.job.v1.submit.*.eve", "baton.>", ">"])
async def test_a_wildcard_that_is_published_reaches_nobody_elses_stream(bus: tuple[str, Keyring], subject: str) -> None:
    """The broker takes the words literally: at most the team's own request has a strange name."""
    url, ring = bus
    core = await connect(Address(url, ring.service()), name="spy")
    heard = await core.subscribe("baton.>")
    await core.flush()
    async with raw(url) as bad:
        bad.introduce(ring, "blue", bad.nonce)
        await bad.until_said(b"PONG")
        bad.say(f"PUB {subject} 2\r\n{{}}\r\nPING\r\n")
        await bad.until_said(b"PONG")
    await core.flush()
    said = [message.subject for message in heard._pending_queue._queue]  # type: ignore[attr-defined]
    assert set(said) <= {"baton.cmd.job.v1.*.blue.*"}
    await close(core)
