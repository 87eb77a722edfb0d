"""Takes requests of every team out of their turn while the queue is long (see `services/admission/ahead.py`).

    run      reads ahead: a few requests of every team that has some, into memory
    portion  asked before each part of the queue is decided: waits for room in the inboxes, gives every other team that has
             been read an equal share of it, and the queue what these leave

So a team with few requests waits for one portion and not for the crowd, and nothing is left unused. Reading is apart, because
a broker that stores a crowd answers slowly, and the queue should not wait for that.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from libs.bus import direct
from libs.bus.dead import Received
from libs.bus.messages import Outgoing, header_bytes
from libs.bus.outbox import Outbox
from schemas import subjects
from schemas.subjects import REQUESTS
from services.admission.ahead import Ahead
from services.admission.pace import Pace

log = logging.getLogger("baton.admission")

_LOOK_S = 0.04
_IDLE_S = 0.1
_ALL_S = 0.5
"""So often it is looked which teams the stream has messages of."""
_ABOUT_S = 5.0
"""A team that sent something in so many seconds is read in each turn, the others when they were looked at."""
_TEAMS = 32
"""Teams of which requests are held in memory at the most: another is begun when all that is held of one was decided."""
_EACH = 32
"""Requests of one team that are read in one go, when at most half as many are left of it."""
_PAGE_BYTES = 1024 * 1024
_BYTES = 32 * 1024 * 1024
"""Of requests that are held, of all teams: nothing more is read from there on. A page has at least one request, so for each
team one more may come, of the size that the broker takes."""

Decide = Callable[[Received], list[Outgoing]]


class Overtaking:
    """`run` is a task; `ahead` knows what the queue finds done already."""

    def __init__(self, js: JetStreamContext, decide: Decide, outbox: Outbox, pace: Pace) -> None:
        self.ahead = Ahead()
        self._js = js
        self._decide = decide
        self._outbox = outbox
        self._pace = pace
        self._crowded = asyncio.Event()
        self._held: dict[str, deque[Received]] = {}  # team -> its next requests, read and not decided: at most _TEAMS
        self._few: set[str] = set()  # teams of which all has been read
        self._head = ""  # the team whose turn the queue is
        self._storing: asyncio.Task[None] | None = None
        self._teams: set[str] = set()
        self._about: dict[str, float] = {}  # team -> when a request of it was read last
        self._look_at = 0.0

    @property
    def held(self) -> dict[str, int]:
        """Bytes of the requests that are in memory, read and not decided, by team."""
        return {team: sum(map(_size, held)) for team, held in self._held.items()}

    # ------------------------------------------------------------------------------------------------------ the queue

    async def portion(self, left: Sequence[Msg]) -> int:
        """How many of the queue's messages at hand may be decided now. While it waits for room they may be overtaken."""
        if (first := _first_new(left)) is not None:
            self.ahead.came_to(first - 1)
        count = len(left)
        if left[-1].metadata.num_pending + len(left) <= self._pace.shared:
            self._crowded.clear()
        else:
            self._crowded.set()
            await self._stored()
            room = await self._pace.room()
            head = next((m for m in left if not self.ahead.is_done(m.metadata.sequence.stream)), left[-1])
            self._head = _team_of(head.subject)
            count = self._first_of(left, max(1, room - self._round(room)))
        if (last := _first_new(left[count - 1 :: -1])) is not None:
            self.ahead.came_to(last)
        return count

    def _first_of(self, left: Sequence[Msg], most: int) -> int:
        """How many of the first messages hold `most` that are not done yet."""
        for index, message in enumerate(left):
            most -= not self.ahead.is_done(message.metadata.sequence.stream)
            if most < 0:
                return index
        return len(left)

    # ----------------------------------------------------------------------------------------------------- the round

    def _round(self, room: int) -> int:
        """Decides an equal share of `room` of each team but the queue's; how many that were. What follows from them is stored
        beside the queue."""
        self._pass_by()
        turns = [team for team in self._held if team != self._head][:room]
        share = max(1, room // (len(turns) + 1))
        out: list[Outgoing] = []
        decided: list[tuple[str, int]] = []
        for team in turns:
            held = self._held.pop(team)  # the next round begins with another
            for received in [held.popleft() for _ in range(min(share, len(held)))]:
                try:
                    out += self._decide(received)
                except Exception as error:  # the queue knows what to do with it: to try again, to lay it aside
                    log.debug("a request of team %s waits for the queue: %r", team, error)
                    self.ahead.hold(team, received.stream_seq)
                    held.clear()
                    break
                decided.append((team, received.stream_seq))
            if held:
                self._held[team] = held
            elif team in self._few:
                self._pace.share()
        if decided:
            self._storing = asyncio.create_task(self._store(out, decided), name="requests out of their turn")
        return len(decided)

    def _pass_by(self) -> None:
        """Forgets what the queue has come to meanwhile."""
        for team, held in list(self._held.items()):
            while held and held[0].stream_seq <= self.ahead.reached:
                held.popleft()
            if not held:
                del self._held[team]

    async def _store(self, out: Sequence[Outgoing], decided: Sequence[tuple[str, int]]) -> None:
        """What cannot be stored is stored again, or by the queue, with the same ids."""
        try:
            await self._outbox.publish_many(out)
        except (NatsError, TimeoutError, OSError, ValueError) as error:
            log.warning("requests out of their turn wait for the queue: %r", error)
            for team, seq in reversed(decided):
                self.ahead.hold(team, seq)
                self._held.pop(team, None)
            return
        for team, seq in decided:
            self.ahead.took(team, seq)

    async def _stored(self) -> None:
        storing, self._storing = self._storing, None
        if storing is not None:
            await storing

    # ------------------------------------------------------------------------------------------------- reading ahead

    async def run(self) -> None:
        """For ever. A broker that is away is waited for. Raises ConnectionClosedError."""
        while True:
            await self._crowded.wait()
            try:
                await self.read()
            except ConnectionClosedError:
                raise
            except (NatsError, TimeoutError, OSError) as error:
                log.warning("no request is read out of its turn: %r", error)
            await asyncio.sleep(_LOOK_S if self._about else _IDLE_S)

    async def read(self) -> None:
        """Reads on where a team has fewer requests in memory than it may, and begins others while fewer than `_TEAMS` have
        some. Raises nats errors."""
        now = asyncio.get_running_loop().time()
        await self._look(now)
        self._about = {team: at for team, at in self._about.items() if at > now - _ABOUT_S}
        self._pass_by()
        turns = self._turns()
        room = _BYTES - sum(self.held.values())
        if not turns or room <= 0:
            return
        page = min(_PAGE_BYTES, room // len(turns))
        pieces = await asyncio.gather(*(self._next(team, after, page) for team, after in turns))
        for (team, _), piece in zip(turns, pieces, strict=True):
            found = [direct.received_of(message) for message in piece.messages]
            if found:
                self._about[team] = now
            if found and self.ahead.read(team, found[-1].stream_seq):
                self._held.setdefault(team, deque()).extend(found)
            if piece.more:
                self._few.discard(team)
                self._teams.add(team)
            else:
                self._few.add(team)
                self._teams.discard(team)

    def _turns(self) -> list[tuple[str, int]]:
        """Whose requests are read now, and after which sequence: of those that are held already, and then of new ones."""
        known = {*self._teams, *self._about} - {self._head}
        few = [t for t in known & self._held.keys() if len(self._held[t]) <= _EACH // 2 and self.ahead.may_go_on(t)]
        new = self.ahead.turns(known - self._held.keys(), max(0, _TEAMS - len(self._held)))
        return [(team, self.ahead.after(team)) for team in few] + new

    async def _next(self, team: str, after: int, max_bytes: int) -> direct.MessagePage:
        pattern = subjects.anyone(subjects.COMMAND, entity="job", team=team)
        return await direct.get(self._js, REQUESTS, pattern, {"seq": after + 1}, _EACH, max_bytes=max_bytes)

    async def _look(self, now: float) -> None:
        """Finds the teams that have messages in the stream."""
        if now < self._look_at:
            return
        self._look_at = now + _ALL_S
        pattern = subjects.anyone(subjects.COMMAND, entity="job")
        found = (await self._js.stream_info(REQUESTS, subjects_filter=pattern)).state.subjects or {}
        self._teams |= {team for subject in found if (team := _team_of(subject))}


def _size(received: Received) -> int:
    return len(received.payload) + header_bytes(received.headers)


def _first_new(messages: Sequence[Msg]) -> int | None:
    """The stream sequence of the first that was not delivered before: how far the queue is."""
    return next((m.metadata.sequence.stream for m in messages if m.metadata.num_delivered == 1), None)


def _team_of(subject: str) -> str:
    """The subject's team; "" when it says none, which the queue answers for."""
    try:
        return subjects.read(subjects.COMMAND, subject)["team"]
    except ValueError:
        return ""
