"""What the servers of a broker answer to a question of the system account, each by itself."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

ANSWER_S, _MORE_S = 1.0, 0.05
"""For the first server of a cluster, and for each further one."""


class BrokerAnswers:
    """To this question and to those before it: a busy broker answers late (`libs.walls.traces`)."""

    _subscription: Subscription

    def __init__(self, subject: str) -> None:
        self._nats: Client | None = None
        self._subject, self._inbox, self._asked_s = subject, "", 0.0

    async def ask(self, nats: Client, body: Mapping[str, Any]) -> None:
        """Raises nats errors."""
        if nats is not self._nats:
            self._inbox, self._asked_s = nats.new_inbox(), 0.0
            self._subscription = await nats.subscribe(self._inbox)
            self._nats = nats
        await nats.publish(self._subject, json.dumps(body).encode(), reply=self._inbox)
        self._asked_s = self._asked_s or time.monotonic()

    @property
    def waited_s(self) -> float:
        """For how long nothing was answered that was asked; 0: nothing was asked since."""
        return time.monotonic() - self._asked_s if self._asked_s else 0.0

    async def close(self) -> None:
        """What comes now is nobody's."""
        if self._nats is not None:
            self._nats = None
            with suppress(NatsError):
                await self._subscription.unsubscribe()

    async def heard(self, wait_s: float = ANSWER_S) -> list[dict[str, Any]]:
        """Raises nats errors."""
        if self._nats is None:
            return []
        if found := await _collected(self._subscription, wait_s):
            self._asked_s = 0.0
        return found


async def answers(nats: Client, subject: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each server answers."""
    inbox = nats.new_inbox()
    subscription = await nats.subscribe(inbox)
    try:
        await nats.publish(subject, json.dumps(body).encode(), reply=inbox)
        return await _collected(subscription, ANSWER_S)
    finally:
        await subscription.unsubscribe()


async def _collected(subscription: Subscription, wait_s: float) -> list[dict[str, Any]]:
    """Until no more come."""
    found = list[dict[str, Any]]()
    with suppress(TimeoutError):
        while True:
            found.append(json.loads((await subscription.next_msg(timeout=wait_s)).data).get("data", {}))
            wait_s = _MORE_S
    return found
