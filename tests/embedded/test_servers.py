"""The three real servers: they start, keep their data, come back after a kill, and leave nothing behind."""

import asyncio
import re
import shutil
import stat
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import psutil
import pytest
import redis.asyncio as redis
from motor.motor_asyncio import AsyncIOMotorClient
from nats.errors import Error as NatsError
from pymongo import ReplaceOne
from pymongo.errors import BulkWriteError
from redis.exceptions import NoPermissionError, RedisError

from libs.embedded import (
    NatsOptions,
    NatsUser,
    ServerOptions,
    Servers,
    StateDirLocked,
    ValkeyOptions,
    ValkeyUser,
    read_processes,
)
from libs.embedded import servers as servers_module
from libs.embedded.sockets import SocketTaken, UnfitStateDir, private_socket

Until = Callable[..., Awaitable[Any]]

ONLY_NATS = ServerOptions(run=["nats"])
ONLY_VALKEY = ServerOptions(run=["valkey"])


async def test_data_urls_and_passwords_survive_a_restart_of_the_stack(state_dir: Path) -> None:
    async with Servers(state_dir) as servers:
        first = (servers.nats_url, servers.redis_url, servers.mongo_url)
        await write_everywhere(servers, "llama")

    async with Servers(state_dir) as servers:
        assert (servers.nats_url, servers.redis_url, servers.mongo_url) == first
        assert await read_everywhere(servers) == ("llama", "llama", "llama")


async def test_stop_leaves_no_process(state_dir: Path) -> None:
    async with Servers(state_dir):
        pids = [record.pid for record in read_processes(state_dir).values()]

    assert len(pids) == 3
    assert not [pid for pid in pids if pid and psutil.pid_exists(pid)]
    assert {record.state for record in read_processes(state_dir).values()} == {"stopped"}


async def test_each_server_killed_comes_back_on_its_port_with_its_data(state_dir: Path) -> None:
    async with Servers(state_dir) as servers:
        await write_everywhere(servers, "falcon")
        for name in ("nats", "valkey", "mongo"):
            before = read_processes(state_dir)[name]
            assert before.pid is not None
            psutil.Process(before.pid).kill()

            await servers.supervisor.wait_ready(name, replaced_pid=before.pid)

            after = read_processes(state_dir)[name]
            assert (after.restarts, after.port) == (1, before.port)
            assert after.pid not in (None, before.pid)
        assert await read_everywhere(servers) == ("falcon", "falcon", "falcon")


async def test_clients_that_stay_connected_get_through_a_kill(state_dir: Path, until: Until) -> None:
    async with Servers(state_dir, ONLY_NATS) as servers:
        client = await nats.connect(servers.nats_url, reconnect_time_wait=0.02, max_reconnect_attempts=-1)
        try:
            pid = servers.supervisor.pid("nats")
            psutil.Process(pid).kill()
            await servers.supervisor.wait_ready("nats", replaced_pid=pid)
            await until(lambda: client.is_connected)
            await client.jetstream().account_info()
        finally:
            await client.close()


async def test_jetstream_waits_for_the_disk_unless_told_otherwise(state_dir: Path) -> None:
    async with Servers(state_dir, ONLY_NATS):
        assert '"sync_interval": "always"' in (state_dir / "config" / "nats.json").read_text()
    relaxed = ServerOptions(run=["nats"], nats=NatsOptions(sync_always=False))
    async with Servers(state_dir, relaxed):
        assert "sync_interval" not in (state_dir / "config" / "nats.json").read_text()


