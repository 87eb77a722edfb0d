"""Who has the broker trace its messages without end, so that it answers nobody else, is heard and kept out."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import nats
import pytest
from nats.aio.client import Client

from libs.bus.cancel import cancel
from libs.bus.connect import Address, close, connect
from libs.walls import broker_claims, traces
from libs.walls.book import Book
from libs.walls.floods import Floods
from libs.walls.keyring import Keyring
from libs.walls.resolver import tell
from tests.walls.world import TEAM, broker

CONNECTIONS, MOST = 16, 700_000
"""As many messages as take some ten seconds."""


@pytest.fixture
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("traces")) as made:
        yield made


async def team(bus: tuple[str, Keyring]) -> Client:
    url, ring = bus

    async def note(error: Exception) -> None: ...

    return await nats.connect(
        url, error_cb=note, allow_reconnect=False, inbox_prefix=TEAM.replies,
        **Address("", ring.team("blue")).options(),
    )  # fmt: skip


def message(headers: str, body: bytes = b"") -> bytes:
    block = f"NATS/1.0\r\n{headers}\r\n".encode()
    return b"HPUB %s %d %d\r\n" % (TEAM.question.encode(), len(block), len(block) + len(body)) + block + body + b"\r\n"


TRACED = message(f"Nats-Trace-Dest: {TEAM.question}\r\nNats-Trace-Only: 1\r\n")


@asynccontextmanager
async def looked_at(bus: tuple[str, Keyring]) -> AsyncIterator[None]:
    url, ring = bus
    core = await connect(Address(url, ring.service()), name="core")
    watching = await connect(Address(url, broker_claims.claims_credential(ring)), name="floods")
    looking = asyncio.create_task(Floods(ring, partial(tell, url, ring), core=core).run(watching))
    try:
        yield
    finally:
        await cancel(looking)
        await close(watching)
        await close(core)


@pytest.mark.timeout(180)
async def test_who_has_the_broker_trace_without_end_is_kept_out(bus: tuple[str, Keyring]) -> None:
    """Its own answers stand behind what it is to trace: seen, no look was answered, another team's jobs waited for over a
    minute after twelve seconds of it, and the broker grew by 100 MB a second."""
    sent = 0

    async def traces_on(connection: Client) -> None:
        nonlocal sent
        with suppress(nats.errors.Error, OSError):
            while not connection.is_closed and sent < MOST:
                connection._transport.write(TRACED * 500)
                await connection._transport.drain()
                sent += 500
                await asyncio.sleep(0)

    async with looked_at(bus):
        evil = [await team(bus) for _ in range(CONNECTIONS)]
        await asyncio.gather(*(traces_on(connection) for connection in evil))
        kept_out = [line for line in Book(bus[1].folder).lines() if line.what == "team.keep-out"]
        assert sent < MOST, "it is cut off before it has sent all"
    assert [(line.target, "trace" in line.reason) for line in kept_out] == [("blue", True)]
    for connection in evil:
        await connection.close()


async def test_nobody_is_said_to_trace_who_does_not(bus: tuple[str, Keyring]) -> None:
    """A forged word of the broker's, in the name of another, is not believed."""
    url, ring = bus
    blue, green = (ring.keys().teams[name].public for name in ("blue", "green"))
    core, evil = await connect(Address(url, ring.service()), name="core"), await team(bus)
    hearing = asyncio.create_task(traces.traced(core))
    await core.flush()
    for name in ("Nats-Request-Info", "Nats-Request-Info ", "nats-request-info"):
        forged = message(f'{name}: {{"acc":"{green}"}}\r\n', b'{"server":{}}')
        evil._transport.write(forged * 10)
    evil._transport.write(message("x: 1\r\n") * 10)
    await evil.flush()
    assert await hearing == {blue: 30}
    evil._transport.write(TRACED * 3)
    await evil.flush()
    await close(core)
    await evil.close()
