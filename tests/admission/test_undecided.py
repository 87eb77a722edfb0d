"""What an admission process that starts anew reads of a pool's inbox."""

import json
from typing import Any

import pytest
from nats.js import JetStreamContext

from libs.bus.connect import BusConnection
from libs.ledger.chain import Head
from schemas import subjects
from services.admission.app import make_app
from services.admission.settings import AdmissionSettings
from services.admission.undecided import undecided
from tests.admission.running import running
from tests.core.builders import World, job, node
from tests.redis.ledgers import chain, store

UNKNOWN = {"kind": "moon.rose", "skippable": True, "phase": "full"}
"""An event of a later version that this one may pass over."""


async def told(js: JetStreamContext, pool: str, key: str) -> str:
    """Stores an admitted job in the inbox; its id."""
    admitted = job(key)
    headers = {"ce-specversion": "1.0", "ce-type": "io.baton.job.admitted.v1", "ce-id": key, "ce-source": "/test"}
    subject = subjects.inbox("job", "admitted", pool)
    await js.publish(subject, admitted.model_dump_json().encode(), headers=headers)
    return admitted.job_id


async def jobs(js: JetStreamContext, pool: str, decided: int) -> list[str]:
    found, _ = await undecided(js, pool, decided)
    return [one.job for one in found]


async def ledger(js: JetStreamContext, pool: str, world: World) -> Head:
    """Stores what the world has decided; the last record's head."""
    records = chain(pool, world.records)
    await store(js, pool, records)
    return Head(records[-1].seq, records[-1].hash)


async def test_jobs_behind_what_is_decided_are_found_among_messages_that_cannot_be_read(
    nats: BusConnection, pool: str
) -> None:
    js = nats.jetstream()
    await told(js, pool, "decided")
    await js.publish(subjects.inbox("job", "admitted", pool), b"x" * 200_000)
    wanted = await told(js, pool, "one")
    await js.publish(subjects.inbox("job", "admitted", pool), b'{"a":' * 40_000)
    assert await jobs(js, pool, 1) == [wanted]
    assert await undecided(js, pool, 4) == ([], 4)


async def test_what_was_taken_out_of_the_inbox_is_not_waited_for(nats: BusConnection, pool: str) -> None:
    js = nats.jetstream()
    await told(js, pool, "gone")
    wanted = await told(js, pool, "there")
    await js.purge_stream(subjects.inbox_stream(pool), seq=2)
    assert await jobs(js, pool, 0) == [wanted]
    await js.purge_stream(subjects.inbox_stream(pool))
    assert await undecided(js, pool, 0) == ([], 2)


@pytest.mark.parametrize("last", ["void", "with an event that may be passed over"])
async def test_it_starts_whatever_the_last_record_is(
    nats: BusConnection, nats_url: str, pool: str, other_pool: str, last: str
) -> None:
    js = nats.jetstream()
    for name in (pool, other_pool):
        world = World(node("a", 4))
        head = await ledger(js, name, world)
        body: dict[str, Any] = json.loads(world.records[-1].model_dump_json())
        body |= {"pool": name, "prev_seq": head.seq, "prev_hash": head.hash, "events": [UNKNOWN]}
        payload = b"x" * 200_000 if last == "void" else json.dumps(body).encode()
        await js.publish(subjects.ledger(name), payload)
        await told(js, name, "one")
    async with running(make_app(AdmissionSettings(nats_url=nats_url, pools=(pool, other_pool)))):
        pass
