"""A team has jobs in a pool that was closed: what it takes along, what becomes of a cancel, and that it can leave all the same.
Real services, started with the pool and then without it."""

import json
from pathlib import Path

import pytest

from libs.cli.launch import LocalStack
from libs.cli.launch_options import LaunchOptions
from libs.cli.pools import KnownPools, pools_of
from libs.cli.team_bills import answered, of_ledger
from libs.cli.team_offboard import Leaving, offboard
from libs.client import Baton, NotCancelled, connect
from schemas.billing import BillReply
from schemas.jobs import JobSpec, JobState
from schemas.queries import JobDocument
from schemas.subjects import OPERATOR
from tests.cli.test_command import baton
from tests.kit.waiting import until
from tests.tenants.test_drill import FLEET, SERVICES, reaches, timer

WEST = 230
"""Unfinished jobs that are newer than those that can be ended: more than once were looked at."""


def options(home: Path, fleet: Path, **more: Path) -> LaunchOptions:
    return LaunchOptions(
        state_dir=home, teams=("red", "blue"), fleet=fleet, more_pools=more, services=SERVICES, sync_always=False, scale=0.1,
        log_level="WARNING", env={"*": {"OPENBLAS_NUM_THREADS": "1"}},
    )  # fmt: skip


def in_pool(pool: str, job: JobSpec) -> JobSpec:
    return job.model_copy(update={"pool": pool})


async def all_known(red: Baton, count: int) -> None:
    async def known() -> bool:
        return len(await red.list(limit=1000)) == count

    await until(known)


async def test_a_team_with_jobs_in_a_closed_pool_takes_all_along_and_leaves(tmp_path: Path) -> None:
    fleet, west, home = tmp_path / "main.yaml", tmp_path / "west.yaml", tmp_path / "instance"
    fleet.write_text(FLEET)
    west.write_text(FLEET.replace("n-", "w-"))
    async with LocalStack(options(home, fleet, west=west)) as cluster, await connect(cluster.address("red")) as red:
        ended = await red.submit(in_pool("west", timer(0.5, 2)))
        await reaches(red, ended.job_id, JobState.SUCCEEDED)
        here = [await red.submit(in_pool("main", timer(3600.0, 2))) for _ in range(5)]
        there = await red.submit_many([in_pool("west", timer(3600.0, 2))] * WEST)
        await all_known(red, 1 + len(here) + WEST)
        async with await connect(cluster.address(OPERATOR), OPERATOR) as operator:
            asked, quotas = await answered(red, "west")
            made, same_quotas = await of_ledger(operator, "west", "red", None, tmp_path)
    assert f"{ended.job_id}.1" in [key for key, *_ in units(asked[1])]
    assert [units(one) for one in made] == [units(one) for one in asked], "as its quota_billing says"
    assert same_quotas.teams == quotas.teams

    async with LocalStack(options(home, fleet)) as cluster:
        address = cluster.address(OPERATOR)
        async with await connect(cluster.address("red")) as red, await connect(address, OPERATOR) as operator:
            assert await pools_of(operator) == KnownPools(("main",), ("west",))
            for who in (red, operator):
                with pytest.raises(
                    NotCancelled, match=r"west: it is closed: .*in use: main.*ask an operator to open it"
                ):
                    await who.cancel(there[0].job_id)
            words = ("cancel", there[1].job_id, here[0].job_id, "-o", "json")
            told = await baton(*words, BATON_STATE_DIR=str(home))
            assert (told.code, told.err.count("west: it is closed")) == (4, 1), told.err
            assert [line["cancel_asked"] for line in json.loads(told.out)] == [False, True]
            assert (await baton("dead", "list", "-o", "json", BATON_STATE_DIR=str(home))).out.strip() == "[]"

            mine = await baton("team", "export", str(tmp_path / "mine"), "--team", "red", BATON_STATE_DIR=str(home))
            assert (mine.code, "pool west: neither bills nor quotas are there" in mine.err) == (6, True), mine.err
            assert "--of red" in mine.err
            about = json.loads((tmp_path / "mine" / "about.json").read_text())
            assert (about["without"], about["counts"]["jobs"]) == (["west"], 1 + len(here) + WEST)
            documents = [JobDocument.model_validate_json(one) for one in lines(tmp_path / "mine" / "jobs.jsonl")]
            assert {job.pool for job in documents} == {"main", "west"}
            assert {json.loads(one)["job_id"] for one in lines(tmp_path / "mine" / "events.jsonl")} == {
                job.job_id for job in documents
            }

            steps: dict[str, str] = {}
            await offboard(operator, cluster.keyring, leaving(tmp_path / "out"), steps.__setitem__)
            assert steps["jobs"].endswith(f"have ended; as they were last stay {WEST} of west (closed)")
            about = json.loads((tmp_path / "out" / "about.json").read_text())
            assert (about["without"], about["from_ledger"]) == ([], ["west"])
            words = ("team", "offboard", "blue", "--export", str(tmp_path / "blue"), "--reason", "it did nothing")
            for _ in range(2):  # an export of no jobs was found to be changed
                again = await baton(*words, BATON_STATE_DIR=str(home))
                assert again.code == 0, again.err
            about = json.loads((tmp_path / "blue" / "about.json").read_text())
            assert (about["pools"], about["counts"]["quotas"]) == (["main", "west"], 2), "also where it had no job"
            back = await baton("team", "resume", "blue", BATON_STATE_DIR=str(home))
            assert (back.code, "baton team add blue --returns" in back.err) == (0, True), back.err
            slip = await baton(
                "team",
                "offboard",
                "bleu",
                "--export",
                str(tmp_path / "bleu"),
                "--reason",
                "x",
                BATON_STATE_DIR=str(home),
            )
            assert "no team bleu is known here" in slip.err

            bills = [BillReply.model_validate_json(one) for one in lines(tmp_path / "out" / "bills.jsonl")]
            assert f"{ended.job_id}.1" in [key for bill in bills for key, *_ in units(bill)]


def leaving(folder: Path) -> Leaving:
    return Leaving("red", folder, "its contract ends", cancel=True, wait_s=60)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def units(bill: BillReply) -> list[tuple[str, int, int]]:
    """Without a price book in its ledger all that is the same."""
    return [(row.key, row.attempts, row.milli_us) for row in bill.rows]
