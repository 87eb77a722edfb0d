"""Wires leases: the narrow reader of the ledger, heartbeats, ticks, the right to grant."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from faststream.asgi import AsgiFastStream
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError
from prometheus_client import CollectorRegistry, Counter

from libs.bus.broker import make_broker
from libs.bus.cursors import Cursors
from libs.bus.ids import sent_headers
from libs.bus.messages import Outgoing
from libs.bus.outbox import is_undecided
from libs.bus.retry import UNAVAILABLE
from libs.core.projections.node_lives import NodeLives
from libs.core.state.formats import may_emit
from libs.ledger.follower import FollowedEntry, Follower
from libs.ledger.readers import Readers, process_name
from libs.ports.clock import until_turn
from libs.ports.host import failpoint
from libs.service.app import Tasks, make_asgi
from libs.service.bootclock import now
from libs.service.connection import connected
from libs.service.following import readiness, show
from schemas.ledger import GranterNamed
from services.leases.grants import Grants
from services.leases.settings import LeaseSettings

log = logging.getLogger("baton.leases")

_GLANCE_S = 0.02
_PUBLISH_S = 2.0
_FIRST_LOOK_S = 0.1
"""So soon it is looked again, each time a tenth later, while the ledger has never named a granter: in a new pool nothing can
start before, and in one that names none, for its older readers, nothing will come of it."""
_LEAVE_S = 1.0
_CURSORS = "leases"
"""The prefix of this service's keys: no other service may write them."""


