"""The process itself: questions over NATS, a kill -9, and two teams that cannot see each other."""

import signal

import pytest
from nats.aio.client import Client

from libs.bus.queries import QueryError, ask
from schemas.catalog import BY_TYPE
from schemas.queries import EventListQuery, JobGet, JobListQuery
from tests.history.written import Service, Written, busy_world, until

GET, LIST, EVENTS = (BY_TYPE[f"io.baton.{name}.query.v1"] for name in ("job.get", "job.list", "event.list"))


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
