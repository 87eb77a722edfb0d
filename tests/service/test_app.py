"""A real service process: probes, metrics, a graceful stop, and loud ends."""

import asyncio
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import uvicorn
from prometheus_client import make_asgi_app

from libs.bus.connect import BusConnection, close, connect
from libs.bus.retry import retry_while_away
from libs.bus.streams import provision
from libs.embedded.servers import NATS
from libs.ports.timerslack import SHARED_NS
from libs.service.app import _YIELDS, _Server
from libs.service.few_lines import LINES
from libs.service.http_limits import MOST
from libs.service.tasks import FAILED_EXIT_CODE
from schemas.requests import CancelJob
from schemas.subjects import REQUESTS, cancel, inbox
from tests.kit.background import ServerInBackground
from tests.kit.commands import SMALL_SERVICE, fork
from tests.kit.waiting import stored, until

JOB = "job-" + "0" * 32
ROOT = Path(__file__).parents[2]


class Process:
    """The small service, running."""

    def __init__(self, url: str, state_dir: Path, *, own_session: bool = False, **settings: str) -> None:
        self.port_file = state_dir / "small.http"
        self.out = (state_dir / "out").open("w+b")
        self.log = (state_dir / "log").open("w+b")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
        environment |= {"BATON_NATS_URL": url, "BATON_POOL": "p", "BATON_STATE_DIR": str(state_dir)} | settings
        self.popen = fork(SMALL_SERVICE).start(environment, ROOT, self.log, out=self.out, own_session=own_session)

    async def up(self) -> "Process":
        await until(lambda: self.port_file.exists() or self.popen.poll() is not None)
        assert self.popen.poll() is None, self.logged()
        return self

    async def get(self, path: str) -> tuple[int, str]:
        port = int(self.port_file.read_text())

        def fetch() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as e:
                return e.code, e.read().decode()

        return await asyncio.to_thread(fetch)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.popen.wait, 60)

    def printed(self) -> str:
        return Path(self.out.name).read_text()

    def logged(self) -> str:
        return Path(self.log.name).read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerInBackground]:
    with ServerInBackground(NATS, tmp_path / "nats") as one:
        yield one


@pytest.fixture
async def own_nats(server: ServerInBackground) -> AsyncIterator[BusConnection]:
    connection = await connect(server.url, name="test")
    await provision(connection.jetstream(), ["p"], scale=0.01)
    yield connection
    await close(connection)


@pytest.fixture
def start(server: ServerInBackground, tmp_path: Path) -> Iterator:
    started: list[Process] = []

    def begin(*, own_session: bool = False, **settings: str) -> Process:
        process = Process(server.url, tmp_path, own_session=own_session, **settings)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait()
        process.out.close()
        process.log.close()


async def cancel_one(nats: BusConnection, reason: str) -> None:
    payload = CancelJob(job_id=JOB, reason=reason).model_dump_json().encode()
    await nats.jetstream().publish(cancel("research", "ana"), payload, headers={"Nats-Msg-Id": reason})


async def moved(nats: BusConnection) -> list[str]:
    messages = await stored(nats.jetstream(), "INBOX-p", inbox("job", "cancel-requested", "p"))
    return [json.loads(m.data)["reason"] for m in messages]


async def test_probes_and_metrics_tell_what_the_service_does(own_nats: BusConnection, start) -> None:
    process = await start().up()
    await cancel_one(own_nats, "one")
    await until(lambda: moved(own_nats))
    assert (await process.get("/livez"))[0] == 200
    status, text = await process.get("/readyz")
    assert status == 200
    assert json.loads(text) == {
        "service": "small",
        "pool": "p",
        "ready": True,
        "checks": {"nats": "ok", "work": "ok"},
    }

    async def counted() -> bool:
        metrics = (await process.get("/metrics"))[1]
        return 'baton_bus_settled_total{consumer="admission",outcome="decided"} 1.0' in metrics

    await until(counted)
    metrics = (await process.get("/metrics"))[1]
    for name in (
        "small_seen_total 1.0",
        "baton_bus_published_total 1.0",
        "process_cpu_seconds_total",
        "event_loop_lag",
    ):
        assert name in metrics
    assert (await process.get("/nothing"))[0] == 404


