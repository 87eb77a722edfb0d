"""Answers heartbeats, and decides what they or their absence mean: which nodes may go on, which are silent, which are lost."""

import logging
from collections.abc import Iterator, Sequence

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from prometheus_client import CollectorRegistry, Counter, Gauge

from libs.bus.messages import Malformed, Outgoing, decode_bare, outgoing
from libs.core.projections.granter import Granter
from libs.core.projections.node_health import Watch
from libs.core.projections.node_lives import NodeLives, NodeNews, RecordedSilence
from libs.ports.clock import boot_id
from libs.service.bootclock import now, reading
from libs.service.few_lines import few_lines
from schemas import ledger as led
from schemas import subjects
from schemas.clock import BootReading
from schemas.inbox import GranterClaimed, NodeHeardAgain, NodeLost, NodeSilent, Tick
from schemas.nodes import Heartbeat, LeaseGranted
from services.leases.settings import LeaseSettings

log = logging.getLogger("baton.leases")
unread = few_lines("baton.leases.unread")
"""Of heartbeats that cannot be read."""

MOST_AT_ONCE = 500
"""Reports about nodes sent with one tick: a partition silences thousands in the same second."""
_WITNESSES = 3
_LONGEST_BOOT_US = 100 * 365 * 86_400_000_000
"""Of a reading beyond it the tick that carries it on could not be read by anybody."""
_SILENT = "io.baton.node.silent.v1"


