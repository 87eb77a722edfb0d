"""`baton wait` and `baton submit --wait`: how a job ends is the exit code, and who stops waiting ends no job."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from libs.bus.creds import Address, at
from libs.client import Baton
from schemas.ids import job_id
from tests.cli.test_command import BATON, ROOT, Result, baton, submitted
from tests.client.fakes import Fakes, until

ENDS = [
    ("succeeded", {"exit_code": 0}, 0),
    ("failed", {"exit_code": 42}, 42),
    ("failed", {"exit_code": 137, "category": "out-of-memory"}, 137),
    ("failed", {}, 1),
    ("failed", {"exit_code": 143, "category": "node-lost"}, 8),
    ("failed", {"category": "hardware"}, 8),
    ("cancelled", {"exit_code": 143}, 7),
]


async def once_taken(fakes: Fakes, key: str) -> str:
    job = job_id("blue", key)
    await until(lambda: job in fakes.jobs)
    return job


@pytest.mark.parametrize(("what", "more", "code"), ENDS)
async def test_the_end_of_a_job_is_the_exit_code(
    what: str, more: dict[str, Any], code: int, urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    waiting = asyncio.create_task(baton("submit", "--wait", "--key", key, "--", "x", url=urls["blue"]))
    job = await once_taken(fakes, key)
    await fakes.happens(job, what, **more)
    waited = await waiting
    assert (waited.code, waited.out) == (code, f"{job}\n")
    assert f"{job}\t{what}" in waited.err
    after = await baton("wait", job, url=urls["blue"])
    assert (after.code, after.out.split("\t")[:2]) == (code, [job, what])


async def test_of_several_the_first_that_did_not_succeed_counts(
    urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str
) -> None:
    good, bad, worse = [await submitted(blue, f"{key}-{i}") for i in range(3)]
    await fakes.happens(good, "succeeded")
    await fakes.happens(bad, "failed", exit_code=3)
    await fakes.happens(worse, "cancelled")
    assert [(await baton("wait", *jobs, url=urls["blue"])).code for jobs in ((good,), (good, bad, worse), (worse, bad))] == [
        0, 3, 7,
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["wait", "submit"])
async def test_who_waits_long_enough_gives_up_and_the_job_goes_on(
    command: str, urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str
) -> None:
    options = ("--wait", "--key", key, "--", "x") if command == "submit" else (await submitted(blue, key),)
    result = await baton(command, "--timeout", "0.2s", *options, url=urls["blue"])
    assert (result.code, "has not ended within 0.2 s" in result.err) == (6, True), result.err
    assert not fakes.jobs[job_id("blue", key)].state.terminal


async def test_who_waits_is_told_which_time_limit_the_job_got_that_says_none(
    urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    fakes.time_limit_s = 14_400.0
    for told, options in (True, ()), (False, ("--time", "1h")), (False, ("-o", "json")):
        name = f"{key}-{'-'.join(options)}"
        command = ("submit", "--wait", "--key", name, "--name", "long", *options, "--", "x")
        waiting = asyncio.create_task(baton(*command, url=urls["blue"]))
        job = await once_taken(fakes, name)
        await asyncio.sleep(2)  # more than it waits for what history says
        await fakes.happens(job, "succeeded")
        waited = await waiting
        assert waited.code == 0, waited.err
        assert ("long has a time limit of 4h00m, by class or queue" in waited.err) is told


async def test_what_is_refused_is_not_waited_for(urls: dict[str, Address], fakes: Fakes) -> None:
    assert (await baton("submit", "--wait", "--name", "refuse", "--", "x", url=urls["blue"])).code == 4


@pytest.mark.parametrize("option", ["--wait", "--logs"])
async def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(
    option: str, urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    process = await asyncio.create_subprocess_exec(
        *BATON, "submit", option, "--key", key, "--", "x", cwd=ROOT, env=clean | at(urls["blue"]).environ(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    assert (await process.stdout.readline()).decode().strip() == job_id("blue", key)
    job = await once_taken(fakes, key)
    process.send_signal(signal.SIGINT)
    said, _ = await process.communicate()
    assert process.returncode == 130
    assert (
        f"{job} goes on: see `baton wait {job}`, `baton logs -f {job}`, or end it with `baton cancel {job}`"
        in said.decode()
    )
    assert not fakes.jobs[job].state.terminal


def test_ctrl_c_ends_also_what_loses_the_cancel() -> None:
    """As `wait_for` of Python 3.11 does in the turn in which what it waits for comes: one Ctrl-C in a hundred was lost."""
    code = """
