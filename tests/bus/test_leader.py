"""One leads, another takes over; a role that cannot be kept lapses, and nothing that is guarded is done twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.js.errors import KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from libs.bus import leader
from libs.bus.cancel import cancel
from libs.bus.connect import BusConnection
from libs.bus.cursors import Cursors, Overtaken
from libs.bus.leader import Leadership
from libs.ports.processes import this_process
from tests.kit.tasks import beside
from tests.kit.waiting import until

TTL_S = 0.6


@asynccontextmanager
async def running(leadership: Leadership) -> AsyncIterator[asyncio.Task[None]]:
    async with beside(leadership.run()) as (task,):
        yield task


async def taken(by: Leadership, of: Leadership) -> bool:
    with contextlib.suppress(KeyWrongLastSequenceError):  # renewed in this very moment
        await by._write(by.holder, of._revision)
        return True
    return False


def contender(nats: BusConnection, role: str, holder: str) -> Leadership:
    return Leadership(nats.jetstream(), role, holder, ttl_s=TTL_S)


async def test_one_leads_and_the_other_takes_over_when_it_is_gone(nats: BusConnection, pool: str) -> None:
    a, b = contender(nats, f"r-{pool}", "a"), contender(nats, f"r-{pool}", "b")
    async with running(a) as leading:
        await until(lambda: a.held)
        async with running(b):
            await until(lambda: b.leader == "a")
            assert b.stands_by
            assert not b.held
            a._revision = 0  # as if it were killed: it gives nothing back
            await cancel(leading)
            await until(lambda: b.held)
            assert b.leader == "b"


async def test_a_role_that_is_given_back_is_taken_at_once(nats: BusConnection, pool: str) -> None:
    a, b = contender(nats, f"r-{pool}", "a"), contender(nats, f"r-{pool}", "b")
    a._ttl_s = b._ttl_s = 60.0
    async with running(a):
        await until(lambda: a.held)
    await b._turn()
    assert b.held, "it waited for the time of a leader that had gone in good order"


async def test_the_role_of_a_process_that_was_killed_is_taken_at_once_and_of_one_that_runs_is_not(
    nats: BusConnection, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history that was killed alone told teams nothing for the four seconds in which its successor waited."""
    a, b = contender(nats, f"r-{pool}", "a"), contender(nats, f"r-{pool}", "b")
    a._ttl_s = b._ttl_s = 60.0
    async with running(a) as leading:
        await until(lambda: a.held)
        await b._turn()
        assert not b.held, "this process runs"
        here, _, ticks = this_process().rpartition("/")
        monkeypatch.setattr(leader, "this_process", lambda: f"{here}/{int(ticks) - 1}")
        await a._turn()  # as a process that had our number and is gone
        a._revision = 0
        await cancel(leading)
    await b._turn()
    assert b.held


async def test_work_stops_with_the_role_and_begins_again_with_it(nats: BusConnection, pool: str) -> None:
    a, b = contender(nats, f"r-{pool}", "a"), contender(nats, f"r-{pool}", "b")
    at_work: list[str] = []

    async def work(name: str) -> None:
        at_work.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            at_work.remove(name)

    async with running(b):
        await until(lambda: b.held)
        led = [asyncio.create_task(x.lead(lambda name=x.holder: work(name))) for x in (a, b)]  # type: ignore[misc]
        async with running(a):
            await until(lambda: at_work == ["b"])
            await until(lambda: taken(a, b))  # by force: b must notice at its next turn
            await until(lambda: at_work == ["a"])
        await cancel(*led)


async def test_a_leader_that_did_not_hear_that_its_name_was_stored_leads_on(nats: BusConnection, pool: str) -> None:
    a = contender(nats, f"r-{pool}", "a")
    a._ttl_s = 60.0
    async with running(a):
        await until(lambda: a.held)
        assert await taken(by=a, of=a)  # stored, and not noted
        await a._turn()
        assert a.held


async def test_a_leader_without_a_broker_leads_no_longer_than_the_others_wait(nats: BusConnection, pool: str) -> None:
    a = contender(nats, f"r-{pool}", "a")
    await a._turn()
    assert a.held
    await until(lambda: not a.held)  # no further turn comes: it lapses by its own clock


async def test_whoever_leads_by_a_slow_broker_is_waited_for_as_long_as_it_says(nats: BusConnection, pool: str) -> None:
    """Else it would lose its role between two renewals, and its work would begin anew, again and again."""
    a, b = contender(nats, f"r-{pool}", "a"), contender(nats, f"r-{pool}", "b")
    slow_s = 50 * TTL_S
    now = asyncio.get_running_loop().time
    await a._turn()
    a._took_s = slow_s / 4
    await a._turn()
    assert now() + TTL_S < a._until < now() + slow_s
    await b._turn()
    b._seen = (b._seen[0], now() - slow_s / 2)
    await b._turn()
    assert not b.held, "two lead"
    b._seen = (b._seen[0], now() - slow_s)
    await b._turn()
    assert b.held


async def test_the_time_until_a_role_may_be_taken_begins_with_the_answer(
    nats: BusConnection, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says may have been written while it was waited for: whoever wrote it leads on for so much longer."""
    a, b = contender(nats, f"r-{pool}", "a"), contender(nats, f"r-{pool}", "b")
    renewed_at = 0.0
    read = b._read

    async def slow() -> KeyValue.Entry:
        nonlocal renewed_at
        await a._turn()
        renewed_at = asyncio.get_running_loop().time()
        return await read()

    await a._turn()
    monkeypatch.setattr(b, "_read", slow)
    await b._turn()
    assert b._seen[1] >= renewed_at


async def test_what_work_raises_its_leader_raises(nats: BusConnection, pool: str) -> None:
    async def fails() -> None:
        raise LookupError("no such thing")

    a = contender(nats, f"r-{pool}", "a")
    async with running(a):
        with pytest.raises(LookupError, match="no such thing"):
            await a.lead(fails)


async def test_a_cursor_that_another_process_moved_is_not_moved_back(nats: BusConnection, pool: str) -> None:
    early, late = Cursors(nats.jetstream()), Cursors(nats.jetstream())
    assert await early.load(f"c-{pool}") is None
    assert await late.load(f"c-{pool}") is None
    await late.move(f"c-{pool}", {"seq": 7})
    await late.move(f"c-{pool}", {"seq": 9})
    with pytest.raises(Overtaken, match="moved by another process"):
        await early.move(f"c-{pool}", {"seq": 3})
    assert await early.load(f"c-{pool}") == {"seq": 9}
    await early.move(f"c-{pool}", {"seq": 10})
    assert await late.load(f"c-{pool}") == {"seq": 10}


async def test_work_that_drops_its_cancellation_stops_with_the_role_too(nats: BusConnection, pool: str) -> None:
    """As a request of nats-py does in Python 3.11. It went on, and its process waited for it for ever."""
    leader = contender(nats, f"r-{pool}", "a")
    at_work: list[str] = []

    async def deaf() -> None:
        at_work.append("a")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        try:
            await asyncio.sleep(60)
        finally:
            at_work.clear()

    async with running(leader):
        await until(lambda: leader.held)
        async with beside(leader.lead(deaf)):
            await until(lambda: at_work)
        assert at_work == []
