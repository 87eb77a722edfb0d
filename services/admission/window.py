"""The admission window: how many admitted jobs of this process may be undecided in the inboxes at once.

An inbox is one queue, too, and nothing in it can be reordered. So a burst waits in REQUESTS, where other teams can pass it
(`services/admission/out_of_order.py`), and the window limits what goes into the inboxes. A large window costs less, because
much is done once per record of the ledger; a small one lets the next team in sooner. So:

- Only one team sends: the window has a large fixed size (`alone`).
- A team with few requests is active as well: the window adapts to the round-trip time from sending a job to its decision, like
  a congestion window. It grows while it is used and the round-trip time is about that of an idle system, and shrinks when that
  doubles. A fixed size would be too small for a slow disk, with its long round trips, and too large for a fast one.
- It is never so small that the burst's oldest request uses up the places of other teams in the stream (`held_up`).
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
"""After this time a batch is decided even if the window is full: refusals must not wait for placement."""
_SHARED_S = 5.0
_LEAST = 2
"""The minimum window while a team with few requests is active: each job in it is one that the next team waits for."""
_QUICK, _SLOW = 1.5, 2.0
"""Multiples of the idle round-trip time: below the first the window grows by an eighth, above the second it shrinks in
proportion."""
_QUICK_S, _SLOW_S = 0.012, 0.02
"""Absolute bounds: a round trip below the first is always quick, and only one above the second is ever slow."""
_UNKNOWN_S = 0.03
"""The idle round-trip time that is assumed until one was measured: a process that starts in a burst may not see one for
long."""
_LEFT = 0.25
"""The window shrinks to no less than this share of itself at once."""
_ROOM = 1 / 4
"""From this value of `held_up` on, the window grows again, however slow the round trips are."""
_IDLE = 4
"""A round trip with at most so many jobs in flight counts as idle: it measures the machine, and not the burst."""
_NEW = 1 / 16
"""Weight of the newest idle round trip in their moving average."""


class CongestionWindow:
    """How many jobs may be in flight so that none waits long, by round-trip times: from sending a job to its decision."""

    def __init__(self, first: int, most: int) -> None:
        self.size = float(first)
        self.idle_s = 0.0
        """The moving average of idle round-trip times; 0: not known."""
        self._least = min(first, _LEAST)
        self._most = most
        self._changed_s = 0.0

    def took(self, seconds: float, now: float, under_way: int, *, burst: bool = True) -> None:
        """A round trip of `seconds` ended at `now` (seconds of one clock), with `under_way` jobs in flight before. The window
        changes once per round trip. It does not grow while half of it is unused: round trips of few jobs are quick, and say
        nothing of many. Idle times are measured only without a `burst`: a busy machine would pass for a slow one."""
        if under_way <= _IDLE and not burst:
            self.idle_s += (seconds - self.idle_s) * _NEW if self.idle_s else seconds
        if now - self._changed_s < seconds:
            return
        idle_s = self.idle_s or _UNKNOWN_S
        if seconds > (longest := max(_SLOW_S, _SLOW * idle_s)):
            self.size = max(self._least, self.size * max(_LEFT, longest / seconds))
            self._changed_s = now
        elif under_way >= self.size / 2 and seconds < max(_QUICK_S, _QUICK * idle_s):
            self.size = min(self._most, self.size + max(1.0, self.size / 8))
            self._changed_s = now


class AdmissionWindow:
    """Counts the jobs in flight. `decided` gives the inbox sequence of a pool up to which its ledger has decided; `shared` and
    `alone` are the sizes to begin with, and while only one team sends."""

    def __init__(self, decided: Callable[[str], int], shared: int, alone: int) -> None:
        self._alone = max(shared, alone)
        self.few = shared
        """More waiting requests than this are a burst."""
        self.congestion = CongestionWindow(shared, self._alone)
        self._decided = decided
        self._put: dict[str, deque[tuple[int, str, float]]] = {}  # pool -> (sequence, lane, when)
        self._count: dict[str, int] = {}
        self._moved = asyncio.Event()
        self._shared_until = 0.0
        self.unsure = False
        """A burst has begun, and other active teams were not looked for yet: the window is small until then."""
        self.held_up = 0.0
        """How blocked the most blocked team is: the share (0 to 1) of its places in the stream that its own decided requests
        take up. At 1 the broker would refuse it, because of another team's burst."""

    def stored(self, pool: str, seq: int, lane: str = "", sent_s: float | None = None) -> None:
        """A job was stored in the pool's inbox at `seq`. `lane`: its team, if it was decided out of order; `sent_s`: when it
        was sent, by the loop's clock, if not just now."""
        sent_s = asyncio.get_running_loop().time() if sent_s is None else sent_s
        self._put.setdefault(pool, deque()).append((seq, lane, sent_s))
        self._count[lane] = self._count.get(lane, 0) + 1

    def undecided(self, lane: str | None = None) -> int:
        """The number of jobs in flight: stored and not decided, of all pools, of one lane or of all."""
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
                self.congestion.took(longest, now, before, burst=self.shared)
        return sum(self._count.values()) if lane is None else self._count.get(lane, 0)

    def share(self) -> None:
        """A team with few requests is active: for some seconds the window is small."""
        self._shared_until = asyncio.get_running_loop().time() + _SHARED_S

    def moved(self) -> None:
        """A ledger has grown: some jobs may be decided."""
        self.undecided()
        self._moved.set()

    @property
    def shared(self) -> bool:
        """Whether a team with few requests is active beside a burst, or may be."""
        return self.unsure or asyncio.get_running_loop().time() < self._shared_until

    @property
    def most(self) -> int:
        """The size of the window now."""
        if not self.shared:
            return self._alone
        urgent = max(0.0, self.held_up - _ROOM) / (1 - _ROOM)
        return max(int(self.congestion.size), int(self.few * urgent))

    async def room(self) -> int:
        """How many jobs of the queue may be sent now. Returns once half of the window is free, or after a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    most = self.most
                    if (left := most - self.undecided("")) >= max(1, most // 2):
                        return left
                    self._moved.clear()
                    await self._moved.wait()
        return self.few


class WindowedOutbox(Outbox):
    """An outbox that counts each stored job in the admission window."""

    window: AdmissionWindow | None = None

    async def publish_many(
        self, items: Sequence[Outgoing], lanes: Sequence[str] = (), *, held: StillOwned | None = None
    ) -> list[PubAck]:
        """`lanes`: the team of each item that was decided out of order, "" for the others."""
        sent_s = asyncio.get_running_loop().time()
        acks = await super().publish_many(items, held=held)
        for number, (item, ack) in enumerate(zip(items, acks, strict=True)):
            if self.window is not None and (pool := _admitted_to(item)):
                self.window.stored(pool, ack.seq, lanes[number] if lanes else "", sent_s)
        return acks


def _admitted_to(item: Outgoing) -> str:
    """The pool to whose inbox this message brings an admitted job; "" for every other message."""
    return item.subject.removeprefix(_ADMITTED) if item.subject.startswith(_ADMITTED) else ""


_ADMITTED = subjects.inbox("job", "admitted", "x").removesuffix("x")
