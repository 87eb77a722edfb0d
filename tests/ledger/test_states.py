"""I9: what placement saved is the fold of the ledger, and `baton ledger verify --state` says so or not."""

from collections.abc import Callable

import pytest

from libs.core.scheduling.decider import Decider
from libs.core.state import fold
from libs.core.state.snapshot import VERSION
from libs.ledger.chain import GENESIS, Head
from libs.ledger.snapshots import SnapshotStore
from libs.ledger.states import WRITER
from libs.ledger.verify import verify
from schemas.ledger import JobQueued, LedgerRecord
from tests.core.builders import World as Pool
from tests.core.builders import job, node
from tests.ledger.world import POOL, World


async def a_life(world: World) -> list[tuple[Head, LedgerRecord]]:
    """In the stream: two jobs of a node run, one of them to its end, and two wait."""
    pool = Pool(node("n0"))
    first = pool.submit(job("first", 2))
    for name in ("second", "third", "fourth"):
        pool.submit(job(name, 2))
    pool.started(first)
    pool.released(first)
    head, stored = GENESIS, []
    for record in pool.records:
        kept = {name: getattr(record, name) for name in ("t_us", "wall_us", "inbox_seq", "events", "format")}
        head = await world.append(head, **kept)
        stored.append((head, record))
    return stored


def folded(records: list[tuple[Head, LedgerRecord]]) -> Decider:
    decider = Decider()
    for head, record in records:
        decider.apply(record, head.seq)
    return decider


async def save(world: World, decider: Decider, head: Head) -> None:
    await SnapshotStore(world.js, POOL).save(WRITER, VERSION, head, head.seq, decider.dump())


async def test_states_that_are_the_fold_hold(world: World) -> None:
    life = await a_life(world)
    for end in (len(life) - 2, len(life)):
        await save(world, folded(life[:end]), life[end - 1][0])
    report = await verify(world.js, POOL, states=True)
    assert (report.violations, report.states) == ([], 2)
    assert (await verify(world.js, POOL)).states == 0, "nobody asked"


def _a_record_less(life: list[tuple[Head, LedgerRecord]], patch: pytest.MonkeyPatch) -> Decider:
    return folded(life[:-1])


def _a_record_twice(life: list[tuple[Head, LedgerRecord]], patch: pytest.MonkeyPatch) -> Decider:
    decider = folded(life)
    decider.state.grants += 1
    return decider


def _an_epoch_back(life: list[tuple[Head, LedgerRecord]], patch: pytest.MonkeyPatch) -> Decider:
    decider = folded(life)
    decider.state.fleet.epoch[0] -= 1
    return decider


def _by_its_own_clock(life: list[tuple[Head, LedgerRecord]], patch: pytest.MonkeyPatch) -> Decider:
    real = fold._FOLD[JobQueued]
    patch.setitem(fold._FOLD, JobQueued, lambda state, event, t_us: real(state, event, t_us + 1))
    return folded(life)


@pytest.mark.parametrize("lie", [_a_record_less, _a_record_twice, _an_epoch_back, _by_its_own_clock])
async def test_a_state_that_is_not_the_fold_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, lie: Callable[..., Decider]
) -> None:
    life = await a_life(world)
    with monkeypatch.context() as patch:
        made = lie(life, patch)
        await save(world, made, life[-1][0])
    report = await verify(world.js, POOL, states=True)
    assert [line.partition(" ")[0] for line in report.violations] == ["I9"], report.violations
    assert (await verify(world.js, POOL)).ok


async def test_a_ledger_that_placement_could_not_fold_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another release, say, which takes a record otherwise than who wrote it."""
    life = await a_life(world)
    await save(world, folded(life), life[-1][0])

    def refuses(*_: object) -> None:
        raise ValueError("not allowed any more")

    monkeypatch.setitem(fold._FOLD, JobQueued, refuses)
    report = await verify(world.js, POOL, states=True)
    assert report.violations == ["I9 at seq 2: placement's fold cannot take it in: ValueError('not allowed any more')"]
    assert report.states == 0
