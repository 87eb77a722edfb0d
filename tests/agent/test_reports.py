"""Reports fit into what placement reads, whatever jobs wrote: a fact is never lost for somebody's words."""

import asyncio

import pytest

from libs.bus.cancel import cancel
from libs.ledger.inputs import MAX_INPUT_BYTES, read_input
from libs.ledger.tail import Stored
from schemas.ids import job_id
from schemas.inbox import CheckpointTaken, NodeRegistered, Released, Started
from schemas.jobs import Checkpoint
from services.agent.reports import Reports, check_registration
from services.agent.timers import TimerPart, Timers
from tests.agent.build import inventory, part, simulated
from tests.agent.conftest import until

HOSTILE = "\x01" * 4096
JOB = job_id("blue", "j")


def hostile(step):
    return CheckpointTaken(job_id=JOB, attempt=1, checkpoint=Checkpoint(step=step, reference=HOSTILE))


async def published(*entries, max_payload=1024 * 1024):
    """What placement reads of it, in order."""
    stored = []

    async def publish(batch):
        stored.extend(batch)

    reports = Reports(publish, pool="main", source="/test", max_payload=max_payload)
    for seen in entries:
        reports.add("n0", 1, seen)
    task = asyncio.create_task(reports.run())
    await until(lambda: not reports.backlog() and stored)
    await cancel(task)
    items = [read_input(Stored(n, m.subject, m.headers, m.payload, 1), "main") for n, m in enumerate(stored, 1)]
    assert all(len(m.payload) < min(MAX_INPUT_BYTES, max_payload) for m in stored)
    assert [item.error for item in items] == [""] * len(items)
    return [item.message for item in items]


async def test_a_start_behind_hostile_acknowledgements_is_read():
    """Control characters take six bytes each: the message was larger than placement reads, and the start was in it."""
    seen = [*(hostile(n) for n in range(40)), Started(job_id=JOB, attempt=1)]
    messages = await published(*seen)
    assert [one for message in messages for one in message.observations] == seen
    assert len(messages) > 5


async def test_what_is_too_large_by_itself_is_told_without_its_words():
    gone = Released(job_id=JOB, attempt=1, exit_code=3, own_exit=True, reason="\x02" * 1024)
    (message,) = await published(hostile(1), gone, Started(job_id=JOB, attempt=1), max_payload=11_000)
    released, started = message.observations
    assert (released.exit_code, released.own_exit) == (3, True)
    assert "too long" in released.reason
    assert isinstance(started, Started)


async def test_a_node_with_more_contents_than_fit_joins_with_some_of_them():
    names = tuple(f"sha256:{n:064x}" for n in range(6000))
    whole = inventory().model_copy(update={"contents": names})
    (registered,) = await published(NodeRegistered(incarnation=1, inventory=whole, lease_s=10))
    assert 1000 < len(registered.inventory.contents) < 6000
    assert registered.inventory.contents == names[: len(registered.inventory.contents)]


def test_a_node_of_too_many_devices_is_refused_at_its_start_and_not_by_the_broker():
    """The broker takes no such message of a node, and the agent would have sent it for ever."""
    one = inventory().devices[0]

    def of(count):
        devices = tuple(one.model_copy(update={"id": f"n0-{n}", "index": n}) for n in range(count))
        return inventory().model_copy(update={"devices": devices})

    check_registration(of(500).model_copy(update={"contents": ("x" * 500_000,)}), 10)
    with pytest.raises(ValueError, match=r"node n0 .* 12000 devices .* 240,000 are the most"):
        check_registration(of(12_000), 10)


async def test_a_lone_start_is_told_at_once_with_the_end_of_its_turn():
    """A timer of zero seconds ends as it starts: one message, which waits for the loop's turn and for no clock."""
    stored = []

    async def publish(batch):
        stored.extend(batch)

    reports = Reports(publish, pool="main", source="/test")
    task = asyncio.create_task(reports.run())
    await asyncio.sleep(0)  # it waits for something to tell
    timers = Timers()
    TimerPart(part(simulated(0)), timers, lambda seen: reports.add("n0", 1, seen))
    for _ in range(4):
        await asyncio.sleep(0)
    await cancel(task)
    (message,) = stored
    item = read_input(Stored(1, message.subject, message.headers, message.payload, 1), "main")
    assert [type(one) for one in item.message.observations] == [Started, Released]
