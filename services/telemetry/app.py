"""Wires telemetry: the ledger's figures, samples, answers."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from faststream.asgi import AsgiFastStream
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.adapters.redis import Projection
from libs.adapters.redis.projection import Unavailable
from libs.bus.broker import make_broker
from libs.bus.messages import Malformed, decode_bare
from libs.bus.queries import serve
from libs.core.projections.hot_state import HotState, Row
from libs.ledger.follower import FollowedEntry, Follower
from libs.service.app import Tasks, make_asgi
from libs.service.bootclock import now
from libs.service.certificates import Certificates
from libs.service.connection import connected
from libs.service.few_lines import few_lines
from libs.service.fill import FillLevels
from libs.service.following import readiness, show
from libs.service.unanswered import Unanswered
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.nodes import NodeSampled
from schemas.pool_status import DeviceList, DeviceListQuery, NodeList, NodeListQuery
from services.telemetry import figures, handlers
from services.telemetry.ages import Ages
from services.telemetry.figures import PoolFigures
from services.telemetry.readings import DeviceCollector, Readings
from services.telemetry.settings import TelemetrySettings

log = logging.getLogger("baton.telemetry")
unread = few_lines("baton.telemetry.unread")
"""Of samples that cannot be read."""

FOLLOWER = "telemetry"
"""The figures. Their snapshots are telemetry's own: placement's projector may be of another version, or gone."""

_LATENCY_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000)
_WAIT_MS = (10, 50, 100, 500, 1000, 5000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000, 86_400_000)


class Telemetry:
    """The service's state: the ledger's figures, heartbeat ages of nodes, the latest samples."""

    def __init__(self, settings: TelemetrySettings, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.follower: Follower[PoolFigures] | None = None
        self.ages = Ages(settings.pool)
        self.readings = Readings(settings.fresh_s)
        self.projection = Projection(settings.redis_url, settings.pool, timeout_s=1.0)
        self._samples = Counter("baton_samples", "device samples of nodes", ["outcome"], registry=registry)
        self._scheduling = Histogram(
            "scheduling_latency_ms",
            "inbox arrival of a job that fitted at once to the record that grants it, ms",
            buckets=_LATENCY_MS,
            registry=registry,
        )
        self._queue_wait = Histogram(
            "queue_wait_time_ms", "submit to first grant, ms", buckets=_WAIT_MS, registry=registry
        )
        for name, text, value in (
            ("preemption_rate_pct", "preempted attempts, percent of granted ones", figures.preemption_rate_pct),
            ("gpu_allocated_pct", "accelerator compute that is granted, percent of what is up", figures.allocated_pct),
            ("nodes_up", "nodes with a lease", lambda hot: figures.nodes_by_status(hot)["up"]),
            ("nodes_silent", "nodes that are not heard", lambda hot: figures.nodes_by_status(hot)["silent"]),
            ("nodes_lost", "nodes whose lease has ended", lambda hot: figures.nodes_by_status(hot)["lost"]),
            ("devices_quarantined", "devices that something else than a job uses", figures.quarantined),
            ("jobs_queued", "jobs that wait", lambda hot: sum(t["queued"] for t in hot.teams.values())),
            ("jobs_active", "jobs that hold devices", lambda hot: sum(t["active"] for t in hot.teams.values())),
        ):
            self._gauge(name, text, registry, value)
        out = Gauge("baton_teams_kept_out", "teams that may not connect now: they sent too much", registry=registry)
        out.set_function(lambda: len(self.follower.projection.kept_out) if self.follower is not None else 0)
        lag = Gauge("ledger_lag_records", "ledger records that were not read yet", registry=registry)
        lag.set_function(lambda: self.follower.lag if self.follower is not None else 0)
        show(registry, lambda: [self.follower])
        registry.register(DeviceCollector(self.readings, lambda: self.hot, now, dcgm_names=settings.dcgm_names))

    def _gauge(self, name: str, text: str, registry: CollectorRegistry, value: Callable[[HotState], float]) -> None:
        Gauge(name, text, registry=registry).set_function(lambda: value(self.hot))

    @property
    def hot(self) -> HotState:
        """The pool's rows, as of what was read."""
        return self.follower.projection.hot if self.follower is not None else HotState()

    async def follow(self, js: JetStreamContext) -> None:
        """Folds the ledger for ever. Waits are observed from the present on: the past is not news after a restart."""
        self.follower = follower = Follower(
            js, self.settings.pool, PoolFigures, name=FOLLOWER, snapshot_every=self.settings.snapshot_records,
            rest_s=0.1, busy_rest_s=0.5,
        )  # fmt: skip

        async def after(steps: Sequence[FollowedEntry]) -> None:
            waits = figures.take(steps, since=follower.began_at)
            for value in waits.scheduling:
                self._scheduling.observe(value)
            for value in waits.queue:
                self._queue_wait.observe(value)
            if not steps:
                self.ages.forget(set(self.hot.nodes))

        await follower.run(after)

    async def listen(self, nats: Client) -> None:
        """Every process hears every sample, by core NATS: a shared durable consumer would give each only some."""
        await self.ages.listen(nats)
        await nats.subscribe(subjects.sample(self.settings.pool), cb=self._on_sample)

    async def _on_sample(self, message: Msg) -> None:
        try:
            _, sample = decode_bare(NodeSampled, message.subject, message.headers, message.data)
        except Malformed as e:
            self._samples.labels("malformed").inc()
            unread.warning("a sample on %s cannot be read: %s", message.subject, e)
            return
        if sample.node != subjects.node_of(message.subject):
            self._samples.labels("foreign").inc()
            return
        self._samples.labels("taken").inc()
        self.readings.take(sample, now())

    async def node_list(self, query: NodeListQuery, team: str) -> NodeList:
        nodes, devices = await self._rows()
        readings, told = self.readings.fresh(now()), self.readings.last()
        return handlers.node_list(query, nodes, devices, readings, self._age, self._sight(team), told=told)

    async def device_list(self, query: DeviceListQuery, team: str) -> DeviceList:
        nodes, devices = await self._rows()
        return handlers.device_list(query, nodes, devices, self.readings.fresh(now()), self._sight(team))

    def _sight(self, team: str) -> handlers.Visibility:
        return handlers.Visibility(team, self.hot.jobs)

    def _age(self, node: str) -> float | None:
        return self.ages.of(node)

    async def _rows(self) -> tuple[dict[str, Row], dict[str, Row]]:
        """Nodes and devices from Redis; while it is away or behind, from our own fold of the same ledger: a Redis that is being
        filled has nothing, one that is full has the past."""
        try:
            if await self.projection.position() >= self.hot.seq:
                return await self.projection.nodes(), await self.projection.devices()
        except Unavailable as e:
            log.warning("Redis does not answer (%s: %s): nodes and devices are shown from memory", type(e).__name__, e)
        return self.hot.nodes, self.hot.devices


def make_app(settings: TelemetrySettings) -> AsgiFastStream:
    """The service as an ASGI application."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "telemetry")
    telemetry = Telemetry(settings, registry)
    tasks = Tasks()
    pool = settings.pool
    serve(broker, BY_TYPE["io.baton.node.list.query.v1"], telemetry.node_list, pool=pool, queue="telemetry")
    serve(broker, BY_TYPE["io.baton.device.list.query.v1"], telemetry.device_list, pool=pool, queue="telemetry")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "telemetry") as nats:
            js = nats.jetstream()
            await telemetry.listen(nats)
            tasks.start("ledger figures", telemetry.follow(js))
            tasks.start("fill levels", FillLevels(js, settings.pool, registry).run())
            if settings.bus.encrypted:
                tasks.start("certificates", Certificates(settings.bus, registry).run())
            tasks.start("unanswered requests", Unanswered(js, settings.pool, registry).run())
            async with tasks.until_stopped():
                yield
            await telemetry.projection.close()

    def ready() -> dict[str, str]:
        return {"ledger": readiness(telemetry.follower)}

    return make_asgi(broker, name="telemetry", settings=settings, lifespan=lifespan, registry=registry, ready=ready)
