"""One service process: a FastStream application behind uvicorn, with probes, metrics and background tasks.

Order at start: the lifespan connects and starts its tasks, then the broker's subscribers. Order at stop (SIGTERM): the
subscribers stop reading and finish what they have, the tasks are cancelled, the lifespan closes its connections.
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from faststream.asgi import AsgiFastStream, AsgiResponse, get
from faststream.nats import NatsBroker
from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from libs.service.settings import ServiceSettings

log = logging.getLogger("baton.service")

FAILED_EXIT_CODE = 71
LAG_LIMIT_S = 5.0
"""An event loop that is this late is not alive."""

Ready = Callable[[], dict[str, str]]


class Tasks:
    """Background tasks of a service. One that fails ends the process, loudly: its supervisor starts a fresh one, which
    is always right here, because every service can rebuild what it knows."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Runs `work` until it ends or the service stops."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    @asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """Cancels the tasks at the end of the block and waits for them."""
        try:
            yield
        finally:
            self._stopping = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self._stopping or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.critical("task %r failed; ending this process", task.get_name(), exc_info=error)
            logging.shutdown()
            os._exit(FAILED_EXIT_CODE)


def make_asgi(
    broker: NatsBroker,
    *,
    name: str,
    settings: ServiceSettings,
    lifespan: Any,
    registry: CollectorRegistry,
    ready: Ready,
) -> AsgiFastStream:
    """The application: `/livez` (the event loop turns), `/readyz` (JSON of checks; 503 when one is not "ok"),
    `/metrics` (Prometheus text of `registry` and of the process)."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    pulse = _Pulse()

    @get
    async def livez(_: Any) -> AsgiResponse:
        lag = pulse.lag_s()
        return AsgiResponse(f"loop lag {lag:.3f} s\n".encode(), 200 if lag < LAG_LIMIT_S else 503)

    @get
    async def readyz(_: Any) -> AsgiResponse:
        checks = {"nats": "ok" if await broker.ping(timeout=2.0) else "not connected"} | ready()
        good = all(v == "ok" for v in checks.values())
        body = json.dumps({"service": name, "pool": settings.pool, "ready": good, "checks": checks}).encode()
        return AsgiResponse(body, 200 if good else 503, {"content-type": "application/json"})

    @asynccontextmanager
    async def whole(*_: Any) -> AsyncIterator[None]:
        beat = asyncio.create_task(pulse.beat())
        try:
            async with lifespan():
                yield
        finally:
            beat.cancel()

    return AsgiFastStream(
        broker,
        lifespan=whole,
        asgi_routes=[("/livez", livez), ("/readyz", readyz), ("/metrics", make_asgi_app(registry))],
        logger=None,
    )


def run(app: AsgiFastStream, settings: ServiceSettings, name: str) -> None:
    """Serves until SIGTERM or SIGINT. Writes the port to `<state_dir>/<name>.http` when it was chosen freely."""
    _log_json(settings.log_level, name)
    config = uvicorn.Config(
        app, host=settings.http_host, port=settings.http_port, log_config=None, access_log=False, lifespan="on"
    )
    server = _Server(config, settings.state_dir / f"{name}.http" if settings.state_dir else None)
    server.run()
    if not server.started:
        sys.exit(FAILED_EXIT_CODE)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, port_file: Path | None) -> None:
        super().__init__(config)
        self._port_file = port_file

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started and self._port_file is not None:
            port = self.servers[0].sockets[0].getsockname()[1]
            temporary = self._port_file.with_suffix(".tmp")
            temporary.write_text(f"{port}\n")
            temporary.replace(self._port_file)


class _Pulse:
    """Measures how late the event loop is."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    async def beat(self) -> None:
        while True:
            self._last = time.monotonic()
            await asyncio.sleep(0.5)

    def lag_s(self) -> float:
        return max(0.0, time.monotonic() - self._last - 0.5)


def _log_json(level: str, service: str) -> None:
    """Every log line, also of libraries, as one JSON object on stderr."""
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                lambda _, __, event: {"service": service} | event,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel("WARNING")
