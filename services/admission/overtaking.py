"""Takes requests of every team out of their turn while the line is long (see `services/admission/ahead.py`)."""

import asyncio
import logging
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
from services.admission.pace import Pace, admitted_to

log = logging.getLogger("baton.admission")

_LOOK_S = 0.05
_TEAMS_S = 0.5
_EACH = 8
"""Requests of one team in its turn. The next turn is when they are decided: so many of a team lie in the inboxes."""
_TEAMS = 32
"""Teams in one round."""

Decide = Callable[[Received], list[Outgoing]]


class Overtaking:
    """`run` as a task; `before` with each batch of the line; `done` for each of its messages."""

    def __init__(self, js: JetStreamContext, decide: Decide, outbox: Outbox, pace: Pace, *, behind: int) -> None:
        self.ahead = Ahead()
        self._js = js
        self._decide = decide
        self._outbox = outbox
        self._pace = pace
        self._behind = behind
        self._pending = 0  # requests that the line had still to hand out when it last did
        self._last: dict[
            str, tuple[str, int]
        ] = {}  # team -> where the last job that it got in so lies: (pool, sequence)
        self._teams: set[str] = set()
        self._teams_at = -_TEAMS_S

    async def before(self, messages: Sequence[Msg]) -> None:
        """Notes how far the line is, and keeps its pace. While a batch waits for that, it may be overtaken, too."""
        self._pending = messages[-1].metadata.num_pending
        new = [message.metadata.sequence.stream for message in messages if message.metadata.num_delivered == 1]
        if new:
            self.ahead.came_to(new[0] - 1)
        if self._pending >= self._behind:
            await self._pace.wait()
        if new:
            self.ahead.came_to(new[-1])

    async def run(self) -> None:
        """For ever. A broker that is away is waited for. Raises ConnectionClosedError."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._pending < self._behind:
                continue
            try:
                await self.turn()
            except ConnectionClosedError:
                raise
            except (NatsError, TimeoutError, OSError) as error:
                log.warning("no request is taken out of its turn: %r", error)

    async def turn(self) -> None:
        """One round: some requests of each team. Raises nats errors; whatever was stored then is stored again, or by the
        line, with the same ids."""
        teams = [team for team in await self._waiting() if self._pace.has_decided(*self._last.get(team, ("", 0)))]
        for team, after in self.ahead.turns(teams, _TEAMS):
            pattern = subjects.anyone(subjects.COMMAND, entity="job", team=team)
            piece = await direct.get(self._js, REQUESTS, pattern, {"seq": after + 1}, _EACH)
            if not piece.messages:
                self._teams.discard(team)  # until the next look
            await self._take(team, [direct.received_of(message) for message in piece.messages])

    async def _take(self, team: str, requests: Sequence[Received]) -> None:
        out: list[Outgoing] = []
        decided: list[int] = []
        for received in requests:
            try:
                out += self._decide(received)
            except Exception as error:  # the line knows what to do with it: to try again, to lay it aside
                log.debug("a request of team %s waits for the line: %r", team, error)
                self.ahead.hold(team, received.stream_seq)
                break
            decided.append(received.stream_seq)
        acks = await self._outbox.publish_many(out)
        for item, ack in zip(out, acks, strict=True):
            if pool := admitted_to(item):
                self._last[team] = (pool, ack.seq)
        for seq in decided:
            self.ahead.took(team, seq)

    async def _waiting(self) -> set[str]:
        """Teams that have requests in the stream, as of half a second ago at the most."""
        now = asyncio.get_running_loop().time()
        if now - self._teams_at >= _TEAMS_S:
            pattern = subjects.anyone(subjects.COMMAND, entity="job")
            state = (await self._js.stream_info(REQUESTS, subjects_filter=pattern)).state
            self._teams = {team for subject in state.subjects or {} if (team := _team_of(subject))}
            self._teams_at = now
        return self._teams


def _team_of(subject: str) -> str:
    """The subject's team; "" when it says none, which the line answers for."""
    try:
        return subjects.read(subjects.COMMAND, subject)["team"]
    except ValueError:
        return ""
