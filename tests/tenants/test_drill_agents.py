"""The drill of a pool whose machines stay: the control plane of two pools is lost and restored at its old address, while agents
and their jobs go on. What was begun after the backup ends with its leases; no device is used by two."""

import shutil
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from libs.bus.connect import Address
from libs.cli.backup_files import put_into, write
from libs.cli.fencing import Fence, verified
from libs.cli.launch import LocalStack
from libs.cli.launch_options import LaunchOptions
from libs.client import NotFound, connect
from libs.embedded.ports import lease_port
from schemas.jobs import JobSpec, JobState
from tests.history.written import Service
from tests.tenants.test_drill import billed, reaches, timer

SERVICES = ("placement", "admission", "leases", "quota_billing", "history")
POOLS = ("main", "west")
MAX_LEASE_S = 8
AGENT = {"BATON_AGENT_LEASE_S": str(MAX_LEASE_S), "BATON_AGENT_HEARTBEAT_S": "1"}


def options(home: Path, fleet: Path, port: int) -> LaunchOptions:
    """Without the first pool's agent: agents are not of the control plane here. `west` has one more, with nodes of its own."""
    return LaunchOptions(
        state_dir=home,
        teams=("red",), more_pools={"west": fleet}, services=SERVICES, nats_port=port, sync_always=False,
        scale=0.1, log_level="WARNING",
        env={
            "*": {"OPENBLAS_NUM_THREADS": "1"}, "leases": {"BATON_LEASES_MAX_LEASE_S": str(MAX_LEASE_S)},
            "agent-sim.west": AGENT,
        },
    )  # fmt: skip


def of_pool(spec: JobSpec, pool: str) -> JobSpec:
    return spec.model_copy(update={"pool": pool})


async def test_agents_run_through_the_loss_of_two_pools(tmp_path: Path) -> None:
    fleet, folder, home = tmp_path / "fleet.yaml", tmp_path / "backup", tmp_path / "again"
    fleet.write_text("groups:\n  - {name: 'm-{i:02d}', count: 2, devices: {model: H100, count: 2, memory_gib: 80}}\n")
    away = tmp_path / "away.yaml"
    away.write_text("groups:\n  - {name: 'w-{i:02d}', count: 1, devices: {model: H100, count: 2, memory_gib: 80}}\n")
    keys = tmp_path / "keys"
    async with AsyncExitStack() as machines:
        port = lease_port()  # kept to the end: another test's broker would take it in between
        machines.callback(port.release)
        async with LocalStack(options(tmp_path / "lost", away, port.port)) as before:
            creds = before.nodes_address("main").creds
            assert creds is not None
            shutil.copytree(creds.parent, keys)
            agent = Service(
                "agent", BATON_NATS_URL=before.nats_url, BATON_NATS_CREDS=str(keys / creds.name), BATON_POOL="main",
                BATON_AGENT_FLEET=str(fleet), BATON_AGENT_DEVICES="none", BATON_STATE_DIR=str(tmp_path / "agent"), **AGENT,
            )  # fmt: skip
            await machines.enter_async_context(agent)
            team_creds = tmp_path / "red.creds"
            team_creds.write_text((before.keyring.creds / "red.creds").read_text())
            async with await connect(Address(before.nats_url, team_creds)) as red:
                done = {pool: await red.submit(of_pool(timer(0.1), pool), f"done in {pool}") for pool in POOLS}
                runs = {pool: await red.submit(of_pool(timer(600, 2), pool), f"runs in {pool}") for pool in POOLS}
                for pool in POOLS:
                    await reaches(red, done[pool].job_id, JobState.SUCCEEDED)
                    await reaches(red, runs[pool].job_id, JobState.RUNNING)
                bill = await billed(red)
                await write(before.state_dir, folder, before.address())
                after = await red.submit(of_pool(timer(600, 2), "main"), "after the backup")
                await reaches(red, after.job_id, JobState.RUNNING)
        gone_s = time.time()
        shutil.rmtree(tmp_path / "lost")

        began = time.monotonic()
        told = await put_into(folder, home, Fence(gone_s))
        assert {pool: told[pool]["nodes"] for pool in POOLS} == {"main": 2, "west": 1}
        assert all(told[pool]["not_before_s"] > gone_s + MAX_LEASE_S for pool in POOLS), "nothing is started before"
        async with LocalStack(options(home, away, port.port)) as again:
            assert again.fenced_s() == 0, "it has waited"
            async with await connect(Address(again.nats_url, team_creds)) as red:
                for pool in POOLS:
                    await reaches(red, runs[pool].job_id, JobState.RUNNING, attempts=2)
                    assert (await red.get(runs[pool].job_id)).attempts[0].outcome == "lost"
                assert (await billed(red))[done["main"].job_id] == bill[done["main"].job_id]
                with pytest.raises(NotFound):
                    await red.get(after.job_id)
                whole = await red.submit(of_pool(timer(0.1, 2), "main"), "the devices of what is gone")
                await reaches(red, whole.job_id, JobState.SUCCEEDED)
            print(f"control plane of two pools restored, agents at their address, in {time.monotonic() - began:.1f} s")
            async with await connect(again.address()) as everything:
                for pool in POOLS:
                    assert (await verified(everything.nats, pool))["records"] > told[pool]["records"]
