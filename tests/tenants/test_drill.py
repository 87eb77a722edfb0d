"""The drill: everything is destroyed but the backup; it is restored elsewhere, and work, books and credentials go on. Then the
team leaves, and nothing that is left says who its people were."""

import asyncio
import json
import re
import shutil
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from libs.adapters.mongo.use import UseStore
from libs.bus.connect import Address
from libs.cli.backup_files import put_into, write
from libs.cli.fencing import Fence, verified
from libs.cli.launch import LaunchOptions, LocalStack
from libs.cli.team_offboard import Leaving, offboard
from libs.client import Baton, NotFound, Unreachable, connect
from libs.core.billing.use_hours import WHOLE, UseHour
from libs.core.billing.used import DeviceUseSums
from libs.core.billing.wall import HOUR_US
from libs.walls.departed_teams import DepartedTeams, TeamIsGone
from libs.walls.people import PEOPLE_FILE, People
from libs.walls.resolver import tell
from schemas.billing import BillQuery
from schemas.jobs import JobSpec, JobState, Simulation
from schemas.resources import Resources
from schemas.subjects import OPERATOR
from schemas.use import UseQuery
from tests.cli.test_command import baton
from tests.kit.waiting import until

FLEET = "groups:\n  - {name: 'n-{i:02d}', count: 2, devices: {model: H100, count: 2, memory_gib: 80}}\n"
SERVICES = ("placement", "admission", "leases", "quota_billing", "history", "queries", "vault")
PERSON = "ana-of-the-long-name"


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


async def too_few_are_free_for_a_gang(cluster: LocalStack, red: Baton) -> None:
    """Placement tells it with a tick, and quota_billing keeps it: until the gang waits no more."""
    url, token = cluster.http["quota_billing"], cluster.http_tokens["quota_billing"]
    asked = Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})

    def metrics() -> dict[str, float]:
        with urlopen(asked) as answer:
            lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    async def free(idle: float, fragmented: float) -> None:
        wanted = {'baton_idle_devices{model="H100"}': idle, 'baton_fragmented_devices{model="H100"}': fragmented}

        async def seen() -> bool:
            return wanted.items() <= (await asyncio.to_thread(metrics)).items()

        await until(seen)

    gang = await red.submit(timer(600, devices=3))
    await free(idle=2.0, fragmented=2.0)
    await red.cancel(gang.job_id)
    await free(idle=2.0, fragmented=0.0)


