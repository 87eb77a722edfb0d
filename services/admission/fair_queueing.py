"""Fair queueing of requests: while REQUESTS is long, each active team has a lane and is served round robin.

    run         finds the active teams, and opens and closes their lanes (`services/admission/lane.py`)
    pass_on     decides what the lanes hold: of each team as many as it may have undecided
    batch_size  says how many requests of the queue itself are decided next; waits for space in the admission window

So a team with few requests waits neither for another team's burst nor for its batch, and no capacity is unused: what the lanes
do not take, the queue gets. Large requests count more than once (`_cost`). `services/admission/out_of_order.py` remembers what
was decided out of order.

A team whose requests are refused again and again is throttled (`libs/core/admission/request_throttle.py`), in its lane and at
the head of the queue. It then counts as a burst, however few of its requests wait, and the other teams have lanes.
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
from services.admission.lane import TeamLane
from services.admission.out_of_order import OutOfOrder
from services.admission.window import AdmissionWindow, WindowedOutbox

log = logging.getLogger("baton.admission")

_LOOK_S = 0.1
"""The interval at which active teams are looked up and lanes are checked."""
_SENDERS = 5_000
"""With more users than this in the stream the interval grows in proportion, because each look-up lists all of them."""
_WARN_S = 60.0
_FIX = "if it invents them, `baton team revoke` cuts it off"
_CALM_S = 1.0
"""A burst is over when the queue was short for so long."""
_IDLE_S = 5.0
"""A lane without a request for so long is closed."""
_TEAMS = 32
"""The maximum number of lanes."""
_FULL_S = 0.3
"""As `_IDLE_S`, while other teams wait for a lane."""
_EACH = 64
"""The maximum number of requests of one lane in memory, and on their way to it."""
_PAGE_BYTES = 512 * 1024
"""What a lane asks for at a time, and only while it holds less: 32 MiB in all lanes. A larger request closes its lane, and is
decided when the consumer comes to it."""
_HEAVY_BYTES = 16 * 1024
_HEADER_BYTES = 16
"""A request counts once more per `_HEAVY_BYTES`, and a header as at least `_HEADER_BYTES`: both take time to read."""
_CATCHES_UP = 1.25
"""The team at the head of the queue gets this multiple of what the most served lane gets; with less it never catches up."""
_LEAST = 16
"""The minimum of undecided jobs per team: few enough that many lanes together make no burst in the inbox."""
_SLOWLY = 8
"""The batch size for a throttled team."""
_LOOK_AGAIN_S = 0.1
"""The interval at which a throttled team is checked again."""
_HELD_UP = 1 / 4
"""No team is throttled from this value of `AdmissionWindow.held_up` on: the places of blocked teams are free only when the
queue moves on."""
_FULL = 1 / 8
"""Nor from this fill level of the stream on: at twice that everybody's requests must be smaller
(`libs.bus.request_size_limit`)."""
_PATIENCE_S = 1.0
"""After this time some requests are decided even if the window is full: refusals must not wait for placement."""

Decide = Callable[[Received], list[Outgoing]]
Slow = Callable[[str], float]
"""The seconds for which a team is still throttled."""
Learn = Callable[[Iterable[tuple[str, bytes]]], Awaitable[None]]
"""Loads what the decision about these requests (team, payload) needs to know."""


async def nothing_to_learn(requests: Iterable[tuple[str, bytes]]) -> None:
    """Nothing needs to be loaded."""


def read_at_once(team: str) -> float:
    """No team is throttled."""
    return 0.0


class FairQueueing:
    """`run` and `pass_on` are tasks; `out_of_order` knows which requests the consumer must skip."""

    def __init__(
        self,
        js: JetStreamContext,
        decide: Decide,
        outbox: WindowedOutbox,
        window: AdmissionWindow,
        learn: Learn = nothing_to_learn,
        slow: Slow = read_at_once,
    ) -> None:
        self.out_of_order = OutOfOrder()
        self.lanes: dict[str, TeamLane] = {}  # in the order of their turns
        self._js = js
        self._decide = decide
        self._learn = learn
        self._slow = slow
        self._outbox = outbox
        self._window = window
        self._burst = asyncio.Event()
        self._burst_s = float("-inf")  # when the queue was last long
        self._waits = False  # the queue's next batch waits for space in the window
        self._news = asyncio.Event()
        self._head = ""  # the team of the first undecided request of the queue
        self._counts: dict[str, int] = {}  # team -> its requests in the stream, as counted last
        self._wanted: set[str] = set()  # active teams without a lane
        self._served: Counter[str] = Counter()  # team -> decided in its lane since the queue's last batch
        self._owed = 0.0  # credit of the team at the head: what lanes got and it did not
        self._turned_s = 0.0
        self._freezes = FreezeDetector()
        self._senders = 0
        self._fill = 0.0  # fill level of the stream, as seen last in this burst
        self._warned_s = self._told_broken_s = float("-inf")

    @property
    def held(self) -> dict[str, int]:
        """Bytes of requests in memory, by team."""
        return {team: lane.bytes for team, lane in self.lanes.items() if lane.held}

    def held_back(self, subject: str, most: int) -> float:
        """The share of its `most` places in the stream that this subject's sender loses now."""
        return self.out_of_order.held_back(_team_of(subject), most, asyncio.get_running_loop().time())

    def moved(self) -> None:
        """A ledger has grown, so the window may have space."""
        self._window.moved()
        self._news.set()

    # ------------------------------------------------------------------------------------------------------ the queue

    async def batch_size(self, left: Sequence[Msg]) -> int:
        """How many of these messages of the queue may be decided now. While it waits, lanes go on, and may decide some of
        them."""
        if (first := _first_new(left)) is not None:
            self.out_of_order.came_to(first - 1)
        count = len(left)
        self._window.held_up = self.out_of_order.longest / WAITING_OF_A_SENDER
        now = asyncio.get_running_loop().time()
        head = next((m for m in left if not self.out_of_order.is_done(m.metadata.sequence.stream)), left[-1])
        slow = self._is_slow(_team_of(head.subject))
        if slow or left[-1].metadata.num_pending + len(left) + self._window.undecided() > self._window.few:
            self._burst_s = now
        if now - self._burst_s >= _CALM_S:
            self._burst.clear()
        else:
            if not self._burst.is_set():
                self._window.unsure = True
                self._burst.set()
            if (team := _team_of(head.subject)) != self._head:
                self._head, self._owed = team, 0.0
            count, cost = self._first_of(left, due := self._due())
            if count < len(left) or cost > due:
                self._waits = True
                try:
                    room = await self._window.room()
                finally:
                    self._waits = False
                count, cost = self._first_of(left, max(room, self._due()))
            self._owed = max(0.0, self._owed - cost)
        if slow:
            await self._until_read_on(self._head)
            count, _ = self._first_of(left, min(count, _SLOWLY))
        await self._learn((_team_of(message.subject), message.data) for message in left[:count])
        if (last := _first_new(left[count - 1 :: -1])) is not None:
            self.out_of_order.came_to(last)
        return count

    def _is_slow(self, team: str) -> bool:
        return self._window.held_up < _HELD_UP and self._fill < _FULL and self._slow(team) > 0

    async def _until_read_on(self, team: str) -> None:
        """Waits while the team at the head of the queue is throttled. Meanwhile the others are served in their lanes."""
        self._waits = True
        try:
            while self._is_slow(team):
                self._burst_s = asyncio.get_running_loop().time()
                await asyncio.sleep(min(self._slow(team), _LOOK_AGAIN_S))
                self._window.held_up = self.out_of_order.longest / WAITING_OF_A_SENDER
        finally:
            self._waits = False

    def _due(self) -> int:
        """How many the team at the head of the queue may have decided even if the window is full: no less than a lane gets, or
        a team that sends as much as others never catches up once it is at the head. What it cannot use now it has later."""
        self._owed = min(_EACH, self._owed + _CATCHES_UP * max(self._served.values(), default=0))
        self._served.clear()
        return int(self._owed)

    def _first_of(self, left: Sequence[Msg], most: int) -> tuple[int, int]:
        """The number of first messages that cost no more than `most` together (at least one), and their cost. Those that were
        decided out of order cost nothing."""
        total = 0
        for index, message in enumerate(left):
            if not self.out_of_order.is_done(message.metadata.sequence.stream):
                cost = _cost(message.data, message.headers)
                if total + cost > most and index:
                    return index, total
                total += cost
        return len(left), total

    # ----------------------------------------------------------------------------------------------------- the lanes

    async def pass_on(self) -> None:
        """Runs for ever: decides what the lanes hold. Raises ConnectionClosedError."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await self._news.wait()
            self._news.clear()
            await self.turn()

    async def turn(self) -> int:
        """Serves each lane once, up to what its team may have undecided. Returns the number of requests decided."""
        out: list[Outgoing] = []
        lanes: list[str] = []
        decided: list[tuple[str, int]] = []
        self._window.held_up = self.out_of_order.longest / WAITING_OF_A_SENDER
        self._freezes.watch()
        began_s = clock.boot_s()
        share = max(_LEAST, self._window.most // (len(self.lanes) + 1))
        now = asyncio.get_running_loop().time()
        patient = now - self._turned_s < _PATIENCE_S
        for team in [team for team in self.lanes if team != self._head and self.out_of_order.may_go_on(team)]:
            if self._is_slow(team):
                continue
            if (lane := self.lanes.pop(team, None)) is None:
                continue  # it was closed meanwhile
            self.lanes[team] = lane  # round robin: the next turn begins with another team
            limit = max(share, _EACH) if len(lane.held) + lane.more <= _EACH else share
            taken = self._taken(lane, limit - self._window.undecided(team) if patient else limit)
            try:
                await self._learn((team, received.payload) for received in taken)
            except ConnectionClosedError:
                raise
            except UNAVAILABLE as error:
                lane.end(f"what judges its requests cannot be learnt: {error!r}")
            if lane.broken:
                continue  # what was taken is read again
            taken = [
                received for received in taken if received.stream_seq > self.out_of_order.reached
            ]  # as it may be by now
            for received in taken:
                try:
                    new = self._decide(received)
                except Exception as error:  # left to the queue, which retries it or makes it a dead letter
                    log.debug("a request of team %s waits for the queue: %r", team, error)
                    self._hold(team, received.stream_seq)
                    break
                out += new
                lanes += [team] * len(new)
                decided.append((team, received.stream_seq))
            if taken and not lane.held and not lane.more:
                self._window.share()
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
        """The next requests of a lane that cost no more than `room` together; at least one when there is any room."""
        taken: list[Received] = []
        while lane.held and room > 0:
            received = lane.held.popleft()
            if received.stream_seq > self.out_of_order.reached:  # else the queue has come to it meanwhile
                taken.append(received)
                room -= _cost(received.payload, received.headers)
        return taken

    async def _store(
        self, out: Sequence[Outgoing], lanes: Sequence[str], decided: Sequence[tuple[str, int]], began_s: float
    ) -> None:
        """Stores the outcomes. If that fails, or this process was frozen meanwhile, the queue decides these requests again,
        with the same message ids."""
        try:
            await self._outbox.publish_many(out, lanes, held=lambda: self._freezes.ran_since(began_s))
        except ConnectionClosedError:
            raise
        except (*UNAVAILABLE, ValueError) as error:
            log.warning("requests that were decided out of order wait for the queue: %r", error)
            for team, seq in reversed(decided):
                self._hold(team, seq)
            return
        for team, seq in decided:
            self.out_of_order.took(team, seq)
            self._served[team] += 1

    def _hold(self, team: str, seq: int) -> None:
        """Takes nothing more of the team until the consumer has come to `seq`."""
        self.out_of_order.hold(team, seq)
        if (lane := self.lanes.get(team)) is not None:
            lane.held.clear()
            lane.end("a request of it waits for the queue")

    # ------------------------------------------------------------------------------------------------- keeping lanes

    async def run(self) -> None:
        """Runs for ever and waits while the broker is unavailable. Raises ConnectionClosedError."""
        while True:
            try:
                if not self._burst.is_set() and self.lanes:
                    await self._close(list(self.lanes))
                self._fill = 0.0
                await self._burst.wait()
                if self._is_long_over():
                    self._burst.clear()
                    continue
                await self.look()
            except ConnectionClosedError:
                raise
            except UNAVAILABLE as error:
                log.warning("lanes of teams cannot be kept: %r", error)
            await asyncio.sleep(_pause_s(self._senders))

    def _is_long_over(self) -> bool:
        """Nothing has arrived since the last burst, so `batch_size` was not called to end it."""
        quiet_s = asyncio.get_running_loop().time() - self._burst_s
        return quiet_s >= _IDLE_S and not self.lanes and not self._waits

    async def look(self) -> None:
        """Finds the active teams, opens lanes for them up to the maximum, and closes idle ones. Raises nats errors."""
        now = asyncio.get_running_loop().time()
        await self._find(now)
        waiting = self._wanted - {self._head}
        idle = _FULL_S if waiting and len(self.lanes) >= _TEAMS else _IDLE_S
        for lane in self.lanes.values():
            lane.check(now)
        await self._close([team for team, lane in self.lanes.items() if _is_over(lane, now, idle)])
        for team, after in self.out_of_order.turns(self._wanted - {self._head}, _TEAMS - len(self.lanes)):
            lane = TeamLane(self._js, team, after, most=_EACH, page=_PAGE_BYTES, news=self._news.set)
            await lane.open()
            self._wanted.discard(team)
            self.lanes[team] = lane
            if lane.more <= _EACH:
                self._window.share()
        for lane in list(self.lanes.values()):
            if lane.team != self._head:
                await lane.ask()
        self._window.unsure = False

    async def _find(self, now: float) -> None:
        """A team is active if its number of requests in the stream has changed (it has sent some, or some were trimmed)."""
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
    """The interval between two look-ups: a team that invents ten thousand users must not keep admission busy listing them."""
    return _LOOK_S * max(1.0, senders / _SENDERS)


def _is_over(lane: TeamLane, now: float, idle_s: float) -> bool:
    return bool(lane.broken) or (not lane.held and not lane.more and now - lane.heard_s >= idle_s)


def _cost(payload: bytes, headers: Mapping[str, str] | None) -> int:
    """The cost of a request, in requests of usual size."""
    return 1 + (len(payload) + _HEADER_BYTES * len(headers or ())) // _HEAVY_BYTES


def _first_new(messages: Sequence[Msg]) -> int | None:
    """The stream sequence of the first message that was not delivered before: how far the consumer has come."""
    return next((m.metadata.sequence.stream for m in messages if m.metadata.num_delivered == 1), None)


def _team_of(subject: str) -> str:
    """The subject's team; "" when it names none, which the queue deals with."""
    try:
        return subjects.read(subjects.COMMAND, subject)["team"]
    except ValueError:
        return ""
