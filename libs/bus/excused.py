"""Deliveries that reached no decision, and so do not count against their message.

The broker counts deliveries. One that ended because nothing could be stored (a full stream, a broker that is away) says
nothing about the message: after eight minutes of a full inbox, good submits would look like messages that crash their reader.
So for each message that is put off the number of its deliveries so far is remembered, and only later ones count.

It is also stored (one value for all of a consumer's messages), because the process that gets the message next may be another
one. It is stored before the message is put off; where even that is not possible, this process still knows.
"""

import logging
from collections.abc import Iterable

from libs.bus.cursors import Cursors
from libs.bus.dead import Received
from libs.bus.patience import AWAY

log = logging.getLogger("baton.settle")

_REMEMBERED = 5_000
"""As many as a consumer may have unsettled (`max_ack_pending`)."""

_UNSUSPICIOUS = 2
"""So few deliveries are below every limit: no need to ask what is stored."""


class Excused:
    """What one consumer's messages are excused. `name` is the durable's."""

    def __init__(self, cursors: Cursors, name: str) -> None:
        self._cursors = cursors
        self._key = f"excused-{name}"
        self._deliveries: dict[int, int] = {}  # stream sequence -> deliveries that do not count

    def counted(self, received: Received) -> int:
        """The message's deliveries that count, this one included; at least 1."""
        return max(1, received.deliveries - self._deliveries.get(received.stream_seq, 0))

    async def recall(self, batch: Iterable[Received]) -> None:
        """To be called before a batch is looked at: reads what other processes have stored, where that could matter."""
        unknown = [r for r in batch if r.deliveries > _UNSUSPICIOUS and r.stream_seq not in self._deliveries]
        if not unknown:
            return
        try:
            self._merge(await self._cursors.load(self._key) or {})
        except (*AWAY, ValueError) as error:
            log.warning("what deliveries of %s are excused cannot be read: %r", self._key, error)
        for received in unknown:  # asked once
            self._deliveries.setdefault(received.stream_seq, 0)

    async def excuse(self, batch: Iterable[Received]) -> None:
        """These are put off, and none of their deliveries so far counts."""
        news = {r.stream_seq: r.deliveries for r in batch}
        if not news:
            return
        self._deliveries |= news
        try:
            self._merge(await self._cursors.load(self._key) or {})
            kept = sorted(self._deliveries.items())[-_REMEMBERED:]
            self._deliveries = dict(kept)
            await self._cursors.save(self._key, {str(seq): count for seq, count in kept if count})
        except (*AWAY, ValueError) as error:
            log.warning("that deliveries of %s are excused is not stored: %r", self._key, error)

    def settled(self, received: Received) -> None:
        """It comes no more."""
        self._deliveries.pop(received.stream_seq, None)

    def _merge(self, stored: dict[str, int]) -> None:
        for seq, count in stored.items():
            self._deliveries[int(seq)] = max(self._deliveries.get(int(seq), 0), int(count))
