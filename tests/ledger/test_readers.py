"""Readers say what they understand, and the writer waits for the oldest of them."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libs.core.scheduling.decider import Deciders
from libs.core.state.formats import FIRST, FORMAT_OF, KINDS, NEWEST, may_emit
from libs.ledger import readers
from libs.ledger.chain import GENESIS
from libs.ledger.follower import Follower
from libs.ledger.readers import Declared, FormatGate, Readers
from libs.ledger.writer import LedgerWriter
from schemas import inbox
from schemas.clock import BootReading
from schemas.ids import content_hash
from schemas.ledger import EVENT_KINDS
from tests.core import builders
from tests.kit.tasks import beside
from tests.ledger.tally import Tally
from tests.ledger.test_versions import old_code
from tests.ledger.toy import admitted
from tests.ledger.world import POOL, World

__all__ = ["old_code"]
SCRIPT = Path(__file__).with_name("old_follower.py")
KEPT = [
    "5db54e7308f32119",
    "63c7132fe3f5bdeb",
    "e3b0c44298fc1c14",
    "92015fc898c1d74a",
    "1ede5470f3c739d2",
    "e3b0c44298fc1c14",
    "f221ad1d2b793f03",
    "e3b0c44298fc1c14",
    "e3b0c44298fc1c14",
    "e3b0c44298fc1c14",
    "e3b0c44298fc1c14",
]
"""Hash of each list of `KINDS`."""
OLD = Declared(pool=POOL, name="telemetry", process="h-1", release="0.1.0", format=FIRST, position=7, resume=5)


async def until(true: Callable[[], Any], what: str = "") -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------------------------------ the rule


def test_every_kind_has_a_format_and_0_1_0s_are_the_first() -> None:
    assert FORMAT_OF.keys() == EVENT_KINDS.keys()
    assert {"job.granted", "node.left", "board.cut"} <= {kind for kind, n in FORMAT_OF.items() if n == FIRST}
    assert not may_emit("clock.jumped", FIRST)
    assert may_emit("clock.jumped", NEWEST)
    with pytest.raises(KeyError):
        may_emit("job.promoted", NEWEST)


def test_a_format_that_was_declared_brings_no_more_kinds() -> None:
    """A reader that runs somewhere declares a format, and knows the kinds that its list had then."""
    assert sum(map(len, KINDS)) == len(frozenset().union(*KINDS)), "a kind is in two lists"
    lists = [content_hash(" ".join(sorted(kinds)).encode())[:16] for kinds in KINDS]
    assert lists[: len(KEPT)] == KEPT, "a list was changed: begin a new one at the end of KINDS, and add its hash here"
    assert lists[len(KEPT) :] == [], f"add to KEPT, so that they stay as they are: {lists[len(KEPT) :]}"
    unlisted = EVENT_KINDS.keys() - frozenset().union(*KINDS)
    assert unlisted == set(), "put them into a list of their own, at the end of KINDS"


def test_what_a_decision_does_without_the_newer_kinds() -> None:
    """A plan that does not fit is refused as 0.1.0 refused it."""
    world = builders.World(builders.node("a", 1))
    world.decider = Deciders(allowed=lambda: FIRST).new()
    world.send(inbox.NodeRegistered(incarnation=2, inventory=builders.node("a", 1), lease_s=10))
    job = world.submit(builders.job("j", 1))
    plan = inbox.PreemptionPlanned(
        plan_id="p", base_seq=1, beneficiary=job, victims=(job,), devices=("a-gpu0",), cost_device_s=1
    )
    (answer,) = world.send(plan)
    assert answer.kind == "input.rejected"
    assert answer.reason


# ---------------------------------------------------------------------------------------------------------- declaring


async def test_a_follower_and_a_writer_declare_themselves_and_leave(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "DECLARE_S", 0.05)
    known = Readers(world.js)
    writer = world.writer("w1", batch=1, snapshot_every=2)
    task = world.start(writer)
    follower = Follower(world.js, POOL, Tally, name="tally", snapshot_every=2, idle_s=0.1)
    async with beside(follower.run()):
        for n in range(4):
            await world.put(admitted(n))
            await world.decided(writer)
        await until(lambda: follower.saves.saved and follower.position == writer.position)
        for _ in range(300):
            found = {one.name: one for one in await known.declared(POOL)}
            if found and found["tally"].position == writer.position and found["tally"].resume:
                break
            await asyncio.sleep(0.05)
        assert found.keys() == {"tally", "placement"}
        tally = found["tally"]
        assert (tally.format, tally.position, tally.leaving) == (NEWEST, writer.position, False)
        assert 0 < tally.resume <= tally.position
        assert await known.unmarked(POOL) == []
    await world.stop(task)
    assert {one.leaving for one in await known.declared(POOL)} == {True}
    await known.forget(tally)
    assert [one.name for one in await known.declared(POOL)] == ["placement"]


async def test_the_format_is_raised_when_nobody_older_was_seen_for_a_while(world: World) -> None:
    known = Readers(world.js)
    await world.append(GENESIS)
    await known.declare(OLD)
    gate = FormatGate(world.js, POOL, hold_s=0.3)
    await gate.poll()
    async with beside(gate.run()):
        await asyncio.sleep(0.6)
        assert gate.allowed == FIRST
        assert "telemetry (h-1, 0.1.0)" in gate.holding
        await known.declare(OLD.model_copy(update={"leaving": True}))
        await until(lambda: gate.allowed == NEWEST)
    assert await known.format(POOL) == NEWEST
    again = FormatGate(world.js, POOL, hold_s=3600)
    await again.poll()
    assert again.allowed == NEWEST, "for good"


async def test_the_format_is_raised_as_far_as_all_readers_understand(world: World) -> None:
    """The writer knows a newer one than the readers do, which all know a newer one than is written."""
    known = Readers(world.js)
    await world.append(GENESIS)
    between, newer = OLD.model_copy(update={"format": 2}), OLD.model_copy(update={"process": "h-2", "format": 3})
    await known.declare(between)
    await known.declare(newer)
    gate = FormatGate(world.js, POOL, hold_s=0.3, newest=3)
    await gate.poll()
    assert gate.allowed == FIRST, "an older one may be restarting"
    async with beside(gate.run()):
        await until(lambda: gate.allowed == 2)
        await asyncio.sleep(0.6)
        assert (gate.allowed, await known.format(POOL)) == (2, 2)
        assert gate.holding == "older readers: telemetry (h-1, 0.1.0)"
        await known.forget(between)
        await until(lambda: gate.allowed == 3)
    assert (gate.holding, await known.format(POOL)) == ("", 3)


async def test_an_empty_ledger_begins_with_the_newest_format_and_an_old_one_waits(world: World) -> None:
    gate = FormatGate(world.js, POOL, hold_s=3600)
    await gate.poll()
    assert gate.allowed == NEWEST
    await Readers(world.js).raise_format(POOL, FIRST, "the test")
    await world.append(GENESIS)
    late = FormatGate(world.js, POOL, hold_s=3600)
    await late.poll()
    assert (late.allowed, late.holding) == (FIRST, "older readers may be restarting")


async def test_a_broker_without_the_buckets_holds_the_format_and_ends_nobody(world: World) -> None:
    await world.js.delete_key_value("baton-readers")
    gate = FormatGate(world.js, POOL, hold_s=0.05)
    await gate.poll()
    assert (gate.allowed, bool(gate.holding)) == (FIRST, True)
    follower = Follower(world.js, POOL, Tally, name="tally", idle_s=0.1)
    async with beside(follower.run()):
        await asyncio.wait_for(follower.caught_up.wait(), 30)


# ------------------------------------------------------------------------------------------------------ rolling upgrade


async def test_0_1_0_reads_on_beside_the_present_writer_until_it_is_gone(world: World, old_code: Path) -> None:
    """Rolling upgrade: the writer is new, one reader is not. What the reader does not know is not written while it lives."""
    await world.append(GENESIS, t_us=1)
    old = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(SCRIPT), world.broker.url, POOL,
        env={**os.environ, "PYTHONPATH": str(old_code)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said: list[str] = []

    async def listen() -> None:
        assert old.stdout is not None
        while line := await old.stdout.readline():
            said.append(line.decode().strip())

    hearing = asyncio.create_task(listen())
    known, reading = Readers(world.js), 0
    async with asyncio.timeout(60):
        while not await known.unmarked(POOL):
            await asyncio.sleep(0.05)
    gate = FormatGate(world.js, POOL, hold_s=0.5)
    await gate.poll()
    allowed: Callable[[], int] = lambda: gate.allowed  # noqa: E731
    writer = LedgerWriter(world.js, POOL, Deciders(allowed=allowed), writer_id="new", batch=1, allowed=allowed)
    unfit = inbox.PreemptionPlanned(
        plan_id="p", base_seq=1, beneficiary=admitted(1).job_id, victims=(admitted(1).job_id,),
        devices=("a-gpu0",), cost_device_s=1,
    )  # fmt: skip

    async def happen() -> None:
        """All that would be told in newer kinds, each once."""
        nonlocal reading
        for _ in range(2):
            reading += 3600 * 10**6
            await world.put(inbox.Tick(readings=(BootReading(boot="b", at_us=reading),)))
        job = admitted(world.inputs + 100).model_copy(update={"submitted_us": time.time_ns() // 1000})
        await world.put(unfit, job)
        await world.decided(writer)  # type: ignore[arg-type]

    async with beside(gate.run(), writer.run()):
        await happen()
        await until(lambda: said[-1] == str(writer.position))
        kinds = {event.kind for entry in await world.entries() for event in entry.record.events}
        assert "job.queued" in kinds
        assert {kind for kind in kinds if FORMAT_OF[kind] > FIRST} == set()
        assert old.returncode is None
        old.kill()
        await old.wait()
        await hearing
        for consumer in await known.unmarked(POOL):  # the broker forgets it after half a minute by itself
            await world.js.delete_consumer(f"LEDGER-{POOL}", consumer)
        await until(lambda: gate.allowed == NEWEST)
        await happen()
    kinds = {event.kind for entry in await world.entries() for event in entry.record.events}
    assert {"clock.jumped", "plan.declined"} <= kinds
    by_hand, *declared = [entry.record.format for entry in await world.entries()]
    assert (by_hand, declared) == (None, sorted(declared))
    assert set(declared) == {FIRST, NEWEST}
    assert not [line for line in said if line.startswith("stopped")]
