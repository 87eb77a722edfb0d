"""Words that are no messages, which the broker counts for nobody: whose they are is ended by the kernel, and kept out."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.connect import Address, BusUnavailable, close, connect
from libs.bus.creds import LOGS_CREDS
from libs.ports import sockdiag
from libs.walls import words
from libs.walls.accounts import FINANCE
from libs.walls.book import Book
from libs.walls.floods import BYTES_AT_ONCE, LOOK_S, WORDS_AT_ONCE, AccountTraffic, Floods
from libs.walls.keyring import Keyring
from libs.walls.resolver import tell
from libs.walls.words import ConnectionWatch
from schemas import subjects
from tests.kit.waiting import until
from tests.walls.test_floods import Watch, teams_client, watched
from tests.walls.world import TEAM, broker

CONNECTIONS, ATTACK_S = 16, 20.0
PING, CHURN = b"PING\r\n" * 4_000, b"SUB _INBOX_blue.eve.a 1\r\nUNSUB 1\r\n" * 700
REFUSED, UNKNOWN = b"SUB baton.dead.admission.green 1\r\n" * 700, b"UNSUB 77\r\n" * 2_000
UNPUBLISHED = b"PUB baton.dead.admission.green 0\r\n\r\n" * 700

pytestmark = pytest.mark.skipif(
    not sockdiag.tells(sockdiag.LISTENING), reason="this kernel tells nobody of its sockets (tcp_diag)"
)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path) as made:
        yield made


@asynccontextmanager
async def looked_at(bus: tuple[str, Keyring], said: list[str] | None = None) -> AsyncIterator[Watch]:
    url, ring = bus
    service = await connect(
        Address(url, ring.service()), name="core"
    )  # a broker tells nothing while nobody is connected
    async with watched(url, ring, {}, (said if said is not None else []).append) as watch:
        await watch.looked()
        yield watch
    await close(service)


async def connection(url: str, creds: Path | str) -> Client:
    """Of an attacker, who looks at no answer: to read what each means takes longer than the attack."""

    async def note(error: Exception) -> None: ...

    client = await nats.connect(url, error_cb=note, allow_reconnect=False, **Address("", creds).options())

    async def ignore(answer: bytes) -> None: ...

    client._ps.parse = ignore
    return client


async def says(client: Client, what: bytes, bound_s: float = ATTACK_S) -> None:
    """Again and again, until it is cut off, or for so long."""
    with suppress(nats.errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(bound_s):
            while not client.is_closed:
                client._transport.write(what)
                await client._transport.drain()
                await asyncio.sleep(0)


async def attack(url: str, creds: Path | str, what: bytes, many: int = CONNECTIONS) -> list[Client]:
    evil = [await connection(url, creds) for _ in range(many)]
    await asyncio.gather(*(says(one, what) for one in evil))
    return evil


async def found_out(
    ring: Keyring, url: str, creds: Path | str, what: bytes, many: int = CONNECTIONS
) -> tuple[list[Client], Any]:
    """The connections, and the first line of the operator's book. Where the broker is too busy to say whose they are, they are
    ended and nobody is blamed for it: whoever goes on is found."""
    evil: list[Client] = []
    async with asyncio.timeout(150):
        while True:
            with suppress(nats.errors.Error, OSError):  # it is kept out by now
                evil += await attack(url, creds, what, many)
            with suppress(TimeoutError):
                await until(lambda: bool(Book(ring.folder).lines()), deadline_s=10)
                return evil, Book(ring.folder).lines()[0]


async def refused(where: Address, why: str) -> None:
    """Once the broker was told."""

    async def says_so() -> bool:
        try:
            await close(await connect(where, name="evil", wait_s=0.5))
        except BusUnavailable as error:
            return why in str(error)
        return False

    await until(says_so)


async def lines(ring: Keyring) -> list[Any]:
    await until(lambda: bool(Book(ring.folder).lines()))
    return Book(ring.folder).lines()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "what", [PING, CHURN, REFUSED, UNKNOWN], ids=["ping", "subscribe-and-end", "refused-subscribe", "end-of-nothing"]
)
async def test_a_team_that_says_words_which_are_no_messages_is_kept_out(bus: tuple[str, Keyring], what: bytes) -> None:
    """64 connections that said `PING` held up each job of another team for five seconds, for as long as they liked."""
    url, ring = bus
    green = await teams_client(url, ring, "green")
    async with looked_at(bus):
        evil, line = await found_out(ring, url, ring.team("blue"), what)
        assert all(one.is_closed for one in evil), "they said it until they were ended"
        assert (line.what, line.target) == ("team.keep-out", "blue")
        assert "words that are no messages" in line.reason
        assert green.is_connected, "another team is not touched"
        await refused(Address(url, ring.team("blue")), "kept out for some minutes")
    await green.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", [PING, REFUSED], ids=["ping", "refused-subscribe"])
async def test_a_node_that_says_them_is_cut_off(bus: tuple[str, Keyring], what: bytes) -> None:
    url, ring = bus
    async with looked_at(bus):
        _, line = await found_out(ring, url, ring.creds / "nodes" / "main.n1" / "nats.creds", what)
    assert (line.what, line.target) == ("node.revoke", "main/n1")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", [PING, UNPUBLISHED], ids=["ping", "refused-publish"])
async def test_a_node_is_looked_at_by_its_second_credential_too(bus: tuple[str, Keyring], what: bytes) -> None:
    """It is a user of the core, of whom the broker counts nothing by itself: thirty such connections could publish for ever
    what was refused."""
    url, ring = bus
    async with looked_at(bus):
        _, line = await found_out(ring, url, ring.node("main", "n1").with_name(LOGS_CREDS), what)
    assert (line.what, line.target) == ("node.revoke", "main/n1")


LOG_QUESTION = subjects.LOG_QUESTION.format(pool="main", node="n1")


@asynccontextmanager
async def answers_for_logs(bus: tuple[str, Keyring], answer: Callable[[Msg], Awaitable[None]]) -> AsyncIterator[Client]:
    """A node that answers so by its second credential, and who asks it. At the end nobody was blamed."""
    url, ring = bus
    async with looked_at(bus) as watch:
        node = await connect(Address(url, ring.node("main", "n1").with_name(LOGS_CREDS)), name="n1")
        service = await connect(Address(url, ring.service()), name="history")
        await node.subscribe(LOG_QUESTION, cb=answer)
        await node.flush()
        yield service
        await watch.looked()
        assert Book(ring.folder).lines() == []
        assert node.is_connected
        await close(node)
        await close(service)


@pytest.mark.timeout(180)
async def test_a_node_that_answers_what_it_is_asked_is_not_cut_off(bus: tuple[str, Keyring]) -> None:
    """A team that read the log of its own job had its node revoked: more than a node may send unasked."""

    async def answer(question: Msg) -> None:
        await question.respond(b"x" * 250_000)

    async with answers_for_logs(bus, answer) as service:
        asked = int(1.5 * (BYTES_AT_ONCE + WORDS_AT_ONCE) / 250_000)
        for _ in range(asked // 5):
            await asyncio.gather(*(service.request(LOG_QUESTION, b"{}", timeout=60) for _ in range(5)))


@pytest.mark.timeout(180)
async def test_a_node_whose_answers_come_late_is_not_cut_off(bus: tuple[str, Keyring]) -> None:
    """Several teams read logs of one node: many questions stand open, and what the broker counted of their answers is seen in
    later looks than the questions."""
    open_, together = list[Msg](), 64

    async def answer(question: Msg) -> None:
        open_.append(question)
        if len(open_) == together:
            for number, one in enumerate(open_):
                await one.respond(b"x" * 250_000)
                if number % 8 == 7:  # a slow line
                    await one._client.flush(60)
                    await asyncio.sleep(LOOK_S / 2)
            open_.clear()

    async with answers_for_logs(bus, answer) as service:
        asked = int(4 * (BYTES_AT_ONCE + WORDS_AT_ONCE) / 250_000)
        for _ in range(asked // together):
            await asyncio.gather(*(service.request(LOG_QUESTION, b"{}", timeout=60) for _ in range(together)))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "what", [PING, b"PUB baton.qry.bill.v1.get.main._finance.fay 2\r\n{}\r\n" * 500], ids=["ping", "questions"]
)
async def test_finance_is_looked_at_like_a_team(bus: tuple[str, Keyring], what: bytes) -> None:
    """It had no bound: 30 connections held up each job for 3.5 s."""
    url, ring = bus
    fay = ring.finance("fay")
    await tell(url, ring, ["$baton", FINANCE])
    said = list[str]()
    async with looked_at(bus, said):
        evil, line = await found_out(ring, url, fay, what, many=8)
        assert all(one.is_closed for one in evil)
        assert (line.what, line.target) == ("team.keep-out", FINANCE)
        await until(lambda: any("finance is kept out" in one for one in said))
        await refused(Address(url, fay), "baton finance let-in")
        ring.let_in(FINANCE)
        await tell(url, ring, [FINANCE])
        await close(await connect(Address(url, fay), name="fay", wait_s=30))


@pytest.mark.timeout(180)
async def test_connections_of_which_the_broker_does_not_say_whose_they_are_are_ended_and_found_out_later(
    bus: tuple[str, Keyring], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is with hundreds of them: it would have to wait for each."""
    url, ring = bus
    real, ended = ConnectionWatch._learn, asyncio.Event()

    def learn(self: ConnectionWatch, told: Any) -> None:
        if ended.is_set():
            real(self, told)

    monkeypatch.setattr(ConnectionWatch, "_learn", learn)
    monkeypatch.setattr(words, "_PATIENCE", 0)
    async with looked_at(bus):
        evil = await attack(url, ring.team("blue"), PING)
        assert all(one.is_closed for one in evil)
        assert not Book(ring.folder).lines(), "nobody is blamed for it yet"
        ended.set()
        (line,) = await lines(ring)
    assert (line.what, line.target) == ("team.keep-out", "blue")


