"""Lowers the maximum message size of REQUESTS while the stream fills up, so that large requests leave space for small ones.

The broker bounds the number of messages of a user (`libs.bus.table.WAITING_OF_A_SENDER`), but a team can invent users: with
requests of the largest size it would fill the stream in seconds, faster than they are read. The broker checks a stream's
maximum message size before it stores anything, so that limit follows the fill level. Stored requests stay and are answered; a
sender of a larger one is refused with *busy*.

The limit depends on the stream's fill level alone, so two processes that set it agree, and no state is kept. The process that
provisions streams sets it (`baton up`, `baton provision --follow`), and no service does: the right to change a stream's
settings includes the right to have its messages sent elsewhere.
"""

import logging
from typing import Final

from nats.js import JetStreamContext

from libs.bus.retry import run_periodically
from libs.bus.trim import fill_of
from schemas.subjects import REQUESTS

log = logging.getLogger("baton.streams")

SIZE_STEPS: Final = ((0.75, 4 * 1024), (0.5, 16 * 1024), (0.25, 64 * 1024))
"""(fill level, bytes): from that level on a request may have so many bytes, headers included. A usual one has 1 KiB."""
LIFTED_BELOW: Final = 0.2
"""Below this fill level a request may be of any size again."""
LOOK_S = 0.5
"""At its fastest the broker stores a fifth of the stream between a few looks."""
QUIET_LOOK_S = 1.5
"""While nothing new is stored: what comes by the next look is below the first bound."""
_ANY = -1


def size_limit_at(fill: float, now: int) -> int:
    """The limit in bytes at fill level `fill` (0 to 1), where it is `now` at present; -1: no limit."""
    if fill < LIFTED_BELOW:
        return _ANY
    narrowed = next((size for full, size in SIZE_STEPS if fill >= full), _ANY)
    return min((size for size in (narrowed, now) if size > 0), default=_ANY)


class RequestSizeLimit:
    """Keeps the limit up to date; `run` is a task."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._last_seq = -1

    async def run(self) -> None:
        """Runs for ever and waits while the broker is unavailable. Raises ConnectionClosedError."""
        await run_periodically(self.turn, LOOK_S, log, "how large requests may be does not follow how full REQUESTS is")

    async def turn(self) -> float:
        """Checks once and returns the seconds until the next check. Raises nats errors."""
        info = await self._js.stream_info(REQUESTS)
        quiet, self._last_seq = info.state.last_seq == self._last_seq, info.state.last_seq
        now, fill = info.config.max_msg_size or _ANY, fill_of(info)
        most = size_limit_at(fill, now)
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
