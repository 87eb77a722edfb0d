"""Connections come up when the server does, stay, and say clearly why they cannot."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from ssl import SSLError
from urllib.parse import urlsplit

import pytest
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.errors import ConnectionClosedError, StaleConnectionError

from libs.bus import connection as bus
from libs.bus.broker import make_broker
from libs.bus.connect import EXIT_CONNECTION_LOST, BusUnavailable, close, connect, without_password
from libs.bus.creds import Address
from libs.bus.unreachable import Problems, explained
from libs.embedded import NatsOptions, ServerOptions, Servers
from libs.embedded.servers import NATS
from tests.kit.background import ServerInBackground
from tests.kit.waiting import until
from tests.kit.wire import Wire


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://baton:secret@10.0.0.1:4222", "nats://baton:***@10.0.0.1:4222"),
        ("nats://token@host:1", "nats://***@host:1"),
        ("nats://host:1", "nats://host:1"),
        ("nats://u:a@h1:1, nats://u:b@h2:2", "nats://u:***@h1:1,nats://u:***@h2:2"),
        ("host:4222", "host:4222"),
        ("u:secret@host:4222", "u:***@host:4222"),
        ("tls://u:p%40ss@host:4222", "tls://u:***@host:4222"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


async def test_a_server_that_is_away_is_named_without_its_password() -> None:
    with pytest.raises(BusUnavailable, match=r"nats://u:\*\*\*@127\.0\.0\.1:9 .*BATON_NATS_URL") as refused:
        await connect("nats://u:secret@127.0.0.1:9", name="test", wait_s=0.3)
    assert "secret" not in str(refused.value)


async def test_a_wrong_password_is_told_at_once(nats_url: str) -> None:
    wrong = "nats://baton:wrong@" + nats_url.rpartition("@")[2]
    with pytest.raises(BusUnavailable, match="refused the credential") as refused:
        await connect(wrong, name="test", wait_s=60)
    assert "wrong" not in str(refused.value).replace("Authorization", "")


async def test_a_server_that_our_credential_does_not_reach_in_time_has_not_refused_it(nats_url: str) -> None:
    class Slow(Wire):
        async def _up(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async def _down(self, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(1)  # then we wait for longer than the server does, which is 2 s
            await super()._down(from_server, writer)

    async with Slow(nats_url).opened() as wire:
        with pytest.raises(BusUnavailable, match="no NATS server answered"):
            await connect(wire.url, name="test", wait_s=4)


async def test_a_server_that_is_frozen_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """Seen: "start one (`baton up`...)", with a TimeoutError in brackets."""
    with ServerInBackground(NATS, tmp_path) as server, server.frozen(), pytest.raises(BusUnavailable) as silent:
        await connect(server.url, name="test", wait_s=3)
    assert "there stands still" in str(silent.value)
    assert "start one" not in str(silent.value)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate", "trust"),
        (
            "[SSL: APPLICATION_DATA_AFTER_CLOSE_NOTIFY] application data after close notify (_ssl.c:2672)",
            "no NATS server",
        ),
        ("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)", "no NATS server"),
    ],
)
async def test_a_connection_that_is_cut_while_it_is_encrypted_says_nothing_of_the_certificate(
    code: str, says: str
) -> None:
    """Seen on a slow machine: "not one that we trust", of a server that had waited for two seconds."""
    problems = Problems("test")
    await problems.report(SSLError(1, code))
    assert says in explained(Address("tls://machine-1:4222"), problems, 5)


async def test_an_answer_that_nobody_waits_for_any_more_does_not_end_reading(tmp_path: Path) -> None:
    """Seen with a broker frozen for five seconds: who had asked it whether it is there heard nothing for another twenty."""
    with ServerInBackground(NATS, tmp_path) as server:
        connection = await connect(server.url, name="test")
        news = await connection.subscribe("news")
        with server.frozen(), pytest.raises(TimeoutError):
            await connection.flush(timeout=1)
        await connection.publish("news", b"heard")
        assert (await news.next_msg(timeout=10)).data == b"heard"
        await connection.flush(timeout=10)
        await connection.publish("news", b"heard on")
        assert (await news.next_msg(timeout=10)).data == b"heard on"
        await close(connection)


async def test_a_server_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    with ServerInBackground(NATS, tmp_path) as server:
        url = server.url
    waiting = asyncio.create_task(connect(url, name="test", wait_s=60))
    with ServerInBackground(NATS, tmp_path) as server:
        assert server.url == url
        connection = await waiting
        assert connection.is_connected
        await close(connection)


async def test_a_server_of_the_cluster_that_the_url_does_not_name_is_enough(tmp_path: Path) -> None:
    """As behind one name in the DNS: the other servers are known from the first one only."""
    options = NatsOptions(servers=3, advertise=True, sync_always=False)
    async with Servers(tmp_path, ServerOptions(run=(NATS,), nats=options)) as servers:
        first = servers.nats_url.split(",")[0]
        connection = await connect(first, name="test")
        await until(lambda: len(connection.discovered_servers) >= 2)
        spec = servers.supervisor.spec(NATS)
        os.kill(servers.supervisor.pid(NATS), signal.SIGKILL)
        await servers.supervisor.stop(NATS)
        await until(lambda: connection.is_connected)
        await close(connection)
        await servers.supervisor.start(spec)


async def test_a_connection_outlives_its_server(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    heard: list[bytes] = []

    async def hear(msg) -> None:
        heard.append(msg.data)

    await connection.subscribe("a.b", cb=hear)
    pid = await asyncio.to_thread(own_server.kill)
    await asyncio.to_thread(own_server.wait_replaced, pid)
    await until(lambda: connection.is_connected)

    async def said() -> bool:
        await connection.publish("a.b", b"still there")
        await connection.flush(5)
        return bool(heard)

    await until(said)
    await close(connection)


async def test_closing_without_a_server_does_not_raise(tmp_path: Path) -> None:
    with ServerInBackground(NATS, tmp_path) as server:
        connection = await connect(server.url, name="test", die_on_close=True)
    await until(lambda: not connection.is_connected)
    await close(connection)
    assert connection.is_closed


async def test_closing_gives_up_what_waits_for_a_server_that_is_gone(tmp_path: Path) -> None:
    with ServerInBackground(NATS, tmp_path) as server:
        nc = await connect(server.url, name="test")
    await until(lambda: nc.is_reconnecting)
    await nc.publish("news", b"x" * 1000)
    await nc.close()
    assert nc.is_closed


async def test_a_broker_uses_the_same_connection_and_can_be_stopped(nats_url: str) -> None:
    broker = make_broker(nats_url, "test")
    connection = await broker.connect()
    assert connection.options["max_reconnect_attempts"] == -1
    assert connection.options["name"] == "test"
    await broker.start()
    await broker.stop()
    assert connection.is_closed  # and this process still lives, although die_on_close is set


@pytest.mark.parametrize("end", ["close", "drain"])
async def test_closing_gives_up_what_a_frozen_server_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(bus, "_FLUSH_S", 0.2)
    with ServerInBackground(NATS, tmp_path) as server:
        connection = await connect(server.url, name="test")
        waits = asyncio.create_task((await connection.subscribe("news")).next_msg(timeout=600))
        with server.frozen():
            for _ in range(40):  # more than the kernel keeps for a peer that reads nothing
                await connection.publish("news", b"x" * 200_000)
            await getattr(connection, end)()
    assert connection.is_closed
    assert isinstance((await asyncio.gather(waits, return_exceptions=True))[0], ConnectionClosedError)


async def test_another_server_is_asked_though_the_last_one_is_frozen_and_has_not_taken_all(tmp_path: Path) -> None:
    with ServerInBackground(NATS, tmp_path / "a") as a, ServerInBackground(NATS, tmp_path / "b") as b:
        connection = await connect(f"{a.url},{b.url}", name="test")
        first = a if connection.connected_url.port == urlsplit(a.url).port else b
        with first.frozen():
            for _ in range(40):  # more than the kernel keeps for a peer that reads nothing
                await connection.publish("news", b"x" * 200_000)
            await connection._process_op_err(StaleConnectionError())  # as after 20 s without an answer
            await until(lambda: connection.is_connected)
            assert connection.connected_url.port != urlsplit(first.url).port
        await close(connection)


async def test_a_frozen_server_is_noticed_by_who_has_much_to_tell_it(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        with ServerInBackground(NATS, tmp_path) as server:
            connection = await connect(server.url, name="test")
            connection.options["ping_interval"] = 0.1
            with server.frozen():
                for _ in range(40):  # more than the kernel keeps for a peer that reads nothing
                    await connection.publish("news", b"x" * 200_000)
                for number in range(2_000):
                    tasks.create_task(connection.subscribe(f"news.{number}"))
                await until(lambda: connection.is_reconnecting)
            await until(lambda: connection.is_connected)
            await close(connection)


async def test_who_closes_is_not_cancelled_with_the_reconnect_that_has_just_begun(nats_url: str) -> None:
    """Both wait for the end of the same socket."""
    connection = await connect(nats_url, name="test")
    await connection._process_op_err(StaleConnectionError())
    await asyncio.sleep(0)
    await connection.close()
    assert connection.is_closed


@pytest.mark.parametrize(
    ("where", "step", "refuses"),
    [
        (TcpTransport, "connect", True),
        (Client, "_process_connect_init", True),
        (Client, "_process_connect_init", False),
    ],
)
async def test_a_reconnect_whose_cancel_was_dropped_ends(
    own_server: ServerInBackground, monkeypatch: pytest.MonkeyPatch, where: type, step: str, refuses: bool
) -> None:
    """As `wait_for` drops it, when it comes with a result. Seen: `baton up`, asked to stop, went on for ever."""
    tries: list[asyncio.Task[None] | None] = []
    itself = getattr(where, step)

    async def ends_as_it_is_cancelled(*arguments: object, **named: object) -> None:
        tries.append(asyncio.current_task())
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        if refuses:
            raise ConnectionRefusedError
        await itself(*arguments, **named)

    connection = await connect(own_server.url, name="test")
    monkeypatch.setattr(where, step, ends_as_it_is_cancelled)
    await connection._process_op_err(StaleConnectionError())
    await until(lambda: bool(tries))
    await connection.close()
    (reconnect,) = tries
    assert reconnect is not None
    await until(reconnect.done)
    assert connection.is_closed


async def test_a_first_try_whose_cancel_was_dropped_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a slow machine: who was to wait for three seconds for a broker that refuses waited for ever."""

    async def refuses_as_it_is_cancelled(*arguments: object, **named: object) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        raise ConnectionRefusedError

    monkeypatch.setattr(TcpTransport, "connect", refuses_as_it_is_cancelled)
    with pytest.raises(BusUnavailable):
        await connect("nats://127.0.0.1:4222", name="test", wait_s=0.1)


