"""What was published reaches the socket in the same turn of the event loop, and nothing is lost or told twice by it."""

import asyncio

from libs.bus.connect import close, connect
from libs.bus.push import push
from tests.kit.background import ServerInBackground


async def test_what_was_published_is_sent_in_the_turn_in_which_it_was(own_server: ServerInBackground) -> None:
    nats, other = await connect(own_server.url, name="sends"), await connect(own_server.url, name="hears")
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: object) -> None:
        heard.put_nowait(message.data)  # type: ignore[attr-defined]

    await other.subscribe("push.test", cb=hear)
    await other.flush()
    for number in range(3):
        await nats.publish("push.test", b"%d" % number)
    assert nats._pending, "nats-py leaves it to a task"
    push(nats)
    assert not nats._pending
    push(nats)  # of no effect
    await nats.publish("push.test", b"last")
    await nats.flush()
    told = [await asyncio.wait_for(heard.get(), 30) for _ in range(4)]
    assert told == [b"0", b"1", b"2", b"last"]
    assert heard.empty()
    await close(nats)
    await close(other)


async def test_what_the_socket_does_not_take_waits_in_its_order(own_server: ServerInBackground) -> None:
    """The broker stands still, so the socket is full: what comes then waits where nats-py bounds it."""
    nats = await connect(own_server.url, name="sends")
    with own_server.frozen():
        for _ in range(64):
            await nats.publish("push.test", bytes(500_000))
            push(nats)
        assert nats._pending, "no more than the transport's own room is handed over"
    await nats.flush(60)
    assert not nats._pending
    await close(nats)


async def test_a_connection_that_is_away_keeps_what_it_has(own_server: ServerInBackground) -> None:
    nats = await connect(own_server.url, name="sends")
    await close(nats)
    push(nats)
    assert nats.is_closed
