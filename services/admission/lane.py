"""A lane: one team's requests in order, by an ordered consumer of the team's subjects.

Polling by direct gets would cost more: the broker counts what is left after each, and waits for the stream's lock at each
message. A consumer gets this team's messages only, and at once. Requests in flight and in memory are bounded by `most`, and by
bytes: a page is asked for while less than a page is held. A lane whose consumer breaks is closed, and another is opened behind
what was decided.
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
    """`held`: requests that were read and not decided; `more`: how many the broker has behind them. `news` is called when one
    arrives, or a pull request ends."""

    def __init__(
        self, js: JetStreamContext, team: str, after: int, *, most: int, page: int, news: Callable[[], None]
    ) -> None:
        self.team = team
        self.held: deque[Received] = deque()
        self.more = 0
        self.heard_s = 0.0
        """When the last request arrived, or the lane was opened: seconds of the loop's clock."""
        self._most, self._page, self._news = most, page, news
        self._consumer = OrderedConsumer(js, REQUESTS, after, self._take, news)

    @property
    def broken(self) -> str:
        """Why the lane is closed; "" while it is open."""
        return self._consumer.broken

    def end(self, why: str) -> None:
        """Closes the lane: what arrives from here on is not kept."""
        self._consumer.end(why)

    @property
    def bytes(self) -> int:
        """The size of the requests that are held."""
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