async def test_a_reconnect_that_is_lost_as_it_ends_is_begun_anew(
    own_server: ServerInBackground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before is cancelled then, and that is not the end of the connection."""
    lost: list[Client] = []
    itself = Client.flush

    async def loses(client: Client, timeout: int = 10) -> None:
        if not lost:
            lost.append(client)
            await client._process_op_err(StaleConnectionError())
        await itself(client, timeout)

    connection = await connect(own_server.url, name="test")
    monkeypatch.setattr(Client, "flush", loses)
    await connection._process_op_err(StaleConnectionError())
    await until(lambda: connection.stats["reconnects"] == 2 and connection.is_connected)
    await connection.flush()
    assert lost == [connection]
    await connection.close()


async def test_a_reconnect_that_fails_as_nobody_foresaw_ends_the_connection(
    own_server: ServerInBackground, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Client) -> None:
        raise ValueError("a line without end")

    connection = await connect(own_server.url, name="test")
    news = await connection.subscribe("news")
    monkeypatch.setattr(Client, "_process_connect_init", fails)
    await connection._process_op_err(StaleConnectionError())
    with pytest.raises(ConnectionClosedError):
        await news.next_msg(timeout=600)
    await until(lambda: connection.is_closed)


async def test_a_try_to_connect_again_that_fails_half_way_leaves_no_connection_behind(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a queue group it would get its part of the messages, and nobody would read them."""
    async with Wire(nats_url).opened() as wire:
        connection = await connect(wire.url, name="test")
        heard: list[bytes] = []

        async def hear(message: Msg) -> None:
            heard.append(message.data)

        await connection.subscribe("parts", "group", hear)
        with monkeypatch.context() as patch:
            patch.setattr(Client, "flush", partialmethod(Client.flush, 1))  # once it has connected: for ten seconds
            wire.quiet(answers=2)  # INFO and the first PONG
            wire.ends[0].transport.abort()
            await until(lambda: len(wire.ends) >= 4)
            wire.loud()
            await until(lambda: connection.stats["reconnects"] > 2 and connection.is_connected)
        await connection.flush()
        await until(lambda: wire.alive() == 1)
        sender = await connect(nats_url, name="sender")
        for _ in range(100):
            await sender.publish("parts")
        await until(lambda: len(heard) == 100)
        await close(sender)
        await close(connection)


async def test_a_connection_that_drains_does_not_wait_for_a_server_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "_FLUSH_S", 0.2)
    monkeypatch.setattr(Client, "flush", partialmethod(Client.flush, timeout=600))
    with ServerInBackground(NATS, tmp_path) as server:
        connection = await connect(server.url, name="test")
        connection.options["drain_timeout"] = 600
        await connection.subscribe("news")
        with server.frozen():
            draining = asyncio.create_task(connection.drain())
            await until(draining.done, 30)
    assert connection.is_closed


