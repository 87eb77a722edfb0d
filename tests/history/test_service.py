"""The process itself: questions over NATS, a kill -9, and two teams that cannot see each other."""

import asyncio
import signal
from pathlib import Path

import pytest
from nats.aio.client import Client

from libs.bus.queries import QueryError, ask
from libs.embedded.servers import MONGO
from schemas.catalog import BY_TYPE
from schemas.proofs import AuditRead
from schemas.queries import ANSWER_S, LOGS_ANSWER_S, EventListQuery, JobGet, JobListQuery, LogQuery
from tests.history.written import Service, Written, busy_world, until
from tests.kit.background import ServerInBackground

GET, LIST, EVENTS, LOGS, AUDIT = (
    BY_TYPE[f"io.baton.{name}.query.v1"] for name in ("job.get", "job.list", "event.list", "log.read", "audit.read")
)


async def test_history_answers_and_goes_on_after_a_kill(
    nats: Client, nats_url: str, mongo_url: str, pool: str, team: str
) -> None:
    world, rivals = busy_world(team, f"{team}-2"), f"{team}-2"
    written = Written(nats.jetstream(), pool)
    environment = {"BATON_NATS_URL": nats_url, "BATON_MONGO_URL": f"{mongo_url}/{pool}", "BATON_POOL": pool}

    async def documents() -> bool:
        """Whether history has every job of the team as the ledger has it."""
        want = {j: s.document for j, s in written.stories().items() if s.document.team == team}
        try:
            have = await ask(nats, LIST, JobListQuery(limit=1000), team=team, user="ana", timeout_s=1)
        except (TimeoutError, QueryError):
            return False
        return {d.job_id: d for d in have.jobs} == want

    await written.write(world.records[:25])
    async with Service("history", **environment) as service:
        await until(documents, "the first half is answered")
        await service.end(signal.SIGKILL)
        await written.write(world.records[25:])
        await service.start()
        await until(documents, "the second half is answered")

        foreign = next(j for j, s in written.stories().items() if s.document.team == rivals)
        for wrong in (foreign, "job-" + "0" * 32):
            with pytest.raises(QueryError) as refused:
                await ask(nats, GET, JobGet(job_id=wrong), team=team, user="ana")
            assert refused.value.status == "not-found"
        assert (await ask(nats, GET, JobGet(job_id=foreign), team=rivals, user="ana")).team == rivals

        async def told() -> bool:
            events = (await ask(nats, EVENTS, EventListQuery(limit=10_000), team=team, user="ana")).events
            want = [e for s in written.stories().values() if s.document.team == team for e in s.events]
            return len(events) == len(want)

        await until(told, "the team is told everything once")
        assert await service.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("how", ["frozen", "refuses"])
async def test_who_asks_while_mongo_does_not_answer_is_told_so_while_he_waits(
    how: str, nats: Client, nats_url: str, pool: str, team: str, tmp_path: Path
) -> None:
    """Frozen it takes a question and answers nothing, so it is not known to be away for many seconds."""
    written = Written(nats.jetstream(), pool)
    await written.write(busy_world(team).records)
    job = next(iter(written.stories()))
    questions = {
        "get": (GET, JobGet(job_id=job), ANSWER_S),
        "list": (LIST, JobListQuery(), ANSWER_S),
        "events": (EVENTS, EventListQuery(job_id=job), ANSWER_S),
        "logs": (LOGS, LogQuery(job_id=job, attempt=1), LOGS_ANSWER_S),
        "audit": (AUDIT, AuditRead(), ANSWER_S),
    }

    async def answer(name: str) -> str:
        message, query, a_client_waits_s = questions[name]
        try:
            await ask(nats, message, query, timeout_s=a_client_waits_s, team=team, user="ana", pool=pool)
        except QueryError as error:
            return str(error)
        except TimeoutError as error:
            return f"nothing: {error}"
        return "an answer"

    with ServerInBackground(MONGO, tmp_path) as mongo:
        url = mongo.url if how == "frozen" else f"mongodb://127.0.0.1:1/{pool}"
        async with Service("history", BATON_NATS_URL=nats_url, BATON_MONGO_URL=url, BATON_POOL=pool):

            async def answers() -> list[str]:
                found = await asyncio.gather(*map(answer, questions))
                return [] if any("nobody answers" in text for text in found) else found

            async def documents() -> bool:
                return await answer("get") == "an answer"

            if how == "frozen":
                await until(documents, "the documents are answered")
                with mongo.frozen():
                    told = await answers()
                await until(documents, "they are answered again")
            else:
                told = await until(answers, "somebody answers")
    assert told
    assert all("MongoDB, which keeps" in text and "ask again" in text for text in told), told
