"""A whole Baton on this machine: a job gets its secret, and nobody else has it, wherever one looks."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.bus.asking import NoAnswer, QueryError, ask
from libs.bus.boxes import BoxKey
from libs.bus.connect import Address, close
from libs.bus.connect import connect as connect_bus
from libs.cli.launch import REAL, ROOT, LaunchOptions, LocalStack
from libs.client import Baton, ClientError, Invalid, connect
from libs.walls.resolver import tell
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.jobs import JobSpec, JobState
from schemas.resources import Resources
from schemas.secrets import NodeSecretsQuery
from tests.faults.cluster import kill9

VALUE = b"v4lue-of-the-token-" + secrets.token_hex(8).encode() + b"\n\xff\xfe of this test alone"
"""Of this run alone: the same test of another checkout on this machine has processes with a value of its own."""
BATON = (sys.executable, "-m", "libs.cli")
SERVICES = ("placement", "admission", "history", "leases", "vault")
PRINTS = (
    "import hashlib, os, pathlib, sys, time\n"
    "d = pathlib.Path(os.environ['BATON_SECRETS_DIR'])\n"
    "print(hashlib.sha256((d / 'token').read_bytes()).hexdigest(), flush=True)\n"
    "print(hashlib.sha256(os.environb[b'TOKEN']).hexdigest(), flush=True)\n"
    "try:\n    (d / 'x').write_bytes(bytes(2**20)); print('wrote into', end=' ')\n"
    "except OSError: pass\n"
    "print('dir', d, oct(d.stat().st_mode), flush=True)\n"
    "go = pathlib.Path(sys.argv[1])\n"
    "while not go.exists(): time.sleep(0.05)\n"
)


def spec(*argv: str, uses: tuple[dict[str, str], ...]) -> JobSpec:
    command = (sys.executable, "-c", *argv)
    return JobSpec.model_validate(
        {"command": command, "secrets": uses, "resources": Resources(types=("CPU",)).model_dump(exclude_defaults=True)}
    )


USES = ({"secret": "token"}, {"secret": "token", "env": "TOKEN"})


async def printed(team: Baton, job_id: str, lines: int) -> list[str]:
    """What the job wrote, once it is so many lines."""
    while True:
        try:
            text = "".join([piece.text async for piece in team.logs(job_id)])
        except ClientError:
            text = ""
        if text.count("\n") >= lines:
            return text.splitlines()
        await asyncio.sleep(0.1)


def forms(value: bytes) -> list[bytes]:
    """The value as it may lie somewhere: as it is, in base64 at each place within other text, in hexadecimal."""
    shifted = [base64.b64encode(b"x" * n + value)[4 if n else 0 : -4] for n in range(3)]
    return [value, value.hex().encode(), *shifted]


def files(state: Path) -> Iterator[tuple[str, bytes]]:
    """All that Baton and its servers have written: streams, documents, snapshots, logs, credentials, attempts."""
    for path in state.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield str(path), path.read_bytes()


def wherever(state: Path, job: int) -> Iterator[tuple[str, bytes]]:
    """That, and what the machine shows of each process but the job's."""
    yield from files(state)
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            if int(folder.name) != job:
                with contextlib.suppress(OSError):
                    yield str(folder / name), (folder / name).read_bytes()


def found(places: Iterator[tuple[str, bytes]]) -> list[str]:
    """Where the value lies."""
    return [where for where, data in places if any(form in data for form in forms(VALUE))]


def test_forms_find_a_value_in_base64_at_any_place() -> None:
    for n in range(6):
        inside = base64.b64encode(b"a" * n + VALUE + b"bcd")
        assert any(form in inside for form in forms(VALUE)), n


async def nobody_else_is_given_it(cluster: LocalStack, job: str) -> None:
    """A node that does not hold the attempt hears so; a team and an operator cannot even ask."""
    question = BY_TYPE["io.baton.node.secrets.query.v1"]
    query = NodeSecretsQuery(job_id=job, attempt=1, key=BoxKey.new().public, nonce="0" * 32)
    other = cluster.keyring.node("main", "other")
    await tell(cluster.nats_url, cluster.keyring, ["@main.other", "$baton"])
    asks = {
        "other": (Address(cluster.nats_url, other), subjects.node_reply_prefix("main", "other"), QueryError),
        "red": (cluster.address("red"), subjects.reply_prefix("red", "ana"), NoAnswer),
        "operator": (cluster.address("operator"), subjects.reply_prefix("operator", "ana"), NoAnswer),
    }
    for who, (address, replies, refused) in asks.items():
        nats = await connect_bus(address, name=who, inbox_prefix=replies)
        try:
            for asked in ("other", "anything"):
                if who == "other" and asked != "other":
                    refused = NoAnswer
                with pytest.raises(refused):
                    await ask(nats, question, query, pool="main", node=asked, timeout_s=0.5)
        finally:
            await close(nats)