@pytest.mark.timeout(180)
async def test_whoever_sends_messages_says_no_words(bus: tuple[str, Keyring]) -> None:
    """Neither many small ones nor large ones, nor many connections that begin and end; and what is unread is said by nobody."""
    url, ring = bus
    async with looked_at(bus) as watch:
        blue = await teams_client(url, ring, "blue")
        for size, many in ((2, 8_000), (200_000, 40)):
            body = b"PUB %s %d\r\n" % (TEAM.question.encode(), size) + b"x" * size + b"\r\n"
            for _ in range(many // 40):
                blue._transport.write(body * 40)
                await blue.flush()
            await watch.looked()
        for _ in range(100):
            short = await teams_client(url, ring, "blue")
            await short.publish(TEAM.question, b"x" * 100_000)
            await short.close()
        await watch.looked()
        assert blue.is_connected
        await blue.close()
    assert Book(ring.folder).lines() == []


def test_the_broker_counts_later_than_the_kernel_and_nobody_is_blamed_for_that(tmp_path: Path) -> None:
    """Seen of a team that submitted 125 MB by five connections: what the broker had counted ahead was forgotten, and six MB
    that were read later came without messages."""
    ring = Keyring(tmp_path)
    ring.team("blue")
    floods = Floods(ring, lambda accounts: asyncio.sleep(0))
    floods._reread()
    (blue,) = floods._teams

    def over(at_s: float, read: int, said: int, bytes: int) -> str:
        return floods._over_words(blue, AccountTraffic(said, bytes), read, int(at_s * 1e6))

    assert over(0.0, 9_758_400, 158, 16_046_322) == ""
    assert over(0.15, 9_758_400, 34, 3_453_006) == ""
    assert over(0.4, 3_500_000, 0, 0) == "", "so much at once it may say"
    assert "words that are no messages" in over(0.65, 4_000_000, 0, 0)


def test_what_is_told_late_is_as_much_as_what_is_told_at_once(tmp_path: Path) -> None:
    """The broker said after ten seconds whose they were that had been ended, and time had paid for it: nobody was blamed."""
    ring = Keyring(tmp_path)
    ring.team("blue")
    floods = Floods(ring, lambda accounts: asyncio.sleep(0))
    floods._reread()
    (blue,) = floods._teams
    assert floods._over_words(blue, AccountTraffic(), 1_000, 0) == ""
    assert "words" in floods._over_words(blue, AccountTraffic(), 6_000_000, 20_000_000)
    for second in range(21, 60):
        assert floods._over_words(blue, AccountTraffic(), 250_000, second * 1_000_000) == "", (
            "so much a second it may say"
        )


def test_messages_that_were_not_read_to_their_end_are_no_words(tmp_path: Path) -> None:
    """Those of whoever says large ones: a hundred connections that are in the middle of one at the same moment."""
    ring = Keyring(tmp_path)
    ring.team("blue")
    floods = Floods(ring, lambda accounts: asyncio.sleep(0))
    floods._reread()
    (blue,) = floods._teams
    floods._words._owner = {b"%d" % number: blue for number in range(100)}

    def over(read: int, said: int, bytes: int) -> str:
        return floods._over_words(blue, AccountTraffic(said, bytes), read, 0)

    assert over(20_000_000, 100, 20_000_000) == ""
    assert over(15_000_000, 0, 0) == "", "each has said three quarters of the next one"
    assert over(5_000_000, 100, 20_000_000) == ""
    for _ in range(200):
        assert over(15_000_000, 0, 0) == ""
        assert over(5_000_000, 100, 20_000_000) == "", "what was repaid is owed no more"
    floods._words._owner = {b"1": blue}
    assert "words" in over(15_000_000, 0, 0), "one connection is in the middle of one message"


@pytest.mark.parametrize("many", [64, 16])
def test_so_many_that_begin_with_a_large_message_at_one_moment_say_no_words(tmp_path: Path, many: int) -> None:
    """Over a slow line, where none has ended while each is in the middle of its first one: the team was kept out."""
    ring = Keyring(tmp_path)
    ring.team("blue")
    floods = Floods(ring, lambda accounts: asyncio.sleep(0))
    floods._reread()
    (blue,) = floods._teams
    floods._words._owner = {b"%d" % number: blue for number in range(many)}
    for turn in range(1, 11):
        why = floods._over_words(blue, AccountTraffic(), many * 25_000, turn * 250_000)
        assert why == "", "2 MB/s, until each has said nine tenths"
    assert "words" in floods._over_words(blue, AccountTraffic(), 9_000_000, 2_750_000), "no message is so long"


@pytest.mark.parametrize("how", [sockdiag.end, sockdiag._shut], ids=["by-the-kernel", "who-is-not-root"])
async def test_a_connection_of_another_process_is_ended_though_its_peer_sends_on(how: Any, tmp_path: Path) -> None:
    """`shutdown` would not do: what comes after it is read all the same."""
    server = await asyncio.create_subprocess_exec(
        "python3", "-c", _SERVER, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert server.stdout is not None
    port = int(await server.stdout.readline())
    client = socket.create_connection(("127.0.0.1", port))
    refused = threading.Event()

    def sends() -> None:
        with suppress(OSError):
            for _ in range(100_000):
                client.sendall(b"x" * 10_000)
        refused.set()

    threading.Thread(target=sends, daemon=True).start()
    await until(lambda: sum(one.read for one in sockdiag.connections(port)) > 1_000_000)
    (one,) = sockdiag.connections(port)
    assert one.peer == "{}:{}".format(*client.getsockname())
    how(one)
    assert b"Error" in await server.stdout.readline(), "the server reads an error, and nothing more"
    await until(refused.is_set)
    assert sockdiag.connections(port) == []
    client.close()
    with suppress(ProcessLookupError):
        server.kill()
    await server.wait()


_SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
one, _ = server.accept()
try:
    while one.recv(65536):
        pass
    print("it was closed in good order", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""


async def test_a_broker_elsewhere_is_not_taken_for_the_one_that_is_seen(bus: tuple[str, Keyring]) -> None:
    """A connection that is not seen from its other side is one to another network."""
    url, ring = bus
    green = await teams_client(url, ring, "green")
    assert words._ports(green) == {urlsplit(url).port: (socket.AF_INET,)}, "of one family: it listens at 127.0.0.1"
    green._transport._io_writer = None
    assert words._ports(green) == {}