async def test_what_the_broker_refuses_fills_no_disk(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each word: a team that said what it may not made 450 MB of them in eight seconds."""
    monkeypatch.setattr(servers_module, "LOG_LIMIT_BYTES", 65_536)
    users = [NatsUser("mute", "secret", publish=[])]
    async with Servers(state_dir, ServerOptions(run=["nats"], nats=NatsOptions(users=users))) as servers:
        reader, writer = await asyncio.open_connection("127.0.0.1", urllib.parse.urlsplit(servers.nats_url).port)
        await reader.readline()
        writer.write(
            b'CONNECT {"user":"mute","pass":"secret","verbose":false}\r\n'
            + b"PUB not.mine 0\r\n\r\n" * 5_000
            + b"PING\r\n"
        )
        while b"PONG" not in (said := await reader.read(1 << 16)):
            assert said
        logs = list((state_dir / "logs").glob("nats.log*"))
        assert len(logs) in (2, 3)
        assert sum(log.stat().st_size for log in logs) < 4 * 65_536, "of a megabyte"
        assert "Publish Violation" in "".join(log.read_text() for log in logs)
        writer.close()


async def test_the_broker_collects_its_garbage_before_it_has_doubled_a_backlog(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMEMLIMIT", raising=False)
    async with Servers(state_dir, ONLY_NATS) as servers:
        assert psutil.Process(servers.supervisor.pid("nats")).environ()["GOMEMLIMIT"] == "256MiB"


async def test_nats_users_are_held_to_their_subjects(state_dir: Path) -> None:
    users = [
        NatsUser("writer", "pw-1.2_3~", publish=["evt.>"], subscribe=["_INBOX.>"]),
        NatsUser("mute", "secret", publish=[]),
        NatsUser("all", "secret"),
    ]
    async with Servers(state_dir, ServerOptions(run=["nats"], nats=NatsOptions(users=users))) as servers:
        assert servers.nats_url == servers.nats_url_of("writer")
        listener = await nats.connect(servers.nats_url_of("all"))
        heard = await listener.subscribe(">")
        await listener.flush()
        await publish(servers.nats_url_of("mute"), "evt.from.mute")
        await publish(servers.nats_url_of("writer"), "cmd.from.writer", "evt.from.writer")
        assert (await heard.next_msg(timeout=30)).subject == "evt.from.writer"  # the first that got through
        await listener.close()
        with pytest.raises(KeyError, match="there are: writer, mute, all"):
            servers.nats_url_of("nobody")
    with pytest.raises(ValueError, match="password of NATS user 'writer' must consist of"):
        NatsUser("writer", "p@ss")


async def test_servers_want_the_password_and_listen_on_loopback_only(state_dir: Path) -> None:
    async with Servers(state_dir) as servers:
        client = nats.NATS()
        with pytest.raises(NatsError):
            await client.connect(servers.nats_url.replace("baton:", "baton:x"), allow_reconnect=False)
        await client.close()  # nats-py leaves the socket of a refused connection open
        for wrong in (servers.redis_url.replace("baton:", "baton:x"), re.sub("//.*@", "//", servers.redis_url)):
            with pytest.raises(RedisError, match=r"invalid username|authenticated"):
                await ping(wrong)
        for name, record in servers.supervisor.processes().items():
            listening = [c for c in psutil.Process(record.pid).net_connections() if c.status == psutil.CONN_LISTEN]
            assert {c.laddr.ip for c in listening} == ({"127.0.0.1"} if name == "nats" else set())
            command = " ".join(psutil.Process(record.pid).cmdline())
            assert not [word for word in secrets_of(servers) if word in command]


async def test_a_valkey_user_may_do_what_its_rules_say(state_dir: Path) -> None:
    users = (ValkeyUser("reader", ("%R~open:*", "+get")), ValkeyUser("writer", ("~open:*", "+get", "+set")))
    options = ServerOptions(run=["valkey"], valkey=ValkeyOptions(users=users))
    async with Servers(state_dir, options) as servers:
        url = servers.redis_url_of("reader")
        async with redis.from_url(servers.redis_url_of("writer")) as writer, redis.from_url(url) as reader:
            await writer.set("open:a", "1")
            assert await reader.get("open:a") == b"1"
            for refused in (
                writer.set("other", "1"),
                writer.delete("open:a"),
                writer.execute_command("CONFIG", "GET", "*"),
            ):
                with pytest.raises(NoPermissionError):
                    await refused
            for refused in (reader.set("open:a", "2"), reader.get("other"), reader.flushall(), reader.ping()):
                with pytest.raises(NoPermissionError):
                    await refused
        with pytest.raises(KeyError):
            servers.redis_url_of("nobody")
    async with Servers(state_dir, options) as servers:
        assert servers.redis_url_of("reader") == url, "passwords stay"
    for name, rules in (("baton", ("+@all",)), ("a b", ()), ("reader", ("~x\nuser evil on nopass",))):
        with pytest.raises(ValueError, match="Valkey user"):
            ValkeyUser(name, rules)


async def test_the_monitoring_page_is_found_by_those_who_know_its_path(state_dir: Path) -> None:
    async with Servers(state_dir, ServerOptions(run=["nats"])) as servers:

        def status(url: str) -> int:
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        pages = ("/varz", "/connz", "/jsz", "/healthz")
        open_page = re.sub(r"(:\d+).*", r"\1", servers.nats_monitor_url)
        for base, told in ((servers.nats_monitor_url, 200), (open_page, 404)):
            assert {await asyncio.to_thread(status, base + page) for page in pages} == {told}, base
        assert await asyncio.to_thread(status, open_page) == 404


@pytest.mark.parametrize("long", [False, True], ids=["in the state directory", "elsewhere, when that has a long path"])
async def test_the_stores_are_reached_by_our_own_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    """Any process of the host could take up all connections that Redis has, when that listened on a port."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent))
    state_dir = tmp_path / ("x" * 120) / "state" if long else Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        async with Servers(state_dir, ServerOptions(run=["mongo", "valkey"])) as servers:
            of_redis = urllib.parse.urlsplit(servers.redis_url)
            assert of_redis.scheme == "unix"
            for quoted in (of_redis.path, servers.mongo_url.removeprefix("mongodb://")):
                socket = Path(urllib.parse.unquote(quoted))
                assert socket.is_relative_to(state_dir) != long
                assert stat.S_ISSOCK(socket.stat().st_mode)
                assert stat.S_IMODE(socket.stat().st_mode) == 0o600
                assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
            assert await ping(servers.redis_url)
            client: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(f"{servers.mongo_url}/one")
            database = client.get_default_database()
            await database["words"].replace_one({"_id": "a"}, {"_id": "a", "value": 1}, upsert=True)
            assert (await database["words"].find_one({"_id": "a"}) or {})["value"] == 1
            client.close()
        assert not socket.exists(), "each state directory that ever was would leave one"
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


async def test_what_one_command_changes_is_stored_as_a_whole_and_what_fails_of_it_is_told(state_dir: Path) -> None:
    async with Servers(state_dir, ServerOptions(run=["mongo"])) as servers:
        client: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(f"{servers.mongo_url}/words")
        words = client.get_default_database()["words"]
        await words.create_index([("by", 1)])
        await words.bulk_write([newer(f"word-{i}", 5) for i in range(200)], ordered=False)
        (journal,) = state_dir.rglob("words.db-wal")
        assert journal.stat().st_size < 1_000_000, "3.7 MB when each is written by itself"
        with pytest.raises(BulkWriteError) as told:
            await words.bulk_write([newer("word-0", 4), newer("word-1", 6), newer("new", 1)], ordered=False)
        assert [(one["index"], one["code"]) for one in told.value.details["writeErrors"]] == [(0, 11000)]
        found = await words.find({"_id": {"$in": ["word-0", "word-1", "new"]}}, {"seq": 1}).to_list(None)
        assert {one["_id"]: one["seq"] for one in found} == {"word-0": 5, "word-1": 6, "new": 1}
        client.close()


def newer(name: str, seq: int) -> ReplaceOne[dict[str, Any]]:
    body = {"_id": name, "seq": seq, "by": name[::-1], "text": "x" * 500}
    return ReplaceOne({"_id": name, "seq": {"$lte": seq}}, body, upsert=True)


def test_a_folder_of_sockets_that_is_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "sockets").symlink_to(tmp_path / "theirs")
    with pytest.raises(SocketTaken, match="not a folder of this user"):
        private_socket(tmp_path / "state", "mongo")


