"""FastStream's broker with the options that this project measured to be safe (0.7.7; 0.7.8 strands messages)."""

import os
from typing import Any

from faststream.nats import NatsBroker

from libs.bus.connect import CLOSED_EXIT_CODE, connect_options, log


def make_broker(url: str, name: str) -> NatsBroker:
    """A broker that reconnects for ever, does not log each message, and lets running handlers finish for 10 s.

    If its connection closes for good although nobody stopped it, the process ends: FastStream's pull loop would
    otherwise spin without ever yielding.
    """
    options: dict[str, Any] = connect_options(name)
    broker = NatsBroker(url, logger=None, graceful_timeout=10.0, closed_cb=_closed_of(lambda: broker), **options)
    return broker


def _closed_of(broker_of: Any) -> Any:
    async def closed() -> None:
        if getattr(broker_of(), "running", False):
            log.error("the connection to NATS closed for good; ending this process")
            os._exit(CLOSED_EXIT_CODE)

    return closed
