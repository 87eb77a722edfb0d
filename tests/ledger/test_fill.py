"""A ledger that is full: nothing is appended, nothing is lost, nothing is decided twice, and it goes on when there is room."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.js.errors import APIError

from libs.bus.outbox import is_full
from libs.bus.stream_space import SUBMITS_HIGH_WATER, StreamSpace
from libs.ledger.rolling import Rolling
from libs.ledger.segments import segments
from schemas.subjects import inbox_stream, ledger, ledger_stream
from tests.kit.waiting import until
from tests.ledger.broker import Broker
from tests.ledger.test_inbox_trim import large
from tests.ledger.toy import admitted
from tests.ledger.world import POOL, World, input_message


@pytest.fixture
async def small(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async def no_room(self: Rolling, first: int) -> bool:
        return False

    monkeypatch.setattr(Rolling, "stage", no_room)
    monkeypatch.setattr("libs.ledger.writer._FULL_PAUSES_S", (0.05,))
    world = World(broker, [])
    await world.begin(scale=0.001)
    yield world
    await world.end()


async def fill(world: World) -> None:
    """With void messages, until not even a small one goes in."""
    for size in (60_000, 200):
        while True:
            try:
                await world.js.publish(ledger(POOL), b"x" * size)
            except APIError as refused:
                if not is_full(refused):
                    raise
                break


async def test_a_full_ledger_is_waited_for_and_nothing_is_decided_twice(small: World) -> None:
    writer = small.writer("one")
    small.start(writer)
    await small.put(admitted(1))
    await small.decided(writer)
    await fill(small)
    await small.put(admitted(2), admitted(3))
    await until(lambda: "full" in writer.problem and writer.counters.unclear > 2)
    assert writer.recorded_to == 1
    config = (await small.js.stream_info(ledger_stream(POOL))).config
    await small.js.update_stream(config.evolve(max_bytes=2 * (config.max_bytes or 0)))
    await small.decided(writer)
    assert writer.problem == ""
    assert len((await small.folded()).seen) == 3
    assert len(await segments(small.js, POOL)) == 1


async def test_people_are_kept_out_of_the_last_part_of_inbox_and_ledger(small: World) -> None:
    names = [inbox_stream(POOL), ledger_stream(POOL)]

    async def ask() -> list[object]:
        return [await small.js.stream_info(name) for name in names]

    room = StreamSpace(ask)
    message = input_message(large(1), "x")
    await room.look()
    assert room.lacks([message], SUBMITS_HIGH_WATER) == ""
    taken = 1
    while not (
        why := room.lacks([message], SUBMITS_HIGH_WATER)
    ):  # what it let in counts before the broker is asked again
        taken += 1
    assert 180 < taken < 260, "of 1 MiB, 4 KB each"
    assert "INBOX-main is 95% full" in why
    await room.look()
    assert room.lacks([message], SUBMITS_HIGH_WATER) == ""
    await fill(small)
    await room.look()
    assert "LEDGER-main is" in room.lacks([message], SUBMITS_HIGH_WATER)


async def test_room_that_nobody_wants_is_seldom_asked_for(small: World) -> None:
    asked: list[float] = []

    async def ask() -> list[object]:
        asked.append(asyncio.get_running_loop().time())
        return [await small.js.stream_info(inbox_stream(POOL))]

    room = StreamSpace(ask, every_s=0.01)
    message = input_message(large(1), "x")
    running = asyncio.create_task(room.run())
    try:
        await room.known.wait()
        await asyncio.sleep(0.2)
        assert len(asked) == 1
        room.lacks([message], SUBMITS_HIGH_WATER)
        await until(lambda: len(asked) == 2)  # soon after the first that is put in
    finally:
        running.cancel()
