"""Telemetry as it runs: metrics, answers, how long ago nodes were heard."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from pydantic import BaseModel
from redis.asyncio import Redis

from libs.adapters.redis import Projection
from libs.bus.queries import QueryError, ask
from libs.core.projections.hot_state import HotState
from libs.embedded.servers import VALKEY
from libs.ledger.chain import GENESIS
from libs.ledger.snapshots import SnapshotStore
from libs.ledger.used import used_lately
from libs.service.few_lines import LINES
from schemas import inbox, subjects
from schemas.catalog import BY_TYPE, Message
from schemas.inbox import NodeRegistered, QuotaChanged
from schemas.nodes import DeviceSample, Heartbeat, NodeSampled
from schemas.pool_status import DeviceListQuery, NodeListQuery
from services.placement.projector import Projector
from services.telemetry.app import FOLLOWER, make_app
from services.telemetry.figures import PoolFigures
from services.telemetry.settings import TelemetrySettings
from tests.admission.running import get, running
from tests.core.builders import World, job, node
from tests.kit.background import ServerInBackground
from tests.kit.tasks import beside
from tests.kit.waiting import until
from tests.redis.ledgers import Stored, chain, store

NODES = BY_TYPE["io.baton.node.list.query.v1"]
DEVICES = BY_TYPE["io.baton.device.list.query.v1"]


class Bench:
    """A pool of two nodes with a job on one, its ledger, and agents that renew."""

    def __init__(self, nats: Client, pool: str, nats_url: str, redis_url: str) -> None:
        self.nats, self.pool, self.js = nats, pool, nats.jetstream()
        self.urls = {"nats_url": nats_url, "redis_url": redis_url}
        self.world = World(node("a", 2), node("b", 2))
        self.job = self.world.submit(job("one", 2, team="red"))
        self.ledger: list[Stored] = []

    def app(self, **settings: Any) -> Any:
        return make_app(TelemetrySettings(**self.urls, pool=self.pool, **settings))

    async def write(self) -> None:
        head = (self.ledger[-1].seq, self.ledger[-1].hash) if self.ledger else (0, "")
        new = chain(self.pool, self.world.records[len(self.ledger) :], head)
        await store(self.js, self.pool, new)
        self.ledger += new

    async def renew(self, *nodes: tuple[str, int], lease_s: float = 0.6) -> None:
        """A heartbeat of each node."""
        for name, life in nodes:
            body = Heartbeat(nodes=((name, life),), lease_s=lease_s).model_dump_json().encode()
            await self.nats.publish(subjects.heartbeat(self.pool, name), body)

    @asynccontextmanager
    async def renewing(self, *nodes: tuple[str, int]) -> AsyncIterator[None]:
        async def go_on() -> None:
            while True:
                await self.renew(*nodes)
                await asyncio.sleep(0.1)

        async with beside(go_on()):
            yield

    async def ask(self, message: Message, team: str, query: BaseModel) -> Any:
        return await ask(self.nats, message, query, pool=self.pool, team=team, user="ana")


@pytest.fixture
async def bench(nats: Client, pool: str, nats_url: str, redis_url: str) -> Bench:
    made = Bench(nats, pool, nats_url, redis_url)
    await made.write()
    return made


async def test_metrics_have_the_names_that_dashboards_ask_for(bench: Bench) -> None:
    async with running(bench.app()) as app, bench.renewing(("a", 1), ("b", 1)):
        sample = NodeSampled(
            node="a", incarnation=1, at_us=1,
            devices=(DeviceSample(device="a-gpu0", model="H100", utilization_pct=87.5, memory_used_mib=4096),),
        )  # fmt: skip
        await bench.nats.publish(subjects.sample(bench.pool, "a"), sample.model_dump_json().encode())
        await bench.nats.publish(subjects.sample(bench.pool, "b"), sample.model_dump_json().encode())
        await bench.nats.publish(subjects.sample(bench.pool, "b"), b"{")
        bench.world.submit(job("late", 1))
        await until(lambda: _shows(app, "nodes_up 2.0"))
        await bench.write()
        await until(lambda: _shows(app, "scheduling_latency_ms_count 1.0"))
        _, text = await get(app, "/metrics")
        for name in (
            "gpu_utilization_pct{", "gpu_memory_used_mib{", "DCGM_FI_DEV_GPU_UTIL{", "scheduling_latency_ms_bucket",
            "queue_wait_time_ms_bucket", "preemption_rate_pct 0.0", "gpu_allocated_pct 75.0", "nodes_up 2.0",
            "nodes_lost 0.0", "ledger_lag_records 0.0", "jobs_active 2.0", "jobs_queued 0.0",
            'baton_samples_total{outcome="foreign"} 1.0', 'baton_samples_total{outcome="malformed"} 1.0',
        ):  # fmt: skip
            assert f"\n{name}" in text, name
        (line,) = [x for x in text.splitlines() if x.startswith("gpu_utilization_pct{")]
        assert 'modelName="H100"' in line
        assert line.endswith("87.5")
        await until(lambda: _ready(app))


async def test_a_node_whose_samples_cannot_be_read_does_not_fill_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(bench.app()) as app:
        await until(lambda: _ready(app))
        for _ in range(4 * LINES):
            await bench.nats.publish(subjects.sample(bench.pool, "b"), b"{")
        await until(lambda: _shows(app, f'baton_samples_total{{outcome="malformed"}} {4 * LINES}.0'))
    lines = [one for one in caplog.records if "sample" in one.getMessage()]
    assert 1 <= len(lines) <= LINES + 2, "a minute may have gone by"


async def _shows(app: Any, text: str) -> bool:
    return text in (await get(app, "/metrics"))[1]


async def _ready(app: Any) -> bool:
    return (await get(app, "/readyz"))[0] == 200


async def test_a_restart_goes_on_from_its_own_snapshot(bench: Bench) -> None:
    """Another service's snapshot is none of telemetry's business: the projector's may be of another version."""
    for limit in range(1, 120):
        bench.world.send(QuotaChanged(team="blue", limit_milli=limit))
    await bench.write()
    store = SnapshotStore(bench.js, bench.pool)
    await store.save("projection", HotState.version, GENESIS, 0, [b"nonsense"])
    async with running(bench.app(snapshot_records=100)):
        saved = await until(lambda: store.load(FOLLOWER, PoolFigures.version, PoolFigures.load))
    assert saved.position >= 100
    async with running(bench.app()) as app, bench.renewing(("a", 1)):
        await until(lambda: _ready(app))
        assert await _shows(app, 'baton_follower_folded_anew_total{follower="telemetry"} 0.0')
        assert await _shows(app, "scheduling_latency_ms_count 0.0"), "the past was told as news"
        assert await _shows(app, "nodes_up 2.0")


