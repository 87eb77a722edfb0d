"""Every log line, also of libraries, as one JSON object on stderr."""

import logging
import sys
from typing import Any

import structlog


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