@pytest.mark.demo
@pytest.mark.timeout(300)
async def test_a_secret_reaches_its_job_and_nobody_else(tmp_path: Path) -> None:
    state = tmp_path / "state"
    options = LaunchOptions(
        state_dir=state,
        teams=("red", "blue"),
        real_node="cpu",
        services=SERVICES,
        sync_always=False,
        scale=0.01,
        env={"*": {"OPENBLAS_NUM_THREADS": "1", "BATON_AGENT_READABLE": json.dumps([str(tmp_path / "shown")])}},
        log_level="DEBUG",
    )
    (tmp_path / "shown").mkdir()
    go = tmp_path / "shown" / "go"
    async with (
        LocalStack(options) as cluster,
        await connect(cluster.address("red"), "red") as red,
        await connect(cluster.address("blue"), "blue") as blue,
    ):
        with pytest.raises(Invalid, match="no secret token"):
            await red.submit(spec("pass", uses=USES))
        set_ = await asyncio.create_subprocess_exec(
            *(*BATON, "secret", "set", "token", "--team", "red", "--file", "/dev/stdin"),
            env={**os.environ, **cluster.address("red").environ()},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        out, _ = await set_.communicate(VALUE)
        assert (set_.returncode, out) == (0, b"token\t1\n")
        await blue.set_secret("token", b"another team's")
        job = (await red.submit(spec(PRINTS, str(go), uses=USES))).job_id
        lines = await asyncio.wait_for(printed(red, job, 3), 60)
        assert lines[:2] == [hashlib.sha256(VALUE).hexdigest()] * 2
        said, folder, mode = lines[
            2
        ].split()  # "wrote into": it lies in memory that is the host's, and no limit counts it
        assert said == "dir"
        assert mode == "0o40700"
        assert state not in Path(folder).parents, "in memory"
        pids, unread = holders(b"TOKEN=" + VALUE)
        wrote = await printed(red, job, 3)
        assert len(pids) == 1, f"the job's environment, and no other's: {pids}, {wrote}, {unread}, {await red.get(job)}"
        assert await asyncio.to_thread(found, wherever(state, pids[0])) == []
        await nobody_else_is_given_it(cluster, job)
        assert [info.version for info in await red.secrets()] == [1]
        await red.set_secret("token", b"the next")
        kill9(cluster, REAL)  # the keeper goes on with the job, and the next agent adopts it
        await cluster.wait_ready(REAL, timeout_s=60)
        assert sorted(path.name for path in Path(folder).iterdir()) == ["token"]
        assert await asyncio.to_thread(found, wherever(state, pids[0])) == []
        go.touch()
        assert (await red.wait(job, 60)).state is JobState.SUCCEEDED
        assert len((await red.get(job)).attempts) == 1
        assert not Path(folder).exists()
        again = (await red.submit(spec(PRINTS, str(go), uses=USES))).job_id
        assert (await red.wait(again, 60)).state is JobState.SUCCEEDED
        assert (await printed(red, again, 3))[0] == hashlib.sha256(b"the next").hexdigest()
        await red.remove_secret("token")
        (missing,) = await red.submit_many([spec("pass", uses=USES)])
        ended = await red.wait(missing.job_id, 60)  # `submit_many` asks nobody: admission refuses it
        assert ended.state is JobState.REJECTED
        assert "job.secrets.0.secret" in ended.reason
        assert "team red has no secret token; it has: none" in ended.reason
        assert [info.name for info in await blue.secrets()] == ["token"]
    assert found(files(state)) == []
    assert not Path(folder).parent.exists(), "each state folder that ever was would leave one in memory"
    assert (state / "vault").stat().st_mode & 0o777 == 0o700
    assert (state / "vault" / "keys.json").stat().st_mode & 0o777 == 0o600


def holders(what: bytes) -> tuple[list[int], list[str]]:
    """The processes in whose environment it is, and those that show none."""
    pids, unread = [], []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if what in (process / "environ").read_bytes():
                pids.append(int(process.name))
        except OSError as e:
            unread.append(f"{process.name}: {e.strerror}")
    return pids, unread
