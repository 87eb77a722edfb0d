"""The inbox is trimmed behind the ledger: it takes many times its size, and whoever takes over finds all it needs."""

from collections.abc import AsyncIterator

import pytest

from libs.bus.trim import Trimmer, fill_of
from schemas.inbox import JobAdmitted
from schemas.subjects import inbox_stream
from tests.kit.waiting import until
from tests.ledger.broker import Broker
from tests.ledger.toy import admitted
from tests.ledger.world import POOL, World

INBOX = inbox_stream(POOL)


@pytest.fixture
async def small(broker: Broker) -> AsyncIterator[World]:
    world = World(broker, [])
    await world.begin(scale=0.001)  # the inbox: 1 MiB
    yield world
    await world.end()


def large(number: int) -> JobAdmitted:
    """About 4 KB."""
    small = admitted(number)
    return small.model_copy(update={"spec": small.spec.model_copy(update={"command": ("true", "x" * 3500)})})


async def test_an_inbox_takes_many_times_its_size_and_the_next_writer_goes_on(small: World) -> None:
    first = small.writer("first", snapshot_every=1_000_000)
    running = small.start(first)

    async def recorded() -> int:
        return first.recorded_to

    trimmer = Trimmer(small.js, INBOX, recorded)
    for round_ in range(4):
        await small.put(*(large(round_ * 1000 + n) for n in range(160)))
        await small.decided(first)
        await until(lambda: first.recorded_to == small.inputs)
        await trimmer.turn(float(round_))
    state = (await small.js.stream_info(INBOX)).state
    assert state.last_seq == small.inputs
    assert state.messages < small.inputs / 2, "0.7 MB a round would have filled it in the second"
    assert fill_of(await small.js.stream_info(INBOX)) < 0.9
    await small.stop(running)

    second = small.writer("second")
    small.start(second)
    await small.put(admitted(9_999))
    await small.decided(second)
    assert second.counters.expired == 0, "nothing that was trimmed was still to be read"
    assert len((await small.folded()).seen) == 4 * 160 + 1
