"""Limits on the HTTP port of a service against unauthenticated clients: every job of a node can reach a loopback port.

A connection costs a file descriptor, and uvicorn lets it idle for ever. So a connection has a maximum age, and there is a
maximum number of them: a new one replaces the oldest that has no request under way, so a client that sends its request at once
is always answered. Probes and scrapes take milliseconds and connect anew.

uvicorn also logs each malformed request, so a client could fill the log: of these lines there are few
(`libs.service.few_lines`).
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from libs.service.few_lines import few_lines

LONGEST_S = 30.0
MOST = 64

log = few_lines("baton.http")


class LimitedHttp(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # uvicorn chooses the class when it is imported
    """uvicorn's own protocol, with an end to each connection and a bound for all."""

    _open: ClassVar[dict["LimitedHttp", asyncio.TimerHandle]] = {}
    """Of this process, the oldest first, and when each ends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = log

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._open[self] = asyncio.get_running_loop().call_later(LONGEST_S, self._end)
        if len(self._open) > MOST:
            next((one for one in self._open if not one._answering()), next(iter(self._open)))._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end(self) -> None:
        self._leave()
        self.transport.abort()

    def _leave(self) -> None:
        if (timer := self._open.pop(self, None)) is not None:
            timer.cancel()
