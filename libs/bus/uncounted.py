"""Deliveries that are not counted as failed tries of their message.

The broker counts deliveries, and a message with too many becomes a dead letter. A delivery that ended because nothing could be
stored (a full stream, an unavailable broker) says nothing about the message: after eight minutes of a full inbox, good submits
would look like poison messages. So for each message that is postponed the number of its deliveries so far is remembered, and
only later ones count.

The numbers are also stored (one value for all messages of a consumer), because another process may get the message next. They
are stored before the message is postponed; where that is not possible, this process still knows them.
"""

import logging
from collections.abc import Iterable

from libs.bus.cursors import Cursors
from libs.bus.dead import Received
from libs.bus.retry import UNAVAILABLE

log = logging.getLogger("baton.settle")

_REMEMBERED = 5_000
"""As many as a consumer may have unsettled (`max_ack_pending`)."""

_UNSUSPICIOUS = 2
"""Up to so many deliveries are below every limit, so the stored numbers are not read."""


class UncountedDeliveries:
    """The uncounted deliveries of one consumer's messages. `name` is the durable's."""

    def __init__(self, cursors: Cursors, name: str) -> None:
        self._cursors = cursors
        self._key = f"excused-{name}"
        self._deliveries: dict[int, int] = {}  # stream sequence -> deliveries that do not count

    def counted(self, received: Received) -> int:
        """The number of deliveries that count, this one included; at least 1."""
        return max(1, received.deliveries - self._deliveries.get(received.stream_seq, 0))

    async def recall(self, batch: Iterable[Received]) -> None:
        """Reads what other processes have stored, where that could matter. Call it before a batch is handled."""
        unknown = [r for r in batch if r.deliveries > _UNSUSPICIOUS and r.stream_seq not in self._deliveries]
        if not unknown:
            return
        try:
            self._merge(await self._cursors.load(self._key) or {})
        except (*UNAVAILABLE, ValueError) as error:
            log.warning("the uncounted deliveries (%s) cannot be read: %r", self._key, error)
        for received in unknown:  # asked once
            self._deliveries.setdefault(received.stream_seq, 0)

    async def discount(self, batch: Iterable[Received]) -> None:
        """These messages are postponed: none of their deliveries so far counts."""
        news = {r.stream_seq: r.deliveries for r in batch}
        if not news:
            return
        self._deliveries |= news
        try:
            self._merge(await self._cursors.load(self._key) or {})
            kept = sorted(self._deliveries.items())[-_REMEMBERED:]
            self._deliveries = dict(kept)
            await self._cursors.save(self._key, {str(seq): count for seq, count in kept if count})
        except (*UNAVAILABLE, ValueError) as error:
            log.warning("the uncounted deliveries (%s) cannot be stored: %r", self._key, error)

    def settled(self, received: Received) -> None:
        """Forgets the message: it is not delivered again."""
        self._deliveries.pop(received.stream_seq, None)

    def _merge(self, stored: dict[str, int]) -> None:
        for seq, count in stored.items():
            self._deliveries[int(seq)] = max(self._deliveries.get(int(seq), 0), int(count))
