"""History's wiring: the only place that builds its clients."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from faststream.asgi import AsgiFastStream
from prometheus_client import CollectorRegistry

from libs.adapters.mongo.proofs import ProofStore
from libs.adapters.mongo.store import JobStore
from libs.bus.broker import Broker, make_broker
from libs.bus.connect import BusConnection
from libs.bus.leader import Leadership
from libs.bus.queries import NothingFound, serve
from libs.ledger.follower import Follower
from libs.service.app import Tasks, make_asgi
from libs.service.connection import connected
from libs.service.following import show
from libs.service.mongo_questions import asks_mongo
from schemas.catalog import BY_TYPE
from schemas.queries import ANSWER_S, GIVES_UP
from services.history import handlers
from services.history.documents import Documents
from services.history.events import EventLog
from services.history.feed import FeedLoop
from services.history.logs import RELAY_S, LogRelay
from services.history.proofs import ProofLoop, Proofs
from services.history.settings import HistorySettings
from services.history.trim import EventTrimmer

A = TypeVar("A")

_ANSWER_S = GIVES_UP * ANSWER_S
"""For what MongoDB has of an answer."""


class History:
    """The parts of one process; made once the event loop runs."""

    nats: BusConnection
    store: JobStore
    log: EventLog
    documents: Documents | None = None
    feed: FeedLoop | None = None
    proof_store: ProofStore
    proof_loop: ProofLoop | None = None
    proofs: Proofs
    leadership: Leadership | None = None

    def followers(self) -> list[Follower[Any]]:
        return [loop.follower for loop in (self.documents, self.feed, self.proof_loop) if loop is not None]

    async def stored(self, answer: Awaitable[A], within_s: float = _ANSWER_S) -> A:
        """Answers to questions about the past."""
        async with asks_mongo("history", "jobs' documents and teams' lines", within_s):
            return await answer

    async def soon(self, document: Awaitable[A], within_s: float = _ANSWER_S) -> A:
        """What is asked of a job. One that has no document may have come a moment ago: it is written at once then."""
        try:
            return await self.stored(document, within_s)
        except NothingFound:
            if self.documents is not None:
                self.documents.follower.hurry()
            raise


def make_app(settings: HistorySettings) -> AsgiFastStream:
    """The service as an ASGI application."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "history")
    history = History()
    show(registry, history.followers)
    tasks = Tasks()
    _serve_questions(broker, history, settings.pool)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "history-loops") as nats:
            js = nats.jetstream()
            history.nats = nats
            history.store, history.log = JobStore(settings.mongo_url), EventLog(js)
            history.documents = Documents(
                js,
                settings.pool,
                history.store,
                registry,
                window_s=settings.window_ms / 1000,
                window_jobs=settings.window_jobs,
                cache_jobs=settings.cache_jobs,
                cache_mib=settings.cache_mib,
            )
            history.feed = FeedLoop(js, settings.pool, registry, snapshot_records=settings.snapshot_records)
            history.proof_store = ProofStore(history.store)
            history.proofs = Proofs(settings.pool, history.proof_store)
            history.proof_loop = ProofLoop(
                js,
                settings.pool,
                history.proof_store,
                registry,
                every_s=settings.sum_every_s,
                keep_days=settings.proof_days,
                snapshot_records=settings.snapshot_records,
            )
            history.leadership = leadership = Leadership(js, f"history.{settings.pool}", ttl_s=settings.leader_ttl_s)
            tasks.start("leadership", leadership.run())
            tasks.start("documents", leadership.lead(history.documents.run))
            tasks.start("feed", leadership.lead(history.feed.run))
            tasks.start("teams' lines", leadership.lead(history.proof_loop.run))
            tasks.start("trim of events", leadership.lead(EventTrimmer(js, registry).run))
            async with tasks.until_stopped():
                yield
            history.store.close()

    def ready() -> dict[str, str]:
        if history.leadership is not None and history.leadership.stands_by:
            return {"standby": "ok"}  # it answers questions; another process writes
        loops = {"documents": history.documents, "feed": history.feed}
        return {name: "not read yet" if loop is None else loop.problem or "ok" for name, loop in loops.items()}

    return make_asgi(broker, name="history", settings=settings, lifespan=lifespan, registry=registry, ready=ready)


def _serve_questions(broker: Broker, history: History, pool: str) -> None:
    serve(
        broker,
        BY_TYPE["io.baton.job.get.query.v1"],
        lambda query, team: history.soon(handlers.get_job(history.store, query, team, history.log)),
        queue="history",
    )
    serve(
        broker,
        BY_TYPE["io.baton.audit.read.query.v1"],
        lambda query, team: history.stored(history.proofs.read(query, team)),
        pool=pool,
        queue="history",
    )
    logs = LogRelay(
        lambda: history.nats,
        lambda job_id, team: history.soon(handlers.document_of(history.store, job_id, team), RELAY_S),
    )
    serve(broker, BY_TYPE["io.baton.log.read.query.v1"], logs.read, queue="history", workers=logs.MOST)
    serve(
        broker,
        BY_TYPE["io.baton.job.list.query.v1"],
        lambda query, team: history.stored(handlers.list_jobs(history.store, query, team)),
        queue="history",
    )
    serve(
        broker,
        BY_TYPE["io.baton.event.list.query.v1"],
        lambda query, team: history.stored(handlers.list_events(history.store, history.log, query, team)),
        queue="history",
    )
