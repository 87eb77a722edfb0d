"""The three real servers: they start, keep their data, come back after a kill, and leave nothing behind."""

import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import psutil
import pytest
import redis.asyncio as redis
from motor.motor_asyncio import AsyncIOMotorClient
from nats.errors import Error as NatsError

from libs.embedded import (
    NatsOptions,
    NatsUser,
    ServerOptions,
    Servers,
    StateDirLocked,
    read_connection,
    read_processes,
)

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


async def test_stop_leaves_no_process_and_no_connection_file(state_dir: Path) -> None:
    async with Servers(state_dir) as servers:
        pids = [record.pid for record in read_processes(state_dir).values()]
        connection = read_connection(state_dir)
        assert connection is not None
        assert connection.nats_url == servers.nats_url

    assert len(pids) == 3
    assert not [pid for pid in pids if pid and psutil.pid_exists(pid)]
    assert read_connection(state_dir) is None
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
        with pytest.raises(redis.AuthenticationError):
            await ping(servers.redis_url.replace("redis://:", "redis://:x"))
        for record in servers.supervisor.processes().values():
            listening = [c for c in psutil.Process(record.pid).net_connections() if c.status == psutil.CONN_LISTEN]
            assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
            command = " ".join(psutil.Process(record.pid).cmdline())
            assert not [word for word in secrets_of(servers) if word in command]


async def test_files_with_passwords_are_private(state_dir: Path) -> None:
    async with Servers(state_dir) as servers:
        holding = [
            path
            for path in state_dir.rglob("*")
            if path.is_file() and any(word.encode() in path.read_bytes() for word in secrets_of(servers))
        ]
        assert {path.name for path in holding} == {"nats.json", "valkey.conf", "stack.json", "connection.json"}
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
    return [servers.nats_url.split("@")[0].rsplit(":", 1)[1], servers.redis_url.split("@")[0].rsplit(":", 1)[1]]
