"""Wires admission: the consumer of REQUESTS, and what is known of each pool, kept up to date from its ledger.

One process serves all pools, because a job's id is one over all of them: where a job was sent is known by the ledgers,
by what lies undecided in the inboxes, and by the requests of this process.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain

from faststream.asgi import AsgiFastStream
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry

from libs.bus.broker import make_broker
from libs.bus.messages import Outgoing, header_bytes
from libs.bus.secret_names import SecretNames
from libs.bus.settle import NoRoom, Received, consume, dead_letter
from libs.bus.stream_space import CANCELS_HIGH_WATER, SUBMITS_HIGH_WATER, StreamSpace
from libs.bus.trim import Trimmer, trimmer_of
from libs.core.admission.evaluate import AdmissionContext
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.intake import Intake
from libs.core.admission.request_throttle import RequestThrottle, weight
from libs.core.scheduling import limits
from libs.ledger.follower import FollowedEntry, Follower
from libs.ledger.room import room_of
from libs.ports import clock
from libs.service.app import Tasks, make_asgi
from libs.service.connection import connected
from libs.service.files import policy_version
from libs.service.following import readiness, show
from schemas import subjects
from schemas.ledger import JobQueued
from schemas.subjects import REQUESTS
from services.admission.answered import Answered
from services.admission.fair_queueing import FairQueueing
from services.admission.handlers import ORIGIN, AdmissionResult, Recent, busy_answer, handle
from services.admission.metrics import Metrics
from services.admission.one_answer import AnswerOnce, placed
from services.admission.peers import answer, check, watch
from services.admission.refusing import Refusing, command_of
from services.admission.settings import AdmissionSettings
from services.admission.window import AdmissionWindow

_THROTTLED = (AdmissionResult.REJECTED, AdmissionResult.LIMITED, AdmissionResult.DEAD, AdmissionResult.REPEATED)
_REFUSED = (AdmissionResult.REJECTED, AdmissionResult.LIMITED, AdmissionResult.DEAD)
DURABLE = "admission"
FOLLOWER = "admission"
"""Name of the readers that follow each pool: its devices, quotas and taken job ids."""


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts that need the broker."""

    followers: Sequence[Follower[FleetShape]]
    rooms: Mapping[str, StreamSpace]
    names: SecretNames
    answered: Answered
    outbox: AnswerOnce
    fair_queueing: FairQueueing
    trimmer: Trimmer


