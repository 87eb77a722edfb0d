"""A team that asks and reads no answer: whoever answers it is not slowed by that, and so nobody else."""

from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.connect import Address
from libs.walls.accounts import TEAM_SUBSCRIPTIONS
from libs.walls.keyring import Keyring
from tests.kit.waiting import until
from tests.walls.world import ANSWERED, TEAM, broker

LARGE, MOST = b"x" * 131_072, 48
"""So many answers to eight subscriptions are three quarters of what the broker keeps for who does not read (`max_pending`)."""
ALL = f"{TEAM.replies}.all"


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[tuple[str, Keyring, Path]]:
    with broker(tmp_path) as (url, ring):
        yield url, ring, tmp_path / "logs" / "nats.log"


async def team(url: str, ring: Keyring) -> Client:
    async def note(error: Exception) -> None: ...

    return await nats.connect(
        url, error_cb=note, allow_reconnect=False, inbox_prefix=TEAM.replies, **Address("", ring.team("blue")).options()
    )


async def test_who_reads_no_answer_does_not_slow_whoever_answers(bus: tuple[str, Keyring, Path]) -> None:
    """By itself the broker lets a connection wait 10 ms each time that it speaks to somebody who is behind: with another team's
    answers on that connection these took 50 ms in place of 0.5."""
    url, ring, log = bus
    answered = 0

    async def answer(message: Msg) -> None:
        nonlocal answered
        await message.respond(LARGE if message.data == b"large" else b"small")
        answered += message.data == b"large"

    async def ignore(message: Msg) -> None: ...

    core = await nats.connect(url, **Address("", ring.service()).options())
    for pattern in ANSWERED:
        await core.subscribe(pattern, queue="queries", cb=answer)
    deaf, asks = await team(url, ring), await team(url, ring)
    for _ in range(TEAM_SUBSCRIPTIONS):
        await deaf.subscribe(ALL, cb=ignore)
    for connection in (core, deaf):
        for _ in range(2):
            await connection.flush()
    deaf._transport._bare_io_writer.transport.pause_reading()
    for asked in range(MOST + 16):
        await asks.publish(TEAM.question, b"large", reply=ALL)
        await until(lambda asked=asked: answered > asked)
        await core.flush()
        for _ in range(4):
            await asks.publish(TEAM.question, b"small", reply=f"{TEAM.replies}.x")
    await until(lambda: answered >= MOST)
    await core.flush()
    assert "Producer was stalled" not in log.read_text()
    deaf._transport._bare_io_writer.transport.abort()
    for connection in (asks, core):
        await connection.close()
