"""A waiting room that serves its parties in turn, so that none waits behind another's crowd."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items by party (a team). `take` gives the first item of each party in turn: one that has put in a thousand is
    served as often as one that has put in one.

    At most `each` items of one party wait, and `most` in all; what comes then is not taken in, and its sender must hear
    so. A party without items takes no room.
    """

    def __init__(self, each: int, most: int) -> None:
        self._each = each
        self._most = most
        self._size = 0
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """In the order in which they are served: the one served last is at the end."""

    def __len__(self) -> int:
        return self._size

    def waiting(self, party: str) -> int:
        """How many items of `party` wait."""
        return len(self._waiting.get(party, ()))

    def put(self, party: str, item: T) -> bool:
        """Takes the item in behind the others of its party. False: there is no room, and nothing has changed."""
        if self._size >= self._most or self.waiting(party) >= self._each:
            return False
        self._waiting.setdefault(party, deque()).append(item)
        self._size += 1
        return True

    def take(self) -> tuple[str, T] | None:
        """The next item and its party, None when nobody waits."""
        if not self._waiting:
            return None
        party, items = next(iter(self._waiting.items()))
        item = items.popleft()
        self._size -= 1
        if items:
            self._waiting.move_to_end(party)
        else:
            del self._waiting[party]
        return party, item


class TooMany(RuntimeError):
    """So many of one party, or of all, wait already."""


class InTurn:
    """`async with in_turn.of(party)`: at most `at_once` are inside, and who waits comes in by the turn of its party."""

    def __init__(self, at_once: int, each: int, most: int) -> None:
        self._free = at_once
        self._turns: Turns[asyncio.Future[None]] = Turns(each, most)

    @asynccontextmanager
    async def of(self, party: str) -> AsyncIterator[None]:
        """Raises TooMany at once when there is no room to wait in."""
        if self._free:
            self._free -= 1
        else:
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if not self._turns.put(party, called):
                raise TooMany(f"{self._turns.waiting(party)} of {party} wait already")
            try:
                await called
            except asyncio.CancelledError:
                if not called.cancelled():
                    self._leave()
                raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        while (turn := self._turns.take()) is not None:
            if not turn[1].done():
                turn[1].set_result(None)
                return
        self._free += 1
