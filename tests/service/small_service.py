"""A whole service of twenty lines, run as a process by the tests: it moves cancel commands to its pool's inbox."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter
from pydantic_settings import SettingsConfigDict

from libs.bus.broker import make_broker
from libs.bus.connect import close, connect
from libs.bus.messages import Outgoing, decode_bare, outgoing
from libs.bus.outbox import Outbox
from libs.bus.settle import Received, consume
from libs.bus.streams import bind
from libs.service.app import Tasks, make_asgi, run
from libs.service.settings import ServiceSettings
from schemas.inbox import CancelRequested
from schemas.requests import CancelJob
from schemas.subjects import COMMAND, REQUESTS, inbox, read


class SmallSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_SMALL_")

    slow_s: float = 0.0
    fail_after_s: float = 0.0
    problem: str = ""
    thread_s: float = 0.0
    start_s: float = 0.0


def make_app(settings: SmallSettings):
    registry = CollectorRegistry()
    seen = Counter("small_seen", "commands decided", registry=registry)
    broker = make_broker(settings.nats_url, "small")
    tasks = Tasks()
    ports: dict[str, Outbox] = {}

    async def decide(received: Received) -> list[Outgoing]:
        envelope, command = decode_bare(CancelJob, received.subject, received.headers, received.payload)
        print("deciding", flush=True)
        await asyncio.sleep(settings.slow_s)
        seen.inc()
        team = read(COMMAND, received.subject)["team"]
        event = CancelRequested(job_id=command.job_id, team=team, reason=command.reason)
        return [
            outgoing(
                event,
                subject=inbox("job", "cancel-requested", settings.pool),
                type="io.baton.job.cancel-requested.v1",
                source=f"/baton/{settings.pool}/small",
                cause=envelope.id,
            )
        ]

    async def fail() -> None:
        await asyncio.sleep(settings.fail_after_s)
        raise RuntimeError("a task broke")

    if settings.thread_s:
        ThreadPoolExecutor().submit(time.sleep, settings.thread_s)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        print("starting", flush=True)
        print("slack", Path("/proc/self/timerslack_ns").read_text(), flush=True)
        await asyncio.sleep(settings.start_s)
        nats = await connect(settings.nats_url, name="small", die_on_close=True, wait_s=5)
        await bind(nats.jetstream(), [settings.pool], wait_s=1)
        ports["outbox"] = Outbox(nats.jetstream())
        if settings.fail_after_s:
            tasks.start("doomed", fail())
        async with tasks.until_stopped():
            yield
        await close(nats)
        print("lifespan ended", flush=True)

    consume(
        broker,
        stream=REQUESTS,
        durable="admission",
        origin="small",
        decide=decide,
        outbox=lambda: ports["outbox"],
    )
    return make_asgi(
        broker,
        name="small",
        settings=settings,
        lifespan=lifespan,
        registry=registry,
        ready=lambda: {"work": settings.problem or "ok"},
    )


if __name__ == "__main__":
    loaded = SmallSettings()
    run(make_app(loaded), loaded, "small", yields=True)
    sys.exit(0)
