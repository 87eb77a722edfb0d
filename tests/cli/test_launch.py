"""Starting Baton on this machine: what `baton up`, the demo, benchmarks and fault tests stand on."""

import asyncio
import fcntl
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import termios
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.cli.health import Checks, NotReady, readiness
from libs.cli.launch import ROOT, SERVICES, LaunchOptions, LocalStack
from libs.cli.operator_action import operator_action
from libs.client import Rejected, Unreachable, connect
from libs.client.where import CLIENT_FILE, find
from libs.embedded import read_processes
from libs.walls.book import Book
from libs.walls.keyring import Keyring
from schemas.jobs import JobSpec, JobState, Simulation
from schemas.model_shape import ModelShape
from schemas.resources import Resources
from tests.cli.test_command import baton
from tests.kit.refusals import refusals
from tests.kit.waiting import until

BATON = [sys.executable, "-m", "libs.cli"]


def up(folder: Path, *more: str, **variables: str) -> "asyncio.Future[asyncio.subprocess.Process]":
    command = [*BATON, "up", "--servers-only", "--state-dir", str(folder), "--fast", *more]
    env = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")} | {"PYTHONPATH": str(ROOT), **variables}
    pipe = subprocess.PIPE
    return asyncio.ensure_future(asyncio.create_subprocess_exec(*command, env=env, cwd=ROOT, stdout=pipe, stderr=pipe))


async def test_servers_streams_and_credentials(tmp_path: Path) -> None:
    options = LaunchOptions(state_dir=tmp_path, teams=("red", "blue"), services=(), sync_always=False, scale=0.01)
    async with LocalStack(options) as cluster:
        assert set(cluster.processes()) == {"nats", "valkey", "mongo"}
        assert stat.S_IMODE((tmp_path / CLIENT_FILE).stat().st_mode) == 0o600
        place = find(team="red", environ={"BATON_STATE_DIR": str(tmp_path)})
        assert (place.address, place.team, place.pool) == (cluster.address("red"), "red", "main")
        operator = find(operator=True, environ={"BATON_STATE_DIR": str(tmp_path)})
        assert (operator.address, operator.team) == (cluster.address("operator"), "operator")
        async with await connect(place.address) as red:
            await red.submit(JobSpec(command=("x",)), wait_admitted=False)
        with pytest.raises(KeyError, match="red, blue"):
            cluster.address("green")
        url = cluster.address("red")
    with pytest.raises(Unreachable):
        find(environ={"BATON_STATE_DIR": str(tmp_path)})
    async with LocalStack(options) as cluster:
        assert cluster.address("red") == url


async def test_a_stop_that_comes_together_with_an_answer_of_the_broker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo stood at "stop everything" for eight minutes: a request of nats-py had dropped the cancellation."""

    begun = asyncio.Event()

    async def drops_the_first(_: object) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(3600)

    monkeypatch.setattr("libs.cli.launch.RequestSizeLimit.run", drops_the_first)
    options = LaunchOptions(state_dir=tmp_path, teams=("red",), services=(), sync_always=False, scale=0.01)
    async with LocalStack(options) as cluster:
        await begun.wait()
    assert {process.pid for process in cluster.processes().values()} == {None}


async def test_up_runs_until_it_is_interrupted_and_leaves_nothing(tmp_path: Path) -> None:
    process = await up(tmp_path, "--teams", "red,blue")
    assert process.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith(b"stop:"):
        lines.append(await process.stdout.readline())
    assert any(line.startswith(b"nats\tready\t") for line in lines)
    second = await up(tmp_path)
    _, err = await second.communicate()
    assert (second.returncode, b"is in use by pid" in err, b"Traceback" in err) == (5, True, False)
    pids = [record.pid for record in read_processes(tmp_path).values()]
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err.splitlines()[-1]) == (0, b"stopping ...")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)
    assert not (tmp_path / CLIENT_FILE).exists()


@pytest.mark.parametrize("terminal", ["hangs up", "hangs up under nohup"])
async def test_a_terminal_that_is_closed_stops_it_as_ctrl_c_does(tmp_path: Path, terminal: str) -> None:
    """Seen: it ended there and then, `client.json` stayed, and so did the keeper with the jobs of this machine."""
    ours, theirs = os.openpty()
    nohup = terminal.endswith("nohup")

    def of_the_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)

    command = [*BATON, "up", "--servers-only", "--state-dir", str(tmp_path), "--fast"]
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("BATON_")}, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=of_the_terminal,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while b"stop:" not in said:
        said += await asyncio.to_thread(os.read, ours, 4096)
    pids = [record.pid for record in read_processes(tmp_path).values()]
    os.close(ours)
    if nohup:
        await asyncio.sleep(0.5)
        assert process.returncode is None
        process.terminate()
    assert await process.wait() == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)
    assert not (tmp_path / CLIENT_FILE).exists()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_what_the_ledger_was_not_told_is_told_when_all_is_ready(tmp_path: Path, elsewhere: bool) -> None:
    """As after a restore, whose own line waits: `baton audit verify` missed it until somebody acted. The ledger is this
    instance's, whatever Baton its user's variables name."""
    foreign = {
        "BATON_NATS_URL": "nats://127.0.0.1:9",
        "BATON_NATS_CREDS": str(Keyring(tmp_path / "their").team("their")),
    }
    with operator_action("restore", "backup", "", folder=tmp_path, tells=False):
        pass
    book = Book(tmp_path)
    assert len(book.untold("main")) == 1
    process = await up(tmp_path, **(foreign if elsewhere else {}))
    await until(lambda: not book.untold("main"))
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, b"was not told" in err) == (0, False), err


async def test_interrupting_the_start_stops_what_has_started(tmp_path: Path) -> None:
    process = await up(tmp_path)
    assert process.stderr is not None
    await process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 0
    assert not (tmp_path / CLIENT_FILE).exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"teams": ("a", "a")}, "teams named twice: a"),
        ({"teams": ("services",)}, "Baton's own"),
        ({"teams": ("a b",)}, "cannot be a name"),
        ({"services": ("history", "herald")}, "unknown services: herald"),
        ({"real_node": "gpu"}, "use one of none, auto, nvml, cpu"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LaunchOptions(**options)


def test_a_missing_fleet_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LaunchOptions(fleet=tmp_path / "none.yaml")


async def each_service_has_its_own_stores_alone(cluster: LocalStack) -> None:
    """And tells its state to those who have its own token: an agent's is readable by jobs that run as its user."""
    for name in cluster.http:
        environ = dict(cluster.supervisor.spec(name).env or {})
        users = {"placement": "placement.main", "telemetry": "telemetry.main"}
        user = environ.get("BATON_REDIS_URL", "").removeprefix("unix://").split(":")[0]
        assert user == users.get(name, ""), name
        assert ("BATON_MONGO_URL" in environ) == (name in {"history", "quota_billing"}), name
        other = next(token for other, token in cluster.http_tokens.items() if other != name)
        for token, ready in ((environ["BATON_HTTP_TOKEN"], True), (other, False), ("", False)):
            assert (await readiness(cluster.http[name], token)).ready == ready, name


