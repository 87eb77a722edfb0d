"""The command as people and scripts meet it: as a process, by its exit code, its stdout and its stderr."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from libs.bus.creds import Address, at
from libs.cli.main import main
from libs.client import Baton
from libs.walls.keyring import Keyring
from schemas.ids import job_id
from schemas.jobs import JobSpec, JobState
from schemas.subjects import DEAD, REQUESTS, cancel
from tests.client.fakes import Fakes, until
from tests.kit.commands import fork

BATON = [sys.executable, "-m", "libs.cli"]
ROOT = Path(__file__).parents[2]
NOWHERE = "nats://blue:secret@127.0.0.1:9"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


async def baton(*arguments: str, url: Address | str = "", stdin: bytes = b"", cwd: Path = ROOT, **env: str) -> Result:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    if url:
        clean |= at(url).environ()
    code, out, err = await fork().run(arguments, {**clean, **env}, cwd, stdin)
    assert b"Traceback" not in err, err.decode()
    return Result(code, out.decode(), err.decode())


async def submitted(team: Baton, key: str) -> str:
    return (await team.submit(JobSpec(command=("x",)), key)).job_id


@pytest.mark.parametrize("arguments", [["--help"], ["submit"], ["dead", "list", "--url", NOWHERE]], ids=lambda a: a[0])
async def test_a_command_started_by_itself_says_what_a_forked_one_says(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *BATON, *arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert await baton(*arguments) == Result(process.returncode or 0, out.decode(), err.decode())


@pytest.mark.parametrize("option", ["--fleet", "--more-pool"])
async def test_a_wrong_fleet_file_is_told_before_anything_is_started(option: str, tmp_path: Path) -> None:
    """Seen: all servers ran first, and it stood in the log of an agent."""
    (tmp_path / "fleet.yaml").write_text("groups:\n  - {name: n, count: yes, devices: {model: H100, count: 1}}\n")
    value = "fleet.yaml" if option == "--fleet" else "west=fleet.yaml"
    result = await baton("up", "--state-dir", "state", option, value, cwd=tmp_path)
    said = "baton: fleet.yaml:2: groups.0.count: yes is not a number; write a number\n"
    assert (result.code, result.err) == (2, said)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("--prices", "currency: USD\n", "file.yaml: prices: the field is missing: add it"),
        (
            "--prices",
            "currency: USD\nprices: [{model: H100, micros_per_device_hour: -5}]\n",
            "file.yaml: prices.0.micros_per_device_hour: -5: too small: use at least 0",
        ),
        (
            "--prices",
            "currency: USD\nprices: [{model: H100, micros_per_device_hour: 5}, {model: h100, micros_per_device_hour: 6}]\n",
            "file.yaml: 'h100' is another name of 'H100', which has a price already: keep one",
        ),
        ("--quotas", "teams: {red: {devices: many}}\n", "file.yaml: teams.red.devices: many: "),
        ("--quotas", "teams: {red: {devices: 8, types: {H10O: 2}}}\n", "did you mean H100?"),
        ("--quotas", "intake: {open_jobs: 0}\nteams: {}\n", "file.yaml: intake.open_jobs: 0: too small: use at least 1"),
    ],
)  # fmt: skip
async def test_a_wrong_file_for_services_is_told_before_anything_is_started(
    option: str, text: str, says: str, tmp_path: Path
) -> None:
    """Seen: it was told by a service, after some seconds."""
    (tmp_path / "file.yaml").write_text(text)
    result = await baton("up", "--state-dir", "state", option, "file.yaml", cwd=tmp_path)
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert not (tmp_path / "state").exists()


async def test_help_lists_every_command() -> None:
    result = await baton("--help")
    assert result.code == 0
    assert "Exit codes: 0 ok, 1 failed" in result.out
    assert all(name in result.out for name in ("submit", "explain", "ledger", "replay", "demo"))


async def test_the_command_says_which_release_it_is() -> None:
    result = await baton("--version")
    assert (result.code, result.out) == (0, f"baton {version('baton')}\n")


def test_ctrl_c_while_it_is_imported_leaves_no_traceback() -> None:
    """Seen: a traceback of the import system, in the first quarter of a second of any command."""
    code = """
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "typer": raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
import libs.cli.main
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "")


