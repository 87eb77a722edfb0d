"""Queries as a service: what it answers to whom, of which record, and that neither placement nor a crowd holds it up."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from faststream.asgi import AsgiFastStream
from pydantic import BaseModel

from libs.bus.queries import NoAnswer, QueryError, ask
from schemas import inbox
from schemas.catalog import BY_TYPE
from schemas.explanations import ExplainQuery, Explanation, PlanQuery, PlanReply
from schemas.ids import job_id
from schemas.jobs import JobSpec
from schemas.ledger import JobGranted, JobQueued, LedgerRecord, NodeJoined
from schemas.pool_status import PoolStatus, PoolStatusQuery
from schemas.queue_status import QueueList, QueueListQuery
from schemas.subjects import OPERATOR
from services.placement.app import make_app as make_placement
from services.placement.settings import PlacementSettings
from services.queries.answers import Answers, CachedAnswer
from services.queries.app import make_app
from services.queries.replica import Replica
from services.queries.settings import QueriesSettings
from tests.admission.running import get, running
from tests.core.builders import job, node
from tests.kit.waiting import until
from tests.services.pool import Pool

Settings = Callable[..., QueriesSettings]


@pytest.fixture
def settings(world: Pool, nats_url: str, redis_url: str) -> Settings:
    return lambda **more: QueriesSettings(nats_url=nats_url, redis_url=redis_url, pool=world.name, **more)


@asynccontextmanager
async def placing(settings: Settings) -> AsyncIterator[None]:
    made = settings()
    shared = PlacementSettings(nats_url=made.nats_url, redis_url=made.redis_url, pool=made.pool)
    async with running(make_placement(shared, writer_id="w1")):
        yield


@asynccontextmanager
async def pool_with(world: Pool, settings: Settings, **more: Any) -> AsyncIterator[AsgiFastStream]:
    """Placement and queries; what is asked is answered as of the newest record, as a client that has heard of it asks."""
    async with placing(settings), answering(world, settings(**more)) as app:
        yield app


@asynccontextmanager
async def answering(world: Pool, settings: QueriesSettings) -> AsyncIterator[AsgiFastStream]:
    """Queries, which begin to listen a moment after they have started."""

    async def listens() -> bool:
        with suppress(NoAnswer):
            return bool(await question(world, "pool.status", "red", PoolStatusQuery(), 0))
        return False

    app = make_app(settings)
    async with running(app):
        await until(listens)
        yield app


def registered(name: str, devices: int = 2) -> inbox.NodeRegistered:
    return inbox.NodeRegistered(incarnation=1, inventory=node(name, devices), lease_s=10)


async def last(world: Pool) -> int:
    return (await world.js.stream_info(f"LEDGER-{world.name}")).state.last_seq


async def question(world: Pool, type_: str, team: str, query: BaseModel, at_least: int | None = None) -> Any:
    message = BY_TYPE[f"io.baton.{type_}.query.v1"]
    seq = await last(world) if at_least is None else at_least
    return await ask(world.nats, message, query, pool=world.name, team=team, user="ana", at_least=seq, timeout_s=30)


async def test_who_cannot_answer_yet_says_why_to_whoever_probes(world: Pool, settings: Settings) -> None:
    """Its port was closed until it had read the ledger, so that nobody could be told that archived records were needed."""
    name = f"LEDGER-{world.name}"
    config = (await world.js.stream_info(name)).config
    await world.js.delete_stream(name)
    await world.js.add_stream(config.evolve(first_seq=4))
    await world.js.publish(str((config.subjects or [""])[0]), b"{}")
    app = make_app(settings())

    async def said() -> bool:
        status, body = await get(app, "/readyz")
        return status == 503 and "no longer has 1 to 3 here" in body and "baton ledger restore" in body

    async with app.start_lifespan_context():
        await until(said)
        _, metrics = await get(app, "/metrics")
        assert 'baton_follower_archived_records{follower="queries"} 3.0' in metrics


async def test_a_team_sees_its_own_jobs_and_the_operator_all(world: Pool, settings: Settings) -> None:
    red, blue = job("r", 2, team="red"), job("b", 9, team="blue")
    async with pool_with(world, settings):
        await world.put(registered("n1"), red, blue)
        await world.event(JobGranted)
        await world.event(JobQueued, job_id=blue.job_id)

        explained: Explanation = await question(world, "job.explain", "blue", ExplainQuery(job_id=blue.job_id))
        assert explained.reason != ""
        assert explained.text != ""
        assert (await question(world, "job.explain", OPERATOR, ExplainQuery(job_id=red.job_id))).state == "granted"

        queues: dict[str, QueueList] = {}
        for team in ("red", "blue", OPERATOR):
            queues[team] = await question(world, "queue.list", team, QueueListQuery())
        assert {team: [j.job_id for j in q.jobs] for team, q in queues.items()} == {
            "red": [],
            "blue": [blue.job_id],
            OPERATOR: [blue.job_id],
        }
        assert queues["red"].total == 0, "the length of another team's queue is its own affair"

        status: PoolStatus = await question(world, "pool.status", "red", PoolStatusQuery())
        assert (status.devices, status.milli_used, status.nodes_up, status.grants) == (2, 2000, 1, 1)


async def test_another_teams_job_is_answered_like_one_that_does_not_exist(world: Pool, settings: Settings) -> None:
    async with pool_with(world, settings):
        await world.put(registered("n1"), job("r", 2, team="red"))
        granted = await world.event(JobGranted)
        answers = []
        for asked in (granted.job_id, job_id("red", "nothing")):
            with pytest.raises(QueryError) as error:
                await question(world, "job.explain", "blue", ExplainQuery(job_id=asked))
            answers.append((error.value.status, str(error.value).replace(asked, "JOB"), error.value.reasons))
        assert answers[0] == answers[1]
        assert "`baton describe job JOB` shows one that has ended" in answers[0][1]


async def test_questions_are_answered_while_there_is_no_placement(world: Pool, settings: Settings) -> None:
    """The writer answers no questions: not while it is busy, and not while it is dead."""
    waits = job("waits", 9, team="red")
    async with placing(settings):
        await world.put(registered("n1"), job("runs", 2, team="red"), waits)
        await world.event(JobGranted)
        await world.event(JobQueued, job_id=waits.job_id)
    seq = await last(world)
    plan = PlanQuery(job=JobSpec(command=("x",)))
    async with answering(world, settings()):
        status: PoolStatus = await question(world, "pool.status", "red", PoolStatusQuery())
        explained: Explanation = await question(world, "job.explain", "red", ExplainQuery(job_id=waits.job_id))
        queue: QueueList = await question(world, "queue.list", "red", QueueListQuery())
        planned: PlanReply = await question(world, "job.plan", "red", plan)
        with pytest.raises(QueryError, match="no job"):
            await question(world, "job.explain", "red", ExplainQuery(job_id=job_id("red", "nothing")))
    assert status.jobs == {"granted": 1, "queued": 1}
    assert status.queue_wait_ms.count == 1
    assert explained.reason == queue.jobs[0].reason != ""
    assert {status.ledger_seq, explained.ledger_seq, queue.ledger_seq, planned.ledger_seq} == {seq}


async def test_why_jobs_wait_is_what_placement_found(world: Pool, settings: Settings) -> None:
    """The replica runs no cycles for real; what it says of waiting jobs is what the cycle of the last record says."""
    too_many, next_one = job("many", 9, team="red"), job("next", 1, team="red")
    async with pool_with(world, settings):
        await world.put(registered("n1"), job("runs", 2, team="red"), too_many, next_one)
        await world.event(JobQueued, job_id=next_one.job_id)
        queue: QueueList = await question(world, "queue.list", "red", QueueListQuery())
        why = {
            waiting.job_id: (await question(world, "job.explain", "red", ExplainQuery(job_id=waiting.job_id))).reason
            for waiting in queue.jobs
        }
    assert {waiting.job_id: waiting.reason for waiting in queue.jobs} == why
    assert why[next_one.job_id] == "busy"


async def test_a_quick_answer_does_not_wait_for_a_slow_one(
    world: Pool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinking, go = threading.Event(), threading.Event()

    def slow(*_: Any) -> PlanReply:
        thinking.set()
        assert go.wait(60)
        return PlanReply(verdict="unknown", text="")

    monkeypatch.setattr(Answers, "plan", slow)
    async with pool_with(world, settings):
        plan = asyncio.create_task(question(world, "job.plan", "red", PlanQuery(job=JobSpec(command=("x",)))))
        try:
            await until(thinking.is_set)
            status: PoolStatus = await question(world, "pool.status", "red", PoolStatusQuery())
            assert status.pool == world.name
            assert not plan.done()
        finally:
            go.set()
        await plan


async def test_a_slow_answer_is_of_one_record_and_the_ledger_goes_on_after_it(
    world: Pool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinking, go, seen = threading.Event(), threading.Event(), []

    def slow(_: Answers, replica: Any, *__: Any) -> PlanReply:
        before = len(replica.state.fleet.nodes)
        thinking.set()
        assert go.wait(60)
        seen.append((before, len(replica.state.fleet.nodes)))
        return PlanReply(verdict="unknown", text="")

    monkeypatch.setattr(Answers, "plan", slow)
    async with pool_with(world, settings, seen_wait_s=0.5):
        began = await last(world)
        plan = asyncio.create_task(question(world, "job.plan", "red", PlanQuery(job=JobSpec(command=("x",)))))
        try:
            await until(thinking.is_set)
            await world.put(registered("n1"))
            await world.event(NodeJoined)
            status: PoolStatus = await question(world, "pool.status", "red", PoolStatusQuery())
            assert (status.nodes_up, status.ledger_seq) == (0, began), "it waited for the record in vain, and says so"
        finally:
            go.set()
        await plan
        assert seen == [(0, 0)], "the state changed in the midst of an answer"

        async def joined() -> bool:
            return bool((await question(world, "pool.status", "red", PoolStatusQuery())).nodes_up == 1)

        await until(joined)  # what was told meanwhile is not kept, though no other record comes


async def test_a_crowd_of_one_teams_questions_holds_up_no_other_team(
    world: Pool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinking, go = threading.Event(), threading.Event()
    served: list[str] = []

    def slow(_: Answers, replica: Any, query: Any, asked: Any) -> QueueList:
        thinking.set()
        assert go.wait(60)
        served.append(asked.team)
        return QueueList(jobs=(), total=0)

    def asks(team: str) -> asyncio.Task[QueueList]:
        return asyncio.create_task(question(world, "queue.list", team, QueueListQuery()))

    monkeypatch.setattr(Answers, "queue_list", slow)
    async with pool_with(world, settings, questions_each=10) as app:

        async def eleven_wait() -> bool:
            _, metrics = await get(app, "/metrics")
            return "baton_questions_waiting 11.0" in metrics

        try:
            loud = [asks("loud")]
            await until(thinking.is_set)
            loud += [asks("loud") for _ in range(49)]
            await until(lambda: sum(task.done() for task in loud) == 39)
            quiet = asks("quiet")
            await until(eleven_wait)
        finally:
            go.set()
        await quiet
        answers = await asyncio.gather(*loud, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, QueryError)]
    assert len(refused) == 39, "one is in hand and ten wait"
    assert "ask again in a moment" in str(refused[0])
    assert served.index("quiet") <= 2, f"the quiet team waited behind the crowd: {served}"


async def test_an_answer_waits_for_what_its_asker_has_heard_of(world: Pool, settings: Settings) -> None:
    async with pool_with(world, settings, seen_wait_s=10.0):
        await world.put(registered("n1"))
        await world.event(NodeJoined)
        known: PoolStatus = await question(world, "pool.status", "red", PoolStatusQuery())
        asking = asyncio.create_task(
            question(world, "pool.status", "red", PoolStatusQuery(), at_least=known.ledger_seq + 1)
        )
        await world.put(registered("n2"))
        told: PoolStatus = await asking
        assert told.ledger_seq > known.ledger_seq
        assert told.nodes_up == 2


async def test_an_answer_that_waited_in_vain_says_which_record_it_is_of(world: Pool, settings: Settings) -> None:
    async with pool_with(world, settings, seen_wait_s=0.1):
        await world.put(registered("n1"))
        await world.event(NodeJoined)
        seq = await last(world)
        for at_least in (10**15, 10**18 - 1):
            assert (await question(world, "pool.status", "red", PoolStatusQuery(), at_least)).ledger_seq == seq


async def test_a_job_that_was_just_admitted_is_known(world: Pool, settings: Settings) -> None:
    """It lies in the inbox and is not decided yet: the answer waits for the decision."""
    new = job("new", 9, team="red")
    async with answering(world, settings(decided_wait_s=30.0)):
        await world.put(registered("n1"), new)
        asking = asyncio.create_task(question(world, "job.explain", "red", ExplainQuery(job_id=new.job_id), at_least=0))
        async with placing(settings):
            explained: Explanation = await asking
    assert explained.job_id == new.job_id


def test_what_is_kept_costs_a_twentieth_of_the_time() -> None:
    now, made = [0.0], []

    def make() -> int:
        now[0] += 0.1
        made.append(now[0])
        return len(made)

    kept: CachedAnswer[int] = CachedAnswer(lambda: now[0])
    assert [kept.get(1, make), kept.get(1, make)] == [1, 1], "the state has not moved"
    assert kept.get(2, make) == 1, "a moment later the last one will do"
    assert kept.get(2, make, at_least=2) == 2, "not for whoever has heard of a later record"
    now[0] += 2.1
    assert kept.get(3, make) == 3


def test_a_dry_run_is_timed_by_the_ledger() -> None:
    """Ledger time and wall time may be hours apart; between two records time goes on."""
    replica = Replica()
    assert replica.now_us(5_000) == 0, "nothing is known of the broker's clock yet"
    record = LedgerRecord(
        pool="main", prev_seq=0, prev_hash="", inbox_seq=1, t_us=1_000, wall_us=9_000_000, writer="w", events=()
    )
    replica.apply(record, 1)
    assert replica.now_us(9_000_500) == 1_500
    assert replica.now_us(8_000_000) == 1_000, "a clock that was set back"


async def test_the_pool_says_why_it_takes_no_submits(
    world: Pool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.queries.app._ROOM_EVERY_S", 0.05)
    async with pool_with(world, settings):
        assert (await question(world, "pool.status", "red", PoolStatusQuery())).busy == ""
        monkeypatch.setattr("services.queries.app.SUBMITS_HIGH_WATER", 0.0)  # what lies in the inbox is too much
        await world.put(registered("n1"))

        async def busy() -> str:
            told: PoolStatus = await question(world, "pool.status", "red", PoolStatusQuery())
            return told.busy

        assert f"INBOX-{world.name} is " in await until(busy)
