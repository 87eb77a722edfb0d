"""One service process: a FastStream application behind uvicorn, with probes, metrics and background tasks.

Order at start: the HTTP port is taken; the lifespan connects its clients and starts its tasks, and probes are answered; what
comes `first` is done; the broker's subscribers start. Order at stop (SIGTERM, SIGINT): the subscribers stop reading and
finish what they have, the broker's connection is drained, then the lifespan ends: tasks are cancelled, its own connections
closed. So what a lifespan opens is usable by handlers to the end; tasks must not use the broker's connection but the
lifespan's own.
"""

import asyncio
import gc
import json
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import uvicorn
from faststream.asgi import AsgiFastStream, AsgiResponse
from prometheus_client import CollectorRegistry, Gauge, make_asgi_app
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from libs.bus import metrics as bus_metrics
from libs.bus.broker import Broker
from libs.ports import clock, descriptors
from libs.ports.host import present_host
from libs.ports.timerslack import SHARED_NS, set_slack
from libs.service.guard import Receive, Scope, Send, guarded
from libs.service.http_limits import LimitedHttp
from libs.service.logs import log_json
from libs.service.settings import ServiceSettings, warmed
from libs.service.tasks import FAILED_EXIT_CODE, Tasks, end_process, exit_now
from schemas.base import complete

__all__ = ["FAILED_EXIT_CODE", "Ready", "Tasks", "make_asgi", "run"]

log = logging.getLogger("baton.service")

LAG_LIMIT_S = 5.0
"""An event loop that is this late is not alive."""

_BEAT_S = 1.0

_GC_OBJECTS = 10_000
"""Made and still there, before the youngest are searched for cycles."""

_YIELDS = 5
"""Added to the nice value of a service that reads what others have decided. Each record of the ledger wakes them all at one
moment, and on a machine of few processors the node that is to start something would hear of it after them. It has a third of
another's share, so it does not starve."""
_SESSION_NICENESS = Path("/proc/self/autogroup")
"""Linux weighs sessions against each other first. Each service is one of its own, where a process' niceness says nothing."""
_SESSION_TRIES = 30
_SESSION_AGAIN_S = 0.1
"""Of all processes without root, one may write there in so long."""

_BACKLOG = 2048
"""Connections that nobody has taken yet: uvicorn's own number."""

_STOP_S = 20
"""How long a stop may take before open HTTP requests are cut."""

_LAST_START_S = 10.0
"""A start that is asked to stop may go on for so long, to be stopped in good order: it may wait for a broker."""

Ready = Callable[[], dict[str, str]]


def make_asgi(
    broker: Broker,
    *,
    name: str,
    settings: ServiceSettings,
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    registry: CollectorRegistry,
    ready: Ready,
    first: Callable[[], Awaitable[None]] | None = None,
) -> AsgiFastStream:
    """The application: `/livez` (the event loop turns), `/readyz` (JSON of checks; 503 when one is not "ok"),
    `/metrics` (Prometheus text of `registry`, of the bus and of the process). The latter two ask for the settings' token,
    because metrics name teams: on a node, every job can reach a port of loopback.

    `ready` gives check name -> "ok" or the problem; the broker's connection is checked besides. `first` may take long, and is
    awaited before any message is handled, as what was kept must be read first.
    """
    if (host := present_host()) is not None:
        return host.service(broker, partial(_then, lifespan, first), ready)
    broker.first = first
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    bus_metrics.register(registry)
    pulse = _Pulse(registry)

    async def livez(scope: Scope, receive: Receive, send: Send) -> None:
        lag = pulse.lag_s()
        answer = AsgiResponse(f"loop lag {lag:.3f} s\n".encode(), 200 if lag < LAG_LIMIT_S else 503)
        await answer(scope, receive, send)

    async def readyz(scope: Scope, receive: Receive, send: Send) -> None:
        nats = "not asked yet" if not broker.started.is_set() else "ok" if await broker.ping(2.0) else "not connected"
        checks = {"nats": nats} | _checked(ready)
        good = all(v == "ok" for v in checks.values())
        body = json.dumps({"service": name, "pool": settings.pool, "ready": good, "checks": checks}).encode()
        answer = AsgiResponse(body, 200 if good else 503, {"content-type": "application/json"})
        await answer(scope, receive, send)

    token = settings.http_token.get_secret_value()

    @asynccontextmanager
    async def whole() -> AsyncIterator[None]:
        beat = asyncio.create_task(pulse.beat())
        started = False
        try:
            async with lifespan():
                started = True
                yield
        except Exception as e:
            # FastStream starts its subscribers after uvicorn was told that all is well: uvicorn would go on serving.
            if started:
                end_process(f"{name} failed", e)
            raise
        finally:
            beat.cancel()

    app = AsgiFastStream(
        broker,
        asgi_routes=[
            ("/livez", livez),
            ("/readyz", guarded(readyz, token)),
            ("/metrics", guarded(make_asgi_app(registry), token)),
        ],
        logger=None,
        serializer=None,
    )
    # Not `lifespan=`: what is to be injected there would be looked for, by a model of its own.
    app.lifespan_context = whole
    return app


UVLOOP = "uvloop"


