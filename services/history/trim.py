"""Keeps one team from filling EVENTS: when it is nearly full, the team that has most events loses its oldest.

The naive bound is the stream's size: the oldest events are dropped, whose ever they are, so the loudest team decides how far
back all others can look. Here each team may keep an equal share; what quiet teams do not use is shared by the others. Dropped
events show as gaps in the numbers of the events (`JobEvent.number`), so nothing needs to be remembered about them.
"""

import logging
from collections import Counter as Counts
from collections.abc import Iterable

from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter

from libs.bus.retry import run_periodically
from libs.bus.trim import fill_of
from schemas import subjects

log = logging.getLogger("baton.history")

TRIM_AT = 0.7
TRIM_TO = 0.6
"""Shares of the stream's size. The rest is for what comes while history does not run."""

_TURN_S = 5.0


class EventTrimmer:
    """Trims EVENTS, for all pools: several history processes may do so at once."""

    def __init__(self, js: JetStreamContext, registry: CollectorRegistry) -> None:
        self._js = js
        self._dropped = Counter("baton_history_events_dropped", "events dropped to make room", registry=registry)

    async def run(self) -> None:
        """For ever. A broker that is away is waited for. Raises ConnectionClosedError."""
        await run_periodically(self.turn, _TURN_S, log, "the events are not trimmed")

    async def turn(self) -> None:
        """Trims once, if there is need. Raises nats errors."""
        fill = fill_of(await self._js.stream_info(subjects.EVENTS))
        if fill < TRIM_AT:
            return
        info = await self._js.stream_info(subjects.EVENTS, subjects_filter=subjects.events_of())
        counts: Counts[str] = Counts()
        for subject, number in (info.state.subjects or {}).items():
            counts[subject.rpartition(".")[2]] += number
        share = fair_share(counts.values(), int(info.state.messages * TRIM_TO / fill))
        for team, number in counts.items():
            if number > share:
                await self._js.purge_stream(subjects.EVENTS, subject=subjects.events_of(team), keep=share)
                self._dropped.inc(number - share)
                log.info("events of team %s: the oldest %d of %d were dropped", team, number - share, number)


def fair_share(counts: Iterable[int], total: int) -> int:
    """The most that each may keep so that all together keep at most `total`; at least 1."""
    left, waiting = total, sorted(counts)
    for index, count in enumerate(waiting):
        share = left // (len(waiting) - index)
        if count > share:
            return max(1, share)
        left -= count
    return max(1, *waiting, total) if waiting else max(1, total)
