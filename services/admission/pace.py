"""How many admitted jobs of this process lie undecided in the inboxes: no more than keeps placement busy.

An inbox is one line, too. What lies in it cannot be overtaken, so a crowd waits in REQUESTS, where it can
(`services/admission/ahead.py`), and the inbox holds a moment's work.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from nats.js.api import PubAck

from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from schemas import subjects

_PATIENCE_S = 1.0
"""A batch goes in after so long whatever is undecided: answers to requests that are refused must not wait for placement."""


class Pace:
    """`decided` gives the inbox sequence of a pool up to which its ledger has decided."""

    def __init__(self, decided: Callable[[str], int], most: int) -> None:
        self._decided = decided
        self._most = most
        self._put: dict[str, deque[int]] = {}
        self._moved = asyncio.Event()

    def stored(self, pool: str, seq: int) -> None:
        """A job was stored in the pool's inbox at `seq`."""
        self._put.setdefault(pool, deque()).append(seq)

    def undecided(self) -> int:
        """Jobs that were stored and are not decided, of all pools."""
        for pool, put in self._put.items():
            decided = self._decided(pool)
            while put and put[0] <= decided:
                put.popleft()
        return sum(len(put) for put in self._put.values())

    @property
    def free(self) -> bool:
        return self.undecided() < self._most

    def has_decided(self, pool: str, seq: int) -> bool:
        """Whether the ledger of `pool` has decided its inbox up to `seq`."""
        return self._decided(pool) >= seq

    def moved(self) -> None:
        """A ledger was read on."""
        self._moved.set()

    async def wait(self) -> None:
        """Returns when few enough are undecided, or after a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while not self.free:
                    self._moved.clear()
                    await self._moved.wait()


class PacedOutbox(Outbox):
    """An outbox that tells the pace of each job that it has stored."""

    pace: Pace | None = None

    async def publish_many(self, items: Sequence[Outgoing]) -> list[PubAck]:
        acks = await super().publish_many(items)
        for item, ack in zip(items, acks, strict=True):
            if self.pace is not None and (pool := admitted_to(item)):
                self.pace.stored(pool, ack.seq)
        return acks


def admitted_to(item: Outgoing) -> str:
    """The pool whose inbox a job goes to with this message; "" for every other message."""
    return item.subject.removeprefix(_ADMITTED) if item.subject.startswith(_ADMITTED) else ""


_ADMITTED = subjects.inbox("job", "admitted", "x").removesuffix("x")
