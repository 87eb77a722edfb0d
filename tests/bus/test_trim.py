"""REQUESTS fills with what waits: what was answered is trimmed, each consumer's own, and nothing that is still unread."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from libs.bus.broker import make_broker
from libs.bus.connect import BusConnection, close, connect
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from libs.bus.settle import Received, consume
from libs.bus.streams import provision
from libs.bus.trim import Trimmer, fill_of, trimmer_of
from schemas.subjects import REQUESTS, cancel, set_quota
from tests.kit.background import ServerInBackground
from tests.kit.waiting import until


@pytest.fixture
async def js(own_server: ServerInBackground) -> AsyncIterator[JetStreamContext]:
    nats: BusConnection = await connect(own_server.url, name="test")
    await provision(nats.jetstream(), ["p"], scale=0.001)  # REQUESTS: 1 MiB
    yield nats.jetstream()
    await close(nats)


async def ask(js: JetStreamContext, count: int, size: int = 10) -> None:
    for _ in range(count):
        await js.publish(cancel("research", "ana"), b"x" * size)


async def read(js: JetStreamContext, count: int) -> None:
    """Admission's durable takes and acknowledges so many."""
    consumer = await js.pull_subscribe_bind(consumer="admission", stream=REQUESTS)
    for message in await consumer.fetch(count, timeout=30) if count else []:
        await message.ack_sync()
    await consumer.unsubscribe()


async def kept(js: JetStreamContext) -> list[int]:
    state = (await js.stream_info(REQUESTS)).state
    found = []
    for seq in range(state.first_seq, state.last_seq + 1):
        with contextlib.suppress(NotFoundError):
            found.append((await js.get_msg(REQUESTS, seq=seq)).seq)
    return found


async def test_what_was_acknowledged_goes_and_what_another_has_not_read_stays(js: JetStreamContext) -> None:
    await ask(js, 3)
    await js.publish(set_quota("p", "root"), b"{}")  # 4: quota_billing's, which does not run
    await ask(js, 3)
    trimmer = trimmer_of(js, REQUESTS, "admission", keep_s=0)
    await trimmer.turn(0.0)
    assert await kept(js) == [1, 2, 3, 4, 5, 6, 7]
    await read(js, 5)  # 1, 2, 3, 5, 6
    await trimmer.turn(1.0)
    assert await kept(js) == [4, 7]
    await read(js, 1)
    await trimmer.turn(2.0)
    assert await kept(js) == [4]
    await trimmer_of(js, REQUESTS, "quota_billing-p", keep_s=0).turn(0.0)
    assert await kept(js) == [4], "its own, and it has not read it"


async def test_what_was_dealt_with_stays_for_a_while_unless_the_stream_is_half_full(js: JetStreamContext) -> None:
    dealt_with = 0

    async def floor() -> int:
        return dealt_with

    trimmer = Trimmer(js, REQUESTS, floor, keep_s=100.0)
    await ask(js, 4)
    dealt_with = 2
    assert not await trimmer.turn(0.0)
    dealt_with = 4
    await trimmer.turn(99.0)
    assert await kept(js) == [1, 2, 3, 4]
    await trimmer.turn(100.0)
    assert await kept(js) == [3, 4]
    await trimmer.turn(199.0)
    assert await kept(js) == []
    await ask(js, 40, size=20_000)
    dealt_with = 40
    assert await trimmer.turn(200.0), "pressed"
    assert await kept(js) == [41, 42, 43, 44]


async def test_a_stream_takes_many_times_its_size_while_its_reader_keeps_up(
    own_server: ServerInBackground, js: JetStreamContext
) -> None:
    """Without trimming REQUESTS was full after so many bytes, whatever had been answered, and refused every submit."""
    decided = 0

    def decide(received: Received) -> list[Outgoing]:
        nonlocal decided
        decided += 1
        return []

    broker = make_broker(own_server.url, "admission")
    consume(broker, stream=REQUESTS, durable="admission", origin="admission", decide=decide, outbox=lambda: Outbox(js))
    await broker.start()
    trimmer = trimmer_of(js, REQUESTS, "admission")
    for turn in range(6):
        await ask(js, 30, size=20_000)  # 0.6 MB of 1 MiB
        await until(lambda wanted=30 * (turn + 1): decided == wanted)

        async def trimmed(now: float = float(turn)) -> bool:
            await trimmer.turn(now)
            return fill_of(await js.stream_info(REQUESTS)) < 0.3

        await until(trimmed)
    await broker.stop()


async def test_large_messages_make_room_as_soon_as_they_are_answered(js: JetStreamContext) -> None:
    """Between two turns they would fill the stream, and the broker would refuse what others send."""
    dealt_with = 0

    async def floor() -> int:
        return dealt_with

    trimmer = Trimmer(js, REQUESTS, floor, subject="baton.cmd.job.v1.*.*.*", keep_s=1e6)
    relief = asyncio.create_task(trimmer.relieve())
    try:
        for _ in range(30):  # 3 MB into a stream of 1 MiB
            await ask(js, 1, 100_000)
            dealt_with += 1
            trimmer.dealt_with(subject=cancel("research", "ana"), seq=dealt_with, size=100_000)
            await until(lambda: js_fill(js))
        await js.publish(cancel("other", "ben"), b"{}")
    finally:
        relief.cancel()


async def js_fill(js: JetStreamContext) -> bool:
    return fill_of(await js.stream_info(REQUESTS)) < 0.8
