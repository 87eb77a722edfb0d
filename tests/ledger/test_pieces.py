"""A decision in several records: whatever happens between two of them, the rest follows, and nothing twice."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from libs.bus.cancel import cancel
from libs.core.projections.verify import Checker
from libs.core.scheduling.decider import Decider, Deciders
from libs.core.state import fold
from libs.core.state.model import State
from libs.ledger import writer as writer_module
from libs.ledger.pieces import InputTooLarge, pieces
from libs.ledger.writer import LedgerWriter
from schemas import inbox
from schemas.ledger import DevicesFreed, HoldReleased, LedgerRecord, NodeLeft
from tests.core.builders import job, node
from tests.kit.states import dumped
from tests.ledger.test_versions import old_code, read_by_old  # noqa: F401
from tests.ledger.test_writer import Interposed
from tests.ledger.world import POOL, World

JOBS = 30


def events(count: int) -> list[Any]:
    return [HoldReleased(job_id=f"job-{n:032x}") for n in range(count)]


SIZE = len(events(1)[0].model_dump_json()) + 1


def split(
    count: int, cuts: Sequence[tuple[int, int]], inputs: Sequence[int], wanted: int, most: int = 10**6
) -> list[tuple[int, int]]:
    """(events, decided to) of each piece."""
    made = pieces(events(count), cuts, inputs, decided_to=inputs[0] - 1, wanted=wanted * SIZE, most=most * SIZE)
    assert [e for piece in made for e in piece.events] == events(count)
    return [(len(piece.events), piece.inbox_seq) for piece in made]


def test_a_piece_ends_at_a_cut_and_says_which_inputs_are_decided_there() -> None:
    cuts = [(2, 5), (3, 5), (5, 6), (6, 7), (8, 8)]
    assert split(9, cuts, [6, 7, 8], wanted=100) == [(9, 8)]
    assert split(9, cuts, [6, 7, 8], wanted=3) == [(3, 5), (3, 7), (3, 8)]
    assert split(9, cuts, [6, 7, 8], wanted=1) == [(2, 5), (1, 5), (2, 6), (1, 7), (2, 8), (1, 8)]


def test_what_cannot_be_cut_may_be_as_large_as_the_broker_takes_and_no_larger() -> None:
    cuts = [(1, 6), (5, 7)]
    assert split(5, cuts, [6, 7], wanted=1, most=4) == [(1, 6), (4, 7)]
    with pytest.raises(InputTooLarge) as refused:
        split(5, cuts, [6, 7], wanted=1, most=3)
    assert refused.value.inbox_seq == 7


async def lose_a_node_with_many_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_RECORD_BYTES", 4000)
    await world.put(inbox.NodeRegistered(incarnation=1, inventory=node("n1", 1), lease_s=10))
    now_us = time.time_ns() // 1000
    await world.put(*(job(str(n), share_milli=1000 // JOBS, submitted_us=now_us) for n in range(JOBS)))
    writer: LedgerWriter[Decider] = LedgerWriter(world.js, POOL, Deciders(), writer_id="w0")
    granting = world.start(writer)  # type: ignore[arg-type]
    await world.decided(writer)  # type: ignore[arg-type]
    await world.stop(granting)
    await world.put(inbox.NodeLost(node="n1", incarnation=1, silent_s=1))


async def finished(world: World) -> State:
    """Folds the ledger; the checker, which shares no code with placement, finds nothing."""
    checker, state = Checker(), State()
    for entry in await world.entries():
        assert entry.valid
        checker.step(entry.seq, entry.record, entry.valid)
        fold.apply_record(state, entry.record)
    assert not checker.finish().violations
    assert not state.fleet.nodes["n1"].up
    assert [len(jobs) for jobs in state.queues.values()] == [JOBS]
    assert {(j.attempts, j.current is None) for j in state.jobs.values()} == {(1, True)}
    return state


def parts_of(records: Sequence[LedgerRecord]) -> int:
    """Records that hold events of one input, which is decided by the last of them."""
    return sum(isinstance(record.events[0], DevicesFreed | NodeLeft) for record in records)


async def test_one_input_may_take_several_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await lose_a_node_with_many_jobs(world, monkeypatch)
    writer: LedgerWriter[Decider] = LedgerWriter(world.js, POOL, Deciders(), writer_id="w1")
    world.start(writer)  # type: ignore[arg-type]
    await world.decided(writer)  # type: ignore[arg-type]
    state = await finished(world)
    assert parts_of([e.record for e in await world.entries()]) > 3
    assert writer.counters.refolds == 1
    assert dumped(state) == dumped(writer.decider.state)


@pytest.mark.parametrize("stored", [False, True])
async def test_a_writer_that_dies_between_two_records_of_one_input_is_followed_by_one_that_does_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    await lose_a_node_with_many_jobs(world, monkeypatch)
    torn = asyncio.Event()
    last: list[Any] = []

    async def append(publish: Any) -> Any:
        records = [e.record for e in await world.entries()]
        if parts_of(records) == 2:
            if stored:
                last.append(await publish())
            torn.set()
            await asyncio.Event().wait()
        return await publish()

    first: LedgerWriter[Decider] = LedgerWriter(Interposed(world.js, append), POOL, Deciders(), writer_id="w1")  # type: ignore[arg-type]
    dying = asyncio.create_task(first.run())
    await asyncio.wait_for(torn.wait(), 30)
    assert not first.settled, "questions are answered from what is not in the ledger"
    await cancel(dying)
    assert (await world.entries())[-1].record.inbox_seq == world.inputs - 1

    second: LedgerWriter[Decider] = LedgerWriter(world.js, POOL, Deciders(), writer_id="w2")
    world.start(second)  # type: ignore[arg-type]
    await world.decided(second)  # type: ignore[arg-type]
    state = await finished(world)
    assert dumped(state) == dumped(second.decider.state)


async def test_version_0_1_0_reads_a_decision_in_several_records(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    old_code: Path,  # noqa: F811
) -> None:
    await lose_a_node_with_many_jobs(world, monkeypatch)
    writer: LedgerWriter[Decider] = LedgerWriter(world.js, POOL, Deciders(), writer_id="w1")
    world.start(writer)  # type: ignore[arg-type]
    await world.decided(writer)  # type: ignore[arg-type]
    seen = await read_by_old(old_code, world)
    assert seen["stopped"] is None
    assert seen["violations"] == []
    assert seen["position"] == await world.ledger_last()
    assert len(seen["unfinished"]) == JOBS
