"""Acknowledged, retrying, de-duplicated publish.

nats-py's `publish_async` loses what is in flight when the connection breaks: its futures never resolve, and each keeps
one of a bounded number of permits. Here every message has an id, is sent again with the same id until the broker says
that it is stored, and every abandoned future is cancelled, which gives its permit back.
"""

import asyncio
from collections.abc import Sequence

from nats.js import JetStreamContext, api
from nats.js.errors import NoStreamResponseError, ServiceUnavailableError, TooManyStalledMsgsError

from libs.bus.messages import Outgoing
from nats.errors import ConnectionClosedError, OutboundBufferLimitError

_AGAIN = (NoStreamResponseError, ServiceUnavailableError)
"""No leader yet, stream not loaded yet: the same publish works in a moment."""


class NotStored(TimeoutError):
    """The broker did not acknowledge in time. Some messages may be stored; their ids make a repeat harmless."""


class Outbox:
    """Publishes lists of messages; returns when all of them are stored.

    Args:
        ack_timeout_s: how long one round waits for acknowledgements before what is missing is sent again.
        give_up_s: after this, NotStored.
    """

    def __init__(self, js: JetStreamContext, *, ack_timeout_s: float = 2.0, give_up_s: float = 60.0) -> None:
        self._js = js
        self._ack_timeout_s = ack_timeout_s
        self._give_up_s = give_up_s

    async def publish(self, item: Outgoing) -> api.PubAck:
        """One message; see `publish_many`."""
        (ack,) = await self.publish_many([item])
        return ack

    async def publish_many(self, items: Sequence[Outgoing]) -> list[api.PubAck]:
        """Stores every item, each once within the stream's duplicate window, and returns their acknowledgements.

        The order of arrival is the order of `items`, unless some had to be sent again.

        Raises:
            NotStored: after `give_up_s`.
            nats.js.errors.APIError: the stream refused a message for good (too large, full, wrong expectation).
            nats.errors.ConnectionClosedError: the client was closed.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._give_up_s
        acks: list[api.PubAck | None] = [None] * len(items)
        todo = list(range(len(items)))
        pause = 0.05
        while True:
            todo = await self._round(items, todo, acks)
            if not todo:
                return [ack for ack in acks if ack is not None]
            if loop.time() > give_up:
                raise NotStored(f"{len(todo)} of {len(items)} messages not acknowledged in {self._give_up_s:g} s")
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)

    async def _round(self, items: Sequence[Outgoing], todo: list[int], acks: list[api.PubAck | None]) -> list[int]:
        """Sends `todo` once; fills `acks`; returns what has to be sent again."""
        futures: dict[int, asyncio.Future[api.PubAck]] = {}
        try:
            async with asyncio.timeout(self._ack_timeout_s):
                for i in todo:
                    item = items[i]
                    futures[i] = await self._js.publish_async(item.subject, item.payload, headers=item.headers)
        except (TimeoutError, TooManyStalledMsgsError, OutboundBufferLimitError):
            pass  # what was not sent is not in `futures`, and comes again
        if futures:
            await asyncio.wait(futures.values(), timeout=self._ack_timeout_s)
        again: list[int] = []
        refusal: BaseException | None = None
        for i in todo:
            future = futures.get(i)
            if future is None:
                again.append(i)
            elif not future.done():
                future.cancel()  # gives nats-py's permit back
                again.append(i)
            elif (error := future.exception()) is None:
                acks[i] = future.result()
            elif isinstance(error, _AGAIN) or error in _AGAIN:
                again.append(i)
            else:
                refusal = refusal or error
        if refusal is not None:
            raise refusal if isinstance(refusal, BaseException) else ConnectionClosedError
        return again
