"""Wires admission: the consumer of REQUESTS, and what is known of each pool, kept up to date from its ledger.

One process serves all pools, because a job's id is one over all of them: where a job was sent is known by the ledgers,
by what lies undecided in the inboxes, and by the requests of this process.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain

from faststream.asgi import AsgiFastStream
from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.bus.broker import make_broker
from libs.bus.messages import Outgoing, header_bytes
from libs.bus.outbox import Outbox
from libs.bus.room import CANCELS_END, SUBMITS_END, StreamRoom
from libs.bus.secret_names import SecretNames
from libs.bus.settle import NoRoom, Received, consume, dead_letter
from libs.bus.trim import Trimmer, trimmer_of
from libs.core.admission.evaluate import AdmissionContext
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.in_vain import InVain, weight
from libs.core.admission.intake import Intake
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
from services.admission.handlers import ORIGIN, AdmissionResult, Recent, busy_answer, handle
from services.admission.one_answer import OneAnswer, placed
from services.admission.overtaking import Overtaking
from services.admission.pace import Pace
from services.admission.peers import answer, check, watch
from services.admission.refusing import Refusing, command_of
from services.admission.settings import AdmissionSettings

_IN_VAIN = (AdmissionResult.REJECTED, AdmissionResult.LIMITED, AdmissionResult.DEAD, AdmissionResult.REPEATED)
_REFUSED = (AdmissionResult.REJECTED, AdmissionResult.LIMITED, AdmissionResult.DEAD)
DURABLE = "admission"
FOLLOWER = "admission"
"""What is known of the pool: its devices, quotas and taken job ids."""


class Metrics:
    """What admission counts. Labels are closed lists."""

    def __init__(self, registry: CollectorRegistry, pools: Callable[[], Sequence[FleetShape]]) -> None:
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
        jobs.set_function(lambda: sum(pool.jobs for pool in pools()))
        window = Gauge(
            "baton_client_key_window_seconds",
            "for how long after its job's end a client key is remembered; less than the seven days at the bound",
            registry=registry,
        )
        window.set_function(lambda: min((pool.window_us for pool in pools()), default=0) / 1e6)


def make_app(settings: AdmissionSettings) -> AsgiFastStream:
    """The service as an ASGI application. It takes requests once it has read every pool's ledger and inbox to the end."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "admission")
    classes = settings.priority_classes()
    policy = policy_version(settings.classes, settings.teams)
    followers: list[Follower[FleetShape]] = []  # made once the event loop runs, as the outbox is
    outboxes: list[Outbox] = []
    overtaking: list[Overtaking] = []
    answered: list[Answered] = []
    metrics = Metrics(registry, lambda: [follower.projection for follower in followers])
    show(registry, lambda: followers)
    tasks = Tasks()
    recent = Recent()
    intake = Intake(settings.intake_limits())
    in_vain = InVain()
    rooms: dict[str, StreamRoom] = {}
    refusing: list[Refusing] = []
    names: list[SecretNames] = []
    trimmers: list[Trimmer] = []

    async def portion(left: Sequence[Msg]) -> int:
        if any(message.metadata.num_delivered > 1 for message in left):
            await answered[0].catch_up()
        return await overtaking[0].portion(left)

    def in_line(received: Received) -> list[Outgoing]:
        done = overtaking[0].ahead.done(received.stream_seq)
        trimmers[0].dealt_with(subject=received.subject, seq=received.stream_seq, size=len(received.payload))
        return [] if done else decide(received)

    def decide(received: Received) -> list[Outgoing]:
        pools = {
            known.pool: AdmissionContext(known.projection, limits.room, classes, names[0].of) for known in followers
        }
        handled = handle(received, pools, recent, intake, answered[0], policy)
        out = placed(received, handled.out, settings.all_pools[0], policy)
        if lack := _lacks_room(out, handled.result, rooms):
            pool, why = lack
            if handled.job:
                recent.put_off(handled.job)
            metrics.requests.labels(AdmissionResult.BUSY.value).inc()
            raise NoRoom(f"pool {pool}: {why}", busy_answer(received, pool, why))
        metrics.requests.labels(handled.result.value).inc()
        if handled.result in _IN_VAIN and received.deliveries == 1:
            size = len(received.payload) + header_bytes(received.headers)
            cost = weight(size, repeated=handled.result is AdmissionResult.REPEATED)
            in_vain.note(subjects.sender_of(received.subject), cost, int(clock.boot_s() * 1e6))
        for why in handled.whys:
            metrics.refusals.labels(why.value).inc()
        metrics.latency.observe(max(0.0, clock.wall_s() - received.time_us / 1e6))
        if out is handled.out and handled.result in _REFUSED and (command := command_of(received, out, policy)):
            refusing[0].note(command)
        return out

    def laid_aside(received: Received, reason: str) -> list[Outgoing]:
        return placed(received, [dead_letter(ORIGIN, received, reason)], settings.all_pools[0], policy)

    def slow(team: str) -> float:
        return in_vain.wait_s(team, int(clock.boot_s() * 1e6))

    async def learn(requests: Iterable[tuple[str, bytes]]) -> None:
        await answered[0].now_and_then()
        await names[0].learn(requests)

    consume(
        broker,
        stream=REQUESTS,
        durable=DURABLE,
        origin=ORIGIN,
        decide=in_line,
        portion=portion,
        laid_aside=laid_aside,
        outbox=lambda: outboxes[0],
        batch=settings.batch,
    )

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "admission-ledger", pools=settings.all_pools) as nats:
            js = nats.jetstream(publish_async_max_pending=4096)
            await check(nats, settings.all_pools)
            await answer(nats, settings.all_pools)
            followers[:] = [
                Follower(js, pool, FleetShape, name=FOLLOWER, snapshot_every=settings.snapshot_records)
                for pool in settings.all_pools
            ]
            decided = {known.pool: known for known in followers}
            pace = Pace(
                lambda pool: decided[pool].projection.inbox_seq if pool in decided else 0,
                settings.undecided,
                settings.undecided_alone,
            )
            outbox = OneAnswer(js, batches=True)
            outbox.pace, outbox.lost = pace, recent.put_off
            outboxes[:] = [outbox]

            def inboxes() -> dict[str, int]:
                """Of each pool, up to where its inbox is decided."""
                return {name: known.projection.inbox_seq for name, known in decided.items()}

            answered[:] = [Answered(js, DURABLE, inboxes, recent.add)]
            names[:] = [SecretNames(js)]
            overtaking[:] = [Overtaking(js, decide, outbox, pace, learn, slow)]
            refusing[:] = [Refusing(settings.all_pools[0])]
            outbox.refused = refusing[0].note

            async def moved(entries: Sequence[FollowedEntry]) -> None:
                for event in chain.from_iterable(known.entry.record.events for known in entries if known.entry.valid):
                    if isinstance(event, JobQueued):
                        intake.queued(event)
                        recent.shown(event.job_id)
                overtaking[0].moved()

            for known in followers:
                tasks.start(f"knowledge of {known.pool}", known.run(moved))
                room = rooms[known.pool] = room_of(js, known.pool)
                tasks.start(f"room of {known.pool}", room.run())
            tasks.start("pools of other admission processes", watch(nats, settings.all_pools))
            settled, held_back = overtaking[0].ahead.settled, overtaking[0].held_back
            trimmers[:] = [
                trimmer_of(js, REQUESTS, DURABLE, keep_s=settings.trim_keep_s, answered=settled, held_back=held_back)
            ]
            tasks.start("trim of requests", trimmers[0].run())
            tasks.start("relief of who sends many requests", trimmers[0].relieve())
            async with tasks.until_stopped():
                yield

    async def caught_up() -> None:
        for known in followers:
            await known.caught_up.wait()
            await rooms[known.pool].known.wait()
        await answered[0].catch_up()
        home = rooms[settings.all_pools[0]]
        tasks.start(
            "refusals for the ledger",
            refusing[0].run(lambda: outboxes[0], lambda items: home.lacks(items, SUBMITS_END)),
        )
        tasks.start("lanes of teams", overtaking[0].run())
        tasks.start("requests out of their turn", overtaking[0].pass_on())

    def ready() -> dict[str, str]:
        if len(followers) < 2:
            return {"ledger": readiness(followers[0] if followers else None)}
        return {f"ledger of {known.pool}": readiness(known) for known in followers}

    return make_asgi(
        broker, name="admission", settings=settings, lifespan=lifespan, registry=registry, ready=ready, first=caught_up
    )


def _lacks_room(
    out: Sequence[Outgoing], result: AdmissionResult, rooms: Mapping[str, StreamRoom]
) -> tuple[str, str] | None:
    """The pool that has no room in its inbox for what follows from a request, and why; None when it has."""
    first = out[0] if out else None
    pool = subjects.pool_of_input(first.subject) if first is not None else None
    if first is None or pool is None or pool not in rooms:
        return None
    why = rooms[pool].lacks([first], CANCELS_END if result is AdmissionResult.CANCELLED else SUBMITS_END)
    return (pool, why) if why else None
