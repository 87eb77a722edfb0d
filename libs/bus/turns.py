"""A waiting room that serves its parties in turn, so that none waits behind another's crowd."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

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


class InTurn(Generic[T]):
    """Has what is put in dealt with by `deal`, at most `at_once` at a time, each party in its turn.

    Each turn of the event loop begins one: what came meanwhile has been put in before the next party is chosen. So a crowd of
    what `deal` need not wait for holds up no other party either. `each` of a party and `most` in all may wait besides.
    """

    def __init__(self, deal: Callable[[T], Coroutine[Any, Any, None]], at_once: int, each: int, most: int) -> None:
        self._deal, self._at_once, self._each, self._most = deal, at_once, each, most
        self._turns: Turns[T] = Turns(each + at_once, most + at_once)
        self._in_hand: set[asyncio.Task[None]] = set()
        self._left = asyncio.Event()
        self._begins: asyncio.Task[None] | None = None

    def put(self, party: str, item: T) -> bool:
        """False: so many wait already, and nothing has changed."""
        soon = self._at_once - len(self._in_hand)
        if self._turns.waiting(party) >= self._each + soon or len(self._turns) >= self._most + soon:
            return False
        self._turns.put(party, item)
        if self._begins is None:
            self._begins = asyncio.create_task(self._begin())
        return True

    async def idle(self) -> None:
        """Returns when nothing waits, and nothing is in hand."""
        while tasks := [*self._in_hand, *([self._begins] if self._begins is not None else [])]:
            await asyncio.wait(tasks)

    async def _begin(self) -> None:
        try:
            while len(self._turns):
                while len(self._in_hand) >= self._at_once:
                    self._left.clear()
                    await self._left.wait()
                turn = self._turns.take()
                assert turn is not None, "nobody else takes"
                task = asyncio.create_task(self._deal(turn[1]))
                self._in_hand.add(task)
                task.add_done_callback(self._leave)
                await asyncio.sleep(0)
        finally:
            self._begins = None

    def _leave(self, task: "asyncio.Task[None]") -> None:
        self._in_hand.discard(task)
        self._left.set()
