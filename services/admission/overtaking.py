"""Takes requests of every team out of their turn while the queue is long (see `services/admission/ahead.py`).

    run      finds the teams that send something, and keeps a lane for each of them (`services/admission/lane.py`)
    pass_on  decides what lies in the lanes: of each team so many as it may have undecided, in turns
    portion  asked before each part of the queue is decided: waits for room in the inboxes

A team whose requests come to nothing (`libs/core/admission/in_vain.py`) is read slowly, in its lane and as the queue's
first; then it is a crowd, however few of its requests wait, and the others have lanes.

So a team with few requests waits neither for the crowd nor for its portion, and nothing is left unused: what the lanes do not
take is the queue's. Of a long or costly request less goes at a time (`_cost`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext

from libs.bus.dead import Received
from libs.bus.in_progress import FreezeDetector
from libs.bus.messages import Outgoing
from libs.bus.retry import UNAVAILABLE
from libs.bus.table import WAITING_OF_A_SENDER
from libs.ports import clock
from schemas import subjects
from schemas.subjects import REQUESTS
from services.admission.ahead import Ahead
from services.admission.lane import TeamLane
from services.admission.pace import Pace, PacedOutbox

log = logging.getLogger("baton.admission")

_LOOK_S = 0.1
"""So often it is looked which teams have sent something, and how the lanes are."""
_SENDERS = 5_000
"""Users with a request in the stream: of more, looks are as many times rarer, for each lists them all."""
_WARN_S = 60.0
_FIX = "if it invents them, `baton team revoke` cuts it off"
_CALM_S = 1.0
"""A crowd is over when there was none for so long."""
_IDLE_S = 5.0
"""A lane is closed when nothing has come for so long."""
_TEAMS = 32
"""Lanes at the most."""
_FULL_S = 0.3
"""As `_IDLE_S`, while others wait for a lane."""
_EACH = 64
"""Requests of one lane in memory, and on their way to it, at the most."""
_PAGE_BYTES = 512 * 1024
"""Of requests that a lane asks for, and only while it holds less: 32 MiB in all lanes. A larger request stops its lane, and is
decided when the queue comes to it."""
_HEAVY_BYTES = 16 * 1024
_HEADER_BYTES = 16
"""A request counts once more for every so many bytes, and a header for at least so many: it takes longer to read."""
_CATCHES_UP = 1.25
"""Times what the lane that is served most gets: so much has the queue's first team, or who fell behind stays there."""
_LEAST = 16
"""So many a team may always have undecided: few enough that a crowd of lanes is no crowd in the inbox."""
_SLOWLY = 8
"""Requests at a time of a team that is read slowly."""
_LOOK_AGAIN_S = 0.1
"""So often it is looked whether it still has to be."""
_HELD_UP = 1 / 4
"""Nobody is read slowly while what was done ahead of the queue takes up so much of some team's room: it is free only when the
queue has passed."""
_FULL = 1 / 8
"""Nor while the stream is so full: at twice that everybody's requests have to be smaller (`libs.bus.request_size_limit`)."""
_PATIENCE_S = 1.0
"""After so long some are decided whatever is undecided: refusals must not wait for placement."""

Decide = Callable[[Received], list[Outgoing]]
Slow = Callable[[str], float]
"""The seconds until the requests of a team may be read on."""
Learn = Callable[[Iterable[tuple[str, bytes]]], Awaitable[None]]
"""Given teams and their requests, finds out what must be known to judge them."""


async def nothing_to_learn(requests: Iterable[tuple[str, bytes]]) -> None:
    """All is known."""


def read_at_once(team: str) -> float:
    """No team is read slowly."""
    return 0.0