CLOSED_FOR_GOOD = """
import asyncio, sys, uvloop
from libs.bus.connect import connect

async def main():
    connection = await connect(sys.argv[1], name="test", die_on_close=True)
    if sys.argv[2] == "by the peer":
        connection._pending, connection._pending_data_size = [b"PING\\r\\n"], 6
        connection._transport._io_writer.transport.abort()
    await connection._close(connection.CLOSED)  # what the client does by itself when it gives up
    await asyncio.sleep(60)

{"asyncio": asyncio, "uvloop": uvloop}[sys.argv[3]].run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])  # of commands, of services
@pytest.mark.parametrize("closed", ["by the client", "by the peer"])
def test_a_connection_that_closes_for_good_ends_the_process(nats_url: str, closed: str, loop: str) -> None:
    """Also when what the client had still to send cannot be sent any more."""
    ended = subprocess.run(
        [sys.executable, "-c", CLOSED_FOR_GOOD, nats_url, closed, loop],
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert ended.returncode == EXIT_CONNECTION_LOST


def test_a_connection_that_is_gone_and_does_not_know_it_yet_can_be_drained(nats_url: str) -> None:
    """With the loop of services, which tells of it in another way than that of commands."""

    async def drains() -> None:
        connection = await connect(nats_url, name="test")
        assert connection._reading_task is not None
        connection._reading_task.cancel()  # it would notice
        connection._reading_task = asyncio.create_task(asyncio.sleep(600))
        connection._transport._io_writer.transport.abort()
        await connection._transport.wait_closed()
        await connection.drain()
        assert connection.is_closed

    uvloop.run(drains())


async def test_of_more_headers_than_anybody_sends_none_are_read_but_where_a_stream_keeps_them(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each line costs: with 50,000 in each of a hundred questions a second, which a team may send, a service did nothing else,
    and the broker gave it up."""
    hears, says = await connect(nats_url, name="hears"), await connect(nats_url, name="says")
    heard: dict[str, int] = {}

    async def note(message: Msg) -> None:
        heard[message.subject] = len(message.headers or {})

    await hears.subscribe("baton.>", cb=note)
    await hears.subscribe("odd.*", cb=note)
    await hears.flush()
    js = says.jetstream()
    await js.add_stream(name="KEPT", subjects=["baton.kept"], storage="memory")
    pull = await js.pull_subscribe("baton.kept", stream="KEPT", durable="reader")
    sizes = {"baton.few": 60, "baton.many": 65, "baton.crowd": 50_000, "baton.kept": 4_000, "odd.answer": 4_000}
    for subject, count in {**sizes, "odd.crowd": 50_000}.items():
        block = b"NATS/1.0\r\n" + b"".join(b"a%d:\r\n" % n for n in range(count)) + b"\r\n"
        await says._send_command(b"HPUB %s %d %d\r\n%s\r\n" % (subject.encode(), len(block), len(block), block))
    await says.publish("baton.last", b"")
    await says.flush()
    await until(lambda: "baton.last" in heard)
    none = dict.fromkeys(("baton.many", "baton.crowd", "baton.kept", "baton.last", "odd.crowd"), 0)
    assert heard == {**none, "baton.few": 60, "odd.answer": 4_000}
    (kept,) = await pull.fetch(1, 10)
    assert len(kept.headers or {}) == 4_000
    await js.delete_stream("KEPT")
    assert sum("more headers" in record.getMessage() for record in caplog.records) == 1, "no log that its sender fills"
    for connection in (hears, says):
        await close(connection)


