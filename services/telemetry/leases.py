"""Leases and ticks: answers heartbeats, and every second tells the inbox that time passed and which nodes are lost.

A lease is granted only while the broker stores our ticks. Otherwise a telemetry process that is cut off from the inbox
could keep nodes alive that another process, which still reaches the inbox, has already declared lost.
"""

import asyncio
import logging
from collections.abc import Sequence

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError
from prometheus_client import CollectorRegistry, Counter

from libs.bus.messages import Malformed, Outgoing, decode_bare, outgoing
from libs.core.projections.node_health import Watch
from libs.ports.host import failpoint
from libs.service.bootclock import now, reading
from schemas import subjects
from schemas.inbox import NodeLost, Tick
from schemas.nodes import Heartbeat, LeaseGranted
from services.telemetry.settings import TelemetrySettings

log = logging.getLogger("baton.telemetry")

_PUBLISH_S = 2.0
_NO_ANSWER = (NoStreamResponseError, ServiceUnavailableError)


class Leases:
    """`watch` is shared with the ledger's reader, which tells it who joined and left."""

    def __init__(self, settings: TelemetrySettings, registry: CollectorRegistry) -> None:
        self.watch = Watch(now(), settings.terms())
        self.confirmed_at = float("-inf")
        """When the broker last answered for the inbox."""
        self._settings = settings
        self._heartbeats = Counter("baton_heartbeats", "node renewals", ["outcome"], registry=registry)
        self._lost = Counter("baton_nodes_given_up", "nodes whose lease was seen to end", registry=registry)
        self._ticks = Counter("baton_ticks", "ticks by what became of them", ["outcome"], registry=registry)
        self._told: set[tuple[str, int]] = set()
        self._too_long: set[str] = set()

    # ---------------------------------------------------------------------------------------------------- heartbeats

    async def listen(self, nats: Client) -> None:
        """Answers renewals. Every telemetry process hears every one: no queue group, or each would miss some."""
        await nats.subscribe(subjects.heartbeat(self._settings.pool), cb=self._on_heartbeat)

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            _, heartbeat = decode_bare(Heartbeat, message.subject, message.headers, message.data)
        except Malformed as e:
            self._heartbeats.labels("malformed").inc()
            log.warning("a heartbeat on %s cannot be read: %s", message.subject, e)
            return
        node = subjects.node_of(message.subject)
        if any(named != node for named, _ in heartbeat.nodes):
            self._heartbeats.labels("foreign").inc()
            log.warning("a heartbeat on the subject of node %s names another: a node speaks for itself only", node)
            return
        answer = self.renew(heartbeat, now())
        if answer is not None and message.reply:
            try:
                await message.respond(answer.model_dump_json().encode())
            except NatsError as e:
                log.warning("a renewal could not be answered: %r", e)  # its agent will ask again

    def renew(self, heartbeat: Heartbeat, at: float) -> LeaseGranted | None:
        """The nodes that may go on; None while another telemetry process may declare them lost without our notice."""
        granted = self.watch.heard(heartbeat.nodes, heartbeat.lease_s, at)
        if heartbeat.lease_s > self._settings.max_lease_s:
            self._say_too_long(heartbeat)
        if at - self.confirmed_at > self._settings.confirm_s:
            self._heartbeats.labels("unconfirmed").inc(len(heartbeat.nodes))
            return None
        self._heartbeats.labels("granted").inc(len(granted))
        self._heartbeats.labels("refused").inc(len(heartbeat.nodes) - len(granted))
        return LeaseGranted(nodes=granted)

    def _say_too_long(self, heartbeat: Heartbeat) -> None:
        for node, _ in heartbeat.nodes:
            if node not in self._too_long and len(self._too_long) < 1000:
                self._too_long.add(node)
                log.error(
                    "node %s asks for a lease of %g s; at most %g s are granted: raise BATON_TELEMETRY_MAX_LEASE_S, "
                    "or lower the agent's lease",
                    node, heartbeat.lease_s, self._settings.max_lease_s,
                )  # fmt: skip

    # --------------------------------------------------------------------------------------------------------- ticks

    async def beat(self, nats: Client, js: JetStreamContext) -> None:
        """For ever: a tick at each second since boot, and with it the nodes that are lost."""
        period = self._settings.tick_s
        last, reconnects = now(), nats.stats["reconnects"]
        while True:
            await asyncio.sleep(period - now() % period)
            at = now()
            if (
                at - last > period + self._settings.stall_s
                or not nats.is_connected
                or nats.stats["reconnects"] != reconnects
            ):
                self.watch.deaf_until(at)  # we may have missed renewals
            last, reconnects = at, nats.stats["reconnects"]
            await self._publish(js, [self._tick(), *map(self._lost_node, self._overdue(at))])

    def _overdue(self, at: float) -> list[NodeLost]:
        lost = self.watch.overdue(at)
        for message in lost:
            if (message.node, message.incarnation) not in self._told:
                log.warning("node %s was silent for %.1f s: its lease has ended", message.node, message.silent_s)
                self._lost.inc()
        self._told = {(m.node, m.incarnation) for m in lost}
        return lost

    def _tick(self) -> Outgoing:
        """The message id is the period since boot, so that telemetry processes of one machine store one tick. A wall clock
        that goes back must not repeat ids: the broker would drop the ticks for as long as it remembers the first ones."""
        pool, own = self._settings.pool, reading()
        number = int(own.at_us / 1e6 / self._settings.tick_s)
        return outgoing(
            Tick(readings=(own,)),
            subject=subjects.inbox("clock", "tick", pool),
            type="io.baton.clock.tick.v1",
            source=self._source,
            cause=f"tick:{pool}:{self._settings.tick_s:g}:{own.boot}:{number}",
        )

    def _lost_node(self, message: NodeLost) -> Outgoing:
        """The message id is the node's life: sent every second until the ledger shows it, it is stored once in two minutes."""
        return outgoing(
            message,
            subject=subjects.node_inbox("lost", self._settings.pool, message.node),
            type="io.baton.node.lost.v1",
            source=self._source,
            cause=f"lost:{message.node}:{message.incarnation}",
        )

    async def _publish(self, js: JetStreamContext, items: Sequence[Outgoing]) -> None:
        """One try: what fails is sent again with the next tick."""
        failpoint("telemetry.tick")
        started = now()
        outcomes = await asyncio.gather(
            *(js.publish(item.subject, item.payload, headers=item.headers, timeout=_PUBLISH_S) for item in items),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, asyncio.CancelledError):
                raise outcome
            if not isinstance(outcome, BaseException):
                self.confirmed_at = max(self.confirmed_at, started)
                self._ticks.labels("stored").inc()
            elif isinstance(outcome, APIError) and not isinstance(outcome, _NO_ANSWER):
                # Full, but there: leases go on when a disk is full.
                self.confirmed_at = max(self.confirmed_at, started)
                self._ticks.labels("refused").inc()
                log.warning("the inbox refuses a tick: %s", outcome)
            else:
                self._ticks.labels("lost").inc()
                log.warning("a tick was not stored: %r", outcome)

    @property
    def _source(self) -> str:
        return f"/baton/{self._settings.pool}/telemetry"