class Overtaking:
    """`run` and `pass_on` are tasks; `ahead` knows what the queue finds done already."""

    def __init__(
        self,
        js: JetStreamContext,
        decide: Decide,
        outbox: PacedOutbox,
        pace: Pace,
        learn: Learn = nothing_to_learn,
        slow: Slow = read_at_once,
    ) -> None:
        self.ahead = Ahead()
        self.lanes: dict[str, TeamLane] = {}  # in the order of their turns
        self._js = js
        self._decide = decide
        self._learn = learn
        self._slow = slow
        self._outbox = outbox
        self._pace = pace
        self._crowded = asyncio.Event()
        self._crowd_s = float("-inf")  # when more requests waited, or were undecided, than few
        self._waits = False  # the queue's portion waits for room
        self._news = asyncio.Event()
        self._head = ""  # the team whose turn the queue is
        self._counts: dict[str, int] = {}  # team -> its requests in the stream, as they were counted last
        self._wanted: set[str] = set()  # teams that have sent something and have no lane
        self._served: Counter[str] = Counter()  # team -> decided in its lane since the queue's last portion
        self._owed = 0.0  # what the queue's first team may still have of what lanes got
        self._turned_s = 0.0
        self._freezes = FreezeDetector()
        self._senders = 0
        self._fill = 0.0  # of the stream, as it was looked at last in this crowd
        self._warned_s = self._told_broken_s = float("-inf")

    @property
    def held(self) -> dict[str, int]:
        """Bytes of the requests in memory, by team."""
        return {team: lane.bytes for team, lane in self.lanes.items() if lane.held}

    def held_back(self, subject: str, most: int) -> float:
        """Which share of the `most` requests that a sender may have in the stream this subject's may not have now."""
        return self.ahead.held_back(_team_of(subject), most, asyncio.get_running_loop().time())

    def moved(self) -> None:
        """A ledger was read on, so more may go in."""
        self._pace.moved()
        self._news.set()

    # ------------------------------------------------------------------------------------------------------ the queue

    async def portion(self, left: Sequence[Msg]) -> int:
        """How many of the queue's messages at hand may be decided now. While it waits for room they may be overtaken."""
        if (first := _first_new(left)) is not None:
            self.ahead.came_to(first - 1)
        count = len(left)
        self._pace.held_up = self.ahead.longest / WAITING_OF_A_SENDER
        now = asyncio.get_running_loop().time()
        head = next((m for m in left if not self.ahead.is_done(m.metadata.sequence.stream)), left[-1])
        slow = self._is_slow(_team_of(head.subject))
        if slow or left[-1].metadata.num_pending + len(left) + self._pace.undecided() > self._pace.few:
            self._crowd_s = now
        if now - self._crowd_s >= _CALM_S:
            self._crowded.clear()
        else:
            if not self._crowded.is_set():
                self._pace.unsure = True
                self._crowded.set()
            if (team := _team_of(head.subject)) != self._head:
                self._head, self._owed = team, 0.0
            count, cost = self._first_of(left, due := self._due())
            if count < len(left) or cost > due:
                self._waits = True
                try:
                    room = await self._pace.room()
                finally:
                    self._waits = False
                count, cost = self._first_of(left, max(room, self._due()))
            self._owed = max(0.0, self._owed - cost)
        if slow:
            await self._until_read_on(self._head)
            count, _ = self._first_of(left, min(count, _SLOWLY))
        await self._learn((_team_of(message.subject), message.data) for message in left[:count])
        if (last := _first_new(left[count - 1 :: -1])) is not None:
            self.ahead.came_to(last)
        return count

    def _is_slow(self, team: str) -> bool:
        return self._pace.held_up < _HELD_UP and self._fill < _FULL and self._slow(team) > 0

    async def _until_read_on(self, team: str) -> None:
        """Waits while the queue's first team is read slowly. Meanwhile the others are served in their lanes."""
        self._waits = True
        try:
            while self._is_slow(team):
                self._crowd_s = asyncio.get_running_loop().time()
                await asyncio.sleep(min(self._slow(team), _LOOK_AGAIN_S))
                self._pace.held_up = self.ahead.longest / WAITING_OF_A_SENDER
        finally:
            self._waits = False

    def _due(self) -> int:
        """How many the queue's first team may have whatever is undecided: no less than a lane gets, else a team that sends as
        much as others never catches up once it is the first. What was not at hand it has the next time."""
        self._owed = min(_EACH, self._owed + _CATCHES_UP * max(self._served.values(), default=0))
        self._served.clear()
        return int(self._owed)

    def _first_of(self, left: Sequence[Msg], most: int) -> tuple[int, int]:
        """How many of the first messages cost no more than `most` together, and what they do; at least one. Those that are done
        cost nothing."""
        total = 0
        for index, message in enumerate(left):
            if not self.ahead.is_done(message.metadata.sequence.stream):
                cost = _cost(message.data, message.headers)
                if total + cost > most and index:
                    return index, total
                total += cost
        return len(left), total

    # ----------------------------------------------------------------------------------------------------- the lanes

    async def pass_on(self) -> None:
        """For ever: decides what lies in the lanes. Raises ConnectionClosedError."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await self._news.wait()
            self._news.clear()
            await self.turn()

    async def turn(self) -> int:
        """Decides of each lane what its team may have undecided, and stores what follows; how many that were."""
        out: list[Outgoing] = []
        lanes: list[str] = []
        decided: list[tuple[str, int]] = []
        self._pace.held_up = self.ahead.longest / WAITING_OF_A_SENDER
        self._freezes.watch()
        began_s = clock.boot_s()
        share = max(_LEAST, self._pace.most // (len(self.lanes) + 1))
        now = asyncio.get_running_loop().time()
        patient = now - self._turned_s < _PATIENCE_S
        for team in [team for team in self.lanes if team != self._head and self.ahead.may_go_on(team)]:
            if self._is_slow(team):
                continue
            if (lane := self.lanes.pop(team, None)) is None:
                continue  # it was closed since this turn began
            self.lanes[team] = lane  # the next turn begins with another
            limit = max(share, _EACH) if len(lane.held) + lane.more <= _EACH else share
            taken = self._taken(lane, limit - self._pace.undecided(team) if patient else limit)
            try:
                await self._learn((team, received.payload) for received in taken)
            except ConnectionClosedError:
                raise
            except UNAVAILABLE as error:
                lane.end(f"what judges its requests cannot be learnt: {error!r}")
            if lane.broken:
                continue  # what was taken is read again
            taken = [received for received in taken if received.stream_seq > self.ahead.reached]  # as it may be by now
            for received in taken:
                try:
                    new = self._decide(received)
                except Exception as error:  # the queue knows what to do with it: to try again, to lay it aside
                    log.debug("a request of team %s waits for the queue: %r", team, error)
                    self._hold(team, received.stream_seq)
                    break
                out += new
                lanes += [team] * len(new)
                decided.append((team, received.stream_seq))
            if taken and not lane.held and not lane.more:
                self._pace.share()
            try:
                await lane.ask()
            except ConnectionClosedError:
                raise
            except UNAVAILABLE as error:
                lane.end(f"it cannot be read on: {error!r}")
        if decided:
            self._turned_s = now
            await self._store(out, lanes, decided, began_s)
        return len(decided)

    def _taken(self, lane: TeamLane, room: int) -> list[Received]:
        """The next of a lane that cost no more than `room` together, or the first alone when there is any room."""
        taken: list[Received] = []
        while lane.held and room > 0:
            received = lane.held.popleft()
            if received.stream_seq > self.ahead.reached:  # else the queue has come to it meanwhile
                taken.append(received)
                room -= _cost(received.payload, received.headers)
        return taken

    async def _store(
        self, out: Sequence[Outgoing], lanes: Sequence[str], decided: Sequence[tuple[str, int]], began_s: float
    ) -> None:
        """What cannot be stored is stored again, or by the queue, with the same ids. What was decided before this process stood
        still is the queue's."""
        try:
            await self._outbox.publish_many(out, lanes, held=lambda: self._freezes.ran_since(began_s))
        except ConnectionClosedError:
            raise
        except (*UNAVAILABLE, ValueError) as error:
            log.warning("requests out of their turn wait for the queue: %r", error)
            for team, seq in reversed(decided):
                self._hold(team, seq)
            return
        for team, seq in decided:
            self.ahead.took(team, seq)
            self._served[team] += 1

    def _hold(self, team: str, seq: int) -> None:
        """Nothing more of the team is taken before the queue has come there."""
        self.ahead.hold(team, seq)
        if (lane := self.lanes.get(team)) is not None:
            lane.held.clear()
            lane.end("a request of it waits for the queue")

    # ------------------------------------------------------------------------------------------------- keeping lanes

    async def run(self) -> None:
        """For ever. A broker that is away is waited for. Raises ConnectionClosedError."""
        while True:
            try:
                if not self._crowded.is_set() and self.lanes:
                    await self._close(list(self.lanes))
                self._fill = 0.0
                await self._crowded.wait()
                if self._is_long_over():
                    self._crowded.clear()
                    continue
                await self.look()
            except ConnectionClosedError:
                raise
            except UNAVAILABLE as error:
                log.warning("no request is read out of its turn: %r", error)
            await asyncio.sleep(_pause_s(self._senders))

    def _is_long_over(self) -> bool:
        """Nothing has come behind the last crowd, so that no portion says that it is over."""
        quiet_s = asyncio.get_running_loop().time() - self._crowd_s
        return quiet_s >= _IDLE_S and not self.lanes and not self._waits

    async def look(self) -> None:
        """Finds who has sent something, opens lanes for them where there is room, and closes those that are over. Raises nats
        errors."""
        now = asyncio.get_running_loop().time()
        await self._find(now)
        waiting = self._wanted - {self._head}
        idle = _FULL_S if waiting and len(self.lanes) >= _TEAMS else _IDLE_S
        for lane in self.lanes.values():
            lane.check(now)
        await self._close([team for team, lane in self.lanes.items() if _is_over(lane, now, idle)])
        for team, after in self.ahead.turns(self._wanted - {self._head}, _TEAMS - len(self.lanes)):
            lane = TeamLane(self._js, team, after, most=_EACH, page=_PAGE_BYTES, news=self._news.set)
            await lane.open()
            self._wanted.discard(team)
            self.lanes[team] = lane
            if lane.more <= _EACH:
                self._pace.share()
        for lane in list(self.lanes.values()):
            if lane.team != self._head:
                await lane.ask()
        self._pace.unsure = False

    async def _find(self, now: float) -> None:
        """Whoever has another number of requests in the stream than before has sent something, or been trimmed."""
        pattern = subjects.anyone(subjects.COMMAND, entity="job")
        info = await self._js.stream_info(REQUESTS, subjects_filter=pattern)
        self._fill = info.state.bytes / max(1, info.config.max_bytes or 1)
        found = info.state.subjects or {}
        counts: dict[str, int] = {}
        users: Counter[str] = Counter()
        self._senders = len(found)
        for subject, count in found.items():
            if team := _team_of(subject):
                counts[team] = counts.get(team, 0) + count
                users[team] += 1
        if self._senders > _SENDERS and now - self._warned_s >= _WARN_S:
            self._warned_s = now
            for team, some in users.most_common(1):
                log.warning("team %s has requests of %d users in the stream, so hardly bounded: %s", team, some, _FIX)
        changed = {team for team, count in counts.items() if self._counts.get(team) != count}
        for team in changed & self.lanes.keys():
            self.lanes[team].heard_s = now
        self._wanted = (self._wanted | changed) - self.lanes.keys()
        self._counts = counts

    async def _close(self, teams: Sequence[str]) -> None:
        for team in teams:
            lane = self.lanes.pop(team)
            if lane.broken:
                self._wanted.add(team)
                self._say_broken(lane)
            await lane.close()

    def _say_broken(self, lane: TeamLane) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._told_broken_s >= _WARN_S:
            self._told_broken_s = now
            log.warning("the lane of team %s is opened again: %s", lane.team, lane.broken)


def _pause_s(senders: int) -> float:
    """Between two looks: a team that invents users by the ten thousand may not keep admission busy with listing them."""
    return _LOOK_S * max(1.0, senders / _SENDERS)


def _is_over(lane: TeamLane, now: float, idle_s: float) -> bool:
    return bool(lane.broken) or (not lane.held and not lane.more and now - lane.heard_s >= idle_s)


def _cost(payload: bytes, headers: Mapping[str, str] | None) -> int:
    """Of a request, in those of usual size."""
    return 1 + (len(payload) + _HEADER_BYTES * len(headers or ())) // _HEAVY_BYTES


def _first_new(messages: Sequence[Msg]) -> int | None:
    """The stream sequence of the first that was not delivered before: how far the queue is."""
    return next((m.metadata.sequence.stream for m in messages if m.metadata.num_delivered == 1), None)


def _team_of(subject: str) -> str:
    """The subject's team; "" when it says none, which the queue answers for."""
    try:
        return subjects.read(subjects.COMMAND, subject)["team"]
    except ValueError:
        return ""