async def test_what_is_no_text_in_a_subject_or_in_headers_ends_no_connection(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: one submit, or one question, on a subject with the byte 0xff in a user's place, and its service heard nothing more;
    what is stored came again and again, and no team's submits were answered any more."""
    hears, says = await connect(nats_url, name="hears"), await connect(nats_url, name="says")
    heard: list[str] = []

    async def note(message: Msg) -> None:
        heard.append(message.subject)

    await hears.subscribe("odd.>", cb=note)
    await hears.flush()
    await says._send_command(b"PUB odd.\xff\xfe 1\r\nx\r\n")
    await says._send_command(b"PUB odd.reply odd.\xc3 1\r\nx\r\n")
    odd = [b"NATS/1.0\r\na: " + b"x" * place + b"\xff\r\n\r\n" for place in range(20)]
    for block in (b"NATS/1.0 \xff\xfe\xfd\r\n\r\n", b"NATS/1.0 404 \xff\r\n\r\n", *odd):
        await says._send_command(b"HPUB odd.headers %d %d\r\n%sx\r\n" % (len(block), len(block) + 1, block))
    await says.publish("odd.last", b"x")
    await says.flush()
    await until(lambda: "odd.last" in heard)
    assert heard == ["odd.\ufffd\ufffd", "odd.reply", *22 * ["odd.headers"], "odd.last"]
    assert sum("headers" in record.getMessage() for record in caplog.records) == 1, "no log that its sender fills"
    for connection in (hears, says):
        await close(connection)
