"""Preemption's wiring: the only place that builds its clients."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from faststream.asgi import AsgiFastStream
from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter

from libs.bus.broker import make_broker
from libs.bus.leader import Leadership
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import Outbox
from libs.bus.retry import UNAVAILABLE
from libs.core.scheduling.policy import Policy
from libs.ledger.follower import FollowedEntry, Follower
from libs.ports.host import failpoint
from libs.service.app import Tasks, make_asgi
from libs.service.connection import connected
from libs.service.following import readiness, show
from schemas import subjects
from schemas.inbox import PreemptionPlanned
from services.preemption.planner import PreemptionPlanner
from services.preemption.settings import PreemptionSettings

log = logging.getLogger("baton.preemption")

_SEND_S = 5.0
"""A plan that is not stored by then is made anew: the pool is another, then."""
_REST_S, _BUSY_REST_S = 0.02, 0.1
"""A record is read so long after it has come (the latter: while they keep coming): placement decides without us, and nodes hear
of it first."""


class Preemption:
    """Follows the ledger, plans on its present, and sends what it planned."""

    def __init__(self, settings: PreemptionSettings, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.pool = settings.pool
        self._policy = Policy(reserve_after_us=int(settings.reserve_after_s * 1e6))
        self.follower: Follower[PreemptionPlanner] | None = None
        self._plans = Counter("baton_preemption_plans", "plans sent to placement", registry=registry)
        self._victims = Counter("baton_preemption_victims", "jobs asked to give way", registry=registry)
        self._answers = Counter(
            "baton_preemption_answers", "answers to plans: accepted, or why not", ["answer"], registry=registry
        )
        show(registry, lambda: [self.follower])

    async def run(self, js: JetStreamContext, leadership: Leadership) -> None:
        """For ever: follows the ledger always, and plans while this process leads. Ends with an error when the ledger cannot
        be read on."""
        outbox = Outbox(js, give_up_s=_SEND_S)
        every = self.settings.snapshot_records
        self.follower = follower = Follower(
            js,
            self.pool,
            PreemptionPlanner,
            name="preemption",
            snapshot_every=every,
            rest_s=_REST_S,
            busy_rest_s=_BUSY_REST_S,
        )

        async def after(steps: Sequence[FollowedEntry]) -> None:
            for answer in (answer for step in steps for answer in step.told or ()):
                self._answers.labels(answer.name).inc()
            # An old state would only make stale plans, and a second planner's would only be declined.
            if not follower.behind and leadership.held:
                await self._plan(follower.projection, outbox, follower.head.seq)

        await follower.run(after)

    async def _plan(self, planner: PreemptionPlanner, outbox: Outbox, base_seq: int) -> None:
        plans = planner.plans(base_seq, self._policy)
        if not plans:
            return
        failpoint("preemption.planned")
        try:
            acks = await outbox.publish_many([self._message(plan) for plan in plans])
        except ConnectionClosedError:
            raise
        except UNAVAILABLE as error:  # the broker is away, or the inbox is full: no plan is worth ending for
            log.warning("%d plans are not sent, they are made anew: %r", len(plans), error)
            planner.unsent()
            return
        failpoint("preemption.sent")
        for plan, ack in zip(plans, acks, strict=True):
            planner.sent(plan, ack.seq)
            self._plans.inc()
            self._victims.inc(len(plan.victims))

    def _message(self, plan: PreemptionPlanned) -> Outgoing:
        return outgoing(
            plan,
            subject=subjects.inbox("preemption", "planned", self.pool),
            type="io.baton.preemption.planned.v1",
            source=f"/baton/{self.pool}/preemption",
            cause=plan.plan_id,
            correlation=plan.beneficiary,
        )


def make_app(settings: PreemptionSettings) -> AsgiFastStream:
    """The service as an ASGI application."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "preemption")
    preemption = Preemption(settings, registry)
    tasks = Tasks()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "preemption") as nats:
            js = nats.jetstream()
            leadership = Leadership(js, f"preemption.{settings.pool}", ttl_s=settings.leader_ttl_s)
            tasks.start("leadership", leadership.run())
            tasks.start("ledger reader", preemption.run(js, leadership))
            async with tasks.until_stopped():
                yield

    def ready() -> dict[str, str]:
        return {"ledger": readiness(preemption.follower)}

    return make_asgi(broker, name="preemption", settings=settings, lifespan=lifespan, registry=registry, ready=ready)
