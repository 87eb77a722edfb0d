"""How full each stream is, as a metric: telemetry of each pool shows its pool's streams and those that all pools share."""

import logging

from nats.js import JetStreamContext
from prometheus_client import CollectorRegistry, Gauge

from libs.bus.retry import run_periodically
from libs.bus.table import streams
from libs.bus.trim import fill_of
from libs.ledger.segments import SegmentState, segments
from schemas.subjects import ledger_stream

log = logging.getLogger("baton.service")

_LOOK_S = 10.0


class FillLevels:
    """`baton_stream_fill_ratio`, by stream: bytes of its limit, 0 to 1. A ledger's is that of its open segment, under the
    name of its first; how many segments there are is `baton_ledger_segments`."""

    def __init__(self, js: JetStreamContext, pool: str, registry: CollectorRegistry) -> None:
        self._js = js
        self._pool = pool
        self._fill = Gauge("baton_stream_fill_ratio", "bytes of the stream's limit", ["stream"], registry=registry)
        self._segments = Gauge("baton_ledger_segments", "streams that the ledger lies in", registry=registry)

    async def run(self) -> None:
        """For ever. While the broker does not answer, what was seen last is shown. Raises ConnectionClosedError."""
        await run_periodically(self.look, _LOOK_S, log, "how full the streams are is not known")

    async def look(self) -> None:
        """Asks once. Raises nats errors."""
        ledger = ledger_stream(self._pool)
        for config in streams([self._pool]):
            if config.name != ledger:
                self._fill.labels(config.name).set(fill_of(await self._js.stream_info(str(config.name))))
        found = await segments(self._js, self._pool)
        self._segments.set(len(found))
        for segment in found:
            if segment.state is SegmentState.OPEN:
                self._fill.labels(ledger).set(segment.bytes / segment.max_bytes if segment.max_bytes else 0.0)