class Leases:
    """One process: granter or standby."""

    def __init__(self, settings: LeaseSettings, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.grants = Grants(settings, f"{process_name()}-{int(now() * 1000):x}", registry)
        self.follower: Follower[NodeLives] | None = None
        self._cursor = f"granter.{settings.pool}"
        self._named = asyncio.Event()
        """A record has named a granter that `confirm` has not seen yet."""
        self._ticks = Counter("baton_ticks", "ticks and reports by what became of them", ["outcome"], registry=registry)
        show(registry, lambda: [self.follower])

    async def follow(self, js: JetStreamContext) -> None:
        """Folds what the ledger says of nodes and of the right, for ever. Other kinds of events need not be understood."""
        every = self.settings.snapshot_records
        self.follower = follower = Follower(
            js, self.settings.pool, NodeLives, name="leases", snapshot_every=every, only=NodeLives.handled,
            rest_s=0.1,
        )  # fmt: skip

        async def begin() -> None:
            self.grants.begin(follower.projection, now())

        async def after(steps: Sequence[FollowedEntry]) -> None:
            for step in steps:
                if step.told:
                    self.grants.learn(step.told, now())
                    if any(isinstance(event, GranterNamed) for event in step.told):
                        self._named.set()

        await follower.run(after, begin=begin)

    async def confirm(self, js: JetStreamContext) -> None:
        """For ever: looks whether the ledger still names us, at once when it has just named somebody; claims the right when it
        is time. Apart from the ticks, which may wait for a slow disk."""
        readers, cursors, grants = Readers(js), Cursors(js, _CURSORS), self.grants
        look_s, seldom_s = _FIRST_LOOK_S, min(1.0, self.settings.term_s / 5)
        while True:
            await self._confirm(now(), readers)
            if self._caught_up() and not grants.ticks(now()):
                await self._look_who_left(cursors)
                if (claim := grants.claim(now())) is not None:
                    await self._publish(js, [claim])
            look_s = seldom_s if grants.granter.right.epoch else min(seldom_s, 1.1 * look_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(until_turn(look_s)):
                    await self._named.wait()
            self._named.clear()

    async def beat(self, nats: Client, js: JetStreamContext) -> None:
        """For ever: a tick, while the right is ours, with what is to be told of nodes."""
        settings, grants = self.settings, self.grants
        last, reconnects = now(), nats.stats["reconnects"]
        while True:
            await asyncio.sleep(until_turn(settings.tick_s))
            at = now()
            late = at - last > settings.tick_s + settings.stall_s
            if late or not nats.is_connected or nats.stats["reconnects"] != reconnects:
                grants.watch.deaf_until(at)  # we may have missed renewals
            last, reconnects = at, nats.stats["reconnects"]
            if grants.ticks(at):
                await self._publish(js, list(grants.reports(at)))

    async def _confirm(self, asked_at: float, readers: Readers) -> None:
        """Asks where the ledger ends. What was read up to there names the granter as of `asked_at`."""
        follower = self.follower
        if follower is None or not self._caught_up():
            return
        try:
            async with asyncio.timeout(_PUBLISH_S):
                if not self.grants.granter.mine:
                    format_ = await readers.format(self.settings.pool)
                    self.grants.unrecorded = not may_emit("lease.granter", format_)
                end = await follower.last_seq()
                while follower.position < end:  # noqa: ASYNC110 - some milliseconds, once a second
                    await asyncio.sleep(_GLANCE_S)
        except UNAVAILABLE as error:
            log.warning("it is not known whether the ledger names another granter: %r", error)
            return
        self.grants.granter.confirm(asked_at)

    async def _look_who_left(self, cursors: Cursors) -> None:
        """Whether the granter has left."""
        granter = self.grants.granter
        if granter.mine:
            return
        with suppress(*UNAVAILABLE):
            granter.left = str((await cursors.load(self._cursor) or {}).get("left", ""))

    async def leave(self, js: JetStreamContext) -> None:
        """Grants no more, and says so: or nobody would for `standby_s`, in which no new work starts anywhere."""
        granter = self.grants.granter
        if granter.mine:
            granter.left = granter.name
            with suppress(*UNAVAILABLE):
                async with asyncio.timeout(_LEAVE_S):
                    await Cursors(js, _CURSORS).save(self._cursor, {"left": granter.name})

    def _caught_up(self) -> bool:
        return self.follower is not None and self.follower.caught_up.is_set()

    async def _publish(self, js: JetStreamContext, items: Sequence[Outgoing]) -> None:
        """One try: what fails is sent again with the next tick."""
        failpoint("leases.tick")
        started = now()
        outcomes = await asyncio.gather(
            *(
                js.publish(item.subject, item.payload, headers=sent_headers(js._nc, item), timeout=_PUBLISH_S)
                for item in items
            ),
            return_exceptions=True,
        )
        for item, outcome in zip(items, outcomes, strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                raise outcome
            refused = isinstance(outcome, APIError) and not is_undecided(outcome)
            self.grants.published(item, refused=refused)
            if not isinstance(outcome, BaseException):
                self.grants.stored_at = max(self.grants.stored_at, started)
                self._ticks.labels("stored").inc()
            elif refused:
                self.grants.stored_at = max(self.grants.stored_at, started)  # full, but there
                self._ticks.labels("refused").inc()
                log.warning("the inbox refuses a tick: %s", outcome)
            else:
                self._ticks.labels("lost").inc()
                log.warning("a tick was not stored: %r", outcome)


def make_app(settings: LeaseSettings) -> AsgiFastStream:
    """The service as an ASGI application."""
    registry = CollectorRegistry()
    broker = make_broker(settings.bus, "leases")
    leases = Leases(settings, registry)
    tasks = Tasks()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with connected(settings, "leases") as nats:
            js = nats.jetstream()
            await leases.grants.listen(nats)
            tasks.start("ledger", leases.follow(js))
            tasks.start("right", leases.confirm(js))
            tasks.start("ticks", leases.beat(nats, js))
            async with tasks.until_stopped():
                yield
            await leases.leave(js)

    def ready() -> dict[str, str]:
        """A standby is ready: it has what it needs to take over."""
        return {"ledger": readiness(leases.follower)}

    return make_asgi(broker, name="leases", settings=settings, lifespan=lifespan, registry=registry, ready=ready)