class Grants:
    """The process's state of nodes, and its reports to the inbox. `lives` is replaced by the ledger's reader."""

    def __init__(self, settings: LeaseSettings, name: str, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.lives = NodeLives()
        self.watch = Watch(now(), settings.terms())
        self.granter = Granter(name, self.watch, settings.term_s, settings.broker_s, settings.standby_s)
        self.unrecorded = False
        """The pool's ledger may not name granters yet, because readers of 0.1.0 live: ticks that are stored are the right."""
        self._first_heard_at = float("-inf")
        """When a tick of a process was last heard that comes before this one."""
        self.stored_at = float("-inf")
        """When a tick of ours was last stored, or refused by a broker that is there."""
        self._echo_at = now()
        """When a tick of ours was last heard here, as all processes hear it."""
        self._witnesses: dict[str, tuple[BootReading, float]] = {}
        self._heartbeats = Counter("baton_heartbeats", "node renewals", ["outcome"], registry=registry)
        self._lost = Counter("baton_nodes_given_up", "nodes whose lease was seen to end", registry=registry)
        self._told_lost: set[tuple[str, int]] = set()
        self._too_long: set[str] = set()
        for metric, text, value in (
            ("nodes_silent", "nodes that are not heard", lambda: len(self.lives.silent)),
            ("granter", "1 while this process grants leases", lambda: self.may_grant(now())),
            (
                "granter_epoch",
                "how often the right to grant leases has changed hands",
                lambda: self.granter.right.epoch,
            ),
        ):
            Gauge(f"baton_{metric}", text, registry=registry).set_function(value)

    # ---------------------------------------------------------------------------------------------------- the ledger

    def begin(self, lives: NodeLives, at: float) -> None:
        """After a start from a snapshot: everything that the ledger says so far."""
        self.lives = lives
        for node, incarnation in lives.left.items():
            self.watch.left(node, incarnation)
        for node, incarnation in lives.up.items():
            self.watch.joined(node, incarnation, at)
            if node in lives.silent and lives.silent[node].kept:
                self.watch.kept(node, incarnation)
        self.granter.named(lives.right, at)

    def learn(self, news: Sequence[NodeNews], at: float) -> None:
        """What a record says."""
        for event in news:
            match event:
                case led.NodeJoined():
                    self.watch.joined(event.inventory.node, event.incarnation, at)
                case led.NodeLeft():
                    self.watch.left(event.node, event.incarnation)
                case led.NodeSilence():
                    if event.kept:
                        self.watch.kept(event.node, event.incarnation)
                    self.watch.ended(event.node, event.ended_lease_s)
                case led.NodeHeard():
                    self.watch.back(event.node)
                case led.GranterNamed():
                    self.granter.named(self.lives.right, at)
                    log.warning("leases are granted by %s from now on (epoch %d)", event.holder, event.epoch)

    # ---------------------------------------------------------------------------------------------------- heartbeats

    async def listen(self, nats: Client) -> None:
        """Every process hears every heartbeat and every tick: no queue group, or a standby would know nothing."""
        await nats.subscribe(subjects.heartbeat(self.settings.pool), cb=self._on_heartbeat)
        await nats.subscribe(subjects.inbox("clock", "tick", self.settings.pool), cb=self._on_tick)

    async def _on_tick(self, message: Msg) -> None:
        source = (message.headers or {}).get("ce-source", "")
        if source != self._source:
            self.other_ticked(source, now())
        else:
            self.own_ticked(now())

    def own_ticked(self, at: float) -> None:
        """A tick of ours came back: what others say is heard, too."""
        self._echo_at = at

    def other_ticked(self, source: str, at: float) -> None:
        """Another process sends ticks. While the ledger may not name a granter it grants leases, too, for one more term: what
        it was asked for may not have been heard here."""
        self.granter.other_heard_at = at
        if self.unrecorded:
            self.watch.deaf_until(at + self.settings.term_s * (1 + 2 * self.settings.rho))
            if source < self._source:
                self._first_heard_at = at

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            _, heartbeat = decode_bare(Heartbeat, message.subject, message.headers, message.data)
        except Malformed as e:
            self._heartbeats.labels("malformed").inc()
            unread.warning("a heartbeat on %s cannot be read: %s", message.subject, e)
            return
        node = subjects.node_of(message.subject)
        if any(named != node for named, _ in heartbeat.nodes):
            self._heartbeats.labels("foreign").inc()
            unread.warning("a heartbeat on the subject of node %s names another: a node speaks for itself only", node)
            return
        answer = self.renew(heartbeat, now(), node)
        if answer is not None and message.reply:
            try:
                await message.respond(answer.model_dump_json().encode())
            except NatsError as e:
                log.warning("a renewal could not be answered: %r", e)  # its agent will ask again

    def renew(self, heartbeat: Heartbeat, at: float, node: str = "") -> LeaseGranted | None:
        """`node`: on whose subject it came. The nodes that may go on; None while the right is another's, or not surely ours."""
        granted = self.watch.heard(heartbeat.nodes, heartbeat.lease_s, at)
        if heartbeat.reading is not None and heartbeat.reading.boot != boot_id():
            self._witness(node, heartbeat.reading, at)
        if heartbeat.lease_s > self.settings.max_lease_s:
            self._say_too_long(heartbeat)
        if not self.may_grant(at):
            self._heartbeats.labels("not-the-granter").inc(len(heartbeat.nodes))
            return None
        self._heartbeats.labels("granted").inc(len(granted))
        self._heartbeats.labels("refused").inc(len(heartbeat.nodes) - len(granted))
        return LeaseGranted(nodes=granted)

    def may_grant(self, at: float) -> bool:
        if not self.unrecorded:
            return self.granter.may_grant(at)
        return at - self.stored_at <= self.settings.term_s and not self._gives_way(at)

    def ticks(self, at: float) -> bool:
        """Whether this process sends ticks. While they are the right themselves, whoever gives way to nobody tries."""
        return not self._gives_way(at) if self.unrecorded else self.granter.may_grant(at)

    def _gives_way(self, at: float) -> bool:
        """While the ledger may not name a granter, the first by name grants, of those that are heard."""
        return at - self._first_heard_at < self.settings.standby_s

    def _witness(self, node: str, told: BootReading, at: float) -> None:
        """The boot clocks of a few other machines: the ones that were taken first stay, so that ticks can be compared. A node
        is one witness, whatever it says, and none with a clock that no machine has or another is known by."""
        if told.at_us > _LONGEST_BOOT_US or any(
            told.boot == other.boot for name, (other, _) in self._witnesses.items() if name != node
        ):
            return
        if node in self._witnesses or len(self._witnesses) < _WITNESSES:
            self._witnesses[node] = (told, at)
        for name, (_, heard) in list(self._witnesses.items()):
            if at - heard > 60.0:
                del self._witnesses[name]

    def _say_too_long(self, heartbeat: Heartbeat) -> None:
        for node, _ in heartbeat.nodes:
            if node not in self._too_long and len(self._too_long) < 1000:
                self._too_long.add(node)
                log.error(
                    "node %s asks for a lease of %g s; at most %g s are granted: raise BATON_LEASES_MAX_LEASE_S, "
                    "or lower the agent's lease",
                    node, heartbeat.lease_s, self.settings.max_lease_s,
                )  # fmt: skip

    # ------------------------------------------------------------------------------------------------------ reports

    def reports(self, at: float) -> Iterator[Outgoing]:
        """The reports that the inbox should get now: a tick, silent and lost nodes, nodes that are back. They are repeated
        until the ledger shows them; the broker stores each once in two minutes."""
        yield self._tick()
        if self.unrecorded and at - self._echo_at > 2 * self.settings.tick_s + self.settings.stall_s:
            self.watch.deaf_until(at)  # not even our own ticks are heard, and another may grant leases
        if not self.may_grant(at):
            return  # nobody answers our ticks: we may be deaf to the nodes as well
        said, epoch, silent = 0, self.granter.right.epoch, self.lives.silent
        for message in self.watch.overdue(at):
            if (message.node, message.incarnation) not in self._told_lost:
                log.warning("node %s was silent for %.1f s: its lease has ended", message.node, message.silent_s)
                self._lost.inc()
                self._told_lost.add((message.node, message.incarnation))
            if (said := said + 1) <= MOST_AT_ONCE:
                quiet = silent.get(message.node)
                more = {"epoch": epoch, "since_us": quiet.since_us if quiet is not None else None}
                lost = message.model_copy(update=more)
                yield self._of_node(lost, "lost", "io.baton.node.lost.v1", f"{message.incarnation}:{epoch}")
        self._told_lost &= {(node, incarnation) for node, incarnation in self.lives.up.items()}
        for silence in self.watch.silences(at, self.settings.silent_s):
            told = self._more_of(silence, silent.get(silence.node))
            if told is not None and (said := said + 1) <= MOST_AT_ONCE:
                if told.ended_lease_s:
                    self.watch.tell_ended(told.node, told.ended_lease_s)
                step = f"{told.incarnation}:{epoch}:{told.ended_lease_s:g}:{int(at - told.silent_s)}"
                yield self._of_node(told, "silent", _SILENT, step)
        for node, quiet in silent.items():
            incarnation = self.lives.up.get(node)
            if incarnation is not None and self.watch.is_heard(node, incarnation, at, self.settings.silent_s):
                if (said := said + 1) > MOST_AT_ONCE:
                    return
                heard = NodeHeardAgain(node=node, incarnation=incarnation, epoch=epoch)
                yield self._of_node(heard, "heard", "io.baton.node.heard.v1", f"{incarnation}:{quiet.seq}:{epoch}")

    def _more_of(self, silence: NodeSilent, known: RecordedSilence | None) -> NodeSilent | None:
        """What the ledger does not say yet: first that the node is silent, so that nothing new is granted there; then which of
        its leases have ended."""
        epoch = self.granter.right.epoch
        if known is None:
            return silence.model_copy(update={"epoch": epoch, "ended_lease_s": 0.0})
        if known.kept or silence.ended_lease_s <= known.ended_lease_s:
            return None
        return silence.model_copy(update={"epoch": epoch, "since_us": known.since_us})

    def published(self, item: Outgoing, *, refused: bool) -> None:
        """What became of one of the reports: the broker refused it, or it is stored, or nobody knows."""
        if item.headers.get("ce-type") == _SILENT:
            self.watch.told_ended(subjects.sender_of(item.subject), refused)

    def claim(self, at: float) -> Outgoing | None:
        """The claim to be sent now, if any."""
        epoch = 0 if self.unrecorded else self.granter.claim(at)
        if not epoch:
            return None
        pool = self.settings.pool
        log.warning("claiming the right to grant leases (epoch %d)", epoch)
        return outgoing(
            GranterClaimed(
                epoch=epoch,
                holder=self.granter.name,
                term_s=self.settings.term_s,
                max_lease_s=self.settings.max_lease_s,
                readings=self._readings(reading()),
            ),
            subject=subjects.inbox("lease", "granter", pool),
            type="io.baton.lease.granter.v1",
            source=self._source,
            cause=f"granter:{pool}:{self.granter.name}:{epoch}:{at:.0f}",
        )

    def _tick(self) -> Outgoing:
        """The message id is the period since boot, so that processes of one machine store one tick. A wall clock that goes
        back must not repeat ids: the broker would drop the ticks for as long as it remembers the first ones."""
        pool, own = self.settings.pool, reading()
        at = own.at_us / 1e6
        number = int(at / self.settings.tick_s)
        return outgoing(
            Tick(readings=self._readings(own)),
            subject=subjects.inbox("clock", "tick", pool),
            type="io.baton.clock.tick.v1",
            source=self._source,
            cause=f"tick:{pool}:{self.settings.tick_s:g}:{own.boot}:{number}",
        )

    def _readings(self, own: BootReading) -> tuple[BootReading, ...]:
        """What clocks read now, the own one first."""
        at = own.at_us / 1e6
        witnesses = (
            told.model_copy(update={"at_us": told.at_us + int((at - heard) * 1e6)})
            for told, heard in self._witnesses.values()
        )
        return (own, *witnesses)

    def _of_node(self, message: NodeLost | NodeSilent | NodeHeardAgain, what: str, type_: str, cause: str) -> Outgoing:
        return outgoing(
            message,
            subject=subjects.node_inbox(what, self.settings.pool, message.node),
            type=type_,
            source=self._source,
            cause=f"{what}:{message.node}:{cause}",
        )

    @property
    def _source(self) -> str:
        return f"/baton/{self.settings.pool}/leases/{self.granter.name}"
