"""MIG boards are repartitioned for jobs that no instance serves: placement, agent and ledger, also when an agent dies."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.cli.launch import SIMULATED, LocalStack
from libs.report import collect
from libs.report.figures import report
from schemas.jobs import JobSpec, JobState, Simulation
from schemas.resources import Resources
from schemas.subjects import OPERATOR
from tests.faults.books import books_agree
from tests.faults.cluster import ROOT, back, clients, kill9, running
from tests.faults.load import RETRY, Planned, submit

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

FLEET = ROOT / "deploy" / "fleets" / "mig-dynamic.yaml"
QUICK = {"BATON_PLACEMENT_REPARTITION_AFTER_S": "0.5", "BATON_PLACEMENT_REPARTITION_REST_S": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with running(tmp_path_factory.mktemp("recut"), fleet=FLEET, placement=QUICK) as launched:
        yield launched


def wants(key: str, profile: str, seconds: float = 0.5) -> Planned:
    spec = JobSpec(
        name="slice",
        resources=Resources(types=("H100",), mig_profile=profile),
        simulation=Simulation(duration_s=seconds),
        retry=RETRY,
    )
    return Planned("a", key, spec)


async def done(cluster: LocalStack, jobs: list[Planned]) -> Counter[str]:
    """Submits, waits for all to succeed, compares the books; how many events of each kind the ledger then has."""
    async with clients(cluster) as teams:
        await submit(teams, jobs)
    return (await books_agree(cluster, {job.job_id: JobState.SUCCEEDED for job in jobs})).kinds


async def test_boards_are_cut_for_larger_instances_and_back(cluster: LocalStack) -> None:
    small = [wants(f"small-{i}", "1g.10gb", seconds=3) for i in range(3)]
    before = await done(cluster, [*small, wants("half-0", "3g.40gb"), wants("half-1", "3g.40gb")])
    assert before["board.recut"] >= 1
    assert before["board.cut"] == before["board.recut"]

    whole = await done(cluster, [wants("whole-0", "7g.80gb"), wants("whole-1", "7g.80gb")])
    assert whole["board.recut"] > before["board.recut"]

    again = await done(cluster, [wants(f"again-{i}", "1g.10gb") for i in range(8)])
    assert again["board.recut"] > whole["board.recut"]
    assert again["board.cut"] == again["board.recut"]
    assert not again["attempt.preempting"], "nothing that runs is moved for a repartition"

    async with clients(cluster) as teams:
        story = await collect(teams[OPERATOR])
    assert len(story.facts.attempts()) == len(small) + 2 + 2 + 8
    told = report(story.facts, story.audit, story.bill, title="recut", pool=cluster.options.pool, steps=())
    assert told.jobs == len(story.facts.jobs)


async def test_an_agent_that_dies_while_boards_are_cut_starts_with_what_they_are(cluster: LocalStack) -> None:
    jobs = [wants(f"killed-{i}", profile) for i, profile in enumerate(["7g.80gb", "2g.20gb", "3g.40gb"])]
    async with clients(cluster) as teams:
        await submit(teams, jobs)
        for _ in range(2):
            killed = kill9(cluster, SIMULATED)
            await back(cluster, SIMULATED, killed)
    await books_agree(cluster, {job.job_id: JobState.SUCCEEDED for job in jobs})
