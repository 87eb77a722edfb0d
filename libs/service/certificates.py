"""When the certificates end by which the broker is known, as a metric: telemetry shows it, and an alert tells in time."""

import logging

from prometheus_client import CollectorRegistry, Gauge

from libs.bus.creds import Address
from libs.bus.endings import look
from libs.bus.retry import run_periodically

log = logging.getLogger("baton.service")

AUTHORITY = "authority"
_LOOK_S = 900.0
"""After a renewal and a reload of the broker the alert ends within so long."""


class Certificates:
    """`baton_certificate_end_timestamp_seconds`: of each server of the URL, by host and port, and of the authority by which
    services check them."""

    def __init__(self, where: Address, registry: CollectorRegistry) -> None:
        self._where = where
        self._ends = Gauge(
            "baton_certificate_end_timestamp_seconds",
            "when the certificate ends that a server of the broker shows, or its authority's, s since 1970",
            ["of"],
            registry=registry,
        )

    async def run(self) -> None:
        """For ever. Of a server that does not answer, what was seen last is shown."""
        await run_periodically(self.look, _LOOK_S, log, "until when the broker's certificate is good is not known")

    async def look(self) -> None:
        """Asks each server once."""
        shown = await look(self._where)
        for server, term in shown.servers.items():
            self._ends.labels(server).set(term.ends_s)
        if shown.authority is not None:
            self._ends.labels(AUTHORITY).set(shown.authority.ends_s)
