"""What can be done to NATS servers: kill, freeze, wipe, take away, and wait until every copy is whole again."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from nats.js import JetStreamContext

from libs.bus.connect import close, connect
from libs.bus.retry import UNAVAILABLE
from libs.cli.launch import LocalStack
from libs.embedded.probes import health_by_request
from libs.ledger import rolling
from libs.ledger.segments import Segment, readable
from tests.kit.waiting import until

WHOLE_S = 120.0
"""Until every copy of every stream is current again; only a hang takes so long."""


def brokers(cluster: LocalStack) -> tuple[str, ...]:
    """The names of the processes."""
    return cluster.servers.options.nats.names


@asynccontextmanager
async def jetstream(cluster: LocalStack) -> AsyncIterator[JetStreamContext]:
    """With the services' credential."""
    nats = await connect(cluster.address(), name="chaos")
    try:
        yield nats.jetstream(timeout=10)
    finally:
        await close(nats)


async def leader_of(js: JetStreamContext, stream: str) -> str:
    """The server that leads the stream; waits while there is none."""

    async def leader() -> str | None:
        try:
            info = await js.stream_info(stream)
        except UNAVAILABLE:
            return None
        return info.cluster.leader if info.cluster else None

    found: str = await until(leader, WHOLE_S)
    return found


async def settled(js: JetStreamContext, pool: str) -> Segment:
    """The ledger's open segment; waits while the broker does not say."""

    async def found() -> Segment | None:
        with suppress(*UNAVAILABLE):
            return (await readable(js, pool))[-1]
        return None

    open_: Segment = await until(found, WHOLE_S)
    return open_


async def ask_to_roll(js: JetStreamContext, pool: str) -> None:
    """As `baton ledger roll` does; waits while the broker does not answer."""

    async def asked() -> bool:
        with suppress(*UNAVAILABLE):
            await rolling.ask_to_roll(js, pool)
            return True
        return False

    await until(asked, WHOLE_S)


async def whole(cluster: LocalStack) -> None:
    """Waits until every server says that all that it keeps is current: until then it would be a second loss to lose another."""

    async def healthy() -> bool:
        return all([await _healthy(cluster, name) for name in brokers(cluster)])

    await until(healthy, WHOLE_S)


async def _healthy(cluster: LocalStack, name: str) -> bool:
    options, urls = cluster.servers.options.nats, cluster.servers.nats_url.split(",")
    port = urlsplit(dict(zip(options.names, urls, strict=True))[name]).port
    assert options.trust is not None
    assert port is not None
    try:
        async with asyncio.timeout(2):
            status, _ = await health_by_request(port, options.trust.login, {})()
    except (OSError, ValueError, EOFError):
        return False
    return status == HTTPStatus.OK


@asynccontextmanager
async def frozen(cluster: LocalStack, *names: str) -> AsyncIterator[None]:
    """Stopped (SIGSTOP) until the block ends."""
    pids = [cluster.supervisor.pid(name) for name in names]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def away(cluster: LocalStack, *names: str) -> AsyncIterator[None]:
    """Killed, and not started again until the block ends."""
    specs = [cluster.supervisor.spec(name) for name in names]
    for name in names:
        os.kill(cluster.supervisor.pid(name), signal.SIGKILL)
    await cluster.supervisor.stop(*names)
    try:
        yield
    finally:
        await cluster.supervisor.start(*specs)


async def wipe(cluster: LocalStack, name: str) -> None:
    """The server begins again with an empty folder; returns when it has copied everything."""
    async with away(cluster, name):
        shutil.rmtree(cluster.state_dir / name)
        (cluster.state_dir / name).mkdir(mode=0o700)
    await whole(cluster)