class Admission:
    """The service's state (pools, requests that it has decided), and the decision about the next request."""

    def __init__(self, settings: AdmissionSettings, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.home = settings.all_pools[0]
        self.refusing = Refusing(self.home)
        self._parts: BrokerParts | None = None  # `begin` makes them
        self._classes = settings.priority_classes()
        self._policy = policy_version(settings.classes, settings.teams)
        self._recent = Recent()
        self._intake = Intake(settings.intake_limits())
        self._throttle = RequestThrottle()
        self._metrics = Metrics(registry, lambda: [follower.projection for follower in self.followers])
        show(registry, lambda: self.followers)

    def begin(self, js: JetStreamContext) -> BrokerParts:
        """Makes the parts that need the broker; the caller then runs their tasks."""
        settings, pools = self.settings, self.settings.all_pools
        followers = {
            pool: Follower(js, pool, FleetShape, name=FOLLOWER, snapshot_every=settings.snapshot_records)
            for pool in pools
        }

        def decided() -> dict[str, int]:
            """The inbox sequence up to which each pool has decided."""
            return {pool: follower.projection.inbox_seq for pool, follower in followers.items()}

        window = AdmissionWindow(
            lambda pool: followers[pool].projection.inbox_seq if pool in followers else 0,
            settings.undecided,
            settings.undecided_alone,
        )
        outbox = AnswerOnce(js, batches=True)
        outbox.window, outbox.lost, outbox.refused = window, self._recent.put_off, self.refusing.note
        answered, names = Answered(js, DURABLE, decided, self._recent.add), SecretNames(js)
        fair_queueing = FairQueueing(js, self.decide, outbox, window, self.learn, self.slow)
        settled, held_back = fair_queueing.out_of_order.settled, fair_queueing.held_back
        self._parts = BrokerParts(
            followers=tuple(followers.values()),
            rooms={pool: room_of(js, pool) for pool in pools},
            names=names,
            answered=answered,
            outbox=outbox,
            fair_queueing=fair_queueing,
            trimmer=trimmer_of(
                js, REQUESTS, DURABLE, keep_s=settings.trim_keep_s, answered=settled, held_back=held_back
            ),
        )
        return self._parts

    @property
    def parts(self) -> BrokerParts:
        assert self._parts is not None, "requests are taken once the ledgers were read"
        return self._parts

    @property
    def followers(self) -> Sequence[Follower[FleetShape]]:
        return self._parts.followers if self._parts is not None else ()

    async def batch_size(self, left: Sequence[Msg]) -> int:
        """How many of these requests of the queue are decided now."""
        if any(message.metadata.num_delivered > 1 for message in left):
            await self.parts.answered.catch_up()
        return await self.parts.fair_queueing.batch_size(left)

    def in_line(self, received: Received) -> list[Outgoing]:
        """The outcome of a request that the consumer has come to; nothing if its team's lane has had it decided already."""
        done = self.parts.fair_queueing.out_of_order.done(received.stream_seq)
        self.parts.trimmer.dealt_with(subject=received.subject, seq=received.stream_seq, size=len(received.payload))
        return [] if done else self.decide(received)

    def decide(self, received: Received) -> list[Outgoing]:
        """Decides a request and returns the messages to be stored. Raises NoRoom."""
        pools = {
            known.pool: AdmissionContext(known.projection, limits.room, self._classes, self.parts.names.of)
            for known in self.followers
        }
        handled = handle(received, pools, self._recent, self._intake, self.parts.answered, self._policy)
        out = placed(received, handled.out, self.home, self._policy)
        if lack := _lacks_room(out, handled.result, self.parts.rooms):
            pool, why = lack
            if handled.job:
                self._recent.put_off(handled.job)
            self._metrics.no_room()
            raise NoRoom(f"pool {pool}: {why}", busy_answer(received, pool, why))
        self._metrics.handled(handled, clock.wall_s() - received.time_us / 1e6)
        if handled.result in _THROTTLED and received.deliveries == 1:
            self._throttle_after(received, handled.result)
        if out is handled.out and handled.result in _REFUSED and (command := command_of(received, out, self._policy)):
            self.refusing.note(command)
        return out

    def _throttle_after(self, received: Received, result: AdmissionResult) -> None:
        size = len(received.payload) + header_bytes(received.headers)
        cost = weight(size, repeated=result is AdmissionResult.REPEATED)
        self._throttle.note(subjects.sender_of(received.subject), cost, int(clock.boot_s() * 1e6))

    def laid_aside(self, received: Received, reason: str) -> list[Outgoing]:
        """The messages to be stored for a request that cannot be decided."""
        return placed(received, [dead_letter(ORIGIN, received, reason)], self.home, self._policy)

    def slow(self, team: str) -> float:
        """The seconds for which the team is throttled."""
        return self._throttle.wait_s(team, int(clock.boot_s() * 1e6))

    async def learn(self, requests: Iterable[tuple[str, bytes]]) -> None:
        """Loads what the decision about these requests, each with its team, needs to know."""
        await self.parts.answered.now_and_then()
        await self.parts.names.learn(requests)

    async def moved(self, entries: Sequence[FollowedEntry]) -> None:
        """A ledger has grown by these records."""
        for event in chain.from_iterable(known.entry.record.events for known in entries if known.entry.valid):
            if isinstance(event, JobQueued):
                self._intake.queued(event)
                self._recent.shown(event.job_id)
        self.parts.fair_queueing.moved()

    async def caught_up(self) -> None:
        """Returns when the state that requests are judged by is complete."""
        for known in self.followers:
            await known.caught_up.wait()
            await self.parts.rooms[known.pool].known.wait()
        await self.parts.answered.catch_up()

    async def tell_refusals(self) -> None:
        """For ever."""
        room = self.parts.rooms[self.home]
        await self.refusing.run(lambda: self.parts.outbox, lambda items: room.lacks(items, SUBMITS_HIGH_WATER))

    def ready(self) -> dict[str, str]:
        if len(self.followers) < 2:
            return {"ledger": readiness(self.followers[0] if self.followers else None)}
        return {f"ledger of {known.pool}": readiness(known) for known in self.followers}


def make_app(settings: AdmissionSettings) -> AsgiFastStream:
    """The service as an ASGI application. It takes requests once it has read every pool's ledger and inbox to the end."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "admission")
    admission = Admission(settings, registry)
    tasks = Tasks()
    consume(
        broker,
        stream=REQUESTS,
        durable=DURABLE,
        origin=ORIGIN,
        decide=admission.in_line,
        batch_size=admission.batch_size,
        laid_aside=admission.laid_aside,
        outbox=lambda: admission.parts.outbox,
        batch=settings.batch,
    )

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "admission-ledger", pools=settings.all_pools) as nats:
            await check(nats, settings.all_pools)
            await answer(nats, settings.all_pools)
            parts = admission.begin(nats.jetstream(publish_async_max_pending=4096))
            for known in parts.followers:
                tasks.start(f"knowledge of {known.pool}", known.run(admission.moved))
                tasks.start(f"room of {known.pool}", parts.rooms[known.pool].run())
            tasks.start("pools of other admission processes", watch(nats, settings.all_pools))
            tasks.start("trim of requests", parts.trimmer.run())
            tasks.start("relief of who sends many requests", parts.trimmer.relieve())
            async with tasks.until_stopped():
                yield

    async def caught_up() -> None:
        await admission.caught_up()
        tasks.start("refusals for the ledger", admission.tell_refusals())
        tasks.start("lanes of teams", admission.parts.fair_queueing.run())
        tasks.start("requests out of their turn", admission.parts.fair_queueing.pass_on())

    return make_asgi(
        broker,
        name="admission",
        settings=settings,
        lifespan=lifespan,
        registry=registry,
        ready=admission.ready,
        first=caught_up,
    )


def _lacks_room(
    out: Sequence[Outgoing], result: AdmissionResult, rooms: Mapping[str, StreamSpace]
) -> tuple[str, str] | None:
    """The pool whose inbox has no space for the outcome of a request, and why; None if there is space."""
    first = out[0] if out else None
    pool = subjects.pool_of_input(first.subject) if first is not None else None
    if first is None or pool is None or pool not in rooms:
        return None
    why = rooms[pool].lacks([first], CANCELS_HIGH_WATER if result is AdmissionResult.CANCELLED else SUBMITS_HIGH_WATER)
    return (pool, why) if why else None
