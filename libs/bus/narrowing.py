"""While REQUESTS fills up it takes small requests alone, so that who sends large ones leaves room for the others.

The broker bounds what a user has there by number (`libs.bus.table.WAITING_OF_A_SENDER`), and a team has as many users as it
invents: with requests of the largest size it would fill the stream in seconds, faster than they are read. The stream's limit on
a message's size is the one that the broker checks before it stores anything, so it follows how full the stream is. What waits
stays, and is answered; who sends a larger one hears *busy*.

It follows from the stream alone, so any two that do this agree, and one that starts goes on where another ended. It is done by
who provisions streams (`baton up`, `baton provision --follow`) and by no service: whoever may change a stream's settings may
have its messages sent elsewhere.
"""

import logging
from typing import Final

from nats.js import JetStreamContext

from libs.bus.patience import in_turns
from libs.bus.trim import fill_of
from schemas.subjects import REQUESTS

log = logging.getLogger("baton.streams")

NARROWED: Final = ((0.75, 4 * 1024), (0.5, 16 * 1024), (0.25, 64 * 1024))
"""From so full on (of the stream) a request may have so many bytes, its headers counted; a usual one has one KiB."""
WIDE: Final = 0.2
"""When it is less full again, a request may be of any size."""
LOOK_S = 0.5
"""At its fastest the broker stores a fifth of the stream between a few looks."""
QUIET_LOOK_S = 1.5
"""While nothing new is stored: what comes by the next look is below the first bound."""
_ANY = -1


def most_bytes(fill: float, now: int) -> int:
    """What a request may have in a stream that is so full (0 to 1), when it may have `now`; -1: any size."""
    if fill < WIDE:
        return _ANY
    narrowed = next((size for full, size in NARROWED if fill >= full), _ANY)
    return min((size for size in (narrowed, now) if size > 0), default=_ANY)


class Narrowing:
    """`run` is a task."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._last_seq = -1

    async def run(self) -> None:
        """For ever. A broker that is away is waited for. Raises ConnectionClosedError."""
        await in_turns(self.turn, LOOK_S, log, "how large requests may be does not follow how full REQUESTS is")

    async def turn(self) -> float:
        """Looks once; after so many seconds it is to look again. Raises nats errors."""
        info = await self._js.stream_info(REQUESTS)
        quiet, self._last_seq = info.state.last_seq == self._last_seq, info.state.last_seq
        now, fill = info.config.max_msg_size or _ANY, fill_of(info)
        most = most_bytes(fill, now)
        if most == now:
            return QUIET_LOOK_S if quiet and most == _ANY else LOOK_S
        await self._js.update_stream(info.config.evolve(max_msg_size=most))
        if most > 0:
            log.warning(
                "REQUESTS is %.0f %% full: requests of more than %d bytes are refused as busy", 100 * fill, most
            )
        else:
            log.info("REQUESTS has room again: requests of any size are taken")
        return LOOK_S
