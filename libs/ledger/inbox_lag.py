"""The lag of the writer: how far its inputs are behind the newest message of its inbox.

Each message says how many come after it, but as of when it was sent: a writer that was frozen would read old messages from its
socket that say that nothing waits. So the broker is asked before a decision, unless it was within the last second.
"""

import logging

from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext

from libs.bus.direct import stamp_us
from libs.bus.retry import UNAVAILABLE
from libs.core.state.catching_up import CatchingUp
from libs.ports.clock import boot_s

log = logging.getLogger("baton.ledger")

_LOOK_S = 0.9
"""Just under the tick interval (1 s): in an idle pool each tick asks, and a submit between two ticks need not wait for that."""
_ANSWER_S = 1.0


class InboxLag:
    """The lag in one writer's inbox, the stream `stream`."""

    def __init__(self, js: JetStreamContext, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._newest_us = 0
        self._looked_s: float | None = None
        self._unknown = False
        self._catching_up = CatchingUp()

    async def is_far(self, input_us: int) -> bool:
        """Whether a decision whose last input was stored at `input_us` lags so far that it may grant nothing, or the lag is not
        known. Raises ConnectionClosedError."""
        now_s = boot_s()
        if self._looked_s is None or now_s - self._looked_s >= _LOOK_S:
            try:
                told = await self._js._api_request(f"{self._js._prefix}.STREAM.INFO.{self._stream}", timeout=_ANSWER_S)
            except ConnectionClosedError:
                raise
            except UNAVAILABLE as error:
                if not self._unknown:
                    log.warning("stream %s does not say what it holds, and nothing is granted: %r", self._stream, error)
                self._unknown = True
                return True
            self._unknown = False
            self._looked_s, self._newest_us = now_s, stamp_us(told["state"]["last_ts"])
        before, self._catching_up = self._catching_up, self._catching_up.decides(input_us, self._newest_us)
        self._tell(before)
        return self._catching_up.waits

    def _tell(self, before: CatchingUp) -> None:
        now = self._catching_up
        if now.until_us == before.until_us:
            return
        if not now.until_us:
            log.warning("stream %s is caught up with", self._stream)
        else:
            what = "nothing is granted until they are decided" if now.waits else "it is not catching up, and grants"
            log.warning("inputs of stream %s waited for %.0f s: %s", self._stream, now.behind_us / 1e6, what)
