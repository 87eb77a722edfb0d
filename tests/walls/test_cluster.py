"""Three NATS servers with accounts: who is added, rotated or revoked at one of them is so at all, also while one is away and
when it comes back. `MEASURED` is what docs/security.md tells; it is printed, and no assertion is about time.
"""

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import nats
import pytest

from libs.bus.connect import Address, BusUnavailable, close, connect
from libs.bus.streams import provision
from libs.bus.table import WAITING_OF_A_SENDER
from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.walls import broker_claims
from libs.walls.keyring import Keyring
from libs.walls.resolver import tell
from schemas import subjects
from tests.kit.waiting import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Servers, Keyring]]:
    ring = Keyring(tmp_path)
    ring.team("blue"), ring.team("green"), ring.service()
    options = NatsOptions(trust=broker_claims.trust(ring), servers=3, sync_always=False)
    async with Servers(tmp_path, ServerOptions(run=("nats",), nats=options)) as servers:
        core = await connect(Address(servers.nats_url, ring.service()), name="core")
        js = core.jetstream(timeout=10)

        async def provisioned() -> bool:
            try:
                await provision(js, ["main"], replicas=3, scale=0.01)
            except (nats.errors.Error, TimeoutError):  # until a leader is elected
                return False
            return True

        await until(provisioned)
        await close(core)
        yield servers, ring


def everywhere(servers: Servers, creds: Path) -> list[Address]:
    return [Address(url, creds) for url in servers.nats_url.split(",")]


async def refused(address: Address) -> bool:
    try:
        await close(await connect(address, name="thief", wait_s=5))
    except BusUnavailable as error:
        return "refused the credential" in str(error)
    return False


async def let_in(address: Address) -> bool:
    try:
        await close(await connect(address, name="new", wait_s=5))
    except BusUnavailable:
        return False
    return True


async def measured(what: str, condition: Callable[[], Awaitable[bool] | bool], since: float) -> None:
    await until(condition)
    print(f"{what}: {(time.monotonic() - since) * 1000:.0f} ms")


@pytest.mark.timeout(240)
async def test_a_change_at_one_server_holds_at_all(cluster: tuple[Servers, Keyring], tmp_path: Path) -> None:
    servers, ring = cluster
    before = [await connect(one, name="blue") for one in everywhere(servers, ring.team("blue"))]
    stolen = tmp_path / "stolen.creds"
    stolen.write_text(ring.team("blue").read_text())

    creds = ring.rotate("blue")
    began = time.monotonic()
    await tell(servers.nats_url.split(",")[0], ring, ["blue"])
    await measured("cut at all three", lambda: not any(one.is_connected for one in before), began)
    for one in before:
        await close(one)
    for number, (old, new) in enumerate(zip(everywhere(servers, stolen), everywhere(servers, creds), strict=True)):
        await measured(f"old refused at server {number}", lambda old=old: refused(old), began)  # type: ignore[misc]
        await measured(f"new let in at server {number}", lambda new=new: let_in(new), began)  # type: ignore[misc]

    added, began = ring.team("red"), time.monotonic()
    await tell(servers.nats_url.split(",")[1], ring, ["red"])
    for number, one in enumerate(everywhere(servers, added)):
        await measured(f"added let in at server {number}", lambda one=one: let_in(one), began)  # type: ignore[misc]


@pytest.mark.timeout(240)
async def test_who_was_revoked_while_a_server_was_away_stays_out_there(
    cluster: tuple[Servers, Keyring], tmp_path: Path
) -> None:
    """The server has the earlier claim on its disk and in its file. The others go on: a leader is chosen, green works."""
    servers, ring = cluster
    stolen = tmp_path / "stolen.creds"
    stolen.write_text(ring.team("blue").read_text())
    urls = servers.nats_url.split(",")
    core = await connect(Address(servers.nats_url, ring.service()), name="core")
    leader = (await core.jetstream().stream_info(subjects.REQUESTS)).cluster.leader
    names = list(servers.options.nats.names)
    gone = names.index(leader)
    others = [url for url in urls if url != urls[gone]]
    os.kill(servers.supervisor.pid(leader), signal.SIGSTOP)  # so that it does not come back before it is asked to
    pid = servers.supervisor.pid(leader)
    try:
        ring.revoke("blue")
        await tell(",".join(others), ring, ["blue"], wait_s=60)
        for url in others:
            await until(lambda url=url: refused(Address(url, stolen)))  # type: ignore[misc]
        replies = subjects.reply_prefix("green", "ana")
        address = Address(",".join(others), ring.team("green"))
        green = await connect(address, name="green", wait_s=60, inbox_prefix=replies)

        async def works() -> bool:
            try:
                ack = await green.request(subjects.submit("green", "ana"), b"{}", timeout=2)
            except (nats.errors.Error, TimeoutError):
                return False  # until another leads the stream
            return bool(json.loads(ack.data).get("stream") == subjects.REQUESTS)

        await until(works)
        await close(green)
    finally:
        os.kill(pid, signal.SIGKILL)
    await servers.supervisor.wait_ready(leader, replaced_pid=pid, timeout_s=120)
    began = time.monotonic()
    await measured("refused at the server that came back", lambda: refused(Address(urls[gone], stolen)), began)
    assert await let_in(Address(urls[gone], ring.team("green")))
    await close(core)


async def test_what_waits_of_a_user_is_bounded_in_a_cluster_too(cluster: tuple[Servers, Keyring]) -> None:
    """A crowd that waits for no answer: each server counts for itself what it stores, and all count the same."""
    servers, ring = cluster
    core = await connect(Address(servers.nats_url, ring.service()), name="core")
    js = core.jetstream(timeout=10)
    loud = subjects.submit("blue", "ana")
    for _ in range(WAITING_OF_A_SENDER + 500):
        await core.publish(loud, b"{}")
    await core.flush()

    async def other() -> bool:
        try:
            return (await js.publish(subjects.submit("green", "ben"), b"{}")).seq > WAITING_OF_A_SENDER
        except (nats.errors.Error, TimeoutError):  # a leader is being elected
            return False

    async def agreed() -> bool:
        info = await js.stream_info(subjects.REQUESTS, subjects_filter=loud)
        replicas = info.cluster.replicas if info.cluster is not None else None
        return info.state.subjects == {loud: WAITING_OF_A_SENDER} and all(one.current for one in replicas or ())

    await until(other)
    await until(agreed)
    await close(core)
