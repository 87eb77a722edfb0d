"""An older reader and a newer ledger: what 0.1.0 does with what is written today, and today's with what comes next.

`tests/fixtures/baton-0.1.0-py3-none-any.whl` is Baton as it stood before records knew skippable kinds. It is never
rebuilt: it is what may still run on somebody's machine while the rest is upgraded.
"""

import asyncio
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from libs.bus.cancel import cancel
from libs.core.billing.metering import Meter
from libs.core.projections.hot_state import HotState
from libs.core.projections.verify import Checker
from libs.core.state import fold
from libs.core.state.model import State
from libs.ledger.chain import GENESIS, Head, UnknownRecord, continues, judge
from libs.ledger.follower import Follower
from libs.ledger.reader import LedgerReader
from libs.ledger.verify import verify
from schemas.ids import content_hash
from schemas.ledger import LedgerRecord, UnknownEvent
from schemas.subjects import ledger, ledger_stream
from tests.core import builders
from tests.ledger.tally import Tally
from tests.ledger.world import POOL, World

WHEEL = Path(__file__).parents[1] / "fixtures" / "baton-0.1.0-py3-none-any.whl"
SCRIPT = Path(__file__).with_name("old_reader.py")
NOTE = {"kind": "plan.annotated", "skippable": True, "text": "what a later version has to say", "at": [1, {"b": None}]}
PROMOTED = {"kind": "job.promoted", "job_id": "job-" + "0" * 32}


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.1.0, unpacked: compiled code is cached beside it, which a wheel does not allow."""
    folder = tmp_path_factory.mktemp("baton-0.1.0")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder)
    return folder


async def read_by_old(old_code: Path, world: World) -> dict[str, Any]:
    """Runs the old reader to the end of the ledger, or to where it stops; it has half a minute."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(SCRIPT), world.broker.url, POOL,
        env={**os.environ, "PYTHONPATH": str(old_code)}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    seen: dict[str, Any] = json.loads(out)
    assert seen["code"].startswith(str(old_code)), f"the script ran with {seen['code']}"
    return seen


def past() -> builders.World:
    """Jobs that came, ran, ended or wait; a preemption; a node that was lost; an input that was refused."""
    made = builders.World(builders.node("a", 4), builders.node("b", 2))
    first = made.submit(builders.job("first", 2))
    made.started(first)
    second = made.submit(builders.job("second", 3, team="other", priority=3))
    made.submit(builders.job("waits", 4))
    made.released(first)
    if made.nodes_of(second):
        made.started(second)
    return made


async def store(world: World, records: list[LedgerRecord]) -> Head:
    """Writes the records as the present writer does."""
    head = GENESIS
    for record in records:
        head = await world.append(head, inbox_seq=record.inbox_seq, t_us=record.t_us, events=record.events)
    return head


async def store_raw(world: World, head: Head, *events: dict[str, Any], **changes: Any) -> Head:
    """Writes a record whose events this version may not know, as a later version would."""
    link = {"v": 1, "pool": POOL, "prev_seq": head.seq, "prev_hash": head.hash}
    record = link | {"inbox_seq": 99, "t_us": 10**9, "writer": "later", "events": list(events)} | changes
    payload = json.dumps(record).encode()
    ack = await world.js.publish(ledger(POOL), payload)
    return Head(ack.seq, content_hash(payload))


async def payloads(world: World) -> list[bytes | None]:
    """The stream, byte by byte."""
    name = ledger_stream(POOL)
    return [(await world.js.get_msg(name, seq=seq)).data for seq in range(1, await world.ledger_last() + 1)]


# ------------------------------------------------------------------------------------------------------------ 0.1.0


async def test_0_1_0_reads_what_is_written_today(world: World, old_code: Path) -> None:
    records = past().records
    head = await store(world, records)
    seen = await read_by_old(old_code, world)
    assert seen["stopped"] is None
    assert (seen["head"], seen["records"]) == ([head.seq, head.hash], len(records))

    state, rows, meter, checker = State(), HotState(), Meter(), Checker()
    for seq, record in enumerate((e.record for e in await world.entries()), 1):
        fold.apply_record(state, record)
        rows.apply(record, seq)
        meter.apply(record, seq)
        checker.step(seq, record, valid=True)
    report = checker.finish()
    assert seen["violations"] == report.violations == []
    assert (seen["jobs"], seen["milli_us"], seen["terminal"]) == (report.jobs, report.milli_us, report.terminal)
    assert seen["unfinished"] == sorted(state.jobs)
    assert seen["grants"] == state.grants > 0
    assert seen["rows"] == {name: row["state"] for name, row in sorted(rows.jobs.items())}
    assert seen["sums"] == sorted([*key, units] for key, units in meter.sums().items()) != []