async def test_nodes_and_devices_are_answered_from_redis(bench: Bench, redis_url: str) -> None:
    hot, projection = HotState(), Projection(redis_url, bench.pool)
    for entry in bench.ledger:
        hot.apply(entry.record, entry.seq)
    hot.devices["a-gpu0"]["model"] = "as Redis has it"
    await projection.rebuild(bench.ledger[-1].seq, bench.ledger[-1].hash, hot.rows())
    async with running(bench.app()) as app, bench.renewing(("a", 1), ("b", 1)):
        await until(lambda: _shows(app, "nodes_up 2.0"))
        await until(lambda: _aged(bench))
        devices = (await bench.ask(DEVICES, "red", DeviceListQuery(node="a"))).devices
        assert [d.model for d in devices] == ["as Redis has it", "H100"]
        assert [d.jobs for d in devices] == [(bench.job,)] * 2
        assert [d.jobs for d in (await bench.ask(DEVICES, "blue", DeviceListQuery(node="a"))).devices] == [()] * 2
        with pytest.raises(QueryError) as refused:
            await bench.ask(DEVICES, "red", DeviceListQuery(node="nowhere"))
        assert refused.value.status == "not-found"
    await projection.close()


async def _aged(bench: Bench) -> bool:
    answer = await bench.ask(NODES, "red", NodeListQuery())
    return [n.node for n in answer.nodes] == ["a", "b"] and all(n.heartbeat_age_s is not None for n in answer.nodes)


