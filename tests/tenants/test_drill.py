"""The drill: everything is destroyed but the backup; it is restored elsewhere, and work, books and credentials go on."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from libs.bus.connect import Address
from libs.cli.backup_files import put_into, write
from libs.cli.fencing import Fence, verified
from libs.cli.launch import LaunchOptions, LocalStack
from libs.client import Baton, NotFound, connect
from schemas.billing import BillQuery
from schemas.jobs import JobSpec, JobState, Simulation
from schemas.resources import Resources
from schemas.subjects import OPERATOR
from tests.kit.waiting import until

FLEET = "groups:\n  - {name: 'n-{i:02d}', count: 2, devices: {model: H100, count: 2, memory_gib: 80}}\n"
SERVICES = ("placement", "admission", "leases", "quota_billing", "history", "queries", "vault")


def options(home: Path, fleet: Path) -> LaunchOptions:
    return LaunchOptions(
        state_dir=home, teams=("red",), fleet=fleet, services=SERVICES, sync_always=False, scale=0.1, log_level="WARNING",
        env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip


def timer(seconds: float, devices: int = 1) -> JobSpec:
    return JobSpec(command=("train",), simulation=Simulation(duration_s=seconds), resources=Resources(devices=devices))


async def reaches(team: Baton, job_id: str, state: JobState, attempts: int = 1) -> None:
    async def there() -> bool:
        with suppress(NotFound):  # history is a moment behind
            found = await team.get(job_id)
            return found.state is state and len(found.attempts) >= attempts
        return False

    await until(there)


async def billed(team: Baton) -> dict[str, int]:
    """Job -> thousandths of device-microseconds."""
    return {row.key: row.milli_us for row in (await team.bill(BillQuery(group_by="job"))).rows}


async def test_all_is_lost_but_the_backup(tmp_path: Path) -> None:
    fleet, folder, home = tmp_path / "fleet.yaml", tmp_path / "backup", tmp_path / "again"
    fleet.write_text(FLEET)
    key = tmp_path / "red.creds"
    async with LocalStack(options(tmp_path / "lost", fleet)) as before:
        async with await connect(before.address("red")) as red:
            done = await red.submit(timer(0.1))
            runs = await red.submit(timer(600, devices=2))
            await reaches(red, done.job_id, JobState.SUCCEEDED)
            await reaches(red, runs.job_id, JobState.RUNNING)
            bill = await billed(red)
            await red.set_secret("token", b"value")
            await write(before.state_dir, folder, before.address())
            after = await red.submit(timer(600), "after the backup")
            await reaches(red, after.job_id, JobState.RUNNING)
        key.write_text(Path(before.address("red").creds).read_text())
        old_url = before.nats_url
    shutil.rmtree(tmp_path / "lost")

    began = time.monotonic()
    told = await put_into(folder, home, Fence(time.time(), "the test stopped every agent"))
    assert (told["main"]["nodes"], told["main"]["not_before_s"]) == (2, 0)
    async with LocalStack(options(home, fleet)) as again:
        assert again.nats_url != old_url
        async with await connect(Address(again.nats_url, key), "red") as red:
            await reaches(red, done.job_id, JobState.SUCCEEDED)
            assert (await billed(red))[done.job_id] == bill[done.job_id]
            await reaches(red, runs.job_id, JobState.RUNNING, attempts=2)
            assert [job.job_id for job in await red.list() if job.job_id == after.job_id] == []
            repeated = await red.submit(timer(0.1), "after the backup")
            assert repeated.job_id == after.job_id
            await reaches(red, after.job_id, JobState.SUCCEEDED)
            assert [secret.name for secret in await red.secrets()] == ["token"]
        print(f"restored and at work again in {time.monotonic() - began:.1f} s")
        async with await connect(again.address(OPERATOR), OPERATOR) as operator:
            rekeyed = await operator.rekey_secrets()
            assert (rekeyed.values, rekeyed.lost) == (1, 0), "the master key came back with the value"
        async with await connect(again.address()) as everything:
            head = await verified(everything.nats, "main")
            assert head["records"] > told["main"]["records"]
