"""Placement's wiring: the only place that builds its clients."""

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from faststream.asgi import AsgiFastStream
from nats.aio.client import Client
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.bus.broker import make_broker
from libs.bus.messages import Outgoing
from libs.bus.push import push
from libs.bus.queries import AskAgain, serve
from libs.bus.trim import Trimmer
from libs.core.placement.score.scorer import Scorer
from libs.core.scheduling.decider import Decider, Deciders
from libs.core.scheduling.policy import Policy
from libs.ledger.pieces import largest_event
from libs.ledger.readers import FormatGate
from libs.ledger.snapshots import SnapshotStore
from libs.ledger.writer import LedgerWriter
from libs.ports import clock
from libs.service.app import Tasks, make_asgi
from libs.service.connection import connected
from libs.service.cycle import dry_run_inputs
from libs.service.following import show
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.ledger import LedgerRecord
from schemas.nodes import STATE_ANSWER_S
from services.placement import handlers
from services.placement.metrics import WriterCollector
from services.placement.node_notifier import NodeNotifier
from services.placement.projector import Projector
from services.placement.settings import PlacementSettings

log = logging.getLogger("baton.placement")

A = TypeVar("A")
ANSWER_S = 0.75 * STATE_ANSWER_S
_TURNS = 2
"""Of the event loop: in the first the notifier publishes, in the second it is sent. What else follows a commit waits for
that."""
PROMISE_BUCKETS_S = (-86_400, -21_600, -3600, -600, -60, 0, 60, 600, 3600, 21_600, 86_400)
BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 30_000, 300_000)


