"""Wires queries: the follower, the thread for heavy questions, and which question is answered how."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from faststream.asgi import AsgiFastStream
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Gauge

from libs.bus.broker import make_broker
from libs.bus.queries import serve
from libs.bus.retry import UNAVAILABLE
from libs.bus.stream_space import SUBMITS_HIGH_WATER, StreamSpace
from libs.core.state.model import State
from libs.ledger.follower import FollowedEntry, Follower
from libs.ledger.room import room_of
from libs.service.app import Tasks, make_asgi
from libs.service.connection import connected
from libs.service.cycle import dry_run_inputs
from libs.service.following import readiness, show
from schemas.catalog import BY_TYPE
from schemas.explanations import ExplainQuery, Explanation
from schemas.pool_status import PoolStatus, PoolStatusQuery
from schemas.subjects import inbox_stream
from services.queries.answers import Answers, AskedBy, job_of
from services.queries.heavy import HeavyQuestions
from services.queries.metrics import BudgetMetrics
from services.queries.replica import Latencies, Replica
from services.queries.settings import QueriesSettings

FOLLOWER = "queries"

_BATCH = 8
"""Ledger records folded before the event loop gets control: a record may hold a thousand events, 10 us each."""

_REST_S, _BUSY_REST_S = 0.05, 0.25
"""Debounce: a record is read so long after it has arrived (the latter under load), unless an answer waits for it."""

_ROOM_EVERY_S = 5.0

_WORKERS = 2048
"""Concurrent questions of one kind: more than those of all teams that may wait, so that one team cannot occupy all workers."""

_WAITERS = 1024
"""The maximum number of questions that wait for a record. Further ones get the present state."""


class Queries:
    """The service's state, and waiting for newer records."""

    def __init__(self, settings: QueriesSettings, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.latencies = Latencies(settings.latency_window)
        self.answers = Answers(settings.pool, dry_run_inputs(settings), self.latencies)
        self.waiting = HeavyQuestions(self._following, settings.questions_each)
        self.follower: Follower[Replica] | None = None
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}  # who waits until the replica shows what
        self._told_to = 0  # the newest record that an asker has heard of: nothing older is told any more
        self._js: JetStreamContext | None = None
        self._room: StreamSpace | None = None
        show(registry, lambda: [self.follower])
        registry.register(BudgetMetrics(self._shown))
        waiting = Gauge("baton_questions_waiting", "questions that wait for their team's turn", registry=registry)
        waiting.set_function(lambda: len(self.waiting))

    def _shown(self) -> tuple[State, int] | None:
        if self.follower is None:
            return None
        replica = self.follower.projection
        return replica.state, replica.now_us(time.time_ns() // 1000)

    def begin(self, js: JetStreamContext) -> Follower[Replica]:
        """Makes the follower; `follow` is to be run then."""
        self._js = js
        self._room = room_of(js, self.settings.pool, _ROOM_EVERY_S)
        self.follower = Follower(
            js,
            self.settings.pool,
            Replica,
            name=FOLLOWER,
            snapshot_every=self.settings.snapshot_records,
            max_batch=_BATCH,
            rest_s=_REST_S,
            busy_rest_s=_BUSY_REST_S,
        )
        return self.follower

    async def follow(self) -> None:
        """Folds the ledger for ever."""
        follower = self._following()

        async def after(steps: Sequence[FollowedEntry]) -> None:
            self.latencies.observe(steps)
            for told, shown in list(self._waiters.items()):
                if not told.done() and shown():
                    told.set_result(None)
            if self._waiters:
                follower.hurry()
            await asyncio.sleep(0)  # questions come between two batches, also while the follower is far behind

        await follower.run(after)

    async def follow_room(self) -> None:
        """Asks for ever whether the pool takes submits."""
        assert self._room is not None, "it begins first"
        await self._room.run()

    async def seen(self, seq: int) -> None:
        """Returns when the record at `seq` was read, after `seen_wait_s` at the latest: then the answer is of an older one,
        and says so."""
        follower = self._following()
        await self._until(lambda: follower.position >= seq, self.settings.seen_wait_s)
        self._told_to = max(self._told_to, min(seq, follower.position))

    async def explain_job(self, query: ExplainQuery, team: str) -> Explanation:
        """Of a job that is not known: what lay in the inbox when it was asked for is waited for, for a moment."""
        if job_of(self._following().projection.state, query.job_id, team) is None:
            await self._decided()
        return await self.waiting.answer(
            team, lambda replica, seq: self.answers.explain_job(replica, query, AskedBy(team, seq))
        )

    def pool_status(self, query: PoolStatusQuery, team: str) -> PoolStatus:
        follower = self._following()
        status = self.answers.pool_status(follower.projection, team, follower.position, self._told_to)
        busy = self._room.lacks((), SUBMITS_HIGH_WATER) if self._room is not None else ""
        return status.model_copy(update={"busy": busy}) if busy else status

    def heavy(self, answer: Callable[[Replica, Any, AskedBy], Any]) -> Callable[[Any, str], Any]:
        """A handler that answers in turn, in the thread."""
        return lambda query, team: self.waiting.answer(
            team, lambda replica, seq: answer(replica, query, AskedBy(team, seq))
        )

    def _following(self) -> Follower[Replica]:
        assert self.follower is not None, "questions are served once the ledger was read"
        return self.follower

    async def _until(self, shown: Callable[[], bool], limit_s: float) -> None:
        if shown() or len(self._waiters) >= _WAITERS:
            return
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[told] = shown
        self._following().hurry()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(told, limit_s)
        finally:
            del self._waiters[told]

    async def _decided(self) -> None:
        """Returns when what is in the inbox now was decided and read, at the latest after a moment."""
        assert self._js is not None
        follower = self._following()
        with suppress(*UNAVAILABLE):
            async with asyncio.timeout(self.settings.decided_wait_s):
                last = (await self._js.stream_info(inbox_stream(self.settings.pool))).state.last_seq
                await self._until(lambda: follower.projection.state.inbox_seq >= last, self.settings.decided_wait_s)


def make_app(settings: QueriesSettings) -> AsgiFastStream:
    """The service as an ASGI application. Raises BadFile. It answers once it has read the ledger to its end."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "queries")
    queries = Queries(settings, registry)
    tasks = Tasks()
    ask = partial(serve, broker, pool=settings.pool, queue="queries", seen=queries.seen, workers=_WORKERS)
    answers = queries.answers
    ask(BY_TYPE["io.baton.pool.status.query.v1"], queries.pool_status)
    ask(BY_TYPE["io.baton.job.explain.query.v1"], queries.explain_job)
    ask(BY_TYPE["io.baton.job.plan.query.v1"], queries.heavy(answers.plan))
    ask(BY_TYPE["io.baton.queue.list.query.v1"], queries.heavy(answers.queue_list))
    ask(BY_TYPE["io.baton.queues.list.query.v1"], queries.heavy(answers.queues))
    ask(BY_TYPE["io.baton.budgets.list.query.v1"], queries.heavy(answers.budgets))

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "queries-ledger") as nats:
            js = nats.jetstream()
            queries.begin(js)
            tasks.start("ledger reader", queries.follow())
            tasks.start("heavy questions", queries.waiting.run())
            tasks.start("room for submits", queries.follow_room())
            async with tasks.until_stopped():
                yield

    async def caught_up() -> None:
        assert queries.follower is not None
        await queries.follower.caught_up.wait()

    def ready() -> dict[str, str]:
        return {"ledger": readiness(queries.follower)}

    return make_asgi(
        broker, name="queries", settings=settings, lifespan=lifespan, registry=registry, ready=ready, first=caught_up
    )
