"""A waiting room that serves its parties in turn, so that none waits behind another's crowd."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_OF_ONE, _LEAST_OF_ONE = 4, 2
"""Of what may be in hand one party has a quarter, and two at the least."""


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

    def take(self, but: Container[str] = ()) -> tuple[str, T] | None:
        """The next item and its party, None when nobody waits. Parties in `but` are passed over, and keep their turn."""
        party = next((one for one in self._waiting if one not in but), None)
        if party is None:
            return None
        items = self._waiting[party]
        item = items.popleft()
        self._size -= 1
        if items:
            self._waiting.move_to_end(party)
        else:
            del self._waiting[party]
        return party, item


class InTurn(Generic[T]):
    """Has what is put in dealt with by `deal`, at most `at_once` at a time, each party in its turn, and of one party a quarter:
    what is in hand shares a processor, so who comes next would wait for all of it.

    Each turn of the event loop begins one: what came meanwhile has been put in before the next party is chosen. So a crowd of
    what `deal` need not wait for holds up no other party either. `each` of a party and `most` in all may wait besides.
    """

    def __init__(self, deal: Callable[[T], Coroutine[Any, Any, None]], at_once: int, each: int, most: int) -> None:
        self._deal, self._at_once, self._each, self._most = deal, at_once, each, most
        self._of_one = max(min(at_once, _LEAST_OF_ONE), at_once // _OF_ONE)
        self._turns: Turns[T] = Turns(each + at_once, most + at_once)
        self._in_hand: dict[asyncio.Task[None], str] = {}
        self._busy: Counter[str] = Counter()
        """Party -> how many of its items are in hand."""
        self._changed = asyncio.Event()
        self._begins: asyncio.Task[None] | None = None

    def put(self, party: str, item: T) -> bool:
        """False: so many wait already, and nothing has changed."""
        free = self._at_once - len(self._in_hand)
        soon = min(free, self._of_one - self._busy[party])
        if self._turns.waiting(party) >= self._each + soon or len(self._turns) >= self._most + free:
            return False
        self._turns.put(party, item)
        self._changed.set()
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
                while (turn := self._next()) is None:
                    self._changed.clear()
                    await self._changed.wait()
                party, item = turn
                task = asyncio.create_task(self._deal(item))
                self._in_hand[task] = party
                self._busy[party] += 1
                task.add_done_callback(self._leave)
                await asyncio.sleep(0)
        finally:
            self._begins = None

    def _next(self) -> tuple[str, T] | None:
        if len(self._in_hand) >= self._at_once:
            return None
        return self._turns.take([party for party, count in self._busy.items() if count >= self._of_one])

    def _leave(self, task: "asyncio.Task[None]") -> None:
        party = self._in_hand.pop(task)
        self._busy[party] -= 1
        if not self._busy[party]:
            del self._busy[party]
        self._changed.set()