async def a_team_takes_along_what_is_its_own(cluster: LocalStack, job: str, folder: Path) -> None:
    """`baton team export`, and each file is what it says that it is."""
    words = ("team", "export", str(folder), "--team", "red")
    assert (await baton(*words, url=cluster.address("red"))).code == 0
    about = json.loads((folder / "about.json").read_text())
    files = {name: (folder / name).read_bytes() for name in about["sha256"]}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} == about["sha256"]
    lines = {name: [json.loads(line) for line in data.splitlines()] for name, data in files.items()}
    assert {name.removesuffix(".jsonl"): len(found) for name, found in lines.items()} == about["counts"]
    assert [(found["job_id"], found["team"], found["state"]) for found in lines["jobs.jsonl"]] == [
        (job, "red", "succeeded")
    ]
    assert [event["what"] for event in lines["events.jsonl"]][:: len(lines["events.jsonl"]) - 1] == [
        "queued",
        "succeeded",
    ]
    days, *each = lines["bills.jsonl"]
    assert days["total_milli_us"] == sum(day["total_milli_us"] for day in each) > 0
    assert [row["jobs"] for day in each for row in day["rows"]] == [1]
    assert [team["team"] for team in lines["quotas.jsonl"][0]["teams"]] == ["red"]
    assert (await baton(*words)).code == 2, "nothing is written over"


@pytest.mark.demo
async def test_the_whole_of_baton_runs_a_job(tmp_path: Path) -> None:
    fleet = ROOT / "deploy/fleets/demo-16x8-h100.yaml"
    options = LaunchOptions(state_dir=tmp_path, teams=("red",), fleet=fleet, sync_always=False)
    async with LocalStack(options) as cluster:
        ready = await cluster.readiness()
        assert set(ready) == {*SERVICES, "agent-sim"}
        assert all(checks.ready for checks in ready.values())
        await each_service_has_its_own_stores_alone(cluster)
        async with await connect(cluster.address("red")) as red:
            spec = JobSpec(
                simulation=Simulation(duration_s=0.1),
                resources=Resources(devices=8),
                model=ModelShape(parameters_b=1),
                env={"B": "2", "A": "1"},
            )
            job = (await red.submit(spec, "mine")).job_id
            assert (await red.wait(job, 60)).state is JobState.SUCCEEDED
            assert (await red.get(job)).spec.resources.memory_mib, "admission fills in what the model needs"
            assert (await red.submit(spec, "mine")).job_id == job, "and it is the same job when it is sent again"
            assert not refusals(tmp_path), "every service has the rights that it needs"
            events = [event.what async for event in red.watch(job)]
            assert events[0] == "queued"
            assert events[-1] == "succeeded"
        verify = await baton("ledger", "verify", "--bill", "-o", "json", url=cluster.address("operator"))
        report = json.loads(verify.out)
        assert (verify.code, report["ok"], report["jobs"], report["bill_differences"]) == (0, True, 1, [])
        await a_team_takes_along_what_is_its_own(cluster, job, tmp_path / "export")