@pytest.mark.parametrize("event", [NOTE, PROMOTED], ids=["skippable", "not skippable"])
async def test_0_1_0_stops_at_a_kind_that_it_does_not_know_and_harms_nothing(
    world: World, old_code: Path, event: dict[str, Any]
) -> None:
    """It knows no skippable kinds, so it stops at both, with all that came before applied, and says what to do."""
    records = past().records
    head = await store(world, records)
    after = await store_raw(world, head, event)
    await store_raw(world, after)
    before = await payloads(world)
    for _ in range(2):  # a restart ends the same way, in the same place
        seen = await read_by_old(old_code, world)
        kind, text = seen["stopped"]
        assert kind == "UnknownRecord"
        assert event["kind"] in text
        assert f"ledger record {after.seq} of pool {POOL}" in text
        assert "run a version of Baton at least as new" in text
        assert (seen["position"], seen["records"], seen["head"]) == (head.seq, len(records), [head.seq, head.hash])
        assert seen["violations"] == []
    assert await payloads(world) == before


# ------------------------------------------------------------------------------------------------------------ today


async def test_a_skippable_kind_is_passed_over_and_the_rest_of_its_record_counts(world: World) -> None:
    records = past().records
    head = await store(world, records[:-1])
    last = json.loads(records[-1].model_dump_json())
    noted = await store_raw(world, head, NOTE, *last["events"], NOTE, t_us=last["t_us"], inbox_seq=last["inbox_seq"])
    end = await store_raw(world, noted)
    entries = await world.entries()
    assert [e.valid for e in entries] == [True] * (len(records) + 1)
    assert entries[-1].head == end, "the hash is of the stored bytes, with all that is in them"
    assert entries[-2].record.events == records[-1].events
    assert entries[-2].unknown == (UnknownEvent(kind="plan.annotated", skippable=True),) * 2
    assert (await verify(world.js, POOL)).violations == []

    plain, noted_state = State(), State()
    for record, entry in zip(records, entries, strict=False):
        fold.apply_record(plain, record)
        fold.apply_record(noted_state, entry.record)
    assert sorted(noted_state.jobs) == sorted(plain.jobs)
    assert noted_state.inbox_seq == plain.inbox_seq


async def test_a_follower_goes_on_over_a_skippable_kind_and_counts_it(world: World) -> None:
    head = await store_raw(world, GENESIS, NOTE, NOTE)
    await store_raw(world, head)
    follower = Follower(world.js, POOL, Tally, name="tally")
    task = asyncio.create_task(follower.run())
    await follower.caught_up.wait()
    await cancel(task)
    assert follower.projection.seen == [(1, 10**9), (2, 10**9)]
    assert follower.counters.unknown_events == 2


@pytest.mark.parametrize(
    "mark", [{}, {"skippable": False}, {"skippable": None}, {"skippable": "true"}, {"skippable": 1}]
)
async def test_a_kind_that_is_not_marked_stops_the_reader(world: World, mark: dict[str, Any]) -> None:
    head = await store_raw(world, GENESIS, NOTE)
    await store_raw(world, head, NOTE, PROMOTED | mark)
    reader = LedgerReader(world.js, POOL)
    assert [e.seq for e in await reader.next(wait_s=5)] == [1]
    for _ in range(2):
        with pytest.raises(UnknownRecord) as stopped:
            await reader.next(wait_s=5)
        assert "ledger record 2" in str(stopped.value)
        assert "'job.promoted'" in str(stopped.value)
        assert "at least as new" in str(stopped.value)
    await reader.close()


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"t_us": -1},
        {"events": [NOTE, {"kind": "node.left", "skippable": True}]},  # a kind that is known must be whole
        {"events": [NOTE, {"skippable": True}]},
        {"events": [NOTE, "plan.annotated"]},
        {"events": [{**NOTE, "kind": 7}]},
    ],
)
def test_the_mark_excuses_nothing_else(change: dict[str, Any]) -> None:
    record = {"v": 1, "pool": POOL, "prev_seq": 0, "prev_hash": "", "inbox_seq": 0, "t_us": 1, "writer": "w"}
    payload = json.dumps(record | {"events": [NOTE]} | change).encode()
    with pytest.raises(UnknownRecord, match="record 1 of pool main"):
        judge(GENESIS, POOL, 1, payload, 0)
    elsewhere = Head(3, "b" * 64)
    assert not judge(elsewhere, POOL, 4, payload, 0).valid, "what does not continue the chain stops nobody"


def test_a_skippable_kind_does_not_excuse_another_predecessor_or_pool() -> None:
    record = {"v": 1, "prev_seq": 0, "prev_hash": "", "inbox_seq": 0, "t_us": 1, "writer": "w", "events": [NOTE]}
    foreign = judge(GENESIS, POOL, 1, json.dumps(record | {"pool": "other"}).encode(), 0)
    assert (foreign.valid, foreign.why) == (False, "is of pool 'other', not 'main'")
    stale = judge(Head(1, "a" * 64), POOL, 2, json.dumps(record | {"pool": POOL}).encode(), 0)
    assert not stale.valid
    assert continues(GENESIS, foreign.record)
