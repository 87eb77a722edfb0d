"""A question has one of five ends: ok, invalid, not-found, failed, or an error that names who should have answered."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator

import pytest

from libs.bus import queries
from libs.bus.broker import Broker, make_broker
from libs.bus.connect import BusConnection
from libs.bus.queries import STATUS, InvalidQuestion, NoAnswer, NothingFound, QueryError, ask, serve
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.explanations import ExplainQuery, Explanation
from schemas.jobs import Reason
from schemas.nodes import DesiredQuery, DesiredReply
from schemas.pool_status import PoolStatusQuery
from schemas.queries import LogPiece, LogQuery
from schemas.queue_status import QueueList, QueueListQuery
from tests.kit.waiting import until

EXPLAIN = BY_TYPE["io.baton.job.explain.query.v1"]
QUEUE = BY_TYPE["io.baton.queue.list.query.v1"]
LOG = BY_TYPE["io.baton.log.read.query.v1"]
DESIRED = BY_TYPE["io.baton.node.desired.query.v1"]
STATUS_QUERY = BY_TYPE["io.baton.pool.status.query.v1"]


def job(number: int) -> str:
    return f"job-{number:032x}"


def asker(team: str) -> dict[str, str]:
    return {"pool": "main", "team": team, "user": "ana"}


def explain(query: ExplainQuery, team: str) -> Explanation:
    if query.job_id == job(1):
        raise NothingFound("no such job")
    if query.job_id == job(2):
        raise InvalidQuestion([Reason(field="job_id", value="2", problem="is even", fix="ask for an odd one")])
    if query.job_id == job(77):
        return Explanation(job_id=query.job_id, state="queued", reason="quota", text=os.urandom(10_000_000).hex())
    if query.job_id == job(3):
        raise ZeroDivisionError("secret detail")
    return Explanation(job_id=query.job_id, state="queued", reason="quota", text=team)


@pytest.fixture
async def broker(nats_url: str) -> AsyncIterator[Broker]:
    one = make_broker(nats_url, "test")
    yield one
    await one.stop()


@pytest.fixture
async def explaining(broker: Broker) -> Broker:
    serve(broker, EXPLAIN, explain, queue="placement")
    await broker.start()
    return broker


@pytest.mark.usefixtures("explaining")
async def test_an_answer_is_the_model_and_the_team_is_the_subjects(nats: BusConnection, team: str) -> None:
    answer = await ask(nats, EXPLAIN, ExplainQuery(job_id=job(9)), **asker(team))
    assert answer == Explanation(job_id=job(9), state="queued", reason="quota", text=team)


@pytest.mark.usefixtures("explaining")
async def test_a_job_that_is_not_there(nats: BusConnection, team: str) -> None:
    with pytest.raises(QueryError, match="no such job") as end:
        await ask(nats, EXPLAIN, ExplainQuery(job_id=job(1)), **asker(team))
    assert end.value.status == "not-found"


@pytest.mark.usefixtures("explaining")
async def test_a_question_that_makes_no_sense_has_reasons(nats: BusConnection, team: str) -> None:
    with pytest.raises(QueryError) as end:
        await ask(nats, EXPLAIN, ExplainQuery(job_id=job(2)), **asker(team))
    assert end.value.status == "invalid"
    assert [r.fix for r in end.value.reasons] == ["ask for an odd one"]


@pytest.mark.usefixtures("explaining")
async def test_a_bug_is_answered_without_its_details_and_the_service_lives(nats: BusConnection, team: str) -> None:
    with pytest.raises(QueryError, match="ZeroDivisionError") as end:
        await ask(nats, EXPLAIN, ExplainQuery(job_id=job(3)), **asker(team))
    assert end.value.status == "failed"
    assert "secret" not in str(end.value)
    assert (await ask(nats, EXPLAIN, ExplainQuery(job_id=job(9)), **asker(team))).text == team
    with pytest.raises(QueryError, match=r"the answer is larger than a message may be \([\d,]+ bytes\): ask for less"):
        await ask(nats, EXPLAIN, ExplainQuery(job_id=job(77)), timeout_s=60, **asker("operator"))


async def test_a_team_is_told_so_much_at_once_and_more_compressed(
    nats: BusConnection, broker: Broker, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker copies an answer for each subscription of a team that hears it: of 4 MiB gigabytes."""
    monkeypatch.setattr(queries, "TEAM_ANSWER_BYTES", 100_000)
    texts = {job(5): "a device like the one before it, " * 20_000, job(6): os.urandom(100_000).hex()}

    def tell(query: ExplainQuery, team: str) -> Explanation:
        return Explanation(job_id=query.job_id, state="queued", reason="quota", text=texts[query.job_id])

    serve(broker, EXPLAIN, tell, queue="placement")
    await broker.start()
    assert (await ask(nats, EXPLAIN, ExplainQuery(job_id=job(5)), **asker(team))).text == texts[job(5)]
    with pytest.raises(QueryError, match=r"larger than a team's may be \(100,000 bytes\): ask for less$"):
        await ask(nats, EXPLAIN, ExplainQuery(job_id=job(6)), **asker(team))
    plain = ExplainQuery(job_id=job(5)).model_dump_json().encode()
    refused = await nats.request(f"baton.qry.job.v1.explain.main.{team}.ana", plain, timeout=30)
    assert refused.headers[STATUS] == "failed"
    assert b"ask for less, or send Baton-Accept: zlib and read it compressed" in refused.data
    for whoever in ("operator", "_finance"):
        told = await nats.request(f"baton.qry.job.v1.explain.main.{whoever}.ana", plain, timeout=30)
        assert json.loads(told.data)["text"] == texts[job(5)]


