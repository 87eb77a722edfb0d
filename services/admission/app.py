"""Wires admission: the consumer of REQUESTS, and what is known of the pool, kept up to date from the ledger."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from faststream.asgi import AsgiFastStream
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.bus.broker import make_broker
from libs.bus.connect import connect
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from libs.bus.settle import Received, consume
from libs.bus.streams import bind
from libs.core.admission.evaluate import AdmissionContext, PriorityClass
from libs.core.admission.fleet_shape import FleetShape
from libs.core.placement.find import warm
from libs.ledger.reader import LedgerReader
from libs.ledger.snapshots import Snapshots
from libs.service.app import Tasks, make_asgi
from schemas import subjects
from services.admission.handlers import ORIGIN, Recent, handle
from services.admission.settings import AdmissionSettings

log = logging.getLogger("baton.admission")

SNAPSHOT = "admission"


class PoolKnowledge:
    """The fleet's shape, quotas and taken job ids, as of the ledger; `follow` keeps them so for ever."""

    def __init__(self, pool: str, classes: dict[str, PriorityClass], snapshot_records: int) -> None:
        self.context = AdmissionContext(FleetShape(), classes)
        self.caught_up = asyncio.Event()
        self.reader: LedgerReader | None = None
        self._pool, self._classes, self._every = pool, classes, snapshot_records
        self._saved_at = 0

    async def follow(self, js: JetStreamContext) -> None:
        snapshots = Snapshots(js, self._pool)
        self.reader = reader = await self._resume(js, snapshots)
        last = await reader.last_seq()
        async for entries in reader.follow():
            for entry in entries:
                if entry.valid:
                    self.context.fleet.apply(entry.record)
            if reader.position >= last:
                self.caught_up.set()
            if reader.position - self._saved_at >= self._every:
                await self._save(snapshots, reader)

    async def _resume(self, js: JetStreamContext, snapshots: Snapshots) -> LedgerReader:
        found = await snapshots.load(SNAPSHOT)
        if found is None:
            return LedgerReader(js, self._pool)
        head, position, data = found
        try:
            self.context = AdmissionContext(FleetShape.load(data), self._classes)
        except ValueError as e:
            log.warning("the snapshot at %d is not used: %s", position, e)
            return LedgerReader(js, self._pool)
        self._saved_at = position
        return LedgerReader(js, self._pool, head, position)

    async def _save(self, snapshots: Snapshots, reader: LedgerReader) -> None:
        self._saved_at = reader.position
        try:
            await snapshots.save(SNAPSHOT, reader.head, reader.position, self.context.fleet.dump())
        except (NatsError, TimeoutError, OSError) as e:
            log.warning("no snapshot at %d: %r", reader.position, e)


class Metrics:
    """What admission counts. Labels are closed lists."""

    def __init__(self, registry: CollectorRegistry, knowledge: PoolKnowledge) -> None:
        self.requests = Counter(
            "baton_admission_requests", "requests by what became of them", ["outcome"], registry=registry
        )
        self.refusals = Counter("baton_admission_refusals", "objections to requests", ["reason"], registry=registry)
        self.latency = Histogram(
            "baton_admission_latency_seconds",
            "from the broker's time of a request to its decision",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
            registry=registry,
        )
        jobs = Gauge("baton_admission_known_jobs", "job ids that are taken", registry=registry)
        jobs.set_function(lambda: knowledge.context.fleet.jobs)
        lag = Gauge("baton_admission_ledger_lag_records", "ledger records not read yet", registry=registry)
        lag.set_function(lambda: knowledge.reader.lag() if knowledge.reader else 0)


def make_app(settings: AdmissionSettings) -> AsgiFastStream:
    """The service as an ASGI application. It takes requests once it has read the ledger to its end."""
    registry = CollectorRegistry()
    broker = make_broker(settings.nats_url, "admission")
    knowledge = PoolKnowledge(settings.pool, settings.priority_classes(), settings.snapshot_records)
    metrics = Metrics(registry, knowledge)
    tasks = Tasks()
    outboxes: list[Outbox] = []
    recent = Recent()

    def decide(received: Received) -> list[Outgoing]:
        handled = handle(received, knowledge.context, settings.pool, recent)
        metrics.requests.labels(handled.result.value).inc()
        for why in handled.whys:
            metrics.refusals.labels(why.value).inc()
        metrics.latency.observe(max(0.0, time.time() - received.time_us / 1e6))
        return handled.out

    consume(
        broker,
        stream=subjects.REQUESTS,
        durable="admission",
        filter_subject="baton.cmd.job.v1.*.*",
        origin=ORIGIN,
        decide=decide,
        outbox=lambda: outboxes[0],
        batch=settings.batch,
    )

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        nats = await connect(settings.nats_url, name="admission-ledger", die_on_close=True)
        js = nats.jetstream(publish_async_max_pending=4096)
        await bind(js, [settings.pool])
        await asyncio.to_thread(warm)
        outboxes[:] = [Outbox(js)]
        tasks.start("pool knowledge", knowledge.follow(js))
        async with tasks.until_stopped():
            await knowledge.caught_up.wait()
            yield
        await nats.close()

    def ready() -> dict[str, str]:
        return {"ledger": "ok" if knowledge.caught_up.is_set() else "not read to its end yet"}

    return make_asgi(broker, name="admission", settings=settings, lifespan=lifespan, registry=registry, ready=ready)
