"""A hostile team at rate: fourteen kinds of message, while another team works. All is refused, the other's jobs all run, and
what the hostile team leaves behind is bounded. What it costs others in time is `python -m benchmarks.hostile`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from benchmarks.hostility import KINDS, Hostile, attacker
from libs.bus import dead
from libs.bus.connect import close, connect
from libs.bus.table import DEAD_OF_A_SENDER
from libs.cli.launch import LaunchOptions, LocalStack
from libs.client import Baton
from libs.client import connect as connect_client
from libs.core.projections.verify import Checker
from libs.embedded.events import EventKind
from libs.ledger.reader import LedgerReader
from schemas import ledger as led
from schemas.ids import job_id
from schemas.jobs import JobSpec, Simulation
from schemas.resources import Resources
from schemas.subjects import DEAD, EVENTS, OPERATOR, REQUESTS
from tests.kit.waiting import stored, until

FLEET = "groups:\n  - {name: 'n-{i:02d}', count: 2, devices: {model: H100, count: 8, memory_gib: 80}}\n"
SERVICES = ("placement", "admission", "leases", "history", "queries")
ROUNDS = 60
JOBS = 40
MOST_MIB = 200
"""What a service may grow by; all that was sent is 20 MiB."""
MOST_LETTER = 640 * 1024


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalStack]:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    options = LaunchOptions(
        state_dir=tmp_path / "state", teams=("blue", "green"), fleet=fleet, services=SERVICES, sync_always=False,
        scale=0.1, log_level="WARNING", env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip
    async with LocalStack(options) as made:
        yield made


def memory(cluster: LocalStack) -> dict[str, float]:
    pids = {name: record.pid for name, record in cluster.processes().items() if name in SERVICES}
    return {name: psutil.Process(pid).memory_info().rss / 2**20 for name, pid in pids.items()}


async def attacked(bad: Hostile, done: asyncio.Event) -> None:
    """All kinds in turns, as fast as it goes."""
    for number in range(ROUNDS):
        for kind in KINDS.values():
            await kind(bad, number)
        await asyncio.sleep(0)
    await bad.nats.flush(timeout=60)
    done.set()


async def works(green: Baton, done: asyncio.Event) -> list[str]:
    """Submits one after the other, until the attack is over and there were enough; the ids."""
    spec = JobSpec(command=("true",), simulation=Simulation(duration_s=0), resources=Resources())
    found: list[str] = []
    while not (done.is_set() and len(found) >= JOBS):
        submitted = await green.submit(spec, client_key=f"nightly-{len(found)}", give_up_s=120)
        found.append(submitted.job_id)
    return found


@pytest.mark.timeout(240)
async def test_a_hostile_team_at_rate_harms_nobody(cluster: LocalStack) -> None:
    before, done = memory(cluster), asyncio.Event()
    bad = await attacker(cluster.address("blue"), "blue")
    async with await connect_client(cluster.address("green"), "green") as green:
        _, mine = await asyncio.gather(attacked(bad, done), works(green, done))
        for job in mine:
            assert (await green.wait(job, timeout_s=120)).what == "succeeded"
    assert bad.nats.is_connected, "what it says is refused, and it is not what ends its connection"
    await bad.nats.close()

    core = await connect(cluster.address(OPERATOR), name="test", inbox_prefix=f"_INBOX_{OPERATOR}")
    js = core.jetstream()

    async def drained() -> bool:
        reads = await js.consumer_info(REQUESTS, "admission")
        return not reads.num_pending and not reads.num_ack_pending

    await until(drained, 120)
    asked = (await js.stream_info(REQUESTS)).state.last_seq - len(mine)  # what was answered is trimmed
    assert asked > ROUNDS * 7, "what it said was stored, and so had to be answered"

    events = await stored(js, EVENTS, "baton.evt.*.v1.*.blue")
    assert len(events) <= asked + 20, "one answer to each request, and those of its one job"
    assert not await stored(js, EVENTS, "baton.evt.job.v1.rejected.green")
    assert not await stored(js, EVENTS, "baton.evt.job.v1.cancelled.green")

    letters = await stored(js, DEAD, "baton.dead.>")
    assert {letter.subject.rsplit(".", 1)[-1] for letter in letters} == {"blue"}, "dead letters are its own"
    for subject in {letter.subject for letter in letters}:
        assert sum(letter.subject == subject for letter in letters) <= DEAD_OF_A_SENDER
    for letter in letters:
        headers = letter.headers or {}
        size = len(letter.data) + sum(len(name) + len(value) for name, value in headers.items())
        assert size < MOST_LETTER
        assert headers[dead.REASON].isprintable()
    assert any(dead.LEFT_OUT in (letter.headers or {}) for letter in letters), (
        "thousands of headers are cut, with a note"
    )

    checker, granted, queued = Checker(), set(), set()
    reader = LedgerReader(js, "main")
    async for entries in reader.read_to(await reader.last_seq()):
        for entry in entries:
            checker.step(entry.seq, entry.record, entry.valid)
            granted |= {event.job_id for event in entry.record.events if isinstance(event, led.JobGranted)}
            queued |= {event.job_id for event in entry.record.events if isinstance(event, led.JobQueued)}
    await reader.close()
    report = checker.finish()
    assert report.ok, report.violations[:5]
    assert report.void == 0, "nobody but placement has written into the ledger"
    assert granted == queued == {*mine, job_id("blue", f"{bad.run}-one")}

    ended = [event for event in cluster.supervisor.events if event.kind is EventKind.EXITED]
    assert not ended, "nothing died of it"
    grown = {name: now - before[name] for name, now in memory(cluster).items()}
    assert max(grown.values()) < MOST_MIB, grown
    rejected = [json.loads(event.data) for event in events if event.subject.endswith(".rejected.blue")]
    assert all(one["problem"] and one["fix"] for told in rejected for one in told["reasons"])
    await close(core)
