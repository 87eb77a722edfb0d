"""A pool whose agents, teams and telemetry are the test: messages into its inbox, records out of its ledger."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from libs.bus.connect import BusConnection
from libs.bus.messages import outgoing
from libs.bus.outbox import Outbox
from libs.ledger.reader import LedgerReader
from libs.ledger.segments import stored_at
from schemas import inbox, ledger
from schemas.catalog import TYPE_OF
from schemas.inbox import NodeObserved, Observation
from tests.kit.inputs import input_subject
from tests.kit.waiting import stored

E = TypeVar("E")
WAIT_S = 30.0


class Pool:
    """`put` speaks as agents, admission and telemetry do; `event` waits for what placement decides."""

    def __init__(self, nats: BusConnection, name: str) -> None:
        self.nats = nats
        self.name = name
        self.js = nats.jetstream()
        self._outbox = Outbox(self.js)
        self._sent = 0

    async def put(self, *models: BaseModel) -> None:
        await self._put([(input_subject(model, self.name), model) for model in models])

    async def put_on(self, subject: str, model: BaseModel) -> None:
        """Says it on a subject of one's own choice."""
        await self._put([(subject, model)])

    async def _put(self, said: Sequence[tuple[str, BaseModel]]) -> None:
        items = []
        for subject, model in said:
            self._sent += 1
            if isinstance(model, inbox.JobAdmitted):  # as admission says it: when the broker stored the request
                model = model.model_copy(update={"submitted_us": time.time_ns() // 1000})
            type_ = TYPE_OF[type(model)]
            items.append(
                outgoing(model, subject=subject, type=type_, source="/test", cause=f"{self.name}-{self._sent}")
            )
        await self._outbox.publish_many(items)

    async def observed(self, node: str, *seen: Observation, incarnation: int = 1) -> None:
        await self.put(NodeObserved(node=node, incarnation=incarnation, observations=seen))

    async def started(self, granted: ledger.JobGranted) -> None:
        """All parts of the attempt run."""
        for node in dict.fromkeys(claim.node for claim in granted.claims):
            await self.observed(node, inbox.Started(job_id=granted.job_id, attempt=granted.attempt))

    async def released(self, granted: ledger.JobGranted, *, own_exit: bool = True) -> None:
        """All parts of the attempt are gone."""
        gone = inbox.Released(job_id=granted.job_id, attempt=granted.attempt, exit_code=0, own_exit=own_exit)
        for node in dict.fromkeys(claim.node for claim in granted.claims):
            await self.observed(node, gone)

    async def records(self) -> list[ledger.LedgerRecord]:
        """The whole ledger."""
        reader = LedgerReader(self.js, self.name)
        found = [e.record async for batch in reader.read_to(await reader.last_seq()) for e in batch if e.valid]
        await reader.close()
        return found

    async def events_of(self, seq: int) -> tuple[ledger.LedgerEvent, ...]:
        """Of one record."""
        return ledger.LedgerRecord.model_validate_json(await stored_at(self.js, self.name, seq) or b"").events

    async def event(self, kind: type[E], number: int = 1, **fields: Any) -> E:
        """The `number`-th event of that kind with these fields, waited for."""
        async with asyncio.timeout(WAIT_S):
            while True:
                events = [e for record in await self.records() for e in record.events if isinstance(e, kind)]
                found = [e for e in events if all(getattr(e, name) == value for name, value in fields.items())]
                if len(found) >= number:
                    return found[number - 1]
                await asyncio.sleep(0.05)

    async def plans(self) -> list[inbox.PreemptionPlanned]:
        """Every plan that preemption has sent."""
        found = await stored(self.js, f"INBOX-{self.name}", f"baton.in.preemption.v1.planned.{self.name}")
        return [inbox.PreemptionPlanned.model_validate_json(message.data) for message in found]
