"""A trace through a real Baton of its own: bad rows are named, the rest ends, and the bill equals the integral."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.commands import fork

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

TRACE = """job_id,submit_s,duration_s,num_gpus,tenant
a,0,100,8,Vision Lab
b,50,200,1,
c,60,oops,4,
d,70,100,0,
e,80,100,16,
e,90,50,2,Vision Lab
f,100,10,64,
g,110,10,65,
"""


ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


ELSEWHERE = {"BATON_TEAM": "elsewhere", "BATON_USER": "ana", "BATON_POOL": "west"}
"""What a shell has in which somebody works with another Baton: the replay is one of its own."""


def replay(*arguments: str) -> tuple[int, str, str]:
    code, out, err = asyncio.run(fork(stacks=True).run(("replay", *arguments), {**os.environ, **ELSEWHERE}, ROOT))
    return code, out.decode(), err.decode()


def test_a_small_trace_runs_to_its_end_with_agreeing_books(tmp_path: Path):
    trace = tmp_path / "small.csv"
    trace.write_text(TRACE)
    options = ("--speed", "100", "--out", str(tmp_path), "--state-dir", str(tmp_path / "state"))
    done = subprocess.run(
        [Path(sys.executable).with_name("baton"), "replay", str(trace), *options],
        capture_output=True, text=True, timeout=380, env={**os.environ, **ELSEWHERE},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "small.csv:4: left out: duration_s is 'oops'" in done.stderr
    assert "small.csv:5: left out: it asks for no accelerator" in done.stderr
    result = json.loads((tmp_path / "small.json").read_text())
    assert result["ok"]
    assert result["terminal"] == {"succeeded": 5}
    assert (result["submitted"], result["rejected"], len(result["bad_rows"])) == (6, 1, 2)
    assert result["violations"] == []
    assert result["billed_milli_us"] == result["integral_milli_us"] > 0


@pytest.mark.parametrize(("name", "speed"), [("muri/trace1.jobs.csv", 500_000), ("itp/cluster03.csv", 200_000)])
def test_the_first_300_jobs_of_a_real_trace_end_with_agreeing_books(tmp_path: Path, name, speed):
    trace = DATA / name
    if not trace.is_file():
        pytest.skip(f"no real trace at {trace}")
    options = ("--speed", str(speed), "--limit", "300", "--out", str(tmp_path), "--state-dir", str(tmp_path / "state"))
    code, out, err = replay(str(trace), *options)
    assert code == 0, out + err
    result = json.loads((tmp_path / f"{trace.name.removesuffix('.csv')}.json").read_text())
    assert result["ok"]
    assert result["violations"] == []
    assert result["billed_milli_us"] == result["integral_milli_us"] > 0
    assert (result["submitted"], result["rejected"], sum(result["terminal"].values())) == (300, 0, 300)


def test_a_replay_in_which_every_job_was_refused_fails_and_says_why(tmp_path: Path):
    trace = tmp_path / "large.csv"
    trace.write_text("submit_s,duration_s,num_gpus\n" + "0,1,65\n" * 6)
    code, out, err = replay(str(trace), "--out", str(tmp_path), "--state-dir", str(tmp_path / "state"))
    assert code == 1, out + err
    assert "6 submitted; none ended; 6 rejected" in out
    assert "no job was carried: admission refused all 6" in out
    assert not json.loads((tmp_path / "large.json").read_text())["ok"]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("when,how_long\n1,2\n", (), "no column for the submit time"),
        (TRACE, ("--speed", "0"), "0 is not a speed"),
        (TRACE, ("--class", "foo"), "there are: serving"),
        ("submit_s,duration_s,num_gpus\nx,y,z\n", (), "nothing to replay"),
    ],
)
def test_a_useless_call_is_explained_without_a_traceback(tmp_path: Path, text, arguments, message):
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    code, _, err = asyncio.run(
        fork().run(("replay", str(trace), *arguments), {**os.environ, "COLUMNS": "16"}, tmp_path)
    )
    assert code in (1, 2)
    assert message in err.decode()
    assert "Traceback" not in err.decode()