@pytest.mark.parametrize("own_session", [True, False])
async def test_a_service_that_reads_what_others_decide_lets_them_go_first(
    own_nats: BusConnection, start, *, own_session: bool
) -> None:
    ours = _session_niceness("self")
    process = await start(own_session=own_session).up()
    pid = process.popen.pid
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + _YIELDS, 19)
    if ours is not None:  # a kernel that weighs sessions
        await until(lambda: _session_niceness(str(pid)) == (_YIELDS if own_session else ours))


async def test_a_service_shares_its_wakeups_with_others(own_nats: BusConnection, start) -> None:
    process = await start().up()
    assert f"slack {SHARED_NS}\n" in process.printed()


def _session_niceness(pid: str) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().rpartition(" nice ")[2])
    except (FileNotFoundError, ValueError):
        return None


async def test_who_connects_and_asks_nothing_takes_no_place_of_who_asks(own_nats: BusConnection, start) -> None:
    """Every job of a node reaches the port. A third of them ask once, and then begin a request that they do not end."""
    process = await start().up()
    port = int(process.port_file.read_text())
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MOST)]
    for _, writer in silent[::3]:
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\n")
    assert (await process.get("/livez"))[0] == 200
    assert process.popen.poll() is None

    def open_still() -> int:
        folder = Path(f"/proc/{process.popen.pid}/fd")
        return sum(os.readlink(one).startswith("socket:") for one in folder.iterdir())

    await until(lambda: open_still() <= MOST + 16)
    for reader, _ in silent[: MOST // 2]:
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 30)  # to its end, perhaps after an answer: the oldest gave way
    for _, writer in silent:
        writer.close()


async def test_who_asks_what_is_no_question_does_not_fill_the_log(own_nats: BusConnection, start) -> None:
    """Seen: 1.5 MB a second of tracebacks, so that nothing else was left in the log after twenty seconds."""
    process = await start().up()
    port, before = int(process.port_file.read_text()), len(process.logged())
    for request in (b"CONNECT /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /livez\r\n\r\n") * (4 * LINES):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
    assert (await process.get("/livez"))[0] == 200
    told = [json.loads(line)["logger"] for line in process.logged()[before:].splitlines()]
    assert 1 <= told.count("baton.http") <= LINES + 2, "a minute may have gone by"
    assert not {one for one in told if one.startswith("uvicorn")}


async def test_a_service_with_a_problem_is_not_ready_but_alive(own_nats: BusConnection, start) -> None:
    process = await start(BATON_SMALL_PROBLEM="redis is away").up()
    status, text = await process.get("/readyz")
    assert status == 503
    assert json.loads(text)["checks"]["work"] == "redis is away"
    assert (await process.get("/livez"))[0] == 200


async def test_a_service_survives_its_broker_and_says_so(
    own_nats: BusConnection, server: ServerInBackground, start
) -> None:
    process = await start().up()
    await cancel_one(own_nats, "before")
    await until(lambda: moved(own_nats))  # it consumes: one whose broker goes before that ends, to be started again
    pid = await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.wait_replaced, pid)
    await until(lambda: own_nats.is_connected)

    async def ready() -> bool:
        return (await process.get("/readyz"))[0] == 200

    await until(ready)
    await retry_while_away(partial(cancel_one, own_nats, "after"), lambda error, failures: None)

    async def both() -> bool:
        return await moved(own_nats) == ["before", "after"]

    await until(both)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_finishes_what_is_being_decided(own_nats: BusConnection, start, number: int) -> None:
    process = await start(BATON_SMALL_SLOW_S="1.5").up()
    await cancel_one(own_nats, "in flight")
    await until(lambda: "deciding" in process.printed())
    process.popen.send_signal(number)
    assert await process.ended() == 0
    assert "lifespan ended" in process.printed()
    assert await moved(own_nats) == ["in flight"]
    info = await own_nats.jetstream().consumer_info(REQUESTS, "admission")
    assert (info.num_ack_pending, info.num_pending) == (0, 0)
    assert not process.port_file.exists()


