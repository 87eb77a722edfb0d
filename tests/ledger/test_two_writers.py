"""Two writers at once, and one that slept: the broker refuses the stale one, the log stays whole."""

import asyncio
from typing import Any

import pytest

from libs.ledger.append import AppendOutcome
from libs.ledger.tail import Stored, Tail
from schemas.inbox import Tick
from schemas.subjects import DEAD, inbox_stream, ledger
from tests.ledger.test_writer import Interposed
from tests.ledger.toy import admitted, cancelled, job
from tests.ledger.world import POOL, World


async def feed(world: World, jobs: int, pause_s: float = 0.0) -> None:
    for n in range(jobs):
        await world.put(admitted(n))
        if n >= 3:
            await world.put(cancelled(n - 3))
        await asyncio.sleep(pause_s)


@pytest.mark.parametrize("takeover_s", [0.0, 0.2])
async def test_two_writers_at_once_decide_everything_once(world: World, takeover_s: float) -> None:
    writers = [world.writer(f"w{n}", await world.connect(), batch=3, takeover_s=takeover_s) for n in (1, 2)]
    for writer in writers:
        world.start(writer)
    await feed(world, 150)
    await world.decided(*writers)
    toy = await world.folded()
    assert list(toy.seen) == [job(n) for n in range(150)]
    assert toy.inbox_seq == world.inputs
    assert all(e.valid for e in await world.entries())
    assert sum(w.counters.refused for w in writers) > 0


async def test_a_stale_writer_buries_nothing(world: World) -> None:
    """What it rejects by an old state, whoever wrote since may have taken."""
    stale = world.writer("stale")
    task = world.start(stale)
    await world.put(admitted(1))
    await world.decided(stale)
    await world.stop(task)
    awake = world.writer("awake", await world.connect())
    world.start(awake)
    await world.put(admitted(2))
    await world.decided(awake)
    bad = Stored(seq=2, subject="baton.in.job.v1.unheard-of.main", payload=b"{}", headers={}, time_us=1)
    inbox = Tail(world.js, inbox_stream(POOL), 2)
    assert await stale._decide(inbox, [bad]) is AppendOutcome.REFUSED
    assert (await world.js.stream_info(DEAD)).state.messages == 0


async def test_a_stale_writer_is_refused_and_then_follows(world: World) -> None:
    paused, go_on = asyncio.Event(), asyncio.Event()

    async def sleeps_before_it(publish: Any) -> Any:
        if not go_on.is_set():
            paused.set()
            await go_on.wait()
        return await publish()

    stale = world.writer("stale", Interposed(world.js, sleeps_before_it))  # type: ignore[arg-type]
    world.start(stale)
    await world.put(admitted(1))
    await paused.wait()
    awake = world.writer("awake", await world.connect())
    world.start(awake)
    await world.put(admitted(2))
    await world.decided(awake)
    go_on.set()
    async with asyncio.timeout(20):
        while stale.role != "following":
            await asyncio.sleep(0.01)
    assert stale.counters.refused == 1
    await world.put(admitted(3))
    async with asyncio.timeout(20):
        while stale.decided_to < world.inputs:
            await asyncio.sleep(0.01)
    assert {e.record.writer for e in await world.entries()} == {"awake"}
    assert list((await world.folded()).seen) == [job(1), job(2), job(3)]


async def test_the_follower_takes_over_and_announces_its_state(world: World) -> None:
    announced: list[int] = []

    async def refolded(decider: Any) -> None:
        announced.append(len(decider.seen))

    writers = [world.writer(f"w{n}", await world.connect(), takeover_s=0.3, on_refold=[refolded]) for n in (1, 2)]
    tasks = [world.start(w) for w in writers]
    n = 0
    async with asyncio.timeout(30):
        while "following" not in (writers[0].role, writers[1].role):
            await world.put(admitted(n := n + 1))
            await asyncio.sleep(0.02)
    leader = 0 if writers[1].role == "following" else 1
    await world.stop(tasks[leader])
    follower = writers[1 - leader]
    await world.put(admitted(1000))
    await world.decided(follower)
    assert follower.counters.takeovers >= 1
    assert announced[-1] >= n
    assert job(1000) in (await world.folded()).seen


async def test_a_writer_that_only_sees_ticks_notices_that_another_wrote(world: World) -> None:
    sleeper = world.writer("sleeper")
    world.start(sleeper)
    await asyncio.wait_for(sleeper.ready.wait(), 10)
    await world.chain(1)
    async with asyncio.timeout(20):
        while sleeper.position < 1:
            await world.put(Tick())
            await asyncio.sleep(0.05)


async def test_should_the_broker_accept_two_the_second_is_void_for_everybody(world: World) -> None:
    """Compare-and-append switched off, as after a split: the chain alone must hold."""

    class Careless:
        def __init__(self, js: Any) -> None:
            self._inner = js

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def publish(self, subject: str, payload: bytes, **options: Any) -> Any:
            if subject == ledger(POOL):
                options.pop("headers", None)
            return await self._inner.publish(subject, payload, **options)

    writers = [world.writer(f"w{n}", Careless(await world.connect()), batch=3, takeover_s=0) for n in (1, 2)]  # type: ignore[arg-type]
    for writer in writers:
        world.start(writer)
    await feed(world, 80)
    await world.decided(*writers)
    entries = await world.entries()
    assert any(not e.valid for e in entries)
    assert list((await world.folded()).seen) == [job(n) for n in range(80)]
