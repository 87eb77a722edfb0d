"""Brokers that Baton did not start: with its accounts, and such as let anybody in."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from libs.bus.connect import Address, AnonymousBroker, close, connect
from libs.cli.launch import ROOT, LocalStack
from libs.cli.launch_options import External, LaunchOptions
from libs.cli.team_admin import answering
from libs.client import connect as connect_client
from libs.service.settings import ServiceSettings
from schemas.jobs import JobSpec
from tests.cli.test_command import baton
from tests.kit.nats_process import nats_process

JETSTREAM = 'jetstream { store_dir: "{folder}", max_file_store: 64GB }\n'


async def test_a_service_refuses_a_broker_that_lets_anybody_in(tmp_path: Path) -> None:
    with nats_process(JETSTREAM, tmp_path) as url:
        settings = ServiceSettings(nats_url=url)
        with pytest.raises(AnonymousBroker, match="--insecure, or BATON_INSECURE=1"):
            await connect(settings.bus, name="service")
        await close(await connect(ServiceSettings(nats_url=url, insecure=True).bus, name="service"))
        env = {**os.environ, "PYTHONPATH": str(ROOT), "BATON_NATS_URL": url}
        pipe = subprocess.PIPE
        words = (sys.executable, "-m", "services.telemetry")
        process = await asyncio.create_subprocess_exec(
            *words, env=env, cwd=tmp_path, stdout=pipe, stderr=subprocess.STDOUT
        )
        said, _ = await process.communicate()
        assert process.returncode != 0
        assert b"lets anybody in" in said


async def test_a_password_that_all_share_is_no_wall_either(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Seen: with one user and password in the URL all services began, and so could whoever had it."""
    nowhere = {"BATON_REDIS_URL": "redis://127.0.0.1:9", "BATON_MONGO_URL": "mongodb://127.0.0.1:9"}
    with nats_process(JETSTREAM + 'authorization { user: all, password: "word" }\n', tmp_path) as bare:
        url = bare.replace("nats://", "nats://all:word@")
        await close(await connect(ServiceSettings(nats_url=url).bus, name="service"))
        assert "NATS knows us by a password" in caplog.text
        caplog.clear()
        await close(await connect(ServiceSettings(nats_url=url, insecure=True).bus, name="service"))
        assert "password" not in caplog.text
        for words in (("up", "--external", "--state-dir", str(tmp_path / "state")), ("provision", "--pool", "main")):
            told = await baton(*words, BATON_NATS_URL=url, **nowhere)
            assert (told.code, "the same password" in told.err, "word@" in told.err) == (6, True, False), told.err


async def test_up_with_such_a_broker_needs_a_word(tmp_path: Path) -> None:
    nowhere = {"BATON_REDIS_URL": "redis://127.0.0.1:9", "BATON_MONGO_URL": "mongodb://127.0.0.1:9"}
    with nats_process(JETSTREAM, tmp_path) as url:
        refused = await baton("up", "--external", "--state-dir", str(tmp_path / "state"), url=url, **nowhere)
        assert (refused.code, "lets anybody in" in refused.err) == (6, True), refused.err
        external = External(nats_url=url, redis_url="", mongo_url="")
        options = LaunchOptions(
            state_dir=tmp_path / "state", external=external, services=(), insecure=True, scale=0.01, teams=("red",)
        )
        async with LocalStack(options) as cluster, await connect_client(cluster.address("red"), "red") as red:
            await red.submit(JobSpec(command=("x",)), wait_admitted=False)


async def test_an_external_broker_with_accounts_has_walls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`baton credentials` before, `baton up --external` with a team that came later; by TLS, also of who answers admins."""
    state, accounts = tmp_path / "state", tmp_path / "accounts.conf"
    made = await baton(
        *("credentials", "--teams", "red", "--pools", "main", "--state-dir", str(state)),
        *("--hosts", "127.0.0.1", "--certificates", str(tmp_path)),
        *("--accounts", str(tmp_path / "told"), "--write", str(accounts)),
    )
    assert made.code == 0, made.err
    with nats_process(f"{JETSTREAM}\ninclude accounts.conf\n", tmp_path) as plain:
        url = plain.replace("nats://", "tls://")
        external = External(nats_url=url, redis_url="", mongo_url="")
        options = LaunchOptions(state_dir=state, external=external, services=(), scale=0.01, teams=("red", "blue"))
        async with LocalStack(options) as cluster:
            for team in ("red", "blue"):
                async with await connect_client(cluster.address(team)) as client:
                    assert client.team == team
                    await client.submit(JobSpec(command=("x",)), wait_admitted=False)
            async with answering(url, cluster.keyring):
                pass
            service = await connect(Address(url, cluster.address("placement").creds, anonymous=False), name="placement")
            await close(service)
        assert "eof_received" not in caplog.text, "each command would say it"
