"""`baton plan` from the job file to the table: the command as a process, a real placement behind a real broker."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from libs.bus.queries import QueryError, ask
from libs.service.cycle import dry_run_inputs
from schemas import inbox
from schemas.catalog import BY_TYPE
from schemas.explanations import PlanQuery, PlanReply, PlanVerdict
from schemas.jobs import JobSpec
from schemas.ledger import AttemptRunning, JobGranted, JobQueued
from schemas.resources import Resources
from services.placement.app import make_app
from services.placement.settings import PlacementSettings
from services.queries.app import make_app as make_queries
from services.queries.settings import QueriesSettings
from tests.admission.running import running
from tests.core.builders import job, node
from tests.kit.commands import fork
from tests.kit.waiting import until
from tests.services.pool import Pool

ROOT = Path(__file__).parents[2]
JOB = """
name: train
command: [python, train.py]
time_limit_s: 1800
gpus: H100:{devices}
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


async def plan(tmp_path: Path, nats_url: str, text: str, *flags: str, command: str = "plan") -> Result:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return await baton(nats_url, command, "-f", str(file), "--team", "red", *flags)


async def baton(nats_url: str, *words: str) -> Result:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    code, out, err = await fork().run(words, {**clean, "BATON_NATS_URL": nats_url}, ROOT)
    assert b"Traceback" not in err, err.decode()
    return Result(code, out.decode(), err.decode())


@pytest.fixture
def settings(world: Pool, nats_url: str, redis_url: str) -> PlacementSettings:
    return PlacementSettings(nats_url=nats_url, redis_url=redis_url, pool=world.name)


@pytest.fixture
def queries(world: Pool, nats_url: str) -> QueriesSettings:
    return QueriesSettings(nats_url=nats_url, pool=world.name)


async def test_a_plan_from_the_file_to_the_table(
    world: Pool, settings: PlacementSettings, queries: QueriesSettings, tmp_path: Path
) -> None:
    async with running(make_app(settings, writer_id="w1")), running(make_queries(queries)):
        await world.put(inbox.NodeRegistered(incarnation=1, inventory=node("n1", 4), lease_s=10))
        await world.put(job("j", 2, team="red", time_limit_s=600))
        granted = await world.event(JobGranted)
        await world.started(granted)
        await world.event(AttemptRunning)
        all_four = PlanQuery(job=JobSpec(command=("x",), resources=Resources(devices=4)))

        async def shown() -> bool:
            message = BY_TYPE["io.baton.job.plan.query.v1"]
            reply: PlanReply = await ask(world.nats, message, all_four, pool=world.name, team="red", user="ana")
            return reply.verdict is PlanVerdict.LATER

        await until(shown)  # a plan names no record: it is of a moment ago
        now = await plan(tmp_path, settings.nats_url, JOB.format(devices=2), "--pool", world.name)
        later = await plan(tmp_path, settings.nats_url, JOB.format(devices=4), "--pool", world.name, "--json")
        asked = ("plan", "--team", "red", "--pool", world.name, "--gpus", "H100:2")
        by_options = await baton(settings.nats_url, *asked, "--time", "30m")
        refused = await plan(tmp_path, settings.nats_url, JOB.format(devices=40), "--pool", world.name)
        events = [event for record in await world.records() for event in record.events]

    assert now.code == 0, now.err
    assert "would run:    now" in now.out
    assert "5.98 USD per hour, 2.99 USD for 30m (time-limit: at most)" in now.out
    assert "n1\tH100\t2" in now.out

    assert by_options.code == 0, by_options.err
    assert by_options.out.splitlines()[1:-5] == now.out.splitlines()[1:-5], (
        "as of the file, but for its name and the time it took"
    )

    assert later.code == 3, later.err
    reply = PlanReply.model_validate(json.loads(later.out))
    assert (reply.verdict, reply.suggestion) == (PlanVerdict.LATER, "set resources.devices to 2")
    assert reply.latest_s is not None
    assert 0 < reply.latest_s <= 600
    assert reply.took_ms > 0

    assert refused.code == 4
    assert "job.resources.devices = 40: this pool has 4" in refused.err
    assert sum(isinstance(event, JobQueued) for event in events) == 1, "a plan submitted something"


async def test_what_a_plan_is_about_is_a_file_or_options_and_not_both(nats_url: str, tmp_path: Path) -> None:
    told = await baton(nats_url, "plan", "--team", "red")
    assert (told.code, "give a job file with -f, or say what a job would ask for, e.g. --gpus H100:4" in told.err) == (
        2,
        True,
    )
    told = await plan(tmp_path, nats_url, JOB.format(devices=1), "--gpus", "1")
    assert (told.code, "-f and --gpus exclude each other" in told.err) == (2, True)


async def test_a_wrong_file_is_told_as_submit_tells_it(nats_url: str, tmp_path: Path) -> None:
    text = "command: [x]\nresources: {devices: many}\n"
    told = await plan(tmp_path, nats_url, text)
    assert told.code == 2
    assert "job.yaml:2:13: resources.devices" in told.err
    assert told == await plan(tmp_path, nats_url, text, command="submit")


async def test_of_another_teams_victims_a_team_learns_nothing(
    world: Pool, settings: PlacementSettings, queries: QueriesSettings
) -> None:
    query = PlanQuery(job=JobSpec(command=("x",), priority_class="serving", resources=Resources(devices=2)))
    message = BY_TYPE["io.baton.job.plan.query.v1"]
    async with running(make_app(settings, writer_id="w1")), running(make_queries(queries)):
        await world.put(
            inbox.NodeRegistered(incarnation=1, inventory=node("n1", 2), lease_s=10), job("j", 2, team="red")
        )
        await world.started(await world.event(JobGranted))
        await world.event(AttemptRunning)
        for steps in (1e308, 5e-324):  # of a job whose rate is known, their cost is beyond any number
            asked = query.model_copy(update={"steps": steps})
            with pytest.raises(QueryError, match="no job has so many"):
                await ask(world.nats, message, asked, pool=world.name, team="red", user="ana")

        async def asked_by(team: str) -> PlanReply:
            reply: PlanReply = await ask(world.nats, message, query, pool=world.name, team=team, user="ana")
            return reply

        async def shown() -> bool:
            return (await asked_by("red")).verdict is not PlanVerdict.UNKNOWN

        await until(shown)  # a plan names no record: it is of a moment ago
        told = {team: await asked_by(team) for team in ("red", "blue")}
    assert {reply.verdict for reply in told.values()} == {PlanVerdict.AFTER_PREEMPTION}
    assert told["red"].victims[0].team == "red"
    assert told["blue"].victims == ()


def test_the_shipped_files_make_a_market(settings: PlacementSettings) -> None:
    inputs = dry_run_inputs(settings)
    assert inputs.prices.of("V100", "experiment") == 550_000
    assert inputs.table.models("ResNet-50 (batch size 64)") == ("K80", "P100", "V100")
    assert sorted(inputs.classes) == ["experiment", "production", "serving"]
    assert inputs.chooser is not None