def run(
    app: AsgiFastStream, settings: ServiceSettings, name: str, *, yields: bool = False, loop: str = UVLOOP
) -> NoReturn:
    """Serves until SIGTERM or SIGINT. Writes the port to `<state_dir>/<name>.http`, removed at the end. `yields`: it reads what
    others have decided, and lets them have the processor first. `loop`: as uvicorn names it, or `module:function`.

    Ends the process, with `FAILED_EXIT_CODE` when the application could not start.
    """
    log_json(settings.log_level, name)
    if not warmed():  # else it is forked from a process that has done so
        complete()
    collect_seldom()
    set_slack(SHARED_NS)
    descriptors.allow_most()
    if yields:
        os.nice(_YIELDS)
    config = uvicorn.Config(
        app,
        host=settings.http_host,
        port=settings.http_port,
        log_config=None,
        access_log=False,
        lifespan="on",
        loop=loop,
        http=LimitedHttp,
        date_header=False,  # it would have to be written anew each second
        proxy_headers=False,
        timeout_graceful_shutdown=_STOP_S,
    )
    port_file = settings.state_dir / f"{name}.http" if settings.state_dir else None
    listening = _listening(settings.http_host, settings.http_port)
    server = _Server(config, port_file, yields=yields)
    # uvicorn raises a captured signal again once it has stopped in good order: make that a normal end, not a death.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    failed = True
    try:
        server.run([listening])
        failed = not server.started
    except SystemExit as end:
        failed = bool(end.code)
    finally:
        if port_file is not None:
            port_file.unlink(missing_ok=True)
    exit_now(FAILED_EXIT_CODE if failed else 0)


def _listening(host: str, port: int) -> socket.socket:
    """Before anything begins: a service that began, and then found that others have its port, would end in good order, and of
    an agent that is the end of its node's work. Ends the process where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as e:
        log.critical(
            "nothing was begun: no HTTP at %s:%d (%s): end who has it, or set BATON_HTTP_PORT, best below 1024 where jobs run",
            host,
            port,
            e.strerror or e,
        )
        exit_now(FAILED_EXIT_CODE)


async def _yield_to_sessions() -> None:
    if os.getsid(0) != os.getpid():
        return  # it would be the niceness of a whole terminal
    for _ in range(_SESSION_TRIES):
        if _wrote_session_niceness():
            return
        await asyncio.sleep(_SESSION_AGAIN_S * random.uniform(1, 2))


def _wrote_session_niceness() -> bool:
    try:
        _SESSION_NICENESS.write_text(str(_YIELDS))
    except BlockingIOError:
        return False
    except OSError:
        log.debug("this kernel does not weigh sessions")
    return True


def collect_seldom() -> None:
    """What a service makes, messages and records above all, has no cycles, and is freed when it is not used any more. Looking
    for cycles after every 700 objects, as Python does, took a seventh of the services' time under load. Modules stay anyway.
    A forked process has made little yet: a search would cost it more pages, of what Python keeps to make objects anew."""
    if not warmed():
        gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS, 10, 10)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, port_file: Path | None, *, yields: bool = False) -> None:
        super().__init__(config)
        self._port_file = port_file
        self._yields = yields
        self._wake: Callable[[], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Waits for a signal to stop. uvicorn's own looks ten times a second, which was half of what an idle service did."""
        wanted = asyncio.Event()
        self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, wanted.set)
        if await self.on_tick(0):  # a signal may have come before there was anything to wake
            return
        yielding = asyncio.create_task(_yield_to_sessions()) if self._yields else None
        await wanted.wait()
        if yielding is not None:
            yielding.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._wake is not None:
            self._wake()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.call_later, _LAST_START_S, self._end_start)

    def _end_start(self) -> None:
        if not self.started:
            log.warning("asked to stop, and not started yet: it ends")
            exit_now(0)

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if not self.started:
            return
        port = self.servers[0].sockets[0].getsockname()[1]
        log.info("serving probes and metrics on port %d", port)
        if self._port_file is not None:
            self._port_file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._port_file.with_suffix(".tmp")
            temporary.write_text(f"{port}\n")
            temporary.replace(self._port_file)


class _Pulse:
    """Measures how late the event loop is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._due_s = clock.boot_s()
        self._gauge = Gauge(
            "baton_event_loop_lag_seconds", "how late the event loop ran its last beat", registry=registry
        )

    async def beat(self) -> None:
        while True:
            self._gauge.set(self.lag_s())
            rest_s = clock.until_turn(_BEAT_S)
            self._due_s = clock.boot_s() + rest_s
            await asyncio.sleep(rest_s)

    def lag_s(self) -> float:
        return max(0.0, clock.boot_s() - self._due_s)


@asynccontextmanager
async def _then(
    lifespan: Callable[[], AbstractAsyncContextManager[None]], first: Callable[[], Awaitable[None]] | None
) -> AsyncIterator[None]:
    async with lifespan():
        if first is not None:
            await first()
        yield


def _checked(ready: Ready) -> dict[str, str]:
    try:
        return ready()
    except Exception as e:
        log.exception("a readiness check failed")
        return {"checks": f"{type(e).__name__}: {e}"}
