"""A pull gives what the broker has at once, and what comes later when it comes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import ConsumerConfig, StreamConfig

from libs.bus.connect import BusConnection, close, connect
from libs.bus.delivery import delivery
from libs.bus.pulls import Pull
from tests.kit.background import ServerInBackground
from tests.kit.tasks import beside
from tests.kit.waiting import until

LONG_S = 120.0


@pytest.fixture
async def nats(own_server: ServerInBackground) -> AsyncIterator[BusConnection]:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await js.add_stream(StreamConfig(name="S", subjects=["s"]))
    await js.add_consumer("S", ConsumerConfig(durable_name="d"))
    yield connection
    await close(connection)


async def pull(nats: BusConnection) -> Any:
    made = await nats.jetstream().pull_subscribe("s", "d", "S")
    assert type(made) is Pull
    return made


async def put(nats: BusConnection, *texts: str) -> None:
    for text in texts:
        await nats.jetstream().publish("s", text.encode())


async def texts(fetching: Any) -> list[str]:
    async with asyncio.timeout(LONG_S / 2):
        return [message.data.decode() for message in await fetching]


async def waits(nats: BusConnection) -> None:
    """Until the broker has a request that waits."""

    async def waiting() -> bool:
        return bool((await nats.jetstream().consumer_info("S", "d")).num_waiting)

    await until(waiting)


async def test_what_comes_later_comes_when_it_does(nats: BusConnection) -> None:
    one = await pull(nats)
    for text in ("a", "b"):  # the second within the request of the first
        fetching = asyncio.create_task(texts(one.fetch(10, LONG_S)))
        await waits(nats)
        await put(nats, text)
        assert await fetching == [text]


async def test_what_is_there_comes_as_one_batch(nats: BusConnection) -> None:
    numbers = [str(number) for number in range(25)]
    await put(nats, *numbers)
    one = await pull(nats)
    assert await texts(one.fetch(10, LONG_S)) == numbers[:10]
    assert await texts(one.fetch(10, LONG_S)) == numbers[10:20]
    assert await texts(one.fetch(10, LONG_S)) == numbers[20:]


@pytest.mark.parametrize("status", ["100", "404", "408", "409", "503", "anything"])
async def test_what_its_sender_calls_a_status_is_a_message_like_any_other(nats: BusConnection, status: str) -> None:
    """Seen: 5,000 requests of one team with such a header were never settled, and no team's were given out any more."""
    one = await pull(nats)
    await put(nats, "before")
    await nats.jetstream().publish("s", b"with", headers={"Status": status, "Description": "Consumer Deleted"})
    await nats.jetstream().publish("s", b"", headers={"Status": status, "Description": "Idle Heartbeat"})
    await put(nats, "after")
    assert await texts(one.fetch(10, LONG_S)) == ["before", "with", "", "after"]
    inline = f"NATS/1.0 {status[:3]} No Messages\r\n\r\n".encode()
    await nats._send_command(b"HPUB s %d %d\r\n%sraw\r\n" % (len(inline), len(inline) + 3, inline))
    await nats.flush()
    assert await texts(one.fetch(10, LONG_S)) == ["raw"]


async def test_who_sends_without_a_pause_does_not_hold_up_what_has_come(nats: BusConnection) -> None:
    """The broker always has one more, and each comes before the patience with it ends."""
    one = await pull(nats)
    await put(nats, "first", "second")

    async def counted() -> bool:
        return (await nats.jetstream().consumer_info("S", "d")).num_pending == 2

    await until(counted)  # a consumer counts a moment after the stream has stored
    [first] = await one.fetch(1, LONG_S)
    assert delivery(first.reply).pending == 1
    await nats.jetstream().purge_stream("S")

    async def more() -> None:
        while True:
            one._sub._pending_queue.put_nowait(first)
            await asyncio.sleep(0.001)

    async with beside(more()):
        assert len(await texts(one.fetch(1_000_000, LONG_S))) < 1_000


async def test_what_comes_soon_after_others_is_handed_out_with_what_follows_it(
    nats: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await pull(nats)
    await put(nats, "first")
    assert await texts(one.fetch(5, LONG_S)) == ["first"], "a lone one is not held up"
    monkeypatch.setattr("libs.bus.pulls._MANY", 1)
    monkeypatch.setattr("libs.bus.pulls._LINGER_S", LONG_S)
    fetching = asyncio.create_task(texts(one.fetch(2, LONG_S)))
    await put(nats, "second")
    await put(nats, "third")
    assert await fetching == ["second", "third"]


async def test_enough_are_handed_out_though_others_may_follow(
    nats: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await pull(nats)
    monkeypatch.setattr("libs.bus.pulls._MANY", 1)
    monkeypatch.setattr("libs.bus.pulls._ENOUGH", 3)
    monkeypatch.setattr("libs.bus.pulls._LINGER_S", LONG_S)
    await put(nats, "a", "b", "c")
    async with asyncio.timeout(LONG_S / 2):
        assert await texts(one.fetch(5, LONG_S)) == ["a", "b", "c"]


async def test_an_open_request_that_has_too_little_left_is_followed_by_another(nats: BusConnection) -> None:
    one = await pull(nats)
    fetching = asyncio.create_task(texts(one.fetch(10, LONG_S)))
    await waits(nats)
    await put(nats, "first")
    assert await fetching == ["first"]
    numbers = [str(number) for number in range(20)]
    await put(nats, *numbers)
    found: list[str] = []
    while len(found) < 20:
        found += await texts(one.fetch(20, LONG_S))
    assert found == numbers


async def test_nothing_is_an_error_after_the_timeout_and_the_next_call_goes_on(nats: BusConnection) -> None:
    one = await pull(nats)
    for _ in range(2):
        with pytest.raises(NatsTimeout):
            await one.fetch(10, 0.2)
    await put(nats, "a")
    assert await texts(one.fetch(10, LONG_S)) == ["a"]


async def test_a_request_that_died_with_the_broker_is_made_again(
    nats: BusConnection, own_server: ServerInBackground
) -> None:
    one = await pull(nats)
    with pytest.raises(NatsTimeout):
        await one.fetch(10, 0.2)
    fetching = asyncio.create_task(one.fetch(10, LONG_S))
    await waits(nats)
    fetching.cancel()
    own_server.wait_replaced(own_server.kill())
    await until(lambda: nats.stats["reconnects"] and nats.is_connected)
    await put(nats, "a")
    assert await texts(one.fetch(10, LONG_S)) == ["a"]


@pytest.mark.parametrize(("batch", "timeout"), [(0, 1.0), (1, 0.0), (1, None)])
async def test_a_pull_has_a_message_and_an_end(nats: BusConnection, batch: int, timeout: float | None) -> None:
    with pytest.raises(ValueError, match="at least one message and an end"):
        await (await pull(nats)).fetch(batch, timeout)
