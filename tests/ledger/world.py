"""What the ledger's tests do: put inputs in, run writers, read everything back."""

import asyncio
from typing import Any

from nats.aio.client import Client
from nats.js import JetStreamContext
from pydantic import BaseModel

from libs.bus.cancel import cancel
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import Outbox
from libs.bus.streams import provision
from libs.ledger.chain import GENESIS, ChainEntry, Head, encode
from libs.ledger.reader import LedgerReader
from libs.ledger.segments import readable
from libs.ledger.snapshots import SnapshotStore
from libs.ledger.writer import LedgerWriter
from schemas.catalog import TYPE_OF
from schemas.ledger import LedgerRecord
from schemas.subjects import DEAD, inbox_stream, ledger_stream
from tests.kit.inputs import input_subject
from tests.ledger.broker import Broker
from tests.ledger.toy import Toy

POOL = "main"
WAIT_S = 30


def input_message(model: BaseModel, cause: str) -> Outgoing:
    type_ = TYPE_OF[type(model)]
    return outgoing(model, subject=input_subject(model, POOL), type=type_, source="/baton/main/test", cause=cause)


class World:
    """A broker with one pool, and the writers that a test lets run."""

    def __init__(self, broker: Broker, clients: list[Client]) -> None:
        self.broker = broker
        self.clients = clients
        self.inputs = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, scale: float = 0.01) -> None:
        self.js = await self.connect()
        await provision(self.js, [POOL], scale=scale)

    async def end(self) -> None:
        for task in self._tasks:
            await self.stop(task)
        for client in self.clients:
            await client.close()

    async def connect(self) -> JetStreamContext:
        client = await self.broker.connect()
        self.clients.append(client)
        return client.jetstream()

    async def put(self, *models: BaseModel) -> None:
        """Into the inbox, each once, whatever the broker goes through."""
        items = []
        for model in models:
            self.inputs += 1
            items.append(input_message(model, str(self.inputs)))
        await Outbox(self.js).publish_many(items)

    async def put_raw(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> None:
        self.inputs += 1
        await self.js.publish(subject, payload, headers=headers)

    async def append(self, head: Head, position: int | None = None, **changes: Any) -> Head:
        """Append a record by hand that names `head`; it is at the stream's end whatever it says."""
        fields: dict[str, Any] = {"pool": POOL, "inbox_seq": 0, "t_us": 1, "writer": "hand", "events": ()}
        record = LedgerRecord(prev_seq=head.seq, prev_hash=head.hash, **(fields | changes))
        payload, digest = encode(record)
        ack = await self.js.publish((await readable(self.js, POOL))[-1].subject, payload)
        return Head(ack.seq, digest)

    async def chain(self, length: int) -> Head:
        head = GENESIS
        for _ in range(length):
            head = await self.append(head)
        return head

    def writer(self, name: str, js: JetStreamContext | None = None, **options: Any) -> LedgerWriter[Toy]:
        js = js if js is not None else self.js
        options.setdefault("snapshots", SnapshotStore(js, POOL))
        return LedgerWriter(js, POOL, Toy, writer_id=name, **options)

    def start(self, writer: LedgerWriter[Toy]) -> asyncio.Task[None]:
        task = asyncio.create_task(writer.run(), name=writer.writer_id)
        self._tasks.append(task)
        return task

    async def stop(self, task: asyncio.Task[None]) -> None:
        await cancel(task)
        if not task.cancelled():
            task.result()

    async def decided(self, *writers: LedgerWriter[Toy]) -> None:
        """Wait until one of the writers has decided all inputs; a writer that dies fails the test at once."""
        async with asyncio.timeout(WAIT_S):
            while not any(w.decided_to >= self.inputs and w.settled for w in writers):
                for task in self._tasks:
                    if task.done() and not task.cancelled():
                        task.result()
                await asyncio.sleep(0.01)

    async def entries(self) -> list[ChainEntry]:
        """The whole ledger, read from its beginning."""
        reader = LedgerReader(self.js, POOL)
        out = [e async for batch in reader.read_to(await reader.last_seq()) for e in batch]
        await reader.close()
        return out

    async def folded(self) -> Toy:
        """The whole ledger, folded. The toy raises Impossible when anything was decided twice."""
        toy = Toy()
        for entry in await self.entries():
            if entry.valid:
                toy.apply(entry.record, entry.seq)
        return toy

    async def letter(self) -> Any:
        """The last dead letter."""
        last = (await self.js.stream_info(DEAD)).state.last_seq
        return await self.js.get_msg(DEAD, seq=last)

    async def inbox_last(self) -> int:
        return (await self.js.stream_info(inbox_stream(POOL))).state.last_seq

    async def ledger_last(self) -> int:
        return (await self.js.stream_info(ledger_stream(POOL))).state.last_seq
