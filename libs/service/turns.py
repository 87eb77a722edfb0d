"""A waiting room that serves its parties in turn, so that none waits behind another's crowd."""

from collections import OrderedDict, deque
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
