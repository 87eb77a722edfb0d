"""Bugs of readers, and of what follows from what they read."""

from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import Any

from libs.adapters.mongo.store import JobStore
from libs.bus import ordered, settle
from libs.bus.uncounted import UncountedDeliveries
from libs.core.billing import metering
from libs.ledger import follower, reader, snapshots
from libs.ledger.snapshots import SnapshotStore
from schemas import ledger
from services.agent import node as agent_node
from services.history import documents, feed
from services.placement import projector
from services.preemption import app as preemption
from services.quota_billing import quotas
from tests.simulation.bug import bug, set_on


@bug("a reader does not notice a lost delivery", "losses")
def lost_delivery_unnoticed(stack: ExitStack) -> None:
    real = ordered.OrderedConsumer._status

    def status(self: Any, headers: dict[str, str]) -> None:
        real(self, {k: v for k, v in headers.items() if k != "Nats-Last-Consumer"})

    set_on(stack, ordered.OrderedConsumer, "_status", status)


@bug("a broker that is away when a reader starts ends its service", "room", "snapshots", "segments")
def broker_away_ends_reader(stack: ExitStack) -> None:
    async def retry_while_away(self: Any, ask: Any) -> Any:
        return await ask()

    set_on(stack, follower.Follower, "_retry_while_away", retry_while_away)


@bug("a request is acknowledged before what follows from it is stored", "requests", "room", findings=(9,))
def ack_before_store(stack: ExitStack) -> None:
    real = settle._Shell._decided

    async def decided(self: Any, case: Any, deliveries: int) -> Any:
        case = await real(self, case, deliveries)
        if case.outcome == "decided":
            await case.msg.ack()
        return case

    async def settled(case: Any) -> None:
        if not case.msg.is_acked:
            await settles(case)

    settles = settle._settle
    set_on(stack, settle._Shell, "_decided", decided)
    set_on(stack, settle, "_settle", settled)


@bug(
    "deliveries that reached no decision count: good requests become dead letters",
    "room",
    "requests",
    findings=(9,),
)
def undecided_deliveries_count(stack: ExitStack) -> None:
    set_on(stack, UncountedDeliveries, "counted", lambda self, received: received.deliveries)
    set_on(stack, settle, "CRASH_DELIVERIES", 3)


@bug("the feed moves its cursor before teams are told", "stores", "room")
def cursor_before_events(stack: ExitStack) -> None:
    real, publish = feed.FeedLoop._surely, feed.failpoint

    async def surely(self: Any, what: str, work: Any) -> Any:
        if what.startswith("store"):
            mark = {"seq": self.follower.head.seq, "hash": self.follower.head.hash, "position": self.follower.position}
            await real(self, "move", partial(self._cursors.move, f"{feed.NAME}-{self._pool}", mark))
            publish("feed.stored")
        return await real(self, what, work)

    set_on(stack, feed.FeedLoop, "_surely", surely)


@bug("a repeated event has another id", "stores", "room")
def event_ids_differ(stack: ExitStack) -> None:
    real, numbers = feed.outgoing, count()
    set_on(stack, feed, "outgoing", lambda event, **named: real(event, **named | {"key": str(next(numbers))}))


@bug(
    "documents are written without looking whether MongoDB is still the one that was written", "stores", findings=(17,)
)
def checkpoint_not_compared(stack: ExitStack) -> None:
    async def move_checkpoint(self: Any, name: str, before: Any, after: Any) -> bool:
        await self._checkpoints.replace_one({"_id": name}, {"_id": name, **asdict(after)}, upsert=True)
        return True

    async def after(self: Any, steps: Any) -> None:
        if steps:
            await real(self, steps)

    real = documents.Documents._after
    set_on(stack, JobStore, "move_checkpoint", move_checkpoint)
    set_on(stack, documents.Documents, "_after", after)


@bug("a snapshot says that it holds more records than it does", findings=(6,))
def snapshot_ahead(stack: ExitStack) -> None:
    real = SnapshotStore.put

    async def put(self: Any, name: str, version: int, head: Any, position: int, packed: bytes) -> None:
        stored = self.held.get(name) if hasattr(self, "held") else None
        self.held = {**getattr(self, "held", {}), name: packed}
        await real(self, name, version, head, position, stored if stored is not None else packed)

    set_on(stack, SnapshotStore, "put", put)


@bug("a snapshot that cannot be read ends its reader", "snapshots", findings=(6,))
def bad_snapshot_ends_reader(stack: ExitStack) -> None:
    class Unread(RuntimeError):
        pass

    real = snapshots._read

    async def read(store: Any, key: str) -> bytes:
        try:
            return await real(store, key)
        except snapshots.BadSnapshot as error:
            raise Unread(str(error)) from error

    set_on(stack, snapshots, "_read", read)


@bug(
    "a snapshot that another process replaced while it was looked at is taken for the one before",
    "snapshots",
    findings=(17,),
)
def snapshot_replaced(stack: ExitStack) -> None:
    real = snapshots._read

    async def read(store: Any, slot: Any) -> bytes:
        described = (await store.get_info(slot.object)).description or ""
        return await real(store, replace(slot, described=described))

    set_on(stack, snapshots, "_read", read)


@bug("a reader of some kinds of events does not notice where a segment ends", "segments", findings=(2,))
def seal_unnoticed(stack: ExitStack) -> None:
    def seals(self: Any, entry: Any, payload: bytes) -> bool:
        return any(isinstance(event, ledger.SegmentSealed) for event in entry.record.events)

    set_on(stack, reader.LedgerReader, "_seals", seals)


@bug("a plan of preemption that cannot be stored ends its service", "room")
def plan_unstored_ends(stack: ExitStack) -> None:
    set_on(stack, preemption, "UNAVAILABLE", ())


@bug("an agent that comes back forgets what it finds running", "nodes", findings=(16,))
def adopted_parts_forgotten(stack: ExitStack) -> None:
    real = agent_node.NodeRunner.adopt
    set_on(stack, agent_node.NodeRunner, "adopt", lambda self, life: real(self, replace(life, parts=())))


@bug("quotas of a file do not wait for a broker that is away", "room", "segments")
def quotas_do_not_wait(stack: ExitStack) -> None:
    set_on(stack, quotas, "retry_while_away", lambda ask, away: ask())


@bug("the projector does not look at where Redis stands")
def redis_not_compared(stack: ExitStack) -> None:
    async def check(self: Any, follower: Any) -> None:
        """Never again."""

    async def refresh(self: Any, follower: Any) -> None:
        self._stale = False

    set_on(stack, projector.Projector, "_check", check)
    set_on(stack, projector.Projector, "_refresh", refresh)


@bug("a bill counts whole milliseconds", findings=(10,))
def bill_rounds(stack: ExitStack) -> None:
    real = metering.Meter.apply

    def apply(self: Any, record: ledger.LedgerRecord, seq: int) -> None:
        real(self, record.model_copy(update={"t_us": record.t_us // 1000 * 1000}), seq)

    set_on(stack, metering.Meter, "apply", apply)
