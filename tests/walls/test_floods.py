"""A node that was taken over sends without end: it is cut off, told and shown, and the others of its pool go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import nats
import pytest

from libs.bus.connect import Address, BusUnavailable, close, connect
from libs.bus.messages import Outgoing
from libs.bus.outbox import Outbox
from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.team_admin import answering
from libs.client import connect as connect_client
from libs.walls import floods
from libs.walls.book import Book
from libs.walls.resolver import tell
from schemas import subjects
from schemas.jobs import JobSpec, Simulation
from schemas.resources import Resources

FLEET = "groups:\n  - {name: 'n-{i:02d}', count: 1, devices: {model: H100, count: 8, memory_gib: 80}}\n"
OBSERVED = subjects.node_inbox("observed", "main", "evil")


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[LocalStack]:
    """A pool with a simulated node, and the credentials of two more."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    options = LaunchOptions(
        state_dir=tmp_path / "state", teams=("blue",), fleet=fleet, services=("placement", "admission", "leases", "history"),
        sync_always=False, scale=0.2, log_level="WARNING", env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip
    async with LocalStack(options) as made:
        for name in ("evil", "good"):
            made.keyring.node("main", name)
        await tell(made.nats_url, made.keyring, ["@main.evil", "@main.good", "$baton"])
        yield made


def creds(pool: LocalStack, name: str) -> Address:
    return Address(pool.nats_url, pool.keyring.creds / "nodes" / f"main.{name}" / "nats.creds")


async def floods_until_cut(pool: LocalStack, size: int) -> int:
    """How many messages it could send."""
    evil = await nats.connect(
        inbox_prefix="_NODE_main.evil", allow_reconnect=False, servers=pool.nats_url, **creds(pool, "evil").options()
    )
    sent, body = 0, b'{"node":"evil","x":"' + b"x" * size + b'"}'
    with suppress(nats.errors.Error, OSError):
        while evil.is_connected:
            await evil.publish(
                OBSERVED, body, headers={"ce-type": "io.baton.node.observed.v1", "ce-specversion": "1.0"}
            )
            sent += 1
            if not sent % 100:
                await evil.flush()
    return sent


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [20, 200_000], ids=["small", "large"])
async def test_a_node_that_floods_its_pools_inbox_is_cut_off_and_the_others_go_on(pool: LocalStack, size: int) -> None:
    spec = JobSpec(command=("true",), simulation=Simulation(duration_s=0), resources=Resources())
    async with answering(pool.nats_url, pool.keyring):
        stolen = Address(pool.nats_url, Path(str(creds(pool, "evil").creds)).read_text())
        good = await connect(creds(pool, "good"), name="good", inbox_prefix="_NODE_main.good")
        sent = await asyncio.wait_for(floods_until_cut(pool, size), 120)
        async with await connect_client(pool.address("blue"), "blue") as blue:
            for _ in range(3):
                job = await blue.submit(spec, give_up_s=120)
                assert (await blue.wait(job.job_id, timeout_s=120)).what == "succeeded"
    assert sent > min(floods.MESSAGES_AT_ONCE, floods.BYTES_AT_ONCE / (size + 200)), "what a node may, it may at once"
    with pytest.raises(BusUnavailable, match="revoked or rotated"):
        await connect(stolen, name="evil")
    assert good.is_connected, "another node is not touched"
    assert not good.stats["reconnects"]
    await close(good)
    (line,) = [line for line in Book(pool.keyring.folder).lines() if line.what == "node.revoke"]
    assert (line.target, "sent more than a node may" in line.reason) == ("main/evil", True)


async def test_batches_that_a_node_never_ends_fill_no_disk_and_hold_up_no_service(pool: LocalStack) -> None:
    """Their messages lie beside the stream, outside of its limit: it was 1 GB in ten seconds, and 12 GiB at the most."""
    evil = await connect(creds(pool, "evil"), name="evil", inbox_prefix="_NODE_main.evil")
    for batch in range(40):
        for number in range(1, 31):
            named = {"Nats-Batch-Id": f"b{batch}", "Nats-Batch-Sequence": str(number)}
            await evil.publish(OBSERVED, b"x" * 50_000, headers=named)
    await evil.flush(60)
    waits = sum(file.stat().st_size for file in (pool.state_dir / "nats").glob("**/INBOX-main/batches/**/*.blk"))
    assert 0 < waits <= 16 * 31 * 51_000, "40 were begun, 16 are kept"
    core = await connect(pool.address(), name="core", inbox_prefix="_INBOX.core")
    ticks = [Outgoing(subjects.inbox("clock", "tick", "main"), b"{}", {"Nats-Msg-Id": f"t{n}"}) for n in range(40)]
    acks = await Outbox(core.jetstream(), batches=True).publish_many(ticks)
    assert len({ack.seq for ack in acks}) == 40, "what is refused as a batch goes one by one"
    await close(evil)
    await close(core)
