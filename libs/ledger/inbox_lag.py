"""How far the writer's inputs lie behind what its inbox holds.

What the broker says with each message (how many come after it) is of when that was sent: a writer that was frozen reads from
its socket that nothing waits. So the broker is asked, before a decision, when it was not within the last second.
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
"""So that of the ticks of an idle pool, one a second, each looks, and what is submitted between them waits for no answer."""
_ANSWER_S = 1.0


class InboxLag:
    """Of one writer's inbox, the stream `stream`."""

    def __init__(self, js: JetStreamContext, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._newest_us = 0
        self._looked_s: float | None = None
        self._unknown = False
        self._catching_up = CatchingUp()

    async def is_far(self, input_us: int) -> bool:
        """Whether nothing may begin with a decision whose last input was stored at `input_us`: it is far behind what the inbox
        holds, or nobody says what that is. Raises ConnectionClosedError."""
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
