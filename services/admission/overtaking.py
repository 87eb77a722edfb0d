"""Takes requests of every team out of their turn while the line is long (see `services/admission/ahead.py`).

Each time there is room in the inboxes, a round goes before the line's next portion: every other team with requests gets an
equal share of the room, and the line what these leave. So a team with few requests waits for one portion and not for the
crowd, and nothing is left unused.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from libs.bus import direct
from libs.bus.dead import Received
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from schemas import subjects
from schemas.subjects import REQUESTS
from services.admission.ahead import Ahead
from services.admission.pace import Pace

log = logging.getLogger("baton.admission")

_ALL_S = 0.5
"""So often every team of the stream is looked at. In between those whose number of messages has changed."""
_REST = 20
"""One second of looking who waits is followed by so many without: thousands of teams make it slow."""
_TEAMS = 32
"""Teams in one round."""

Decide = Callable[[Received], list[Outgoing]]


class Overtaking:
    """`portion` is asked before each part of a batch of the line is decided; `ahead` knows what of it is done already."""

    def __init__(self, js: JetStreamContext, decide: Decide, outbox: Outbox, pace: Pace) -> None:
        self.ahead = Ahead()
        self._js = js
        self._decide = decide
        self._outbox = outbox
        self._pace = pace
        self._teams: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._all_at = -_ALL_S
        self._look_at = 0.0

    async def portion(self, left: Sequence[Msg]) -> int:
        """How many of the line's messages at hand may be decided now. While it waits for room, and in the round that it then
        makes, the others are overtaken."""
        if (first := _first_new(left)) is not None:
            self.ahead.came_to(first - 1)
        count = len(left)
        if left[-1].metadata.num_pending + len(left) > self._pace.shared:
            room = await self._pace.room()
            head = next((m for m in left if not self.ahead.is_done(m.metadata.sequence.stream)), left[-1])
            count = self._first_of(left, max(1, room - await self._round(room, _team_of(head.subject))))
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

    async def _round(self, room: int, besides: str) -> int:
        try:
            return await self.turn(room, besides)
        except ConnectionClosedError:
            raise
        except (NatsError, TimeoutError, OSError) as error:
            log.warning("no request is taken out of its turn: %r", error)
            return 0

    async def turn(self, room: int, besides: str = "") -> int:
        """One round: of each team but `besides`, whose turn the line is, an equal share of `room`. How many were decided.
        Raises nats errors; whatever was stored then is stored again, or by the line, with the same ids."""
        turns = self.ahead.turns(await self._waiting() - {besides}, min(room, _TEAMS))
        share = max(1, room // (len(turns) + 1))
        pieces = await asyncio.gather(*(self._next(team, after, share) for team, after in turns))
        out: list[Outgoing] = []
        decided: list[tuple[str, int]] = []
        for (team, _), piece in zip(turns, pieces, strict=True):
            if not piece.more:
                self._teams.discard(team)  # until more of it is seen
                if piece.messages:
                    self._pace.share()
            for message in piece.messages:
                received = direct.received_of(message)
                try:
                    out += self._decide(received)
                except Exception as error:  # the line knows what to do with it: to try again, to lay it aside
                    log.debug("a request of team %s waits for the line: %r", team, error)
                    self.ahead.hold(team, received.stream_seq)
                    break
                decided.append((team, received.stream_seq))
        await self._outbox.publish_many(out)
        for team, seq in decided:
            self.ahead.took(team, seq)
        return len(decided)

    async def _next(self, team: str, after: int, most: int) -> direct.Piece:
        pattern = subjects.anyone(subjects.COMMAND, entity="job", team=team)
        return await direct.get(self._js, REQUESTS, pattern, {"seq": after + 1}, most)

    async def _waiting(self) -> set[str]:
        """Teams that may have requests in the stream that nobody has looked at."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now < self._look_at:
            return self._teams
        pattern = subjects.anyone(subjects.COMMAND, entity="job")
        found = (await self._js.stream_info(REQUESTS, subjects_filter=pattern)).state.subjects or {}
        counts: Counter[str] = Counter()
        for subject, count in found.items():
            counts[_team_of(subject)] += count
        everyone = now - self._all_at >= _ALL_S
        self._teams |= {team for team, count in counts.items() if team and (everyone or count != self._counts[team])}
        self._counts = counts
        if everyone:
            self._all_at = now
        self._look_at = now + (loop.time() - now) * _REST
        return self._teams


def _first_new(messages: Sequence[Msg]) -> int | None:
    """The stream sequence of the first that was not delivered before: how far the line is."""
    return next((m.metadata.sequence.stream for m in messages if m.metadata.num_delivered == 1), None)


def _team_of(subject: str) -> str:
    """The subject's team; "" when it says none, which the line answers for."""
    try:
        return subjects.read(subjects.COMMAND, subject)["team"]
    except ValueError:
        return ""
