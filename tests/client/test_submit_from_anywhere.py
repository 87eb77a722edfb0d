"""Every snippet of docs/submit-from-anywhere.md, run as it stands, with nothing but a NATS client."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from libs.bus.connect import Address
from schemas.billing import BillReply, BillRow
from schemas.ids import job_id as job_id_of
from tests.client.fakes import Fakes, until

PAGE = Path(__file__).parents[2] / "docs/submit-from-anywhere.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
BARE, IDENTITY, EVENTS, CLOUDEVENTS, CLIENT = SNIPPETS
(PARSE,) = re.findall(r"```javascript\n(.*?)```", PAGE.read_text(), re.DOTALL)


async def start(snippet: str, at: Address) -> asyncio.subprocess.Process:
    assert ("libs" in snippet) == (snippet == CLIENT)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", snippet),
        env={**os.environ, **at.environ(), "BATON_TEAM": "blue", "BATON_USER": "ana"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(snippet: str, at: Address) -> str:
    process = await start(snippet, at)
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def test_bare_json_is_a_job(urls: dict[str, Address], fakes: Fakes) -> None:
    out = await run(BARE, urls["blue"])
    assert "REQUESTS" in out
    job = job_id_of("blue", "nightly-42")
    await until(lambda: job in fakes.jobs)
    assert fakes.jobs[job].spec.resources.types == ("H100", "A100")


async def test_a_users_own_credential_is_enough(urls: dict[str, Address], fakes: Fakes) -> None:
    assert "REQUESTS" in await run(BARE, urls["blue.ana"])
    await until(lambda: job_id_of("blue", "nightly-42") in fakes.jobs)


async def test_a_jobs_id_can_be_computed_anywhere(urls: dict[str, Address]) -> None:
    assert (await run(IDENTITY, urls["blue"])).strip() == job_id_of("blue", "nightly-42")


async def test_cloudevents_headers_are_read(urls: dict[str, Address], fakes: Fakes) -> None:
    await run(CLOUDEVENTS, urls["blue"])
    await until(lambda: job_id_of("blue", "nightly-43") in fakes.jobs)


async def test_events_can_be_read(urls: dict[str, Address], fakes: Fakes) -> None:
    reader = await start(EVENTS, urls["blue"])
    assert reader.stdout is not None
    assert await reader.stdout.readline() == b"listening\n"
    await run(BARE, urls["blue"])
    job = job_id_of("blue", "nightly-42")
    await until(lambda: job in fakes.jobs)
    await fakes.happens(job, "succeeded")
    out, error = await reader.communicate()
    assert out.decode().splitlines()[-1] == f"io.baton.job.succeeded.v1 {job}", error.decode()


async def test_the_python_client_submits_and_follows(urls: dict[str, Address], fakes: Fakes) -> None:
    client = await start(CLIENT, urls["blue"])
    job = job_id_of("blue", "nightly-44")
    await until(lambda: job in fakes.jobs)
    await fakes.happens(job, "succeeded")
    out, error = await client.communicate()
    assert [line.split()[0] for line in out.decode().splitlines()] == ["queued", "succeeded"], error.decode()


async def test_a_connection_is_told_why_its_ninth_subscription_ends_it(urls: dict[str, Address]) -> None:
    """The page says how many, what a client sees, and where the reason is."""
    at, creds = urls["blue"], str(urls["blue"].creds)
    bare = await nats.connect(at.url, user_credentials=creds, inbox_prefix="_INBOX_blue.ana")
    for n in range(8):
        await bare.subscribe(f"baton.evt.job.v1.kind-{n}.blue")
    await bare.flush()
    assert bare.is_connected
    await bare.subscribe("baton.evt.job.v1.kind-8.blue")
    await until(lambda: bare.is_closed)
    said = str(bare.last_error)
    assert "maximum subscriptions exceeded" in said
    assert all(text in PAGE.read_text() for text in ("at most 8 subscriptions", "maximum subscriptions exceeded"))


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript here")
def test_javascript_reads_what_is_beyond_its_numbers_exactly() -> None:
    """A team of 100 devices is beyond 2^53 thousandths x microseconds after 25 hours."""
    reply = BillReply(
        rows=(BillRow(key='a "9007199254740993" b\\', team="blue", jobs=1, attempts=1, milli_us=2**53 + 1,
                      device_seconds=0.12345678901234567, cost_micros=2**53 - 1),),
        currency="USD", total_milli_us=10**30 + 1, total_cost_micros=-5, ledger_seq=7,
    )  # fmt: skip
    script = PARSE + "\n".join(
        (
            f"const read = parse({json.dumps(reply.model_dump_json())}), row = read.rows[0]",
            "console.log(JSON.stringify([row.milli_us, read.total_milli_us, row.cost_micros, row.device_seconds, row.key,",
            '  read.total_cost_micros], (_, one) => typeof one === "bigint" ? `big ${one}` : one))',
        )
    )
    said = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    (row,) = reply.rows
    assert json.loads(said.stdout) == [
        f"big {2**53 + 1}", f"big {10**30 + 1}", row.cost_micros, row.device_seconds, row.key, -5,
    ]  # fmt: skip