async def test_a_stop_does_not_wait_for_a_broker_that_does_not_answer(
    server: ServerInBackground, own_nats: BusConnection, start
) -> None:
    """Not for its subscriptions, not for what is being decided, which nobody would acknowledge, and not at each connection."""
    process = await start(BATON_SMALL_SLOW_S="600").up()
    await cancel_one(own_nats, "slow")
    await until(lambda: "deciding" in process.printed())
    with server.frozen():
        process.popen.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.popen.wait, 20)  # what a supervisor waits before it kills (`libs.cli.launch`)
    assert process.popen.returncode == 0, process.logged()


async def test_a_stop_does_not_wait_for_a_thread(own_nats: BusConnection, start) -> None:
    """As those of MongoDB's driver, which wait for what was asked of a server that is frozen."""
    process = await start(BATON_SMALL_THREAD_S="600").up()
    process.popen.send_signal(signal.SIGTERM)
    assert await process.ended() == 0, process.logged()


async def test_a_start_that_does_not_come_to_its_end_can_be_stopped(start) -> None:
    process = start(BATON_SMALL_START_S="600")
    await until(lambda: "starting" in process.printed())
    process.popen.send_signal(signal.SIGTERM)
    assert await process.ended() == 0, process.logged()


async def test_a_task_that_fails_ends_the_process_loudly(own_nats: BusConnection, start) -> None:
    process = await start(BATON_SMALL_FAIL_AFTER_S="0.1").up()
    assert await process.ended() == FAILED_EXIT_CODE
    lines = [json.loads(line) for line in process.logged().splitlines()]
    (last,) = [line for line in lines if line["level"] == "critical"]
    assert last["service"] == "small"
    assert "task 'doomed' failed" in last["event"]
    assert "a task broke" in last["exception"]


async def test_without_streams_it_does_not_start_and_names_the_fix(server: ServerInBackground, start) -> None:
    process = start()
    assert await process.ended() == FAILED_EXIT_CODE
    assert "baton provision --pool p" in process.logged()
    assert not process.port_file.exists()


async def test_a_port_that_others_have_is_found_before_anything_begins(server: ServerInBackground, start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        process = start(BATON_HTTP_PORT=str(port))
        assert await process.ended() == FAILED_EXIT_CODE
    assert f"no HTTP at 127.0.0.1:{port} (Address already in use" in process.logged()
    process.out.seek(0)
    assert b"starting" not in process.out.read()


async def test_wrong_settings_are_all_named(server: ServerInBackground, start) -> None:
    process = start(BATON_POOL="Not A Pool", BATON_HTTP_PORT="99999", BATON_SMALL_SLOW_S="soon")
    assert await process.ended() != 0
    for name in ("BATON_POOL", "BATON_HTTP_PORT", "slow_s"):
        assert name in process.logged()


def test_an_idle_service_sets_no_timer_and_a_signal_wakes_it() -> None:
    async def idle() -> list[asyncio.TimerHandle]:
        server = _Server(uvicorn.Config(make_asgi_app()), None)
        server.config.load()
        waiting = asyncio.create_task(server.main_loop())
        await asyncio.sleep(0)
        timers = [*asyncio.get_running_loop()._scheduled]  # type: ignore[attr-defined]
        server.handle_exit(signal.SIGTERM, None)
        await waiting
        return timers

    assert asyncio.run(idle()) == []


async def test_a_stop_does_not_wait_for_the_niceness_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root one process of a machine may set it in 0.1 s: where many start, the last ones try for seconds."""
    tried = []
    monkeypatch.setattr("os.getsid", lambda _: os.getpid())
    monkeypatch.setattr("libs.service.app._SESSION_AGAIN_S", 1000.0)
    monkeypatch.setattr("libs.service.app._wrote_session_niceness", lambda: tried.append(1))
    server = _Server(uvicorn.Config(make_asgi_app()), None, yields=True)
    server.config.load()
    waiting = asyncio.create_task(server.main_loop())
    await until(lambda: tried)
    server.handle_exit(signal.SIGTERM, None)
    await waiting