async def test_two_pools_are_one_instance_for_its_users(tmp_path: Path) -> None:
    """Agents speak with credentials of their pool's nodes only, a user with its own; history knows the jobs of both."""
    for pool, model in (("main", "H100"), ("west", "L4")):
        (tmp_path / f"{pool}.yaml").write_text(
            f"groups: [{{name: '{pool}-{{i}}', count: 1, devices: {{model: {model}, count: 2, memory_gib: 24}}}}]\n"
        )
    options = LaunchOptions(
        state_dir=tmp_path / "state",
        teams=("red",),
        users=("red.ana",),
        fleet=tmp_path / "main.yaml",
        more_pools={"west": tmp_path / "west.yaml"},
        services=("placement", "admission", "history", "telemetry", "leases", "queries", "quota_billing"),
        sync_always=False,
        scale=0.01,
        env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )
    async with LocalStack(options) as cluster:
        assert {"placement", "placement.west", "agent-sim.west", "admission"} <= set(cluster.http)
        assert "admission.west" not in cluster.http
        place = find(team="red", user="ana", environ={"BATON_STATE_DIR": str(tmp_path / "state")})
        assert (place.address, place.user) == (cluster.address("red.ana"), "ana")
        async with await connect(place.address) as ana:
            assert (ana.team, ana.place.user) == ("red", "ana")
            ran = await ana.submit(JobSpec(resources=Resources(types=("L4",)), simulation=Simulation(duration_s=0.1)))
            assert (await ana.wait(ran.job_id, 60)).state is JobState.SUCCEEDED
            waits = JobSpec(pool="west", resources=Resources(devices=2), simulation=Simulation(duration_s=600))
            first, second = [(await ana.submit(waits)).job_id for _ in range(2)]
            document = await ana.get(ran.job_id)
            assert (document.pool, document.user) == ("west", "ana")
            await until(lambda: ana.list((JobState.QUEUED,)))  # history is a moment behind
            assert (await ana.explain(second)).job_id == second, "our pool does not know it, west does"
            assert {job.pool for job in await ana.list()} == {"west"}
            await ana.cancel(first)
            assert (await ana.wait(first, 60)).state is JobState.CANCELLED
            with pytest.raises(Rejected, match="use one of: main, west"):
                await ana.submit(JobSpec(pool="north", simulation=Simulation(duration_s=1)))
        async with await connect(cluster.address("red.ana"), pool="west") as ana:
            assert [view.node for view in (await ana.nodes()).nodes] == ["west-0"]
            assert (await ana.status()).pool == "west"
        operator = cluster.address("operator")
        verified = await baton("ledger", "verify", "--bill", "--pool", "west", url=operator)
        assert (verified.code, "the bill equals" in verified.err) == (0, True), "seen: it was given the bill of main"
        listed: list[dict[str, Any]] = []

        async def without_the_cancelled() -> bool:  # queries is a moment behind
            listed[:] = json.loads((await baton("get", "pools", "-o", "json", url=operator)).out)
            return [one["running"] + one["waiting"] for one in listed] == [0, 1]

        await until(without_the_cancelled)
        assert [(one["pool"], one["state"], one["nodes"]) for one in listed] == [("main", "up", 1), ("west", "up", 1)]
        assert (await baton("get", "pools", url=cluster.address("red"))).code == 4


def test_what_is_not_ready_says_with_which_error_it_ended(tmp_path: Path) -> None:
    """After an upgrade no snapshot could be read, and what came before was archived: nobody was told why nothing came up."""
    gap = "libs.ledger.chain.LedgerGap: ledger of pool main no longer has 1 to 604 here: restore them (`baton ledger restore`)"
    lines = [
        {"level": "critical", "timestamp": "2026-11-26T18:28:45.1Z", "exception": "ValueError: of before"},
        {
            "level": "critical",
            "timestamp": "2026-11-26T18:30:45.1Z",
            "event": "ends",
            "exception": f"Traceback\n  x\n{gap}",
        },
        {"level": "warning", "timestamp": "2026-11-26T18:31:00Z", "event": "begins"},
    ]
    (tmp_path / "quota_billing.log").write_text("\n".join(json.dumps(line) for line in lines) + "\nno JSON\n")
    began = datetime(2026, 11, 26, 18, 30, tzinfo=UTC).timestamp()
    waiting = {
        "quota_billing": Checks(False, {"http": "no answer"}),
        "vault": Checks(False, {"ledger": "not read yet"}),
    }
    said = str(NotReady(waiting, 90, tmp_path, began))
    assert f"quota_billing (http: no answer, it ended: {gap}); vault (ledger: not read yet)" in said
    assert "`baton up --servers-only`" in said
    assert "it ended" not in str(NotReady(waiting, 90, tmp_path, began + 3600)), "an end of before explains nothing"