import asyncio, os, signal, sys
from libs.cli.session import interruptible

async def work():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("lost", flush=True)
    await asyncio.sleep(60)

try:
    asyncio.run(interruptible(work()))
except KeyboardInterrupt:
    print("ended")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50, check=True
    )
    assert ended.stdout.split() == ["lost", "ended"]


async def test_its_output_is_shown_meanwhile_also_before_history_has_read_of_it(
    urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    """Seen: "no job ... (one that was submitted a moment ago is here in a moment)"."""
    fakes.unread = 3
    waiting = asyncio.create_task(baton("submit", "--logs", "--key", key, "--", "x", url=urls["blue"]))
    job = await once_taken(fakes, key)
    await fakes.starts(job, 1, "one\ntwo\n")
    fakes.ended.add((job, 1))
    await fakes.happens(job, "failed", exit_code=5)
    result = await waiting
    assert fakes.unread == 0
    assert result == Result(5, "one\ntwo\n", f"{job}\n{job}\tfailed\texit 5\n")


async def test_its_output_is_shown_also_by_a_history_whose_store_is_away_at_first_and_then_behind(
    urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    """Seen with MongoDB frozen for 14 s: the job succeeded, and nothing of what it had written was shown."""
    fakes.lacking, fakes.unread = 1, 1_000_000
    waiting = asyncio.create_task(baton("submit", "--logs", "--key", key, "--", "x", url=urls["blue"]))
    job = await once_taken(fakes, key)
    await fakes.starts(job, 1, "one\n")
    fakes.ended.add((job, 1))
    await fakes.happens(job, "failed", exit_code=5)
    await until(lambda: fakes.lacking == 0)
    asked = fakes.unread
    await until(lambda: fakes.unread < asked)
    fakes.unread = 0
    result = await waiting
    assert (result.code, result.out) == (5, "one\n"), result.err
    assert result.err.count("it is asked again until there is an answer") == 1, "who waits is told for whom"


async def test_the_output_of_all_attempts_is_shown_also_of_those_that_end_at_once(
    urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    """Seen: of two attempts within 60 ms the first one's output was left out."""
    fakes.unread = 1_000_000
    waiting = asyncio.create_task(baton("submit", "--logs", "--key", key, "--", "x", url=urls["blue"]))
    job = await once_taken(fakes, key)
    for attempt, output in ((1, "one\n"), (2, "two\n")):
        await fakes.starts(job, attempt, output)
        fakes.ended.add((job, attempt))
    await fakes.happens(job, "failed", exit_code=5)
    fakes.unread = 0
    result = await waiting
    assert (result.code, result.out) == (5, "one\ntwo\n"), result.err


async def test_json_says_how_it_ended(urls: dict[str, Address], fakes: Fakes, key: str) -> None:
    waiting = asyncio.create_task(baton("submit", "--wait", "-o", "json", "--key", key, "--", "x", url=urls["blue"]))
    job = await once_taken(fakes, key)
    await fakes.happens(job, "failed", exit_code=3)
    result = await waiting
    (ended,) = json.loads(result.out)
    assert (result.code, ended["job_id"], ended["state"], ended["exit_code"]) == (3, job, "failed", 3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--timeout", "1m", "--", "x"), "--timeout says how long the end of the job is waited for: add --wait"),
        (("--wait", "--timeout", "soon", "--", "x"), "--timeout: 'soon' is not a duration: write e.g. 90s"),
        (("--wait", "--no-wait", "--", "x"), "--no-wait and --wait exclude each other"),
        (("--logs", "--simulate", "3s"), "a simulated job has none: use --wait"),
        (("--logs", "-o", "json", "--", "x"), "--logs and -o json both write to stdout"),
    ],
)
async def test_what_does_not_go_together_is_said_before_anything_is_sent(options: tuple[str, ...], says: str) -> None:
    result = await baton("submit", *options)
    assert result.code == 2
    assert says in result.err


async def test_logs_are_of_one_job() -> None:
    result = await baton("submit", "--logs", "-f", "-", stdin=b"command: [a]\n---\ncommand: [b]\n")
    assert (result.code, "--logs shows one job, and the file has 2" in result.err) == (2, True)
