"""Every log line, also of libraries, as one JSON object on stderr. Who says the same again and again says it once a minute."""

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import structlog

AGAIN_S = 60.0
_REMEMBERED = 256
"""Lines that are remembered: of more different ones some are told again too early."""


class Repeats(logging.Filter):
    """Holds a line back that was told within the last minute: while a server is away, each process tells so with each try, for
    nights. The first that is told again says how many were `repeated` meanwhile."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._told: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.msg["event"] if isinstance(record.msg, dict) else record.getMessage()
        fault = record.exc_info[1] if record.exc_info else None
        key = (record.name, record.levelno, said, type(fault), str(fault))
        now, (at, held) = self._now(), self._told.pop(key, (-AGAIN_S, 0))
        if now - at < AGAIN_S:
            self._told[key] = (at, held + 1)
            return False
        self._told[key] = (now, 0)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        if held:
            record.repeated = held
            if isinstance(record.msg, dict):
                record.msg = {**record.msg, "repeated": held}
        return True


def log_json(level: str, service: str) -> None:
    """Sends stdlib logging and structlog to stderr as JSON lines that name `service`."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]

    def named(_: Any, __: str, event: Any) -> Any:
        return {"service": service} | event

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Repeats())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                named,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    # Their INFO lines are per connection and per request.
    for library in ("uvicorn", "faststream", "nats"):
        logging.getLogger(library).setLevel("WARNING")