@pytest.mark.parametrize("kind", ["as long as may be", "odd characters"])
async def test_a_path_that_is_long_or_odd_serves(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: nats-server's "Invalid escape character 'u'" for a letter beyond ASCII, and Valkey's "unix socket path too long"
    where the folder for temporary files has a long path, too."""
    state_dir = tmp_path / 'caf\u00e9 "$HOME" {x} \\ %'
    if kind == "as long as may be":
        state_dir = long_path(tmp_path, 400)
        (elsewhere := tmp_path / ("t" * 120)).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    async with Servers(state_dir) as servers:
        await write_everywhere(servers, "llama")
        assert await read_everywhere(servers) == ("llama", "llama", "llama")
    assert {path.name for path in (state_dir / "nats").iterdir()} == {"jetstream"}
    assert (state_dir / "valkey" / "appendonlydir").is_dir()


async def test_a_path_that_no_server_can_use_is_refused_at_once(tmp_path: Path) -> None:
    """Seen: SQLite's "unable to open database file" at the end of a traceback."""
    (tmp_path / "short").symlink_to(long_path(tmp_path, 401))
    for unfit, why in (
        (long_path(tmp_path, 401), "has 401 bytes, at most 400 can be used: name another with --state-dir"),
        (tmp_path / "short", "has 401 bytes, at most 400"),
        (tmp_path / "a\nb", r"holds '\\n', which cannot be printed: name another"),
    ):
        with pytest.raises(UnfitStateDir, match=why):
            await Servers(unfit).start()
        assert not unfit.exists()


def long_path(folder: Path, size: int) -> Path:
    """One below `folder`, of so many bytes."""
    left = size - len(str(folder)) - len("//")
    return folder / ("d" * (left // 2)) / ("d" * (left - left // 2))


async def test_files_with_passwords_are_private(state_dir: Path) -> None:
    async with Servers(state_dir) as servers:
        holding = [
            path
            for path in state_dir.rglob("*")
            if path.is_file() and any(word.encode() in path.read_bytes() for word in secrets_of(servers))
        ]
        assert {path.name for path in holding} == {"nats.json", "stack.json"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}


async def test_a_second_stack_on_the_same_directory_is_refused(state_dir: Path) -> None:
    async with Servers(state_dir, ONLY_VALKEY):
        with pytest.raises(StateDirLocked, match=f"in use by pid {psutil.Process().pid}"):
            await Servers(state_dir, ONLY_VALKEY).start()

    async with Servers(state_dir, ONLY_VALKEY) as servers:
        assert await ping(servers.redis_url)


async def test_a_lock_file_of_a_dead_process_is_taken_over(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "lock").write_text("999999\n")
    async with Servers(state_dir, ONLY_VALKEY):
        assert (state_dir / "lock").read_text() == f"{psutil.Process().pid}\n"


async def test_asking_for_a_server_that_does_not_run_is_an_error_that_says_so(state_dir: Path) -> None:
    async with Servers(state_dir, ONLY_VALKEY) as servers:
        with pytest.raises(RuntimeError, match=r"with nats among options\.run"):
            _ = servers.nats_url
    with pytest.raises(ValueError, match="unknown servers in run: postgres"):
        ServerOptions(run=["postgres"])


# ------------------------------------------------------------------------------------------------------------- helpers


async def write_everywhere(servers: Servers, word: str) -> None:
    client = await nats.connect(servers.nats_url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name="WORDS", subjects=["words"])
    await jetstream.publish("words", word.encode())
    await client.close()
    async with redis.from_url(servers.redis_url) as store:
        await store.set("word", word)
        await store.waitaof(1, 0, 5000)  # everysec: the kernel has it, as kill -9 needs; this also puts it on disk
    mongo: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(servers.mongo_url)
    await mongo["baton"]["words"].replace_one({"_id": "word"}, {"_id": "word", "value": word}, upsert=True)
    mongo.close()


async def read_everywhere(servers: Servers) -> tuple[str, str, str]:
    client = await nats.connect(servers.nats_url)
    message = await client.jetstream().get_last_msg("WORDS", "words")
    await client.close()
    async with redis.from_url(servers.redis_url, decode_responses=True) as store:
        cached = str(await store.get("word"))
    mongo: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(servers.mongo_url)
    document = await mongo["baton"]["words"].find_one({"_id": "word"})
    mongo.close()
    return (message.data or b"").decode(), cached, (document or {})["value"]


async def ping(redis_url: str) -> bool:
    async with redis.from_url(redis_url) as store:
        return bool(await store.ping())


async def publish(url: str, *subjects: str) -> None:
    client = await nats.connect(url)
    for subject in subjects:
        await client.publish(subject, b"")
    await client.flush()
    await client.close()


def secrets_of(servers: Servers) -> list[str]:
    monitor = servers.nats_monitor_url.rsplit("/", 1)[1]
    return [*(url.split("@")[0].rsplit(":", 1)[1] for url in (servers.nats_url, servers.redis_url)), monitor]
