"""How many admitted jobs of this process lie undecided in the inboxes: enough to keep placement busy, and no more.

An inbox is one queue, too. What lies in it cannot be overtaken, so a crowd waits in REQUESTS, where it can
(`services/admission/ahead.py`). How much goes into the inboxes at once is a trade: large portions cost less, because much
is done once per record of the ledger; small ones let the next team in sooner. So a crowd that is alone moves in large
portions (`alone`), and in small ones (`shared`) while a team is about whose few requests should not wait for it.
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
"""A portion goes in after so long whatever is undecided: answers to requests that are refused must not wait for placement."""
_SHARED_S = 5.0


class Pace:
    """`decided` gives the inbox sequence of a pool up to which its ledger has decided."""

    def __init__(self, decided: Callable[[str], int], shared: int, alone: int) -> None:
        self.shared = shared
        self._alone = max(shared, alone)
        self._decided = decided
        self._put: dict[str, deque[int]] = {}
        self._moved = asyncio.Event()
        self._shared_until = 0.0

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

    def share(self) -> None:
        """A team with few requests is about: for some seconds portions are small."""
        self._shared_until = asyncio.get_running_loop().time() + _SHARED_S

    def moved(self) -> None:
        """A ledger was read on."""
        self._moved.set()

    async def room(self) -> int:
        """How many jobs may go in now. Returns once half of what may be undecided is free, or after a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    most = self.shared if asyncio.get_running_loop().time() < self._shared_until else self._alone
                    if (left := most - self.undecided()) >= max(1, most // 2):
                        return left
                    self._moved.clear()
                    await self._moved.wait()
        return self.shared


class PacedOutbox(Outbox):
    """An outbox that tells the pace of each job that it has stored."""

    pace: Pace | None = None

    async def publish_many(self, items: Sequence[Outgoing]) -> list[PubAck]:
        acks = await super().publish_many(items)
        for item, ack in zip(items, acks, strict=True):
            if self.pace is not None and (pool := _admitted_to(item)):
                self.pace.stored(pool, ack.seq)
        return acks


def _admitted_to(item: Outgoing) -> str:
    """The pool whose inbox a job goes to with this message; "" for every other message."""
    return item.subject.removeprefix(_ADMITTED) if item.subject.startswith(_ADMITTED) else ""


_ADMITTED = subjects.inbox("job", "admitted", "x").removesuffix("x")
