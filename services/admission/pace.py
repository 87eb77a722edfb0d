"""How many admitted jobs of this process lie undecided in the inboxes: enough to keep placement busy, and no more.

An inbox is one queue, too. What lies in it cannot be overtaken, so a crowd waits in REQUESTS, where it can
(`services/admission/ahead.py`). How much goes into the inboxes at once is a trade: large portions cost less, because much
is done once per record of the ledger; small ones let the next team in sooner. So a crowd that is alone moves in large
portions (`alone`). While a team is about whose few requests should not wait for it, the portion is what the machine takes
without a queue: it grows while it is used and jobs are decided about as soon as without a crowd, and shrinks when they take
twice as long. But it is never so small that a crowd's oldest request keeps the room of those that overtake it until they have
none (`held_up`). A fixed number is too small for a slow disk, where each round takes long, and too large for a quick one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from nats.js.api import PubAck

from libs.bus.in_progress import StillOwned
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from schemas import subjects

_PATIENCE_S = 1.0
"""A portion goes in after so long whatever is undecided: answers to requests that are refused must not wait for placement."""
_SHARED_S = 5.0
_LEAST = 2
"""So few of a crowd are under way on a machine that is busy in any case: each of them is what the next team waits for."""
_QUICK, _SLOW = 1.5, 2.0
"""Times an idle round: below the first a portion grows by an eighth, above the second it shrinks as much as the round was too
long."""
_QUICK_S, _SLOW_S = 0.012, 0.02
"""A round is quick below the first and slow only above the second, whatever an idle one takes."""
_UNKNOWN_S = 0.03
"""What an idle round is taken for until there was one: a process that begins in a crowd may not see any for long."""
_LEFT = 0.25
"""Of a portion, at least, however long a round took."""
_ROOM = 1 / 4
"""When so much of a team's room in the stream is taken up by what was done ahead, a crowd that holds it up moves faster."""
_IDLE = 4
"""A round with at most so many jobs under way is an idle one: what it takes is the machine's, and not the crowd's."""
_NEW = 1 / 16
"""Weight of the last idle round in the mean of them."""


class Rounds:
    """How many jobs may be under way so that none waits long, from how long rounds take: from sending a job to its decision."""

    def __init__(self, first: int, most: int) -> None:
        self.window = float(first)
        self.idle_s = 0.0
        """What a round takes when there is no crowd: the mean of the last ones; 0: not known."""
        self._least = min(first, _LEAST)
        self._most = most
        self._changed_s = 0.0

    def took(self, seconds: float, now: float, under_way: int, *, crowd: bool = True) -> None:
        """A round ended at `now` (seconds of one clock), with so many jobs under way before. The window changes once a round.
        It does not grow while half of it is unused: rounds of few jobs are quick, and say nothing of many. What is idle is told
        only when there is no `crowd`: a machine that is kept busy would take itself for a slow one."""
        if under_way <= _IDLE and not crowd:
            self.idle_s += (seconds - self.idle_s) * _NEW if self.idle_s else seconds
        if now - self._changed_s < seconds:
            return
        idle_s = self.idle_s or _UNKNOWN_S
        if seconds > (longest := max(_SLOW_S, _SLOW * idle_s)):
            self.window = max(self._least, self.window * max(_LEFT, longest / seconds))
            self._changed_s = now
        elif under_way >= self.window / 2 and seconds < max(_QUICK_S, _QUICK * idle_s):
            self.window = min(self._most, self.window + max(1.0, self.window / 8))
            self._changed_s = now


class Pace:
    """`decided` gives the inbox sequence of a pool up to which its ledger has decided."""

    def __init__(self, decided: Callable[[str], int], shared: int, alone: int) -> None:
        self._alone = max(shared, alone)
        self.few = shared
        """So many requests that wait are no crowd."""
        self.rounds = Rounds(shared, self._alone)
        self._decided = decided
        self._put: dict[str, deque[tuple[int, str, float]]] = {}  # pool -> (sequence, lane, when)
        self._count: dict[str, int] = {}
        self._moved = asyncio.Event()
        self._shared_until = 0.0
        self.unsure = False
        """There is a crowd, and it has not been looked yet who else sends something: portions are small for so long."""
        self.held_up = 0.0
        """Which part of the room of the team that is held up most is taken up by what was done of it: were it all, the broker
        would refuse the team with the crowd."""

    def stored(self, pool: str, seq: int, lane: str = "", sent_s: float | None = None) -> None:
        """A job was stored in the pool's inbox at `seq`. `lane`: the team's whose it is, when it was taken out of its turn;
        `sent_s`: when it was sent, by the loop's clock, if not just now."""
        sent_s = asyncio.get_running_loop().time() if sent_s is None else sent_s
        self._put.setdefault(pool, deque()).append((seq, lane, sent_s))
        self._count[lane] = self._count.get(lane, 0) + 1

    def undecided(self, lane: str | None = None) -> int:
        """Jobs that were stored and are not decided, of all pools; of one lane, or of all."""
        for pool, put in self._put.items():
            decided, longest, now, before = self._decided(pool), 0.0, 0.0, len(put)
            while put and put[0][0] <= decided:
                _, name, at = put.popleft()
                now = now or asyncio.get_running_loop().time()
                longest = max(longest, now - at)
                if left := self._count[name] - 1:
                    self._count[name] = left
                else:
                    del self._count[name]
            if now:
                self.rounds.took(longest, now, before, crowd=self.shared)
        return sum(self._count.values()) if lane is None else self._count.get(lane, 0)

    def share(self) -> None:
        """A team with few requests is about: for some seconds portions are small."""
        self._shared_until = asyncio.get_running_loop().time() + _SHARED_S

    def moved(self) -> None:
        """A ledger was read on."""
        self.undecided()
        self._moved.set()

    @property
    def shared(self) -> bool:
        """Whether there is a crowd, and a team with few requests is about, or may be."""
        return self.unsure or asyncio.get_running_loop().time() < self._shared_until

    @property
    def most(self) -> int:
        """How many may be undecided now."""
        if not self.shared:
            return self._alone
        urgent = max(0.0, self.held_up - _ROOM) / (1 - _ROOM)
        return max(int(self.rounds.window), int(self.few * urgent))

    async def room(self) -> int:
        """How many jobs of the queue may go in now. Returns once half of what may be undecided is free, or after a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    most = self.most
                    if (left := most - self.undecided("")) >= max(1, most // 2):
                        return left
                    self._moved.clear()
                    await self._moved.wait()
        return self.few


class PacedOutbox(Outbox):
    """An outbox that tells the pace of each job that it has stored."""

    pace: Pace | None = None

    async def publish_many(
        self, items: Sequence[Outgoing], lanes: Sequence[str] = (), *, held: StillOwned | None = None
    ) -> list[PubAck]:
        """`lanes`: of each item, the team whose it is, when it was taken out of its turn."""
        sent_s = asyncio.get_running_loop().time()
        acks = await super().publish_many(items, held=held)
        for number, (item, ack) in enumerate(zip(items, acks, strict=True)):
            if self.pace is not None and (pool := _admitted_to(item)):
                self.pace.stored(pool, ack.seq, lanes[number] if lanes else "", sent_s)
        return acks


def _admitted_to(item: Outgoing) -> str:
    """The pool whose inbox a job goes to with this message; "" for every other message."""
    return item.subject.removeprefix(_ADMITTED) if item.subject.startswith(_ADMITTED) else ""


_ADMITTED = subjects.inbox("job", "admitted", "x").removesuffix("x")
