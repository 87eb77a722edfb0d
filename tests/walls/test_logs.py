"""Questions for logs go to the node that has them: another node neither hears nor answers them."""

import asyncio
import zlib
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.asking import ENCODING, ZLIB
from libs.bus.connect import Address, connect
from libs.bus.queries import AskAgain, NoAnswer, NothingFound
from libs.walls.keyring import Keyring
from schemas.jobs import JobSpec, JobState
from schemas.queries import AttemptDocument, JobDocument, LogPiece, LogQuery
from services.history import logs
from services.history.logs import LogRelay
from tests.kit.waiting import until
from tests.walls.world import broker

JOB = "job-" + "0" * 32
GANG = AttemptDocument(attempt=1, granted_us=1, nodes=("n1", "n2"), devices=("a", "b", "c", "d"))


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("logs")) as made:
        yield made


def document(*attempts: AttemptDocument) -> JobDocument:
    return JobDocument(
        job_id=JOB, team="blue", name="train", client_key="k", priority_class="experiment", priority=0, pool="main",
        state=JobState.RUNNING, devices=4, submitted_us=0, queued_us=0, spec=JobSpec(name="train", command=("true",)),
        attempts=attempts, seq=1,
    )  # fmt: skip


async def find(job_id: str, team: str) -> JobDocument:
    if (job_id, team) not in ((JOB, "blue"), (JOB, "operator")):
        raise NothingFound(f"no job {job_id}")
    return document(GANG)


class Node:
    """An agent's second credential, and what it hears."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_offset = 4
        self.heard: list[str] = []
        self.refused: list[str] = []

    async def start(self, bus: tuple[str, Keyring], listens: tuple[str, ...], text: str) -> Client:
        url, ring = bus
        creds = ring.node("main", self.name).with_name("logs.creds")

        async def note(error: Exception) -> None:
            self.refused.append(str(error))

        async def answer(message: Msg) -> None:
            self.heard.append(message.subject)
            piece = LogPiece(job_id=JOB, attempt=1, rank=1, text=text, next_offset=self.next_offset, ended=False)
            await message.respond(piece.model_dump_json().encode())

        nc = await nats.connect(url, error_cb=note, **Address("", creds).options())
        for subject in listens:
            await nc.subscribe(subject, cb=answer)
        for _ in range(2):
            await nc.flush()
        return nc


async def test_only_the_node_that_has_it_hears_and_answers(bus: tuple[str, Keyring]) -> None:
    url, ring = bus
    mine, hostile = Node("n1"), Node("n2")
    tried = ("baton.qry.log.v1.piece.main.n1", "baton.qry.log.>", "baton.qry.log.v1.read.*.*", ">", "_INBOX.>")
    first = await mine.start(bus, ("baton.qry.log.v1.piece.main.n1",), "true")
    second = await hostile.start(bus, tried, "lies")
    await until(lambda: len(hostile.refused) == len(tried))
    history = await connect(Address(url, ring.service("history")), name="history")
    relay = LogRelay(lambda: history, find)
    piece = await relay.read(LogQuery(job_id=JOB, rank=1), "blue")
    assert piece is not None
    assert piece.text == "true"
    with pytest.raises(NothingFound):
        await relay.read(LogQuery(job_id=JOB, rank=1), "green")
    assert hostile.heard == []
    for nc in (first, second, history):
        await nc.close()


@pytest.mark.parametrize(("text", "next_offset"), [("", 4), ("more", 0), ("back", -4), ("more", 2**62)])
async def test_a_node_cannot_keep_who_reads_its_output_reading(
    bus: tuple[str, Keyring], text: str, next_offset: int
) -> None:
    """`baton logs` asks for the next piece at once, until one ends where it began."""
    url, ring = bus
    hostile = Node("n1")
    hostile.next_offset = next_offset
    nc = await hostile.start(bus, ("baton.qry.log.v1.piece.main.n1",), text)
    history = await connect(Address(url, ring.service("history")), name="history")
    assert await LogRelay(lambda: history, find).read(LogQuery(job_id=JOB, rank=1), "blue") is None
    assert hostile.heard
    await nc.close()
    await history.close()


@pytest.mark.parametrize("way", ["packed", "plain", "no zlib"])
async def test_what_a_node_answers_has_a_bound_also_when_it_is_unpacked(bus: tuple[str, Keyring], way: str) -> None:
    """Of 4 MB history made 256 MiB for each question of a team's, and answered nobody meanwhile."""
    url, ring = bus
    nc = await nats.connect(url, **Address("", ring.node("main", "n1").with_name("logs.creds")).options())
    piece = LogPiece(job_id=JOB, attempt=1, rank=1, text="true", next_offset=4, ended=False).model_dump_json().encode()
    long = piece + b" " * (600_000 if way == "plain" else 8_000_000)
    body = {"packed": zlib.compress(long), "plain": long, "no zlib": piece}[way]

    async def answer(message: Msg) -> None:
        await nc.publish(message.reply, body, headers={} if way == "plain" else {ENCODING: ZLIB})

    await nc.subscribe("baton.qry.log.v1.piece.main.n1", cb=answer)
    for _ in range(2):
        await nc.flush()
    history = await connect(Address(url, ring.service("history")), name="history")
    assert await LogRelay(lambda: history, find).read(LogQuery(job_id=JOB, rank=1), "blue") is None
    await nc.close()
    await history.close()