async def test_while_redis_is_away_or_empty_the_answer_is_the_same(bench: Bench) -> None:
    async with running(bench.app()) as app:
        await until(lambda: _shows(app, "nodes_up 2.0"))
        empty = (await bench.ask(NODES, "red", NodeListQuery())).nodes
    bench.urls["redis_url"] = "redis://127.0.0.1:1/0"
    async with running(bench.app()) as app:
        await until(lambda: _shows(app, "nodes_up 2.0"))
        away = (await bench.ask(NODES, "red", NodeListQuery())).nodes
    assert [(n.node, n.milli_used) for n in empty] == [(n.node, n.milli_used) for n in away] == [("a", 2000), ("b", 0)]


async def test_while_redis_takes_nothing_the_answer_is_of_the_present(bench: Bench, tmp_path: Path) -> None:
    """A Redis that is full answers, with what it took before."""
    with ServerInBackground(VALKEY, tmp_path) as valkey:
        bench.urls["redis_url"] = valkey.url
        redis, projector = Redis.from_url(valkey.url), Projector(bench.pool, valkey.url)
        async with running(bench.app()) as app, beside(projector.run(bench.js)):
            await until(lambda: _stands_at(projector, bench.ledger[-1].seq))
            await redis.config_set("maxmemory", "1")
            bench.world.send(inbox.NodeLost(node="b", incarnation=1, silent_s=30))
            await bench.write()
            await until(lambda: _shows(app, "nodes_lost 1.0"))
            nodes = (await bench.ask(NODES, "red", NodeListQuery())).nodes
            assert [n.status for n in nodes] == ["up", "lost"]
            await until(lambda: _says(projector, "maxmemory"))
            await redis.config_set("maxmemory", "0")
            await until(lambda: _stands_at(projector, bench.ledger[-1].seq))
        await redis.aclose()


async def _stands_at(projector: Projector, seq: int) -> bool:
    return await projector.projection.position() == seq


async def _says(projector: Projector, what: str) -> bool:
    return what in projector.problem


async def test_what_was_used_of_what_was_allocated_is_told_from_the_samples_that_are_kept(
    nats: Client, pool: str
) -> None:
    js, world = nats.jetstream(), World()
    body = NodeSampled(
        node="a", incarnation=1, at_us=1,
        devices=(DeviceSample(device="a-gpu0", utilization_pct=25, memory_used_mib=1, power_w=100),),
    )  # fmt: skip
    await js.publish(subjects.sample(pool, "a"), body.model_dump_json().encode())
    first = await js.get_last_msg(subjects.TELEMETRY, subjects.sample(pool, "a"))
    assert first.time is not None
    world.now_us = int(first.time.timestamp() * 1_000_000) - 8_000_000
    world.send(NodeRegistered(incarnation=1, inventory=node("a", 2), lease_s=10))
    world.submit(job("one", 2, team="red", submitted_us=world.now_us))
    world.send(after_us=3_600_000_000)  # the ledger is ahead: what comes is within its last hour
    await store(js, pool, chain(pool, world.records))
    await nats.publish(subjects.sample(pool, "b"), body.model_dump_json().encode())  # another node speaks for it
    await nats.publish(subjects.sample(pool, "a"), b"{")
    await asyncio.sleep(0.05)
    body = body.model_copy(update={"at_us": 2})
    await js.publish(subjects.sample(pool, "a"), body.model_dump_json().encode())
    last = await js.get_last_msg(subjects.TELEMETRY, subjects.sample(pool, "a"))
    assert last.time is not None
    story = await used_lately(js, pool)
    assert story.report.ok
    ((whose, sums),) = story.jobs.items()
    span_us = round((last.time - first.time).total_seconds() * 1_000_000)
    assert whose.team == "red"
    assert sums.allocated_unit_us == 2 * 7000 * (story.to_us - story.from_us)
    assert abs(sums.known_unit_us - 7000 * span_us) <= 7000 * 2, "one of two devices is sampled; a timestamp is cut"
    assert sums.used_unit_us == sums.known_unit_us // 4
    assert sums.unknown_unit_us > sums.known_unit_us > 0
    assert sums.energy_nj > 0