class Placement:
    """One placement process: a ledger writer, what nodes are told after each commit (`notifier`), and its answers."""

    def __init__(self, settings: PlacementSettings, writer_id: str, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.policy = policy_of(settings)
        self.pool = settings.pool
        self.writer_id = writer_id
        self.writer: LedgerWriter[Decider] | None = None
        self.gate: FormatGate | None = None
        self.notifier: NodeNotifier | None = None
        self._registry = registry
        self._deciders: Deciders | None = None
        self._asked: dict[asyncio.Future[Any], Callable[[Decider], Any]] = {}
        self._records = Counter("baton_ledger_records", "records committed by this process", registry=registry)
        self._events = Counter("baton_ledger_events", "ledger events committed", ["kind"], registry=registry)
        self._latency_ms = Histogram(
            "baton_submit_to_grant_ms",
            "submit stored to grant committed, of jobs that fitted at once",
            buckets=BUCKETS_MS,
            registry=registry,
        )
        self._promise_error_s = Histogram(
            "baton_promise_error_seconds",
            "start of a gang minus the start that it was promised first; above 0: the promise was not kept",
            buckets=PROMISE_BUCKETS_S,
            registry=registry,
        )
        self._promises = Counter("baton_promises", "promised gangs that started", ["kept"], registry=registry)
        self._taken_out = Counter(
            "baton_nodes_taken_out", "nodes taken out of use because every job failed there", registry=registry
        )
        self.stale_redis = Gauge("baton_redis_stale", "1 while the Redis projection does not follow", registry=registry)
        WriterCollector(registry, lambda: self.writer.counters if self.writer is not None else None)
        unwritten = Gauge(
            "baton_node_rejections_unwritten",
            "inputs of nodes that were rejected without a word in the ledger, since this process began",
            registry=registry,
        )
        unwritten.set_function(lambda: float(self._deciders.nodes.unwritten) if self._deciders is not None else 0.0)
        self._queued = Gauge("baton_jobs_waiting", "jobs in the queue", registry=registry)

    async def open(self, nats: Client) -> None:
        """Prepares the writer. The pool's streams are there."""
        js = nats.jetstream()
        self.gate = gate = FormatGate(js, self.pool, hold_s=self.settings.readers_hold_s)
        await gate.poll()

        async def publish(message: Outgoing) -> None:
            await nats.publish(message.subject, message.payload, headers=message.headers)
            push(nats)

        self.notifier = NodeNotifier(self.pool, publish, self._registry, nats.max_payload, self._shown)
        self._deciders = Deciders(self.policy, Scorer, self._format, largest_event=largest_event(nats.max_payload))
        self.writer = LedgerWriter(
            js,
            self.pool,
            self._deciders,
            writer_id=self.writer_id,
            snapshots=SnapshotStore(js, self.pool),
            batch=self.settings.batch,
            linger_ms=self.settings.linger_ms,
            snapshot_every=self.settings.snapshot_records,
            allowed=lambda: gate.allowed,
            on_commit=[self._committed],
            on_refold=[self._refolded],
        )

    def _shown(self) -> Decider | None:
        writer = self.writer
        return writer.decider if writer is not None and writer.settled else None

    def _format(self) -> int:
        """Of the ledger: what a decision may say."""
        assert self.gate is not None
        return self.writer.format if self.writer is not None else self.gate.allowed

    def inbox_trimmer(self, js: JetStreamContext) -> Trimmer:
        """Of what the ledger has decided. Whoever leads trims."""

        async def recorded() -> int:
            writer = self.writer
            return writer.recorded_to if writer is not None and writer.role == "leading" else 0

        return Trimmer(js, subjects.inbox_stream(self.pool), recorded, keep_s=self.settings.trim_keep_s)

    @property
    def seq(self) -> int:
        assert self.writer is not None
        return self.writer.head.seq

    async def answer(self, question: Callable[[Decider], A]) -> A:
        """`question` of the state as it is committed.

        While an append is under way, the decider's state includes a decision that may yet be refused. An agent that heard
        of it would start a job on devices that the ledger gives to another. So the question waits for the commit, or for
        the refold that replaces it. Raises AskAgain when neither comes within a few seconds.
        """
        writer = self.writer
        if writer is not None and writer.ready.is_set() and writer.settled:
            return question(writer.decider)
        answered: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._asked[answered] = question
        try:
            return await asyncio.wait_for(answered, ANSWER_S)
        except TimeoutError:
            raise AskAgain(f"placement has committed nothing for {ANSWER_S:g} s: its broker is away, or slow") from None
        finally:
            self._asked.pop(answered, None)

    def _answer_all(self, decider: Decider) -> None:
        """Answers the waiting questions. To be called right after a commit or a refold, when the state is committed and the
        notifier knows what has changed: an answer may say that nothing has."""
        for answered, question in list(self._asked.items()):
            if answered.done():
                continue
            try:
                answered.set_result(question(decider))
            except Exception as e:
                answered.set_exception(e)

    async def _refolded(self, decider: Decider) -> None:
        assert self.notifier is not None
        self.notifier.refolded(decider, self.seq)
        self._answer_all(decider)

    async def _committed(self, seq: int, record: LedgerRecord, decider: Decider) -> None:
        assert self.notifier is not None
        self.notifier.committed(record, decider, seq)
        if seq == self.seq:  # of a decision of several records the last: the state shows all of them
            self._answer_all(decider)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        self._records.inc()
        for latency_ms in handlers.granted_at_once_ms(record, decider, clock.wall_us()):
            self._latency_ms.observe(latency_ms)
        waiting = sum(len(jobs) for jobs in decider.state.queues.values())
        parked = sum(len(jobs) for jobs in decider.state.parked.values())
        self._queued.set(waiting + parked + len(decider.state.backing_off))
        for kind, count in Tally(event.kind for event in record.events).items():
            self._events.labels(kind).inc(count)
        for out in handlers.taken_out(record):
            self._taken_out.inc()
            log.warning("node %s is out of use: %s", out.node, out.reason)
        for error_s in handlers.promise_errors_s(record, decider):
            self._promise_error_s.observe(error_s)
            self._promises.labels("yes" if error_s <= 0 else "no").inc()
        decider.upkeep()


def policy_of(settings: PlacementSettings) -> Policy:
    """What decides the cycles. Raises BadFile."""
    return replace(
        dry_run_inputs(settings).policy,
        node_devices=settings.node_devices,
        repartition=settings.repartition,
        repartition_after_us=int(settings.repartition_after_s * 1e6),
        repartition_rest_us=int(settings.repartition_rest_s * 1e6),
        repartition_answer_us=int(settings.repartition_answer_s * 1e6),
    )


def make_app(settings: PlacementSettings, *, writer_id: str) -> AsgiFastStream:
    """The service as an ASGI application. `writer_id` names this process in the records that it writes."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "placement")
    placement = Placement(settings, writer_id, registry)
    # A restart of it holds up nobody: its snapshots may be rarer than the writer's.
    projector = Projector(settings.pool, settings.redis_url, snapshot_every=4 * settings.snapshot_records)
    tasks = Tasks()
    _serve_questions(broker, placement)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "placement-writer") as nats:
            await placement.open(nats)
            assert placement.writer is not None
            assert placement.gate is not None
            tasks.start("ledger format", placement.gate.run())
            assert placement.notifier is not None
            tasks.start("ledger writer", placement.writer.run())
            tasks.start("notifier", placement.notifier.run())
            tasks.start("redis projection", projector.run(nats.jetstream()))
            tasks.start("trim of the inbox", placement.inbox_trimmer(nats.jetstream()).run())
            async with tasks.until_stopped():
                yield

    show(
        registry,
        lambda: [projector.follower],
        lambda: [("writer", placement.writer)] if placement.writer is not None else [],
    )
    placement.stale_redis.set_function(lambda: float(bool(projector.problem)))

    def ready() -> dict[str, str]:
        """Placement is ready without Redis, too: then only the projection lags, and `baton_redis_stale` says so."""
        writer = placement.writer
        read = writer is not None and writer.ready.is_set()
        ledger = (writer.problem if writer is not None else "") or ("ok" if read else "not read yet")
        return {"ledger": ledger}

    return make_asgi(broker, name="placement", settings=settings, lifespan=lifespan, registry=registry, ready=ready)


def _serve_questions(broker: Any, placement: Placement) -> None:
    """What the writer answers: what a node should run must be of the last commit. People's questions are answered by
    services/queries."""
    pool = placement.pool

    def of_node(answer: handlers.AboutNode) -> Any:
        def answered(query: Any, node: str) -> Any:
            writer, notifier = placement.writer, placement.notifier
            assert writer is not None
            assert notifier is not None
            return placement.answer(
                lambda decider: answer(
                    decider, query, node, handlers.Answerer(notifier, placement.seq, writer.role == "leading")
                )
            )

        return answered

    for what, answer in (
        ("state", handlers.state_of_node),
        ("specs", handlers.specs_of_node),
        ("left", handlers.teams_left),
        ("desired", handlers.whole_state_of_node),
    ):
        serve(broker, BY_TYPE[f"io.baton.node.{what}.query.v1"], of_node(answer), pool=pool, queue="placement")