async def test_a_node_cannot_answer_for_another_rank(bus: tuple[str, Keyring]) -> None:
    """Its answer must be of what it was asked."""
    url, ring = bus
    hostile = Node("n2")
    nc = await hostile.start(bus, ("baton.qry.log.v1.piece.main.n2",), "lies")
    history = await connect(Address(url, ring.service("history")), name="history")
    assert await LogRelay(lambda: history, find).read(LogQuery(job_id=JOB, rank=3), "blue") is None
    assert set(hostile.heard) == {"baton.qry.log.v1.piece.main.n2"}
    await nc.close()
    await history.close()


async def test_a_silent_node_holds_up_its_own_askers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.Event()

    async def silent(*_: Any, **__: Any) -> LogPiece:
        await waiting.wait()
        return LogPiece(job_id=JOB, attempt=1, rank=0, text="", next_offset=0, ended=True)

    async def any_team(job_id: str, team: str) -> JobDocument:
        return document(GANG)

    monkeypatch.setattr(logs, "ask", silent)
    relay = LogRelay(lambda: None, any_team)  # type: ignore[arg-type, return-value]
    query = LogQuery(job_id=JOB)
    under_way = [asyncio.create_task(relay.read(query, "blue")) for _ in range(logs._MOST_OF_A_TEAM)]
    await asyncio.sleep(0)
    with pytest.raises(AskAgain):
        await relay.read(query, "blue")
    other = asyncio.create_task(relay.read(query, "green"))
    await asyncio.sleep(0)
    waiting.set()
    assert await other is not None
    assert None not in await asyncio.gather(*under_way)
    assert not relay._under_way


async def test_a_team_that_asks_for_output_without_end_hears_so_much_of_it_in_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: it had all that history and its node's agent could do, and another team's jobs began twenty times as late."""
    waited: list[float] = []

    async def large(*_: Any, **__: Any) -> LogPiece:
        return LogPiece(job_id=JOB, attempt=1, rank=0, text="x" * 262_144, next_offset=262_144, ended=False)

    async def any_team(job_id: str, team: str) -> JobDocument:
        return document(GANG)

    async def sleep(delay_s: float) -> None:
        waited.append(delay_s)

    monkeypatch.setattr(logs, "ask", large)
    monkeypatch.setattr(logs, "_now_us", lambda: 1)
    monkeypatch.setattr(logs.asyncio, "sleep", sleep)
    relay = LogRelay(lambda: None, any_team)  # type: ignore[arg-type, return-value]
    query = LogQuery(job_id=JOB, limit=262_144)
    for _ in range(logs.AT_ONCE // 262_144):
        assert await relay.read(query, "blue") is not None
    assert not any(waited)
    await relay.read(query, "blue")
    assert waited[-1] > 0
    relay._owe("blue", 10 * logs.PER_S)
    owed = relay._heard.of("blue", logs.AT_ONCE, 1).wait_s(logs.AT_ONCE, logs.PER_S, 1, 0)
    for _ in range(100):
        with pytest.raises(AskAgain, match="bytes of output a second"):
            await relay.read(query, "blue")
    assert relay._heard.of("blue", logs.AT_ONCE, 1).wait_s(logs.AT_ONCE, logs.PER_S, 1, 0) == owed, (
        "what is refused costs none"
    )
    await relay.read(query, "green")
    assert waited[-1] == 0
    assert not relay._under_way


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (LogQuery(job_id=JOB, rank=4), f"{JOB} has no rank 4: attempt 1 has ranks 0 to 3"),
        (LogQuery(job_id=JOB, attempt=7), f"{JOB} has no attempt 7: it has attempt 1 only"),
    ],
)
async def test_what_never_was_is_said_and_no_node_is_asked(
    query: LogQuery, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: nobody answered, and `baton logs --rank 99` said after 3 s that a node is gone, maybe."""
    asked: list[Any] = []

    async def ask(*what: Any, **_: Any) -> LogPiece:
        asked.append(what)
        raise NoAnswer("nobody")

    monkeypatch.setattr(logs, "ask", ask)
    with pytest.raises(NothingFound, match=why):
        await LogRelay(lambda: None, find).read(query, "blue")  # type: ignore[arg-type, return-value]
    assert asked == []
