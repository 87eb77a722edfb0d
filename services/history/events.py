"""Reads a team's events back from the stream EVENTS, without a consumer (`libs.bus.direct`).

The broker says how many messages match after a sequence. So the last `limit` events are found by bisection over sequences.
"""

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from libs.adapters.mongo.store import MAX_REPLY_BYTES
from libs.bus import direct
from libs.bus.queries import AskAgain
from schemas import subjects
from schemas.jobs import JobEvent, JobRejected, JobState, rejection_event

_BATCH = 512
_STORED_WITHIN_US = 600_000_000
_LAST_US = 253_402_300_799_000_000  # the end of the year 9999: what is later no calendar can write
_PROBED = 32  # messages, where the numbers of all pools are looked for
_OF_TEAM = subjects.team_event("-", "-").split("-")[0]
_LOOKED_AT = 500  # rejections, when one job's is asked for
_MOST_BYTES = 2 * MAX_REPLY_BYTES  # of events, in memory for one answer
_SHORTEST = JobEvent(job_id="job-" + "0" * 32, team="t", name="", what="queued", state=JobState.QUEUED, at_us=0)
_MOST_LAST = MAX_REPLY_BYTES // len(_SHORTEST.model_dump_json())
"""So many of the last events fit into an answer. Ten thousand were read for it, which took this process 0.7 s."""


class EventLog:
    """The events of teams, as long as the stream keeps them."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js

    async def read(
        self, team: str | None, *, after_us: int | None, limit: int, seen: Mapping[str, int] | None = None
    ) -> list[JobEvent]:
        """Events of `team` (None: of all) in the order of the ledger: the first `limit` after `after_us`, or after the numbers
        of `seen` (by pool; some of before that may be among them), or without either the last `limit`, and no more of
        these than fit into an answer. Raises AskAgain when the broker does not answer."""
        pattern = _pattern(team)
        if after_us:
            lead_us = await self._lead(pattern)
            after_s = min(max(0, after_us - lead_us), _LAST_US) / 1e6
            start: dict[str, Any] = {"start_time": datetime.fromtimestamp(after_s, UTC).isoformat()}
        elif after_us == 0:
            start = {"seq": 1}
        elif seen:
            start = {"seq": await self._behind(pattern, seen)}
        else:
            limit = min(limit, _MOST_LAST)
            start = {"seq": await self._last(pattern, limit)}
        found: deque[tuple[JobEvent, int]] = deque()
        first, matched, size = after_us is not None or bool(seen), 0, 0
        while matched < limit:
            piece = await self._get(pattern, start, min(_BATCH, limit - matched))
            for message in piece.messages:
                event = _event(message)
                if event is not None and event.at_us > (after_us or -1):
                    found.append((event, len(message.data)))
                    matched, size = matched + 1, size + len(message.data)
            while not first and size > _MOST_BYTES and len(found) > 1:
                size -= found.popleft()[1]
            if not piece.messages or not piece.more or (first and size > _MOST_BYTES):
                break
            start = {"seq": int((piece.messages[-1].headers or {})["Nats-Sequence"]) + 1}
        return sorted((event for event, _ in found), key=lambda event: (event.at_us, event.number))

    async def _lead(self, pattern: str) -> int:
        """How much earlier than its time, which is the ledger's, an event may have been stored by the broker's clock, us. 0,
        unless the broker's clock was set back: then the newest event tells, and an older one may have been stored quicker."""
        newest = await direct.last(self._js, subjects.EVENTS, pattern)
        event = _event(newest) if newest is not None else None
        lead_us = event.at_us - direct.received_of(newest).time_us if newest is not None and event is not None else 0
        return lead_us + _STORED_WITHIN_US if lead_us > 0 else 0

    async def _behind(self, pattern: str, seen: Mapping[str, int]) -> int:
        """A sequence before which every event of the pools of `seen` has a number that was seen, as late as can be told: where
        the messages there are of other pools alone, what lies before them is taken to be wanted."""
        state = (await self._js.stream_info(subjects.EVENTS)).state
        low, high = max(1, state.first_seq), state.last_seq + 1
        while high - low > 1:
            middle = (low + high) // 2
            first: dict[str, int] = {}
            for message in (await self._get(pattern, {"seq": middle}, _PROBED)).messages:
                event = _event(message)
                if event is not None and event.number:
                    first.setdefault(event.pool, event.number)
            if all(pool in first and first[pool] <= number for pool, number in seen.items()):
                low = middle
            else:
                high = middle
        return low

    async def rejection(self, job_id: str, team: str | None) -> JobEvent | None:
        """The last word on a job that has no document: its rejection, or None when it was queued after that. Looks at
        the last rejections of `team` (None: of all) only."""
        last: Msg | None = None
        async for message in self._about(job_id, _told("rejected", team), None):
            event = _event(message)
            last = message if event is not None and event.job_id == job_id else last
        if last is None:
            return None
        rejected = _event(last)
        after = int((last.headers or {})["Nats-Sequence"]) + 1
        async for _ in self._about(job_id, _told("queued", rejected.team if rejected else team), after):
            return None
        return rejected

    async def _about(self, job_id: str, pattern: str, seq: int | None) -> AsyncGenerator[Msg, None]:
        """Messages that mention the job, from `seq` on (None: among the last ones)."""
        seq = await self._last(pattern, _LOOKED_AT) if seq is None else seq
        while True:
            piece = await self._get(pattern, {"seq": seq}, _BATCH)
            for message in piece.messages:
                if job_id.encode() in message.data:
                    yield message
            if not piece.messages or not piece.more:
                return
            seq = int((piece.messages[-1].headers or {})["Nats-Sequence"]) + 1

    async def _last(self, pattern: str, limit: int) -> int:
        """The sequence from which on there are `limit` matching messages, or the first of the stream."""
        state = (await self._js.stream_info(subjects.EVENTS)).state
        low, high = max(1, state.first_seq), state.last_seq + 1
        if await self._count(pattern, low) <= limit:
            return low
        while high - low > 1:
            middle = (low + high) // 2
            if await self._count(pattern, middle) >= limit:
                low = middle
            else:
                high = middle
        return low

    async def _count(self, pattern: str, seq: int) -> int:
        piece = await self._get(pattern, {"seq": seq}, 1)
        return len(piece.messages) + piece.more

    async def _get(self, pattern: str, start: dict[str, Any], batch: int) -> direct.MessagePage:
        try:
            return await direct.get(self._js, subjects.EVENTS, pattern, start, batch)
        except TimeoutError:  # no fault of ours: a team that asks for much at once would fill the log
            raise AskAgain("the broker, which keeps events, does not answer history: ask again") from None


def _told(what: str, team: str | None) -> str:
    return subjects.event(what, team or "*")


def _pattern(team: str | None) -> str:
    return subjects.events_of(team or "*")


def _event(message: Msg) -> JobEvent | None:
    """None for a rejection that is no job's end, and for what is about the team as a whole."""
    subject = (message.headers or {})["Nats-Subject"]
    if subject.startswith(_OF_TEAM):
        return None
    if subjects.what_of(subject) == "rejected":
        return rejection_event(JobRejected.model_validate_json(message.data))
    return JobEvent.model_validate_json(message.data)