@pytest.mark.usefixtures("explaining")
@pytest.mark.parametrize(
    ("payload", "field"),
    [(b'{"job": "x"}', "job_id"), (b"not json", "(payload)"), (b"", "job_id"), (b'{"job_id":"\\u0000"}', "(payload)")],
)
async def test_a_plain_nats_client_is_told_what_is_wrong(
    nats: BusConnection, team: str, payload: bytes, field: str
) -> None:
    reply = await nats.request(f"baton.qry.job.v1.explain.main.{team}.ana", payload, timeout=30)
    assert reply.headers[STATUS] == "invalid"
    assert json.loads(reply.data)["reasons"][0]["field"] == field


@pytest.mark.usefixtures("explaining")
async def test_a_plain_nats_client_is_answered(nats: BusConnection, team: str) -> None:
    payload = json.dumps({"job_id": job(9)}).encode()
    reply = await nats.request(f"baton.qry.job.v1.explain.main.{team}.ana", payload, timeout=30)
    assert reply.headers[STATUS] == "ok"
    assert json.loads(reply.data)["text"] == team


async def test_no_conditions_may_be_an_empty_payload(nats: BusConnection, broker: Broker, team: str) -> None:
    async def queue_list(query: QueueListQuery, team: str) -> QueueList:
        return QueueList(jobs=(), total=query.limit)

    serve(broker, QUEUE, queue_list, queue="placement")
    await broker.start()
    reply = await nats.request(f"baton.qry.queue.v1.list.main.{team}.ana", b"", timeout=30)
    assert json.loads(reply.data)["total"] == 200


async def test_nobody_there_is_told_at_once_and_named(nats: BusConnection, team: str) -> None:
    with pytest.raises(NoAnswer, match="is queries running"):
        await ask(nats, STATUS_QUERY, PoolStatusQuery(), timeout_s=60, **asker(team))


async def test_a_silent_owner_is_a_timeout(nats: BusConnection, broker: Broker, team: str) -> None:
    serve(broker, LOG, lambda query, team: None, queue="")
    await broker.start()
    with pytest.raises(NoAnswer, match="no answer from history"):
        await ask(nats, LOG, LogQuery(job_id=job(9)), timeout_s=0.2, **asker(team))


async def test_of_many_who_are_asked_the_one_who_has_it_answers(nats_url: str, nats: BusConnection, team: str) -> None:
    def piece(number: int):
        def read(query: LogQuery, team: str) -> LogPiece | None:
            if number != 2:
                return None
            return LogPiece(job_id=query.job_id, attempt=1, rank=0, text=str(number), next_offset=1, ended=True)

        return read

    agents = [make_broker(nats_url, f"agent-{n}") for n in range(4)]
    for n, agent in enumerate(agents):
        serve(agent, LOG, piece(n))
        await agent.start()
    assert (await ask(nats, LOG, LogQuery(job_id=job(9)), timeout_s=30, **asker(team))).text == "2"
    for agent in agents:
        await agent.stop()


async def test_of_several_with_one_queue_one_answers(nats_url: str, nats: BusConnection, team: str) -> None:
    asked: list[int] = []

    def answering(number: int):
        def answer(query: ExplainQuery, team: str) -> Explanation:
            asked.append(number)
            return explain(query, team)

        return answer

    brokers = [make_broker(nats_url, f"p{n}") for n in range(2)]
    for n, one in enumerate(brokers):
        serve(one, EXPLAIN, answering(n), queue="placement")
        await one.start()
    await asyncio.gather(
        *(ask(nats, EXPLAIN, ExplainQuery(job_id=job(9)), timeout_s=30, **asker(team)) for _ in range(20))
    )
    assert len(asked) == 20
    for one in brokers:
        await one.stop()