@asynccontextmanager
async def elsewhere(url: str) -> AsyncIterator[None]:
    """Nothing that starts meanwhile has this address, not by chance either."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections may still be there
        taken.bind(("127.0.0.1", int(url.rpartition(":")[2])))
        taken.listen()  # else one that reuses addresses, as the broker does, may have it, too
        yield


async def test_all_is_lost_but_the_backup(tmp_path: Path) -> None:
    fleet, folder, home = tmp_path / "fleet.yaml", tmp_path / "backup", tmp_path / "again"
    fleet.write_text(FLEET)
    key = tmp_path / "red.creds"
    async with LocalStack(options(tmp_path / "lost", fleet)) as before:
        ring = before.keyring
        ana = People(ring.folder).pseudonym("red", PERSON)
        creds = ring.team(f"red.{ana}")
        await tell(before.nats_url, ring, ["red"])
        async with await connect(Address(before.nats_url, creds)) as red:
            assert (red.team, red.place.user) == ("red", ana)
            done = await red.submit(timer(0.1))
            runs = await red.submit(timer(600, devices=2))
            await reaches(red, done.job_id, JobState.SUCCEEDED)
            await reaches(red, runs.job_id, JobState.RUNNING)
            await too_few_are_free_for_a_gang(before, red)
            bill = await billed(red)
            await red.set_secret("token", b"value")
            long_ago = int(time.time() * 1e6) // HOUR_US - 40 * 24
            use = UseHour("red", long_ago, {WHOLE: {("ana", done.job_id): DeviceUseSums(7)}})
            await UseStore(before.mongo_url, "main").save([use], long_ago)
            await write(before.state_dir, folder, before.address(), before.mongo_url)
            after = await red.submit(timer(600), "after the backup")
            await reaches(red, after.job_id, JobState.RUNNING)
        key.write_text(creds.read_text())
        old_url = before.nats_url
    shutil.rmtree(tmp_path / "lost")

    began = time.monotonic()
    told = await put_into(folder, home, Fence(time.time(), "the test stopped every agent"))
    assert (told["main"]["nodes"], told["main"]["not_before_s"]) == (2, 0)
    async with elsewhere(old_url), LocalStack(options(home, fleet)) as again:
        assert again.nats_url != old_url
        async with await connect(Address(again.nats_url, key)) as red:
            await reaches(red, done.job_id, JobState.SUCCEEDED)
            assert (await billed(red))[done.job_id] == bill[done.job_id]
            await reaches(red, runs.job_id, JobState.RUNNING, attempts=2)
            assert [job.job_id for job in await red.list() if job.job_id == after.job_id] == []
            repeated = await red.submit(timer(0.1), "after the backup")
            assert repeated.job_id == after.job_id
            await reaches(red, after.job_id, JobState.SUCCEEDED)
            assert [secret.name for secret in await red.secrets()] == ["token"]
            use = await red.use(UseQuery(to_us=(long_ago + 1) * HOUR_US))
            assert [row.allocated_unit_us for row in use.rows] == [7], "no ledger has it"
        print(f"restored and at work again in {time.monotonic() - began:.1f} s")
        async with await connect(again.address(OPERATOR), OPERATOR) as operator:
            rekeyed = await operator.rekey_secrets()
            assert (rekeyed.values, rekeyed.lost) == (1, 0), "the master key came back with the value"
        async with await connect(again.address()) as everything:
            head = await verified(everything.nats, "main")
            assert head["records"] > told["main"]["records"]
        await leaves(again, tmp_path / "export", ana, key)
    assert seen(home, ana), "the ledger has the pseudonym: who looks like this would find the name"
    assert {place: seen(place, PERSON) for place in (home, tmp_path / "export")} == {home: [], tmp_path / "export": []}
    assert [path.name for path in seen(folder, PERSON)] == [PEOPLE_FILE], "older backups have it, and only there"


async def leaves(cluster: LocalStack, export: Path, ana: str, key: Path) -> None:
    """The team's one running job is ended; said twice, the second time finds nothing to do."""
    asked = Leaving("red", export, "its contract has ended", cancel=True, wait_s=60)
    steps: list[tuple[str, str]] = []
    users: dict[str, list[str]] = {}

    def show(name: str, found: str) -> None:
        steps.append((name, found))
        users[name] = cluster.keyring.users("red")

    async with await connect(cluster.address(OPERATOR)) as operator:
        assert People(cluster.state_dir).of("red") == {ana: PERSON}
        records = await offboard(operator, cluster.keyring, asked, show)
    assert (users["export"], users["secrets"]) == (["red", f"red.{ana}"], []), "else one of them could set another"
    words = ("team", "offboard", "red", "--export", str(export), "--reason", "its contract has ended", "-o", "json")
    result = await baton(*words, BATON_STATE_DIR=str(cluster.state_dir))
    assert result.code == 0, result.err
    told = json.loads(result.out)
    ((pool, seq),) = [(one["pool"], one["ledger_seq"]) for one in told.pop("pools")]
    assert (pool, seq >= (records.decided["main"] or 0)) == ("main", True)
    again = told.pop("steps")
    assert told == {"team": "red", "folder": str(export), "error": "", "done": "offboarded"}
    assert all(f"{name}\t{found}" in result.err for name, found in again.items()), "people see each when it is done"
    assert [name for name, _ in steps] == ["suspend", "jobs", "export", "revoke", "secrets", "erase", "nodes"]
    found = dict(steps)
    assert (found["suspend"], found["jobs"], found["secrets"]) == ("in main", "1 have ended", "1 removed")
    assert found["erase"].startswith("1 names are forgotten")
    assert (again["suspend"], again["jobs"], again["secrets"]) == (
        "was suspended already",
        "none waits or runs",
        "0 removed",
    )
    assert all(
        re.fullmatch(r"are told by main from record \d+ on that its files go", one["nodes"]) for one in (found, again)
    )
    assert (again["export"], again["revoke"]) == (f"was written already: {export}", "0 credentials are void")
    assert json.loads((export / "about.json").read_text())["counts"]["jobs"] == 4
    assert ana in (export / "jobs.jsonl").read_text()
    with pytest.raises(TeamIsGone, match="team red left on"):
        DepartedTeams(cluster.state_dir).check("red")
    with pytest.raises(Unreachable, match="revoked or rotated"):
        await connect(Address(cluster.nats_url, key))


def seen(folder: Path, text: str) -> list[Path]:
    """The files below `folder` that have it, in their bytes or in their name."""
    return [
        path for path in folder.rglob("*")
        if text in path.name or (path.is_file() and text.encode() in path.read_bytes())
    ]  # fmt: skip