def test_help_loads_nothing_heavy() -> None:
    heavy = ["nats", "pydantic", "rich", "yaml", "numpy", "faststream", "asyncio"]
    code = f"import sys; from libs.cli.main import app; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("submti", "-f", "x"), "Did you mean 'submit'"),
        (("get", "jobs", "--state", "dreaming"), "'dreaming' is not a state: use queued"),
        (("get", "jobs", "-o", "xml"), ": 'xml' is not one of 'table', 'wide', 'json', 'yaml', 'name'."),
        (("submit",), "nothing to run"),
        (("submit", "--gpus", "4:H100", "--", "x"), "e.g. H100:4"),
        (("submit", "--gpus", "2", "--share", "0.5", "--", "x"), "share_milli below 1000 shares one device"),
        (("submit", "--simulate", "3s", "--", "true"), "--simulate runs a timer and no command"),
        (("submit", "--cpus", "8x", "--", "x"), "--cpus: '8x' is not a number of processors"),
        (("submit", "--host-memory", "64", "--", "x"), "--host-memory: '64' is not an amount of memory"),
        (("submit", "--time", "soon", "--", "x"), "--time: 'soon' is not a duration"),
        (("submit", "--checkpoint-grace", "60", "--", "x"), "--checkpoint-grace: '60' is not a duration"),
        (("submit", "--label", "zone", "--", "x"), "--label: 'zone' is not a name and a value"),
        (("submit", "--class", "Production", "--", "x"), "--class = Production: has characters or a form"),
        (("submit", "--retries", "-1", "--", "x"), "--retries = -1: too small; use at least 0"),
        (
            ("submit", "--share", "0.5", "--gpus", "2", "--", "x"),
            "--share = 500: share_milli below 1000 shares one device",
        ),
        (("submit", "--key", "", "--", "x"), "--key is empty"),
        (("submit", "job.yaml"), "write baton submit -f job.yaml"),
        (("jobs",), "No such command 'jobs'. Did you mean 'baton get jobs'?"),
        (("sbatch", "x.sh"), "Did you mean 'baton submit'?"),
        (("submit", "--array", "1-4", "--", "x"), "No such option: --array: write each job as a document of one file"),
        (("submit", "--gres", "gpu:2", "--", "x"), "No such option: --gres: a job asks for devices: write --gpus"),
        (("submit", "-N", "2", "--", "x"), "No such option: -N: a job asks for devices: write --gpus"),
        (("submit", "--partition=gpu", "--", "x"), "No such option: --partition: write --label for the nodes"),
        (("plan", "--mem", "4G"), "No such option: --mem: write --host-memory 64GiB"),
        (("plan", "--gpus", "4", "--", "true"), "does not depend on its command: leave that out"),
        (("submit", "--nam", "x", "--", "x"), "No such option: --nam"),
        (("node", "drain", "n1"), "No such command 'drain': did you mean 'baton node cordon'?"),
        (("drain", "n1"), "No such command 'drain'. Did you mean 'baton node cordon'?"),
        (
            ("apply", "-f", f"{ROOT}/examples/gang-16.yaml"),
            "gang-16.yaml is a job file, and queues or budgets are applied: write baton submit -f ",
        ),
        (
            ("diff", "-f", f"{ROOT}/deploy/prices.yaml"),
            "prices.yaml is a price book, and queues or budgets are applied: write baton prices",
        ),
        (
            ("apply", "-f", f"{ROOT}/deploy/teams.yaml"),
            "teams.yaml is a file of teams, and queues or budgets are applied",
        ),
        (
            ("ledger", "credits", "--policy", "none.yaml", "--url", NOWHERE),
            "none.yaml cannot be read: No such file or directory; name a YAML file in UTF-8",
        ),
        (
            ("secret", "set", "token", "hunter2"),
            "Error: a value is no argument: every user of this machine could read it",
        ),
        (("apply", "-f", "none.yaml"), "none.yaml cannot be read: No such file or directory; name a YAML file"),
        (("describe", "train"), "Write baton describe job train, or baton describe node train"),
        (("submit", "--gpus", "1@40GiB", "--memory", "1GiB", "--", "x"), "--memory: the @ of --gpus says the same"),
        (("submit", "-f", "-", "--gpus", "1"), "-f and --gpus exclude each other"),
        (
            ("bill", "--by", "mood"),
            "--by mood: not understood; use team, user, job, attempt, device, class",
        ),
        (("bill", "--from", "yesterday"), "--from yesterday: no such day; write 2026-11, 2026-11-30 or"),
        (
            ("bill", "--from", "2026-11-02", "--to", "2026-11-01"),
            "--to 2026-11-01 is not after --from 2026-11-02: a period ends after it begins",
        ),
        (("bill", "--time-zone", "Mars/Olympus"), "--time-zone Mars/Olympus: there is no such zone here"),
        (("bill", "--by", "cost-centre"), "--by cost-centre: say with --cost-centres FILE"),
        (("bill", "--forecast", "--running"), "--forecast tells what runs now already"),
        (("quota", "set", "blue", "many"), "'many' is not a number of devices"),
        (("quota", "set", "blue", "8", "--type", "H100"), "--type H100: not understood; write TYPE=N, e.g. H100=8"),
        (("quota", "set", "blue", "8", "--type", "H100=x"), "'x' is not a number of devices"),
        (("quota", "set", "blue", "8", "--type", "H100=1", "--type", "h100:2"), "H100 is limited twice; say it once"),
        (("quota", "set", "blue", "8", "--type", "H100:1g.10gb"), "--type H100:1g.10gb: not understood; write TYPE=N"),
        (("quota", "set", "blue", "8", "--type", "H100=none"), "H100 is not limited when it is left out: leave it out"),
        (("wait", "job-1", "--timeout", "x"), "'x' is not a duration"),
        (("watch", "-o", "yaml"), "use -o json"),
        (("ledger", "export", "-"), "- is no file: name one"),
        (("bill", "used", "--of", "research", "--team", "vision"), "--of is an operator's: leave out --team"),
        (("up", "--teams", "operator"), "that name is Baton's own"),
        (("up", "--teams", ","), "--teams is empty"),
        (("up", "--external"), "BATON_NATS_URL, BATON_REDIS_URL, BATON_MONGO_URL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line_is_usage(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["baton", *arguments])
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        monkeypatch.delenv(name)
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert says in err


async def test_a_wrong_job_file_is_usage_with_every_problem(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text('nam: x\ncommand: [a]\ngpus: many\n"\\e[31mred": 1\n')
    result = await baton("submit", "-f", "job.yaml", cwd=tmp_path)
    assert result.code == 2
    assert "job.yaml:1:1: nam: unknown field; did you mean 'name'?" in result.err
    assert "job.yaml:3:1: gpus" in result.err
    assert "\x1b" not in result.err


@pytest.mark.parametrize(
    ("content", "code"), [(b"\xff\xfe\x00", 2), (None, 3), (b"", 2)], ids=["not UTF-8", "no file", "empty"]
)
async def test_files_that_are_none(tmp_path: Path, content: bytes | None, code: int) -> None:
    if content is not None:
        (tmp_path / "job.yaml").write_bytes(content)
    result = await baton("submit", "-f", "job.yaml", cwd=tmp_path)
    assert result.code == code
    assert "job.yaml" in result.err


async def test_a_dry_run_needs_nobody() -> None:
    result = await baton(
        "submit",
        "--dry-run",
        "--gpus",
        "h100:4",
        "-e",
        "DB_PASSWORD=hunter2hunter2",
        "--key",
        "k",
        "--",
        "python",
        "-c",
        "x",
    )
    assert "env.DB_PASSWORD looks like a secret" in result.err
    (shown,) = json.loads(result.out)
    assert shown["client_key"] == "k"
    assert JobSpec.model_validate(shown["job"]).command == ("python", "-c", "x")
    assert shown["job"]["resources"]["types"] == ["H100"]


async def test_roles_a_torus_and_elastic_sizes_are_asked_for_as_in_a_file() -> None:
    async def shown(*options: str) -> dict[str, Any]:
        result = await baton("submit", "--dry-run", *options, "--", "x")
        (one,) = json.loads(result.out)
        return one["job"]["resources"]

    roles = await shown("--role", "trainer=H100:8x4,min=2", "--role", "judge=2", "--topology", "leaf:preferred:10m")
    assert [(r["name"], r["count"], r["min_count"], r["devices"]) for r in roles["roles"]] == [
        ("trainer", 8, 2, 4), ("judge", 2, None, 1),
    ]  # fmt: skip
    assert (roles["devices"], roles["topology"]["widen_after_s"]) == (34, 600)
    torus = await shown("--torus", "v5p:4x4x8")
    assert (torus["devices"], torus["torus"], torus["types"]) == (128, [4, 4, 8], ["v5p"])
    elastic = await shown("--gpus", "H100:8", "--min-devices", "4")
    assert (elastic["devices"], elastic["min_devices"]) == (8, 4)
    of_node = await shown("--gpus", "2", "--cpus", "7.5", "--host-memory", "64GiB")
    assert (of_node["cpu_milli"], of_node["host_memory_mib"]) == (7500, 65_536)
    for wrong in (("--gpus", "3", "--role", "a=2x2"), ("--torus", "4x4x4", "--min-devices", "8")):
        assert (await baton("submit", "--dry-run", *wrong, "--", "x")).code == 2


async def test_no_baton_is_unreachable(tmp_path: Path) -> None:
    result = await baton("get", "nodes", cwd=tmp_path)
    assert result.code == 6
    assert "no running Baton is known" in result.err
    assert "baton up" in result.err
    broken = await baton("get", "nodes", url=NOWHERE)
    assert broken.code == 6
    assert "secret" not in broken.err


async def test_a_credential_that_is_refused_is_denied(urls: dict[str, Address], tmp_path: Path) -> None:
    """Of another operator's keys; a revoked one is told by the same words. It ended as if nobody answered."""
    foreign = Address(urls["blue"].url, Keyring(tmp_path).team("blue"))
    refused = await baton("get", "jobs", url=foreign)
    assert (refused.code, "refused the credential" in refused.err) == (4, True), refused.err
    missing = await baton("get", "jobs", url=Address(urls["blue"].url, tmp_path / "none.creds"))
    assert (missing.code, missing.err.count("correct BATON_NATS_CREDS")) == (2, 1), missing.err


async def test_a_team_makes_no_backup(urls: dict[str, Address], tmp_path: Path) -> None:
    """Its credential is good: it was told to check user and password."""
    home = tmp_path / "home"
    refused = await baton("backup", str(tmp_path / "backup"), "--state-dir", str(home), url=urls["blue"])
    assert (refused.code, refused.out) == (4, "")
    assert "needs an operator's credential" in refused.err
    assert "that of blue" in refused.err
    assert not home.exists(), "nothing was done"


async def test_a_silent_service_is_unreachable(urls: dict[str, Address]) -> None:
    result = await baton("status", url=urls["blue"])
    assert result.code == 6
    assert "queries" in result.err


async def test_submit_prints_the_id_and_nothing_else(urls: dict[str, Address], fakes: Fakes, key: str) -> None:
    result = await baton("submit", "--key", key, "--", "true", url=urls["blue"])
    assert result.code == 0
    assert result.out.strip() in fakes.jobs
    assert await baton("submit", "--key", key, "--", "true", url=urls["blue"]) == result


async def test_ctrl_c_while_admission_is_waited_for_says_which_job_may_have_been_taken(
    urls: dict[str, Address], fakes: Fakes
) -> None:
    fakes.silent = True
    before = len(fakes.submits)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    process = await asyncio.create_subprocess_exec(
        *BATON, "submit", "--", "true", cwd=ROOT, env=clean | at(urls["blue"]).environ(), stderr=asyncio.subprocess.PIPE
    )
    await until(lambda: len(fakes.submits) > before)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    job = job_id("blue", fakes.submits[-1][2].client_key)
    assert process.returncode == 130
    assert f"{job} may have been taken all the same" in err.decode()


async def test_a_secret_is_taken_and_warned_about(urls: dict[str, Address], fakes: Fakes, key: str) -> None:
    secret = "hunter2hunter2"
    options = ("--key", key, "--env", f"DB_PASSWORD={secret}", "--env", "SEED=1")
    result = await baton("submit", *options, "--", "true", url=urls["blue"])
    assert result.code == 0
    assert result.out.strip() in fakes.jobs
    assert "env.DB_PASSWORD looks like a secret" in result.err
    assert "SEED" not in result.err
    assert secret not in result.err


async def test_submit_from_stdin(urls: dict[str, Address], fakes: Fakes, key: str) -> None:
    text = f"key: {key}-1\ncommand: [a]\n---\nkey: {key}-2\ncommand: [b]\n"
    result = await baton("submit", "-f", "-", url=urls["blue"], stdin=text.encode())
    assert [fakes.jobs[line].client_key for line in result.out.split()] == [f"{key}-1", f"{key}-2"]


async def test_who_submits_again_what_has_ended_is_told_so(
    urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str
) -> None:
    arguments = ("submit", "--key", key, "--", "true")
    first = await baton(*arguments, url=urls["blue"])
    assert first.err == ""
    assert (await baton(*arguments, url=urls["blue"])).err == "", "it waits or runs still"
    await fakes.happens(first.out.strip(), "failed")
    again = await baton(*arguments, url=urls["blue"])
    assert (again.code, again.out) == (0, first.out)
    assert "has ended before, failed, and is not run again" in again.err
    assert key in again.err
    told = await baton(*arguments[:3], "-o", "json", *arguments[3:], url=urls["blue"])
    assert json.loads(told.out)[0]["ended"] == "failed"


async def test_of_a_file_in_which_one_job_is_refused_it_is_told_which_are_submitted(
    urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    names = ("first", "refuse", "last")
    text = "---\n".join(f"key: {key}-{name}\nname: {name}\ncommand: [a]\n" for name in names)
    refused = await baton("submit", "-f", "-", "-o", "json", url=urls["blue"], stdin=text.encode())
    assert refused.code == 4
    assert "stopped at job 2 of 3, refuse: 1 before it submitted, 1 after it not" in refused.err
    assert [(job["client_key"], job["ended"]) for job in json.loads(refused.out)] == [(f"{key}-first", None)]
    assert job_id("blue", f"{key}-last") not in fakes.jobs


async def test_refusals_have_codes_of_their_own(urls: dict[str, Address], fakes: Fakes, key: str) -> None:
    refused = await baton("submit", "--name", "refuse", "--", "true", url=urls["blue"])
    assert refused.code == 4
    assert "no such device" in refused.err
    assert (await baton("submit", "--key", key, "--", "true", url=urls["blue"])).code == 0
    assert (await baton("submit", "--key", key, "--", "false", url=urls["blue"])).code == 5
    assert (await baton("submit", "--team", "green", "--", "true", url=urls["blue"])).code == 4
    assert (await baton("quota", "set", "blue", "4", url=urls["blue"])).code == 4


async def test_ids_may_be_short_when_they_are_unique(
    urls: dict[str, Address], fakes: Fakes, blue: Baton, green: Baton, key: str
) -> None:
    job = (await blue.submit(JobSpec(command=("x",)), key)).job_id
    for text in (job, job[:16], job[4:20]):
        result = await baton("get", "jobs", text, "-o", "name", url=urls["blue"])
        assert (result.code, result.out.strip()) == (0, job)
    firsts = Counter(id_[4] for id_ in [await submitted(blue, f"{key}-{i}") for i in range(17)])
    ((digit, _),) = firsts.most_common(1)  # of seventeen, two begin with the same of sixteen digits
    assert (await baton("get", "jobs", digit, url=urls["blue"])).code == 2
    assert (await baton("describe", "job", "f" * 32, url=urls["blue"])).code == 3
    assert (await baton("describe", "job", "../etc", url=urls["blue"])).code == 3, "no job is called so"
    named = [(await blue.submit(JobSpec(command=("x",), name=f"n-{key}"), f"{key}-n{i}")).job_id for i in range(2)]
    twice = await baton("get", "jobs", f"n-{key}", url=urls["blue"])
    assert (twice.code, all(job[:20] in twice.err for job in named)) == (2, True), "two are called so"
    await fakes.happens(named[0], "failed")
    only = await baton("get", "jobs", f"n-{key}", "-o", "name", url=urls["blue"])
    assert only.out.strip() == named[1], "one of them has not ended"
    theirs = (await green.submit(JobSpec(command=("x",), name=f"n-{key}"), key)).job_id
    await fakes.happens(named[1], "failed")
    asked = await baton("get", "jobs", f"n-{key}", url=urls["operator"])
    assert (asked.code, theirs[:20] in asked.err, "green" in asked.err) == (2, True, True), (
        "an operator takes no team's job for another's that has ended"
    )


async def test_a_job_of_a_moment_ago_that_history_has_not_written_is_found_by_its_name(
    urls: dict[str, Address], fakes: Fakes, key: str
) -> None:
    name = f"train-{key}"
    job = (await baton("submit", "--name", name, "--", "true", url=urls["blue"])).out
    fakes.unlisted = 1
    assert (await baton("get", "jobs", name, "-o", "name", url=urls["blue"])).out == job


async def test_tables_in_pipes_are_tab_separated(urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str) -> None:
    job = (await blue.submit(JobSpec(command=("x",), name="a job"), key)).job_id
    result = await baton("get", "jobs", job, url=urls["blue"])
    header, row = (line.split("\t") for line in result.out.splitlines())
    assert header[:3] == ["JOB", "NAME", "TEAM"]
    assert row[:3] == [job, "a job", "blue"]
    assert len(header) == len(row)
    bare = await baton("get", "jobs", job, "--no-header", url=urls["blue"])
    assert bare.out.count("\n") == 1
    (document,) = json.loads((await baton("get", "jobs", job, "-o", "json", url=urls["blue"])).out)
    assert document["job_id"] == job


async def test_cancelling_what_is_over_is_a_conflict(
    urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str
) -> None:
    job = (await blue.submit(JobSpec(command=("x",)), key)).job_id
    assert (await baton("cancel", job, url=urls["blue"])).code == 0
    await blue.wait(job, 20)
    result = await baton("cancel", job, url=urls["blue"])
    assert result.code == 5
    assert "it has ended already: cancelled" in result.err
    other = await submitted(blue, f"{key}-other")
    both = await baton("cancel", job, other, "-o", "json", url=urls["blue"])
    assert (both.code, both.err) == (5, result.err)
    told = {one["job_id"]: (one["state"], one["cancel_asked"], one["error"]) for one in json.loads(both.out)}
    assert told == {job: ("cancelled", False, "it has ended already: cancelled"), other: ("queued", True, "")}
    assert (await blue.wait(other, 20)).state is JobState.CANCELLED


async def test_a_job_can_be_cancelled_by_its_whole_id_while_history_lacks_its_store(
    urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str
) -> None:
    """Seen with history and MongoDB frozen: nobody could end a job that ran on."""
    jobs = [await submitted(blue, f"{key}-{n}") for n in range(2)]
    fakes.lacking = 1
    result = await baton("cancel", *jobs, "-o", "json", url=urls["blue"])
    assert (result.code, fakes.lacking) == (0, 0), result.err
    assert result.err.count("whether there is such a job, and whether it has ended, is not known") == 1
    told = [
        (one["job_id"], one["team"], one["state"], one["cancel_asked"], one["error"]) for one in json.loads(result.out)
    ]
    assert told == [(job, "blue", None, True, "") for job in jobs]
    for job in jobs:
        assert (await blue.wait(job, 20)).state is JobState.CANCELLED
    fakes.lacking = 1
    refused = await baton("cancel", jobs[0], url=urls["operator"])
    assert (refused.code, "MongoDB" in refused.err) == (1, True), "whose team has it is not known"


async def test_why_no_end_was_asked_for_is_told_of_each_job(
    urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str
) -> None:
    jobs = [await submitted(blue, f"{key}-{n}") for n in range(2)]
    refused = await baton("cancel", *jobs, "--reason", "x" * 2000, "-o", "json", url=urls["blue"])
    assert refused.code == 2
    why = refused.err.splitlines()[0].removeprefix("baton: ")
    told = [(one["job_id"], one["cancel_asked"], why in one["error"]) for one in json.loads(refused.out)]
    assert told == [(job, False, True) for job in jobs]


async def test_a_team_is_told_whether_an_operator_has_cancelled(
    urls: dict[str, Address], services: Any, fakes: Fakes, blue: Baton, key: str
) -> None:
    """It was told that it had done so itself."""
    for who, reason in (("operator", "cancelled by an operator"), ("blue", "cancelled by its team")):
        job = await submitted(blue, f"{key}-{who}")
        assert (await baton("cancel", job, "--user", "olga", url=urls[who])).code == 0
        asked = await services.jetstream().get_last_msg(REQUESTS, cancel("blue", "olga"))
        assert json.loads(asked.data)["reason"] == reason


@pytest.mark.parametrize("command", ["watch", "explain", "logs"])
async def test_an_empty_word_names_no_job(
    urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str, command: str
) -> None:
    """Seen: `baton watch "$JOB"` without a JOB followed all jobs, for ever."""
    await submitted(blue, key)
    result = await baton(command, "", url=urls["blue"])
    assert (result.code, result.out.count("\n") <= 1) == (3, True)
    assert "no job of blue is called ''" in result.err


async def test_watching_a_job_ends_with_it(urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str) -> None:
    job = (await blue.submit(JobSpec(command=("x",)), key)).job_id
    await fakes.happens(job, "succeeded")
    result = await baton("watch", job, "-o", "json", url=urls["blue"])
    assert [json.loads(line)["what"] for line in result.out.splitlines()] == ["queued", "succeeded"]


async def test_logs_are_passed_on_as_they_are(urls: dict[str, Address], fakes: Fakes, blue: Baton, key: str) -> None:
    job = (await blue.submit(JobSpec(command=("x",)), key)).job_id
    assert (await baton("logs", job, url=urls["blue"])).code == 3
    await fakes.starts(job, 1, "step 1\n\x1b[31mred\n")
    assert (await baton("logs", job, url=urls["blue"])).out == "step 1\n\x1b[31mred\n"


async def test_dead_letters_are_shown_and_sent_again(urls: dict[str, Address], services, key: str) -> None:
    from libs.bus.dead import Received, dead_letter

    subject = "baton.cmd.job.v1.submit.blue.ana"
    letter = dead_letter("admission", Received(subject, {"X": "1"}, key.encode(), "REQUESTS", 7, 0), "no\x1b JSON")
    ack = await services.jetstream().publish(letter.subject, letter.payload, headers=letter.headers)
    seq = str(ack.seq)
    listed = await baton("dead", "list", "-o", "json", url=urls["operator"])
    (shown,) = [entry for entry in json.loads(listed.out) if str(entry["seq"]) == seq]
    assert (shown["subject"], shown["stream"], shown["stream_seq"]) == (subject, "REQUESTS", "7")
    assert key in (await baton("dead", "show", seq, url=urls["operator"])).out
    heard = await services.subscribe(subject)
    await services.flush()
    again = await baton("dead", "replay", seq, "-o", "json", url=urls["operator"])
    told = {"seq": ack.seq, "subject": subject, "replayed": True, "error": ""}
    assert (again.code, json.loads(again.out)) == (0, [told]), again.err
    assert (await baton("dead", "replay", seq, url=urls["operator"])).out == f"{seq}\t{subject}\n"
    for _ in range(2):
        assert (await heard.next_msg(timeout=10)).data == key.encode()
    assert (await baton("dead", "show", "99999999", url=urls["operator"])).code == 3
    assert (await services.jetstream().stream_info(DEAD)).state.messages >= 1


async def test_an_empty_ledger_holds_every_invariant(urls: dict[str, Address]) -> None:
    result = await baton("ledger", "verify", "--pool", "main", url=urls["operator"])
    assert result.code == 0
    assert "0\tviolations" in result.out


async def test_a_ledger_is_exported_and_verified_offline(urls: dict[str, Address], tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    exported = await baton("ledger", "export", str(path), "--pool", "main", "-o", "json", url=urls["operator"])
    told = json.loads(exported.out)
    assert (exported.code, told["file"], told["follows"]) == (0, str(path), None), exported.err
    result = await baton("ledger", "verify", "--file", str(path), url="nats://127.0.0.1:1")
    assert (result.code, "0\tviolations" in result.out) == (0, True)
    path.write_text(path.read_text()[:-9])
    damaged = await baton("ledger", "verify", "--file", str(path))
    assert damaged.code == 1
    assert "cut short" in damaged.err
    assert (await baton("ledger", "verify", "--file", str(path), "--bill")).code == 2


async def test_provision_may_be_repeated(urls: dict[str, Address]) -> None:
    result = await baton("provision", "--scale", "0.01", url=urls["operator"])
    assert (result.code, result.out) == (0, "main\tready\n")
    other = await baton("provision", "--scale", "0.01", "--pool", "second", "-o", "json", url=urls["operator"])
    assert (other.code, json.loads(other.out)) == (0, [{"pool": "second", "done": "provisioned"}])


async def test_provision_makes_all_pools_that_admission_serves(urls: dict[str, Address]) -> None:
    result = await baton("provision", "--scale", "0.01", url=urls["operator"], BATON_POOLS="main, second")
    assert (result.code, result.out) == (0, "main\tready\nsecond\tready\n")
