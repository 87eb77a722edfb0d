"""Sends an operator's command to a pool and waits for its outcome, so that a refused command never ends with exit code 0.

    await say_to_pool(baton, pool, NodeDead(...), subject, about)

A command that is stored is not yet decided: placement may refuse it. So this follows the ledger, from where it ended before,
until a record decides the command. Refused: exit code 4, with the pool's own reason. Not decided in time: exit code 6, and the
command stays stored.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from libs.client import Baton
from libs.client.errors import Denied, Failed, TimedOut, Unreachable
from schemas.catalog import TYPE_OF
from schemas.inbox import (
    ApplyBudgets,
    ApplyPrices,
    ApplyQueues,
    BoostJob,
    ClosePeriod,
    CordonNode,
    NodeDead,
    OffboardTeam,
    QuarantineLifted,
    ResumeTeam,
    SuspendTeam,
    TopUpBudget,
    UncordonNode,
)
from schemas.ledger import CommandRefused, InputRejected, LedgerRecord, QuotaSet, kinds_of

if TYPE_CHECKING:
    from libs.bus.messages import Outgoing
    from libs.bus.outbox import Outbox

Said = (
    ApplyBudgets
    | ApplyPrices
    | ApplyQueues
    | BoostJob
    | ClosePeriod
    | CordonNode
    | NodeDead
    | OffboardTeam
    | QuarantineLifted
    | ResumeTeam
    | SuspendTeam
    | TopUpBudget
    | UncordonNode
)
Done = Callable[[], Awaitable[bool]]
Decided = Callable[[Callable[[LedgerRecord], bool], Done | None], Awaitable[int | None]]
"""Waits for the decision; returns the ledger sequence of its record, None if no record shows it."""

NOTHING_DIFFERS = "nothing differs"
"""The outcome of a command that changes nothing, and so has no record."""

_GIVE_UP_S = 30.0
_DECIDED_S = 15.0
_SHOWN_S = 5.0
_LOOK_S = 0.1


class PoolRefused(Denied):
    """The pool refused an operator's command. `why` is the pool's reason."""


def check_version(then: int, applied: int) -> None:
    """Before a file is sent that placement would refuse for its version. Raises PoolRefused, as if it had been."""
    if then <= applied:
        raise PoolRefused(
            f"version {then} is not above {applied}, which is applied",
            "another file was applied, or this one was changed without raising its version",
            f"look at the lines of `baton diff`, then write `version: {applied + 1}`",
        )


async def say_to_pool(
    baton: Baton, pool: str, said: Said, subject: str, about: str, *, done: Done | None = None
) -> int | None:
    """Stores the command `said` in the inbox of `pool`, waits for its decision, and returns the sequence of that ledger
    record. Each call is a new command.

    `done`: whether queries shows the pool as the command wants it. A command that changes nothing has no record (then
    None is returned). After a record, waits up to 5 s for queries, so that the next question gets the new answer.
    Raises PoolRefused; TimedOut when it is not decided within 15 s; Denied, Unreachable, Busy when it is not stored.
    """
    async with decisions(baton, pool) as decided:
        seq = await store_in_pool(baton, said, subject, about)
        decided_in = await decided(lambda record: _of_input(record, seq), done)
    if done is not None:
        with suppress(TimeoutError):
            await asyncio.wait_for(_until_shown(done), _SHOWN_S)  # asking an unreachable service once takes as long
    return decided_in


async def _until_shown(done: Done) -> None:
    for _ in range(int(_SHOWN_S / _LOOK_S)):
        if await _shown(done):
            return
        await asyncio.sleep(_LOOK_S)


async def store_in_pool(baton: Baton, said: Said, subject: str, about: str) -> int:
    """Stores `said` in a pool's inbox and returns its sequence. Raises Denied, Unreachable, Busy when it is not stored."""
    from libs.bus.messages import outgoing
    from libs.client.sending import store

    item = outgoing(
        said, subject=subject, type=TYPE_OF[type(said)], source="/baton/cli", cause=f"{about}:{os.urandom(8).hex()}"
    )
    (ack,) = await store(baton.nats, [item], give_up_s=_GIVE_UP_S)
    return ack.seq


async def sent_to_pool(baton: Baton, pool: str, outbox: "Outbox", item: "Outgoing") -> None:
    """Stores a message that was in the inbox of `pool` before (a replay), and waits until it is decided.

    Raises PoolRefused; TimedOut when it is not decided within 15 s; nats errors and NotStored when it is not stored.
    """
    async with decisions(baton, pool) as decided:
        ack = await outbox.publish(item)
        await decided(lambda record: _of_input(record, ack.seq), None)


@asynccontextmanager
async def decisions(baton: Baton, pool: str) -> AsyncIterator[Decided]:
    """A function that waits for the decision of a command sent within the block: until a record after the block's start
    satisfies its first argument (which raises PoolRefused for a refusal), or `done()`. Raises TimedOut."""
    from libs.bus.retry import UNAVAILABLE
    from libs.client.sending import unless_denied
    from libs.ledger.chain import GENESIS, Head
    from libs.ledger.reader import LedgerReader
    from libs.ledger.segments import last_seq, stored_at
    from schemas.ids import content_hash

    js = baton.nats.jetstream()
    last = await unless_denied(baton.nats, last_seq(js, pool))
    stored = await stored_at(js, pool, last)
    head = GENESIS if stored is None else Head(last, content_hash(stored))
    reader = LedgerReader(js, pool, head, only=kinds_of((InputRejected, CommandRefused, QuotaSet)))

    async def decided(decides: Callable[[LedgerRecord], bool], done: Done | None) -> int | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DECIDED_S
        newest: int | None = None  # the ledger's end once queries shows the change: its record is before that
        while loop.time() < deadline:
            for entry in await reader.next(wait_s=_LOOK_S):
                if entry.valid and decides(entry.record):
                    return entry.seq
            if newest is None and done is not None and await _shown(done):
                with suppress(*UNAVAILABLE):
                    newest = await reader.last_seq()
            if newest is not None and reader.position >= newest:
                return None
        if newest is not None:
            return None
        raise TimedOut(
            f"pool {pool} has not decided it within {_DECIDED_S:g} s",
            "the service that decides it is away, or slow",
            f"it stays stored, and is decided when that is back: `baton status --pool {pool}` says whether the pool decides",
        )

    try:
        yield decided
    finally:
        await reader.close()


def _of_input(record: LedgerRecord, seq: int) -> bool:
    """Whether the record decides inbox message `seq`. Raises PoolRefused."""
    for event in record.events:
        if isinstance(event, InputRejected) and event.inbox_seq == seq:
            raise refused(record.pool, event.reason)
    return record.inbox_seq >= seq and not record.more


def of_command(record: LedgerRecord, cause: str) -> bool:
    """Whether the record decides a command that a service handles before the pool. Raises PoolRefused."""
    for event in record.events:
        if isinstance(event, CommandRefused) and event.command.cause == cause:
            raise refused(record.pool, event.command.reason)
        if isinstance(event, QuotaSet) and event.cause == cause:
            return True
    return False


def refused(pool: str, reason: str) -> PoolRefused:
    """A pool's reason is `cause: fix` or, of a value, `field = value: problem; fix`."""
    what, semicolon, _ = reason.partition("; ")
    why, _, fix = reason.partition("; " if semicolon and " = " in what else ": ")
    return PoolRefused(f"pool {pool} has refused it, and nothing has changed", why, fix)


async def _shown(done: Done) -> bool:
    """The result of `done`; False while nobody answers."""
    try:
        return await done()
    except (Unreachable, Failed):
        return False
