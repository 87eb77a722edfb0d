"""Records refused requests in the ledger, for audit, at a bounded rate (`libs.core.admission.refusals`).

This is best effort, and answers to teams do not wait for it: while the inbox is full or the broker unavailable, lines wait in
memory, the oldest are dropped, and a killed process loses those that it has not sent.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from libs.bus.dead import REASON
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from libs.bus.retry import retry_while_away
from libs.bus.settle import Received
from libs.core.admission.refusals import Refusals
from libs.ports import clock
from libs.service.refused import refusal_told, refused_command
from schemas import subjects
from schemas.audit import RefusedCommand
from services.admission.handlers import COMMANDS

_WAITING = 10_000
_LOOK_S = 5.0
_REASONS = 4
_ANSWERS = subjects.event("rejected", "*").removesuffix("*")


class Refusing:
    """Of one process. All lines go to the ledger of `pool`, the first one: who is refused is in no pool."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._refusals = Refusals()
        self._lines: deque[RefusedCommand] = deque(maxlen=_WAITING)
        self._some = asyncio.Event()

    def note(self, command: RefusedCommand) -> None:
        """It was refused."""
        if (line := self._refusals.note(command, command.stored_us)) is not None:
            self._lines.append(line)
            self._some.set()

    async def run(
        self, outbox: Callable[[], Outbox], lacks: Callable[[list[Outgoing]], str], look_s: float = _LOOK_S
    ) -> None:
        """For ever. `lacks` says why the pool's inbox has no room for messages; "" when it has."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(look_s):
                    await self._some.wait()
            self._some.clear()
            self._lines.extend(self._refusals.due(clock.wall_us()))
            while self._lines:
                items = [refusal_told(line, self._pool, "job") for line in list(self._lines)[:64]]
                if lacks(items):
                    break  # it is tried again at the next look
                for _ in items:
                    self._lines.popleft()
                await retry_while_away(lambda items=items: outbox().publish_many(items), lambda error, failures: None)  # type: ignore[misc]


def command_of(received: Received, out: Sequence[Outgoing], policy: str) -> RefusedCommand | None:
    """A request that was refused, which `out` says; None when its subject names no team: that is left to the dead letters."""
    return refused_command(received, COMMANDS, service="admission", reason=_reason(out), policy=policy)


def _reason(out: Sequence[Outgoing]) -> str:
    """What the team was told, in short."""
    for item in out:
        if not item.subject.startswith(_ANSWERS):
            continue  # a dead letter: its payload is the sender's
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(item.payload)["reasons"]
            return "; ".join(f"{one['field']}: {one['problem']}" for one in told[:_REASONS])
    return next((item.headers[REASON] for item in out if REASON in item.headers), "no request at all")