async def test_a_question_about_a_pool_reaches_its_owner_only(nats: BusConnection, broker: Broker, pool: str) -> None:
    serve(broker, DESIRED, lambda query, key: DesiredReply(states=()), pool=pool, queue="placement")
    await broker.start()
    assert (await ask(nats, DESIRED, DesiredQuery(nodes=("n1",)), pool=pool, node="n1")).states == ()
    with pytest.raises(NoAnswer):
        await ask(nats, DESIRED, DesiredQuery(nodes=("n1",)), pool="another-pool", node="n1")


async def test_a_slow_question_does_not_hold_up_the_next(nats: BusConnection, broker: Broker, team: str) -> None:
    release = asyncio.Event()

    async def answer(query: ExplainQuery, team: str) -> Explanation:
        if query.job_id == job(4):
            await release.wait()
        return explain(query, team)

    serve(broker, EXPLAIN, answer, queue="placement")
    await broker.start()
    slow = asyncio.create_task(ask(nats, EXPLAIN, ExplainQuery(job_id=job(4)), timeout_s=60, **asker(team)))
    await ask(nats, EXPLAIN, ExplainQuery(job_id=job(9)), timeout_s=30, **asker(team))
    release.set()
    assert (await slow).job_id == job(4)


async def test_an_answer_too_large_for_the_server_is_a_failure_not_silence(
    nats: BusConnection, broker: Broker, team: str
) -> None:
    def answer(query: LogQuery, team: str) -> LogPiece:
        return LogPiece(
            job_id=query.job_id, attempt=1, rank=0, text=os.urandom(3_000_000).hex() * 2, next_offset=1, ended=True
        )

    serve(broker, LOG, answer)
    await broker.start()
    with pytest.raises(QueryError, match="ask for less"):
        await ask(nats, LOG, LogQuery(job_id=job(9)), timeout_s=30, **asker("operator"))
    assert nats.is_connected


async def test_a_crowd_of_one_teams_questions_holds_up_no_other_teams(broker: Broker, nats: BusConnection) -> None:
    """They were answered in the order in which they came: some hundreds a second of one team, and others heard nothing."""
    begun: list[str] = []
    release = asyncio.Semaphore(0)

    async def slow(query: ExplainQuery, team: str) -> Explanation:
        begun.append(team)
        await release.acquire()
        return Explanation(job_id=query.job_id, state="queued", reason="quota", text=team)

    serve(broker, EXPLAIN, slow, queue="placement")
    await broker.start()

    def asks(team: str) -> "asyncio.Task[Explanation]":
        return asyncio.create_task(ask(nats, EXPLAIN, ExplainQuery(job_id=job(9)), timeout_s=60, **asker(team)))

    of_one = queries._WORKERS // 4
    crowd = [asks("blue") for _ in range(of_one + queries._EACH + 5)]
    await until(lambda: sum(one.done() for one in crowd) == 5, 60)
    assert all("256 of blue wait already" in str(one.exception()) for one in crowd if one.done())
    green = asks("green")
    await nats.flush()
    await until(lambda: "green" in begun)
    await asyncio.sleep(0.2)  # a second one of blue's would begin now
    assert begun == [*["blue"] * of_one, "green"], "it is dealt with at once, beside a few of the crowd's"
    others = [asks(f"green-{number}") for number in range(queries._WORKERS)]
    await nats.flush()
    await until(lambda: len(begun) == queries._WORKERS)
    assert begun.count("blue") == of_one
    for _ in (*crowd, *others, green):
        release.release()
    assert (await green).text == "green"
    await asyncio.wait([*crowd, *others])


async def test_a_crowd_of_questions_that_nobody_waits_for_holds_up_no_other_teams(
    broker: Broker, nats: BusConnection
) -> None:
    """What is answered at once was answered in the order in which it came: of 2,000 a second others' waited a second."""
    begun: list[str] = []

    def soon(query: ExplainQuery, team: str) -> Explanation:
        time.sleep(0.002)  # it keeps the event loop busy, as an answer does
        begun.append(team)
        return Explanation(job_id=query.job_id, state="queued", reason="quota", text=team)

    serve(broker, EXPLAIN, soon, queue="placement", workers=2_048)
    await broker.start()
    for team in ["blue"] * queries._EACH + ["green"]:
        subject = subjects.fill(EXPLAIN.subject, **asker(team))
        await nats.publish(subject, ExplainQuery(job_id=job(9)).model_dump_json().encode(), reply=nats.new_inbox())
    await nats.flush()
    await until(lambda: len(begun) == queries._EACH + 1, 60)
    assert begun.index("green") < queries._EACH / 2


