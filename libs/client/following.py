"""Following a team's events without a gap: subscribe first, then catch up by a question, then live.

A team may not read the stream EVENTS itself; it subscribes to its subjects and asks history for what it missed: at the
start, after each reconnect (what was sent meanwhile is gone), and when it has been quiet for a while. An event that
comes both ways is told once.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from libs.client.errors import ClientError, Failed, Unreachable
from libs.client.event_subscriptions import EventSubscriptions, ReceivedEvent
from schemas import subjects
from schemas.jobs import JobEvent, JobState
from schemas.queries import EventList, EventsLost, JobDocument

log = logging.getLogger("baton.client")

QUIET_S = 2.0
_LOOKS_S = (0.25, 0.5, 1.0)
"""The first times that history is asked again while nothing is told: what was told just before we listened is nowhere yet until
history has written it, 0.2 s later, or 1 s while much happens."""
_REMEMBERED = 50_000
_WAITING = 10_000
_CATCH_UP = 10_000
"""After so many live events history is read up to them, although it is not quiet: from where we were last it would tell what we
do not remember to have told, and what was missed only behind it."""
_PAGE = 1000
_LARGEST_PAGE = 10_000
HISTORY_LAGS_S = 2.0
_ASK_AGAIN_S = 0.05

Ask = Callable[[int | None, int, Mapping[str, int]], Awaitable[EventList]]
"""(after_us, limit, pool -> number of the last event that we have) -> the events that history has, in ledger order; `after_us`
None: after these numbers."""

OnLost = Callable[[EventsLost], None]


def _log_lost(lost: EventsLost) -> None:
    log.warning("events %d to %d of pool %s were dropped before they were asked for", lost.first, lost.last, lost.pool)


class Live:
    """The live events of a team, or of a job of it. Open it before asking for what has been. `confirmed`: see
    `EventSubscriptions.to`."""

    def __init__(
        self, subscriptions: EventSubscriptions, team: str, job_id: str | None = None, *, confirmed: bool = True
    ) -> None:
        self._nats, self.job_id = subscriptions.nats, job_id
        subject = subjects.events_of(team if team != subjects.OPERATOR else "*")
        self._listening = subscriptions.to(subject, job_id, self._received, confirmed=confirmed)
        self._queue: asyncio.Queue[JobEvent] = asyncio.Queue(_WAITING)
        self._connections = self._nats.stats["reconnects"]
        self._lost = False
        self._dropped_us: int | None = None
        self.ended: asyncio.Future[JobEvent] = asyncio.get_running_loop().create_future()
        """Of a job: its terminal event, as soon as it is told live. Not that it was rejected: a repeat may have been."""

    async def __aenter__(self) -> "Live":
        await self._listening.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._listening.__aexit__(*error)

    async def next(self, timeout_s: float) -> JobEvent | None:
        """The next event, or None when there was none for `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._queue.get()
        except TimeoutError:
            return None

    @property
    def closed(self) -> bool:
        """Whether nothing will come any more: the connection was closed for good."""
        return bool(self._nats.is_closed)

    def interrupted(self) -> bool:
        """Whether events may have been lost since this was last asked: reconnected, or slower than they came."""
        seen, self._connections = self._connections, self._nats.stats["reconnects"]
        lost, self._lost = self._lost, False
        return lost or seen != self._connections

    def dropped_since(self) -> int | None:
        """When the first happened of those that were dropped since this was last asked, as they came faster than they were
        read. That may be long ago: of another pool, whose history was away."""
        since, self._dropped_us = self._dropped_us, None
        return since

    def _received(self, heard: ReceivedEvent) -> None:
        if (event := heard.event) is None:
            return
        if self.job_id is not None and event.state.terminal and event.what != "rejected" and not self.ended.done():
            self.ended.set_result(event)
        if self._queue.full():
            dropped = self._queue.get_nowait().at_us
            self._dropped_us = dropped if self._dropped_us is None else min(self._dropped_us, dropped)
            self._lost = True
        self._queue.put_nowait(event)


async def follow(
    live: Live,
    ask: Ask,
    *,
    after_us: int | None,
    seen: Mapping[str, int] | None = None,
    quiet_s: float = QUIET_S,
    patient: bool = False,
    on_lost: OnLost | None = None,
) -> AsyncGenerator[JobEvent, None]:
    """Every event after `after_us` (0: from the first; None: after the numbers of `seen`, by pool) once, in history's order,
    for ever. History keeps a bounded number of each team's events: `on_lost` hears of those that were dropped before we could
    ask for them.

    An event is told live a moment before history can be asked for it. So at the start and after an interruption the
    first live event is held until history has it, and with it all that came before; from there on they come in order.

    Raises what `ask` raises the first time; later on, and from the first time on where it is `patient`, a silent history only
    delays what was missed, and who was cut off for good (a credential that was revoked, or ended) hears of it within `quiet_s`.
    A history that answers but lacks its store (Failed) does not keep live events from being told.
    """
    past = _Past(ask, after_us, on_lost or _log_lost, seen)
    with contextlib.suppress(Failed, *((Unreachable,) if patient else ())):
        async for event in past.missed():
            yield event
    in_step, looks, told = False, iter(_LOOKS_S), 0
    while True:
        news = await live.next(min(next(looks, quiet_s), quiet_s))
        if news is None or live.interrupted() or not in_step or told >= _CATCH_UP:
            told = 0
            past.go_back(live.dropped_since())
            try:
                async for event in past.missed(until=news):
                    yield event
            except ClientError:
                if live.closed:
                    raise
            in_step = news is not None
        if news is not None and past.first_time(news):
            told += 1
            yield news


class _Past:
    """What history has, from where we are; and which events were told already."""

    def __init__(self, ask: Ask, after_us: int | None, on_lost: OnLost, seen: Mapping[str, int] | None = None) -> None:
        self._ask = ask
        self._on_lost = on_lost
        self._had = dict(seen or {})
        self._numbers = dict(self._had)
        self._lost: dict[tuple[str, str], int] = {}
        """Of a team in a pool: the last that was told to be lost."""
        self._position = after_us
        self._told: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self._admitted: OrderedDict[str, None] = OrderedDict()

    def first_time(self, event: JobEvent) -> bool:
        """Whether the event was not told before; now it is. An admitted job is not rejected any more."""
        if event.what == "rejected":
            if event.job_id in self._admitted:
                return False
        else:
            self._admitted[event.job_id] = None
            if len(self._admitted) > _REMEMBERED:
                self._admitted.popitem(last=False)
        identity = _identity(event)
        if identity in self._told:
            return False
        self._told[identity] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return not event.number or event.number > self._had.get(event.pool, 0)

    def go_back(self, since_us: int | None) -> None:
        """What happened from then on is asked for again. None: nothing is."""
        if since_us is not None and self._position is not None:
            self._position = min(self._position, since_us - 1)

    async def missed(self, until: JobEvent | None = None) -> AsyncGenerator[JobEvent, None]:
        """Events that were not told yet; asks again for a while until `until` is among them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HISTORY_LAGS_S
        if until is not None:
            self.go_back(until.at_us)  # our clock may be ahead of the broker's
        while True:
            async for event in self._pages():
                if self.first_time(event):
                    yield event
            if until is None or _identity(until) in self._told or loop.time() > deadline:
                return
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _pages(self) -> AsyncGenerator[JobEvent, None]:
        """What history has from our position on. A page may be shorter than its limit, so only an old one ends it."""
        limit = _PAGE
        while (reply := await self._page(limit)).events:
            page, before = reply.events, self._position or 0
            fresh = [event for event in page if _identity(event) not in self._told]
            for event in fresh:
                yield event
            # Several events may carry the same time, so the next page begins just before the last one's.
            self._position = max(before, page[-1].at_us - 1)
            if fresh:
                continue
            if len(page) < limit and not reply.more:
                return
            if self._position > before:
                continue
            if limit == _LARGEST_PAGE:
                self._position = page[-1].at_us
            limit = _LARGEST_PAGE

    async def _page(self, limit: int) -> EventList:
        reply = await self._ask(self._position, limit, self._numbers)
        for lost in reply.lost:
            if lost.last > self._lost.get((lost.team, lost.pool), 0):
                self._lost[lost.team, lost.pool] = lost.last
                self._on_lost(lost)
        for event in reply.events:
            if event.number:
                self._numbers[event.pool] = max(event.number, self._numbers.get(event.pool, 0))
        return reply


def _identity(event: JobEvent) -> tuple[object, ...]:
    step = event.checkpoint.step if event.checkpoint else None
    return event.job_id, event.attempt, event.what, event.at_us, step


def ended_rejected(document: JobDocument) -> JobEvent:
    """The event that ended a job whose document says that it was rejected."""
    return JobEvent(
        job_id=document.job_id,
        team=document.team,
        name=document.name,
        what="rejected",
        state=JobState.REJECTED,
        at_us=document.finished_us or document.submitted_us,
        reason=document.reason,
    )
