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
from libs.ports import sockdiag
from libs.walls import broker_claims, floods, traces
from libs.walls.book import Book
from libs.walls.floods import Floods
from libs.walls.keyring import Keyring
from libs.walls.resolver import tell
from tests.kit.waiting import until
from tests.walls.world import NODE, TEAM, Attacker, broker

CONNECTIONS, PATIENCE_S = 16, 60.0
"""On a busy machine it is heard for whom traces are made once the broker comes to make them."""


@pytest.fixture
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("traces")) as made:
        yield made


async def attacker(bus: tuple[str, Keyring], who: Attacker = TEAM) -> Client:
    url, ring = bus
    creds = ring.team("blue") if who is TEAM else ring.creds / "nodes" / "main.n1" / "nats.creds"

    async def note(error: Exception) -> None: ...

    return await nats.connect(
        url, error_cb=note, allow_reconnect=False, inbox_prefix=who.replies, **Address("", creds).options()
    )


def message(headers: str, body: bytes = b"", who: Attacker = TEAM) -> bytes:
    block = f"NATS/1.0\r\n{headers}\r\n".encode()
    return b"HPUB %s %d %d\r\n" % (who.question.encode(), len(block), len(block) + len(body)) + block + body + b"\r\n"


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
@pytest.mark.parametrize("who", [TEAM, NODE], ids=["team", "node"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen-by-the-kernel", "of-a-broker-elsewhere"])
async def test_who_has_the_broker_trace_without_end_is_kept_out(
    bus: tuple[str, Keyring], who: Attacker, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own answers stand behind what it is to trace: seen, no look was answered, another team's jobs waited for over a
    minute after twelve seconds of it, and the broker grew by 100 MB a second."""
    if not seen:
        monkeypatch.setattr(sockdiag, "connections", lambda port: [])
    one = message(f"Nats-Trace-Dest: {who.question}\r\nNats-Trace-Only: 1\r\n", who=who)

    async def traces_until_it_is_cut_off(connection: Client) -> None:
        with suppress(nats.errors.Error, OSError):
            while not connection.is_closed:
                connection._transport.write(one * 500)
                await connection._transport.drain()
                await asyncio.sleep(0)

    async with looked_at(bus):
        evil = [await attacker(bus, who) for _ in range(CONNECTIONS)]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(traces_until_it_is_cut_off(connection) for connection in evil))
            await until(lambda: bool(Book(bus[1].folder).lines()))
        (line,) = Book(bus[1].folder).lines()
    told = ("team.keep-out", "blue") if who is TEAM else ("node.revoke", "main/n1")
    assert (line.what, line.target) == told
    for connection in evil:
        await connection.close()


async def test_who_traces_while_no_server_answers_is_kept_out_for_it(
    bus: tuple[str, Keyring], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floods, "STATZ", "nobody.answers")
    one = message(f"Nats-Trace-Dest: {TEAM.question}\r\nNats-Trace-Only: 1\r\n")
    async with looked_at(bus):
        evil = await attacker(bus)
        async with asyncio.timeout(PATIENCE_S):
            while not evil.is_closed:
                with suppress(nats.errors.Error, OSError):
                    evil._transport.write(one * 10)
                    await evil._transport.drain()
                await asyncio.sleep(0.05)
            await until(lambda: bool(Book(bus[1].folder).lines()))
        (line,) = Book(bus[1].folder).lines()
    assert (line.what, line.target) == ("team.keep-out", "blue")
    assert "trace" in line.reason


async def test_nobody_is_said_to_trace_who_does_not(bus: tuple[str, Keyring], monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged word of the broker's, in the name of another, is not believed."""
    monkeypatch.setattr(traces, "LISTEN_S", 3.0)
    url, ring = bus
    blue, green = (ring.keys().teams[name].public for name in ("blue", "green"))
    core, evil = await connect(Address(url, ring.service()), name="core"), await attacker(bus)
    hearing = asyncio.create_task(traces.traced(core))
    await until(lambda: len(core._subs) >= len(traces._WHERE))
    await core.flush()
    for name in ("Nats-Request-Info", "Nats-Request-Info ", "nats-request-info"):
        forged = message(f'{name}: {{"acc":"{green}"}}\r\n', b'{"server":{}}')
        evil._transport.write(forged * 10)
    evil._transport.write(message("x: 1\r\n") * 10)
    await evil.flush()
    assert await hearing == {blue: 30}
    await close(core)
    await evil.close()