async def test_what_waits_for_longer_than_the_broker_keeps_who_asked_is_not_looked_at(
    broker: Broker, nats: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer reaches nobody. Of what a service takes a second for, 256 questions kept it busy for minutes after who asked
    had gone; an operator is in the same account, and may wait for as long as it likes."""
    monkeypatch.setattr(queries, "ANSWER_S", 0.5)
    begun: list[str] = []
    release = asyncio.Event()

    async def slow(query: ExplainQuery, team: str) -> Explanation:
        begun.append(team)
        await release.wait()
        return Explanation(job_id=query.job_id, state="queued", reason="quota", text=team)

    serve(broker, EXPLAIN, slow, queue="placement", workers=2)
    await broker.start()

    async def asks(team: str) -> "asyncio.Task[Explanation]":
        asked = asyncio.create_task(ask(nats, EXPLAIN, ExplainQuery(job_id=job(9)), timeout_s=5, **asker(team)))
        await asyncio.sleep(0)
        await nats.flush()
        return asked

    first = [await asks("blue") for _ in range(2)]
    await until(lambda: len(begun) == 2)
    late, operator = await asks("blue"), await asks(subjects.OPERATOR)
    await asyncio.sleep(0.6)
    release.set()
    assert [(await one).text for one in (*first, operator)] == ["blue", "blue", subjects.OPERATOR]
    assert begun == ["blue", "blue", subjects.OPERATOR]
    late.cancel()
    assert (await (await asks("blue"))).text == "blue"


async def test_a_team_may_ask_so_often_and_of_what_is_refused_it_is_told_a_part(
    broker: Broker, nats: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "QUESTIONS_AT_ONCE", 20)
    monkeypatch.setattr(queries, "QUESTIONS_PER_S", 0.001)
    monkeypatch.setattr(queries, "REFUSALS_AT_ONCE", 5)
    monkeypatch.setattr(queries, "REFUSALS_PER_S", 0.001)
    serve(broker, EXPLAIN, explain, queue="placement")
    await broker.start()
    heard = await nats.subscribe(inbox := nats.new_inbox())
    for _ in range(100):
        subject = subjects.fill(EXPLAIN.subject, **asker("blue"))
        await nats.publish(subject, ExplainQuery(job_id=job(9)).model_dump_json().encode(), reply=inbox)
    await until(lambda: heard.pending_msgs >= 25)
    answer = await ask(nats, EXPLAIN, ExplainQuery(job_id=job(9)), timeout_s=60, **asker("green"))
    assert answer.text == "green"
    said = [await heard.next_msg() for _ in range(heard.pending_msgs)]
    refused = [one.data.decode() for one in said if (one.headers or {})[STATUS] == "failed"]
    assert (len(said) - len(refused), len(refused)) == (20, 5)
    assert "blue may ask 20 such questions at once" in refused[0]


async def test_what_is_asked_faster_than_it_is_refused_is_dropped(
    broker: Broker, nats: BusConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service went on refusing for minutes after the crowd had gone, and others' questions came after all of it."""
    monkeypatch.setattr(queries, "_BACKLOG", 50)
    monkeypatch.setattr(queries, "_MOST", 8)
    seen: list[str] = []
    release = asyncio.Event()

    async def slow(query: ExplainQuery, team: str) -> Explanation:
        seen.append(team)
        await release.wait()
        return Explanation(job_id=query.job_id, state="queued", reason="quota", text=team)

    serve(broker, EXPLAIN, slow, queue="placement", workers=1)
    await broker.start()
    subject = subjects.fill(EXPLAIN.subject, **asker("blue"))
    heard = await nats.subscribe(inbox := nats.new_inbox())
    for _ in range(2_000):
        await nats.publish(subject, ExplainQuery(job_id=job(9)).model_dump_json().encode(), reply=inbox)
    await nats.flush()
    await until(lambda: seen == ["blue"])
    await asyncio.sleep(0.2)
    release.set()
    answer = await ask(nats, EXPLAIN, ExplainQuery(job_id=job(9)), timeout_s=60, **asker("green"))
    assert answer.text == "green"
    assert 0 < heard.pending_msgs < 1_000, "not all of it was looked at"
