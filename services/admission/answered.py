"""Which requests were answered, by any process: the stored answer stays valid when a request is redelivered.

A process may die between storing an answer and acknowledging the request, or its acknowledgement is lost. The request is then
redelivered, here or to another process, and by then the pool may have grown, or files may have changed. So at its start,
whenever a request is redelivered, and at intervals, a process reads the refusals stored since the oldest unacknowledged
request, and the jobs that were admitted and are not decided by their pool. It does not subscribe to them, because a
subscription also gets messages that the broker did not store. For answers since the last look the broker knows the message ids
(`services/admission/one_answer.py`).
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from libs.bus import direct
from libs.bus.retry import retry_while_away
from libs.ports import clock
from schemas import subjects
from schemas.subjects import EVENTS, REQUESTS
from services.admission.undecided import undecided

log = logging.getLogger("baton.admission")

ID = "ce-id"
LOOK_S: Final = 30.0
"""The interval at which the streams are read while requests come: well within the broker's memory of message ids."""
_REMEMBERED = 100_000
_PAGE = 512
_TOLD = subjects.anyone(subjects.EVENT, entity="job", what="rejected")
_ASKED = subjects.anyone(subjects.COMMAND, entity="job")


class Answered:
    """The ids of the latest refusals (`schemas.ids.rejection_id`), and of requests that were admitted (`answer_id`), up to a
    hundred thousand together.

    Args:
        durable: the consumer that acknowledges requests.
        decided: up to where each pool's inbox is decided.
        sent: called with each job that was admitted, and its pool.
    """

    def __init__(
        self,
        js: JetStreamContext,
        durable: str,
        decided: Callable[[], Mapping[str, int]] = dict,
        sent: Callable[[str, str], None] = lambda job, pool: None,
    ) -> None:
        self._js, self._durable, self._decided, self._sent = js, durable, decided, sent
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._next = 0
        """Of EVENTS: everything before it was read. 0: nothing yet."""
        self._inboxes: dict[str, int] = {}  # pool -> everything up to there was read
        self._looked_s = -math.inf

    def __contains__(self, id_: object) -> bool:
        return id_ in self._ids

    async def catch_up(self) -> None:
        """To be called at the start, and before requests that come again are decided. A broker that is away is waited for."""
        at_s = clock.boot_s()
        await retry_while_away(self._refused, _away)
        for pool, decided in self._decided().items():
            found, self._inboxes[pool] = await undecided(self._js, pool, max(decided, self._inboxes.get(pool, 0)))
            for one in found:
                self._add(one.answer)
                if one.job:
                    self._sent(one.job, pool)
        self._looked_s = at_s

    async def now_and_then(self) -> None:
        """To be called before any requests are decided."""
        if clock.boot_s() - self._looked_s >= LOOK_S:
            await self.catch_up()

    def _add(self, id_: str) -> None:
        self._ids[id_] = None
        while len(self._ids) > _REMEMBERED:
            self._ids.popitem(last=False)

    async def _refused(self) -> None:
        """Raises nats errors and TimeoutError."""
        start: dict[str, Any] = {"seq": self._next}
        if not self._next:
            # First of all: what is told after this is not passed over.
            last = (await self._js.stream_info(EVENTS)).state.last_seq
            floor = (await self._js.consumer_info(REQUESTS, self._durable)).ack_floor
            first = {"seq": (floor.stream_seq if floor is not None else 0) + 1}
            oldest = (await direct.get(self._js, REQUESTS, _ASKED, first, 1)).messages
            if not oldest:
                self._next = last + 1
                return
            since = datetime.fromtimestamp(direct.received_of(oldest[0]).time_us / 1e6, UTC)
            start = {"start_time": since.isoformat()}
        for _ in range(_REMEMBERED // _PAGE):
            page = await direct.get(self._js, EVENTS, _TOLD, start, _PAGE)
            for message in page.messages:
                if id_ := _id_of(message):
                    self._add(id_)
                self._next = int((message.headers or {})[direct.SEQUENCE]) + 1
            if not page.messages or not page.more:
                return
            start = {"seq": self._next}


def _id_of(message: Msg) -> str:
    return (message.headers or {}).get(ID, "")


def _away(error: Exception, failures: int) -> None:
    """Told once of each row of failures: an outage is one thing, however often it is asked again."""
    if not failures:
        log.warning("what was refused before cannot be read: %r", error)
