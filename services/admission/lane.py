"""One team's requests in their order, as they are stored: an ordered consumer of the team's subjects.

A direct get for each look costs more: the broker counts what is left after it, and it waits for the stream's lock at
each message. A consumer is told by the broker, at once, and only of this team's. What is on its way and in memory is
bounded by `most` requests, and by a page of bytes that is asked for while less than a page is held. A lane whose consumer is
broken is over: another is opened behind what was decided.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from libs.bus.dead import Received
from libs.bus.delivery import Delivery
from libs.bus.messages import header_bytes
from libs.bus.ordered import OrderedConsumer
from libs.bus.settle import received_of
from schemas import subjects
from schemas.subjects import REQUESTS


class TeamLane:
    """`held` are its requests that were read and not decided; `more`: how many the broker has behind them. `news` is called
    when one has come, or a request for some is over."""

    def __init__(
        self, js: JetStreamContext, team: str, after: int, *, most: int, page: int, news: Callable[[], None]
    ) -> None:
        self.team = team
        self.held: deque[Received] = deque()
        self.more = 0
        self.heard_s = 0.0
        """When a request came last, or it was opened: seconds of the loop's clock."""
        self._most, self._page, self._news = most, page, news
        self._consumer = OrderedConsumer(js, REQUESTS, after, self._take, news)

    @property
    def broken(self) -> str:
        """Why it is over; "" while it is not."""
        return self._consumer.broken

    def end(self, why: str) -> None:
        """What is read after this is not kept."""
        self._consumer.end(why)

    @property
    def bytes(self) -> int:
        """Of the requests that are held."""
        return sum(len(r.payload) + header_bytes(r.headers) for r in self.held)

    async def open(self) -> None:
        """Raises nats errors."""
        of_team = subjects.anyone(subjects.COMMAND, entity="job", team=self.team)
        self.more = await self._consumer.open(subject=of_team)
        self.heard_s = asyncio.get_running_loop().time()

    async def ask(self) -> None:
        """Asks for as many as there is room for. Raises nats errors."""
        if self.bytes < self._page:
            await self._consumer.ask(self._most, len(self.held), self._page)

    async def close(self) -> None:
        """Gives the consumer back; what is held is forgotten."""
        self.held.clear()
        await self._consumer.close()

    def check(self, now: float) -> None:
        """Whether it is still whole: `broken` says what is wrong."""
        self._consumer.check(now)

    def _take(self, told: Delivery, message: Msg) -> None:
        self.more, self.heard_s = told.pending, self._consumer.heard_s
        self.held.append(received_of(message))
        self._news()
