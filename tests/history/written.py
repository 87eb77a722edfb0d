"""A ledger that was never decided by a running placement: records of a test world, chained and stored like real ones."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from nats.js import JetStreamContext

from libs.core.projections.history import JobStory, advance, job_events
from libs.ledger.chain import GENESIS, Head, encode
from schemas import inbox, subjects
from schemas.ledger import LedgerRecord
from tests.core.builders import World, job, node
from tests.kit.commands import Forked, fork

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30


class Written:
    """A pool's stored ledger. `records` are (sequence, record) pairs as readers see them."""

    def __init__(self, js: JetStreamContext, pool: str) -> None:
        self.records: list[tuple[int, LedgerRecord]] = []
        self._js = js
        self._pool = pool
        self._head: Head = GENESIS

    async def write(self, records: Sequence[LedgerRecord]) -> None:
        """Stores `records` behind those that are there."""
        for record in records:
            link = {"pool": self._pool, "prev_seq": self._head.seq, "prev_hash": self._head.hash}
            record = record.model_copy(update=link)
            payload, digest = encode(record)
            ack = await self._js.publish(subjects.ledger(self._pool), payload, headers={"Nats-Msg-Id": digest})
            self._head = Head(ack.seq, digest)
            self.records.append((ack.seq, record))

    async def forge(self, record: LedgerRecord) -> None:
        """Stores a record that does not continue the chain: readers must skip it."""
        await self._js.publish(subjects.ledger(self._pool), encode(record.model_copy(update={"pool": self._pool}))[0])

    def stories(self) -> dict[str, JobStory]:
        """What history should know after all records."""
        out: dict[str, JobStory] = {}
        for seq, record in self.records:
            for job_id, events in job_events(record).items():
                out[job_id] = advance(out.get(job_id), events, record.t_us, seq, record.pool)
        return out


def busy_world(*teams: str, jobs: int = 12) -> World:
    """Gangs of each team that queue, run, checkpoint, fail or succeed, or are still at it; some for a node that is lost."""
    world = World(node("a", 8), node("b", 8))
    for number in range(jobs):
        for team in teams:
            submitted = job(f"j{number}", 1 + number % 3, team=team, submitted_us=world.now_us + 1)
            target = world.submit(submitted)
            if target not in world.decider.state.jobs or world.state_of(target) != "granted":
                continue
            world.started(target)
            if number % 4 == 1:
                world.checkpointed(target, number)
            if number % 5 != 4:
                world.released(target, exit_code=number % 4 == 3)
    world.send(inbox.NodeLost(node="b", incarnation=1, silent_s=30))
    world.check()
    return world


async def until(true: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Waits for a truthy answer and returns it."""
    for _ in range(PATIENCE_S * 20):
        if answer := await true():
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


class Service:
    """`python -m services.<name>` as a process of its own; what it says comes with what the tests say."""

    def __init__(self, name: str, **environment: str) -> None:
        self.name = name
        self._environment = os.environ | {"BATON_LOG_LEVEL": "WARNING"} | environment
        self._process: Forked | None = None

    async def start(self) -> None:
        with open(os.dup(2), "wb") as log:
            self._process = fork(f"services.{self.name}").start(self._environment, ROOT, log)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit status after that signal."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        return await asyncio.to_thread(process.wait, PATIENCE_S)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            await self.end(signal.SIGKILL)
