"""`baton team suspend|resume` against real services: nothing new is taken or granted, also after restarts; all else goes on."""

import json
from typing import Any

from libs.bus.queries import ask
from libs.core.projections.verify import Checker
from schemas import inbox, subjects
from schemas.catalog import BY_TYPE
from schemas.explanations import ExplainQuery
from schemas.ids import job_id
from schemas.jobs import JobRejected, TeamEvent
from schemas.ledger import AttemptStopping, JobFinished, JobGranted, JobQueued, JobRequeued, TeamResumed, TeamSuspended
from schemas.pool_status import PoolStatusQuery
from tests.cli.test_command import baton
from tests.core.builders import node
from tests.kit.waiting import stored, until
from tests.services.pool import Pool
from tests.tenants.serving import Serving


async def submit(world: Pool, team: str, key: str) -> str:
    """Asks for both devices."""
    body = {"client_key": key, "job": {"command": ["true"], "resources": {"devices": 2}}}
    await world.js.publish(subjects.submit(team, "ana"), json.dumps(body).encode())
    return job_id(team, key)


async def asked(world: Pool, what: str, team: str, question: Any) -> Any:
    keys = {"pool": world.name, "team": team, "user": "ana"}
    message = BY_TYPE[f"io.baton.{what}.query.v1"]
    seq = (await world.js.stream_info(subjects.ledger_stream(world.name))).state.last_seq
    return await ask(world.nats, message, question, at_least=seq, **keys)


async def test_a_team_is_suspended_and_goes_on(world: Pool, serving: Serving, team: str, nats_url: str) -> None:
    other, about = f"{team}-other", ("--pool", world.name, "--user", "olga")
    async with serving():
        await world.put(inbox.NodeRegistered(incarnation=1, inventory=node("n1", 2), lease_s=600))
        first = await world.event(JobGranted, job_id=await submit(world, team, "first"))
        await world.started(first)
        waits = await submit(world, team, "waits")
        await world.event(JobQueued, job_id=waits)

        told = await baton("team", "suspend", team, "--reason", "unpaid", *about, "-o", "json", url=nats_url)
        assert told.code == 0, told.err
        suspended = json.loads(told.out)
        ((name, seq),) = [(one["pool"], one["ledger_seq"]) for one in suspended.pop("pools")]
        assert (suspended, name) == ({"team": team, "done": "suspended", "stop": False}, world.name)
        assert any(isinstance(event, TeamSuspended) for event in await world.events_of(seq))
        assert (await world.event(TeamSuspended)).user == "olga"

        late = await submit(world, team, "late")
        (rejected,) = await until(lambda: rejections(world, team))
        assert (rejected.job_id, "is suspended since" in rejected.reasons[0].problem) == (late, True)
        why = await asked(world, "job.explain", team, ExplainQuery(job_id=waits))
        assert (why.reason, why.text.endswith("by olga: unpaid")) == ("suspended", True)
        own = await asked(world, "pool.status", team, PoolStatusQuery())
        assert [(one.team, one.reason) for one in own.suspended] == [(team, "unpaid")]
        assert (await asked(world, "pool.status", other, PoolStatusQuery())).suspended == ()
        (event,) = await until(lambda: team_events(world, team))
        assert (event.what, event.reason, event.pool) == ("suspended", "unpaid", world.name)

    async with serving():  # all of them restarted
        await world.released(first)
        theirs = await world.event(JobGranted, job_id=await submit(world, other, "theirs"))
        again = await submit(world, team, "again")
        await until(lambda: later_rejection(world, team, again))
        await world.started(theirs)
        await world.released(theirs)
        await world.event(JobFinished, job_id=theirs.job_id)

        told = await baton("team", "resume", team, *about, url=nats_url)
        assert (told.code, told.out) == (0, f"{team}\t{world.name}\n"), told.err
        granted = await world.event(JobGranted, job_id=waits)
        await world.started(granted)

        await world.put(inbox.SuspendTeam(team=team, reason="again", stop=True, user="olga"))
        await world.event(AttemptStopping, job_id=waits, cause="team-suspended")
        await world.released(granted, own_exit=False)
        assert "suspended" in (await world.event(JobRequeued, job_id=waits)).reason
        await world.put(inbox.ResumeTeam(team=team, user="mallory"))
        last = await world.event(JobGranted, job_id=waits, attempt=2)
        await world.released(last)
        await world.event(JobFinished, job_id=waits)
    records = await world.records()
    kinds = [event.kind for record in records for event in record.events if "team." in event.kind]
    assert kinds == ["team.suspended", "team.resumed"] * 2
    check = Checker()
    for seq, record in enumerate(records, 1):
        check.step(seq, record, True)
    assert check.finish().violations == []
    assert (await world.event(TeamResumed, 2)).user == "olga", "the subject says who speaks, and not the message"


async def rejections(world: Pool, team: str) -> list[JobRejected]:
    found = await stored(world.js, subjects.EVENTS, subjects.event("rejected", team))
    return [JobRejected.model_validate_json(message.data) for message in found]


async def later_rejection(world: Pool, team: str, job: str) -> bool:
    return any(one.job_id == job for one in await rejections(world, team))


async def team_events(world: Pool, team: str) -> list[TeamEvent]:
    found = await stored(world.js, subjects.EVENTS, subjects.team_event("suspended", team))
    return [TeamEvent.model_validate_json(message.data) for message in found]
