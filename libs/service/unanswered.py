"""Metrics of unanswered requests: the age of the oldest, and how many expired.

A stored request is a promise to answer. It is broken when the reader is down, or parks the request, until the stream drops it
for its age. The readers cannot count that, because they may be the ones that are down; so telemetry does.

A request that will expire before the check after next is noted by its sequence. If it is not acknowledged at the last check
before it expires, it is counted. (A request that was decided out of order, and whose queue did not move for three days after
that, counts as well.)
"""

import logging

from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Counter, Gauge

from libs.bus.direct import get, received_of
from libs.bus.retry import run_periodically
from libs.bus.table import Durable, durables
from libs.ports import clock

log = logging.getLogger("baton.service")

LOOK_S = 15.0
_PAGE = 500
_MOST = 20_000
"""Requests that are noted at one look: beyond that the count is too low, and says enough."""


class Unanswered:
    """Of the durable consumers of a pool, and those that all pools share, by consumer: `baton_requests_oldest_seconds` and
    `baton_requests_expired_total`."""

    def __init__(self, js: JetStreamContext, pool: str, registry: CollectorRegistry, *, look_s: float = LOOK_S) -> None:
        self._js, self._look_s = js, look_s
        self._durables = durables([pool])
        self._noted: dict[str, dict[int, float]] = {durable.name: {} for durable in self._durables}
        """Consumer -> sequence of a request that will expire unanswered -> when, by this machine's clock."""
        self._noted_to = dict.fromkeys(self._noted, 0)
        self._oldest = Gauge(
            "baton_requests_oldest_seconds",
            "age of the oldest request without an answer",
            ["consumer"],
            registry=registry,
        )
        self._expired = Counter(
            "baton_requests_expired", "requests that expired without an answer", ["consumer"], registry=registry
        )

    async def run(self) -> None:
        """For ever. While the broker does not answer, what was seen last is shown. Raises ConnectionClosedError."""
        await run_periodically(self.look, self._look_s, log, "which requests are unanswered is not known")

    async def look(self) -> None:
        """Asks once. Raises nats errors, and TimeoutError."""
        for durable in self._durables:
            await self._look_at(durable)

    async def _look_at(self, durable: Durable) -> None:
        stream = await self._js.stream_info(durable.stream)
        consumer = await self._js.consumer_info(durable.stream, durable.name)
        floor = consumer.ack_floor.stream_seq if consumer.ack_floor is not None else 0
        if not consumer.num_pending and not consumer.num_ack_pending:
            floor = stream.state.last_seq
        now, noted = clock.wall_us() / 1e6, self._noted[durable.name]
        # The stream may be another one than before.
        self._noted_to[durable.name] = min(self._noted_to[durable.name], stream.state.last_seq)
        for seq, expires in list(noted.items()):
            if expires <= now:
                self._expired.labels(durable.name).inc()
            if expires <= now or seq <= floor:
                del noted[seq]
        oldest_s = await self._note(durable, floor + 1, stream.config.max_age or 0.0, now)
        self._oldest.labels(durable.name).set(oldest_s)

    async def _note(self, durable: Durable, first: int, max_age_s: float, now: float) -> float:
        """Notes what will expire within two looks, from sequence `first` on; the age of the oldest request, s."""
        (subject,) = durable.filter_subjects
        oldest, noted, batch = 0.0, self._noted[durable.name], 1  # usually the first is far from its end
        while len(noted) < _MOST:
            page = await get(self._js, durable.stream, subject, {"seq": first}, batch)
            batch = _PAGE
            for message in page.messages:
                request = received_of(message)
                stored = request.time_us / 1e6
                oldest = oldest or max(0.0, now - stored)
                if not max_age_s or stored + max_age_s > now + 2 * self._look_s:
                    return oldest
                # What was counted before may still be there: the broker drops it a moment later.
                if request.stream_seq > self._noted_to[durable.name]:
                    noted[request.stream_seq] = stored + max_age_s
                    self._noted_to[durable.name] = request.stream_seq
                first = request.stream_seq + 1
            if not page.more:
                return oldest
        return oldest
