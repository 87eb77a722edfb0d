"""Allocated against used is kept by the hour in MongoDB: by the real service, through restarts and lost samples, by role."""

import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from nats.aio.client import Client

from libs.adapters.mongo.store import StoreAway
from libs.adapters.mongo.use import UseStore
from libs.bus.queries import NobodyAnswers, ask
from libs.core.billing.metering import Meter
from libs.core.billing.used import GAP_US
from libs.core.billing.wall import HOUR_US
from libs.embedded.servers import MONGO
from libs.ledger.follower import Follower
from schemas import inbox, subjects
from schemas.catalog import BY_TYPE
from schemas.nodes import DeviceSample, NodeSampled
from schemas.subjects import TELEMETRY
from schemas.use import UseQuery, UseReply
from services.quota_billing.app import make_app
from services.quota_billing.settings import QuotaBillingSettings
from services.quota_billing.use import UseKeeper
from tests.admission.running import running
from tests.billing.ledgers import ask as asks
from tests.core.builders import World, node
from tests.history.written import Written, until
from tests.kit.background import ServerInBackground
from tests.kit.tasks import beside

USE = BY_TYPE["io.baton.use.list.query.v1"]


async def test_use_is_kept_by_the_hour_through_restarts_and_told_by_role(
    nats: Client, nats_url: str, mongo_url: str, pool: str
) -> None:
    """Two devices are held for an hour; of one there is a sample, which speaks for 40 s."""
    world, written = World(), Written(nats.jetstream(), pool)
    world.now_us = time.time_ns() // 1000 - HOUR_US // 2
    world.send(inbox.NodeRegistered(incarnation=1, inventory=node("n0"), lease_s=10))
    world.started(name := asks(world, "two", 2))
    (device,) = [c.device for r in world.records for e in r.events if e.kind == "job.granted" for c in e.claims][:1]
    world.send(after_us=HOUR_US)
    world.released(name)
    world.send(after_us=HOUR_US)
    seen = DeviceSample(device=device, utilization_pct=25.0, memory_used_mib=1, power_w=300.0)
    sample = NodeSampled(node="n0", incarnation=1, at_us=1, devices=(seen,))
    js = nats.jetstream()
    subject = subjects.sample(pool).replace("*", "n0")
    lie = NodeSampled(
        node="n0", incarnation=1, at_us=1, devices=(seen.model_copy(update={"power_w": 1e308, "device": "x"}),)
    )
    await js.publish(subject, lie.model_dump_json().encode())  # it ended the service, again and again
    await js.publish(subject, sample.model_dump_json().encode())
    await written.write(world.records)

    def service() -> AbstractAsyncContextManager[object]:
        return running(make_app(QuotaBillingSettings(nats_url=nats_url, pool=pool, mongo_url=f"{mongo_url}/{pool}")))

    async def told(who: str, **query: object) -> UseReply:
        return await ask(  # type: ignore[no-any-return]
            nats, USE, UseQuery.model_validate(query), pool=pool, team=who, user="ana", timeout_s=5
        )

    async def by_job() -> UseReply | None:
        try:
            found = await told("research", group_by="job")
        except (TimeoutError, NobodyAnswers):
            return None
        return found if found.rows else None

    async with service():
        first = await until(by_job, "hours of use")
        (row,) = first.rows
        assert (row.key, row.team) == (name, "research")
        assert row.known_unit_us == 7000 * GAP_US
        assert row.used_unit_us == row.known_unit_us // 4
        assert row.energy_nj == GAP_US * 300_000
        at = [r.t_us for r in world.records for e in r.events if e.kind in ("job.granted", "devices.freed")]
        assert row.allocated_unit_us == 2 * 7000 * (at[1] - at[0])
        assert (await told("blue", group_by="job")).rows == ()
        assert (await told("blue", group_by="job", team="research")).rows == (), "a team is told its own alone"
        everybody = await told("operator", group_by="team", team="research")
        assert [r.allocated_unit_us for r in everybody.rows] == [row.allocated_unit_us]
        hours = await told("operator", group_by="hour")
        assert sum(r.allocated_unit_us for r in hours.rows) == row.allocated_unit_us

    await js.purge_stream(TELEMETRY)
    async with service():
        assert (await until(by_job, "hours of use")) == first, "what was seen stays, with no sample left"


async def test_samples_wait_with_the_broker_while_mongodb_takes_nothing(
    nats: Client, pool: str, tmp_path: Path
) -> None:
    """It read on, and kept all in memory, for as long as MongoDB was away: of 1,000 devices a gigabyte a day."""
    js, world, written = nats.jetstream(), World(node("n0")), Written(nats.jetstream(), pool)
    await written.write(world.records)
    seen = DeviceSample(device="n0-gpu0", utilization_pct=25.0, memory_used_mib=1, power_w=300.0)
    body = NodeSampled(node="n0", incarnation=1, at_us=1, devices=(seen,)).model_dump_json().encode()
    sent = 0

    async def two_samples() -> None:
        nonlocal sent
        for _ in range(2):
            await js.publish(subjects.sample(pool).replace("*", "n0"), body)
            sent += 1

    follower = Follower(js, pool, Meter, name="quota_billing")
    async with beside(follower.run()):
        await follower.caught_up.wait()
        with ServerInBackground(MONGO, tmp_path) as mongo:
            keeper = UseKeeper(follower, js, UseStore(mongo.url, pool), every_s=1, keep_days=9)
            await two_samples()
            await keeper.turn()
            assert keeper.samples == sent
        most = 2 * sent  # it hears that MongoDB is away when it has read once more
        for _ in range(3):
            await two_samples()
            with pytest.raises(StoreAway):
                await keeper.turn()
            assert keeper.samples <= most
        with ServerInBackground(MONGO, tmp_path):
            await keeper.turn()
        assert keeper.samples == sent, "nothing is lost by that"
