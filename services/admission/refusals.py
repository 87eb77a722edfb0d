"""Requests that were refused, whoever refused them: a refusal is the answer, also when its request comes again.

A process may die between telling a refusal and acknowledging the request, or its acknowledgement is lost. Then the request
comes again, here or to another process, and by then the pool may have grown: a job would run of which its team was told
that it never will. So at its start, and whenever a request comes again, a process reads which refusals were stored since the
oldest request that is not acknowledged. It does not listen to them: who listens also hears what the broker did not store.
"""

import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from libs.bus import direct
from libs.bus.patience import patiently
from schemas import subjects
from schemas.subjects import EVENTS, REQUESTS

log = logging.getLogger("baton.admission")

ID = "ce-id"
_REMEMBERED = 100_000
_PAGE = 512
_TOLD = subjects.anyone(subjects.EVENT, entity="job", what="rejected")
_ASKED = subjects.anyone(subjects.COMMAND, entity="job")


class ToldRefusals:
    """Has the ids of refusals (`schemas.ids.rejection_id`) that were told last, up to a hundred thousand. `durable`: who
    acknowledges requests."""

    def __init__(self, js: JetStreamContext, durable: str) -> None:
        self._js, self._durable = js, durable
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._next = 0
        """Of EVENTS: everything before it was read. 0: nothing yet."""

    def __contains__(self, id_: object) -> bool:
        return id_ in self._ids

    async def catch_up(self) -> None:
        """To be called at the start, and before requests that come again are decided. A broker that is away is waited for."""
        await patiently(self._read, _away)

    def _add(self, message: Msg) -> None:
        if id_ := (message.headers or {}).get(ID):
            self._ids[id_] = None
            while len(self._ids) > _REMEMBERED:
                self._ids.popitem(last=False)

    async def _read(self) -> None:
        """Raises nats errors and TimeoutError."""
        start: dict[str, Any] = {"seq": self._next}
        if not self._next:
            floor = (await self._js.consumer_info(REQUESTS, self._durable)).ack_floor
            first = {"seq": (floor.stream_seq if floor is not None else 0) + 1}
            oldest = (await direct.get(self._js, REQUESTS, _ASKED, first, 1)).messages
            if not oldest:
                return
            since = datetime.fromtimestamp(direct.received_of(oldest[0]).time_us / 1e6, UTC)
            start = {"start_time": since.isoformat()}
        for _ in range(_REMEMBERED // _PAGE):
            page = await direct.get(self._js, EVENTS, _TOLD, start, _PAGE)
            for message in page.messages:
                self._add(message)
                self._next = int((message.headers or {})[direct.SEQUENCE]) + 1
            if not page.messages or not page.more:
                return
            start = {"seq": self._next}


def _away(error: Exception, failures: int) -> None:
    """Told once of each row of failures: an outage is one thing, however often it is asked again."""
    if not failures:
        log.warning("what was refused before cannot be read: %r", error)
