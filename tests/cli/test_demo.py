"""The demo: its checks against the ledgers that they must refuse, and the whole of it for real (marker `demo`)."""

import fcntl
import io
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from libs.cli.demo import checks, load
from libs.cli.demo.follow import Stuck
from libs.cli.demo.play import Demo
from libs.cli.demo.screen import Screen
from libs.cli.exits import UsageFault
from libs.cli.scratch_state import emptied
from libs.embedded import StateDirLocked
from libs.embedded.records import read_processes
from libs.report.document import Step
from tests.cli.simulated import Ask, Run, busy
from tests.kit.commands import fork
from tests.kit.refusals import refusals

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(busy(60))


# ----------------------------------------------------------------------------------------------------------- the checks


def test_the_story_holds_in_simulation(run: Run):
    gang, serving = run.job("train-16"), run.job("answer")
    steps = [
        checks.placed(run.facts, gang),
        checks.full(run.facts, serving),
        checks.in_time(run.facts, serving),
        checks.yielded(run.facts, gang, serving),
        checks.all_ended(run.facts, len(run.facts.jobs), ()),
        checks.verified(run.audit),
        checks.billed(run.audit, run.bill),
        checks.accounted(run.audit),
    ]
    assert [step for step in steps if not step.ok] == []
    assert all(step.observed for step in steps)


def test_resuming_is_judged_by_the_programs_own_word(run: Run):
    gang = run.job("train-16")
    saved = gang.attempts[1].resume
    assert saved is not None
    good = f"rank 0: resumed at step {saved.step} from x\nrank 0: step {saved.step + 8} loss 0.1\n"
    assert checks.resumed(run.facts, gang, good).ok
    assert not checks.resumed(run.facts, gang, f"rank 0: resumed at step {saved.step - 40} from x\n").ok
    assert not checks.resumed(run.facts, gang, "rank 0: step 10 loss 0.1\n").ok


def test_losing_more_than_the_interval_is_noticed(run: Run):
    gang = run.job("train-16")
    saved = gang.attempts[0].checkpoints[-1][1].step
    assert checks.lost_little(gang, f"rank 0: step {saved + 2} loss 0.1\n").ok
    assert not checks.lost_little(gang, f"rank 0: step {saved + load.SAVE_EVERY + 1} loss 0.1\n").ok
    assert not checks.lost_little(gang, "").ok


def test_a_fleet_with_a_free_device_is_not_full():
    run = Run([Ask("train-16", "research", 0, 20, 16), Ask("answer", "assistant", 5, 2, 8, priority_class="serving")])
    assert not checks.full(run.facts, run.job("answer")).ok


def test_a_gang_on_three_nodes_is_not_placed_well():
    around = [Ask(f"other-{i}", "vision", 0, 30, 2) for i in range(64)]
    run = Run([*around[:61], Ask("gang", "research", 1, 5, 4)])
    assert not checks.placed(run.facts, run.job("gang")).ok


def test_a_job_that_ended_otherwise_is_named(run: Run):
    cancelled = next(iter(run.facts.jobs))
    step = checks.all_ended(run.facts, len(run.facts.jobs), (cancelled,))
    assert not step.ok
    assert run.facts.jobs[cancelled].spec.name in step.observed
    assert not checks.all_ended(run.facts, len(run.facts.jobs) + 1, ()).ok


# ------------------------------------------------------------------------------------------------------------- the load


def test_the_load_is_the_same_each_time_and_of_many_shapes():
    asks = list(load.wave(1, 200, over_s=10))
    assert asks == list(load.wave(1, 200, over_s=10))
    shapes = Counter((a.spec.resources.devices, a.spec.resources.share_milli) for a in asks)
    assert {devices for devices, _ in shapes} == {1, 2, 4, 8, 16}
    assert {share for _, share in shapes} == {250, 500, 1000}
    assert {a.team for a in asks} == set(load.TEAMS)


def test_replicas_and_gang_fill_the_fleet_exactly():
    assert sum(load.FILLERS) + load.training().spec.resources.devices == 128


def test_names_are_unique():
    names = [
        (a.team, a.spec.name)
        for a in [
            load.training(),
            load.serving(),
            *load.fillers(),
            *load.cpu_jobs(),
            *load.wave(1, load.WAVES[0], over_s=1),
            *load.wave(2, load.WAVES[1], over_s=1),
        ]
    ]
    assert len(set(names)) == len(names)


# ------------------------------------------------------------------------------------------------- screen and directory


def test_without_a_terminal_there_are_plain_lines(run: Run):
    out = io.StringIO()
    with Screen(Console(file=out, width=60)) as screen:
        screen.facts = lambda: run.facts
        screen.phase("one")
        screen.check(Step(name="a [check]", expected="x", observed="y", ok=False))
        screen.phase("two")
    assert "FAIL  a [check]: y" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_a_panel(run: Run):
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with Screen(console) as screen:
        screen.facts = lambda: run.facts
        screen.phase("one")
        screen.check(Step(name="a check", expected="x", observed="y", ok=True))
    text = out.getvalue()
    assert "0 of 128 devices" in text
    assert "a check" in text


def test_only_what_a_demo_has_made_is_removed(tmp_path: Path):
    """Seen: `baton replay --state-dir` emptied any folder, and `baton demo --state-dir` that of a `baton up` that had ended."""
    home, instance, mine = tmp_path / "home", tmp_path / "instance", tmp_path / "demo"
    for folder, file in ((home, "mine.txt"), (instance, "lock"), (instance, "keys.json")):
        folder.mkdir(exist_ok=True)
        (folder / file).write_text("precious")
    for folder in (home, instance):
        with pytest.raises(UsageFault, match="is not empty, and no demo has marked it as its own: remove it, or"):
            emptied(folder, "demo")
    assert [path.read_text() for path in sorted(tmp_path.rglob("*.*"))] == ["precious"] * 2
    emptied(mine, "demo")
    (mine / "keys.json").touch()
    with open(mine / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StateDirLocked):
            emptied(mine, "demo")
    emptied(mine, "demo")
    assert not (mine / "keys.json").exists()


# ------------------------------------------------------------------------------------------------------------- for real


@pytest.mark.demo
@pytest.mark.timeout(300)
async def test_the_demo_passes_its_own_checks(tmp_path: Path):
    with Screen(Console(file=io.StringIO())) as screen:
        result = await Demo(tmp_path / "state", tmp_path / "out", screen, scale=0.2).play()
    assert [step for step in result.report.steps if not step.ok] == []
    assert len(result.report.steps) == 11
    assert result.report.ok
    assert result.report.preempted == 1
    assert json.loads(result.as_json.read_text())["ok"] is True
    assert result.as_html.stat().st_size < 3_000_000
    assert not refusals(tmp_path / "state"), "every service has the rights that it needs"


@pytest.mark.demo
@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing_running(tmp_path: Path, number: signal.Signals):
    state = tmp_path / "state"
    words = ("demo", "--state-dir", str(state), "--out", str(tmp_path / "out"))
    ours, theirs = os.pipe()
    with open(theirs, "wb") as out, open(tmp_path / "err", "wb") as err:
        demo = fork(stacks=True).start(os.environ, ROOT, err, arguments=words, out=out)
    with open(ours) as stdout:
        for line in stdout:
            if " ok " in line:  # the gang runs
                break
        pids = [record.pid for record in read_processes(state).values() if record.pid]
        demo.send_signal(number)
        stdout.read()
    assert demo.wait(60) == 130
    said = (tmp_path / "err").read_text()
    assert "stopped before its end" in said
    assert "Traceback" not in said
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not _with_variable(str(state))


@pytest.mark.demo
@pytest.mark.timeout(180)
async def test_a_demo_that_is_stuck_names_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("libs.cli.demo.play._SLOW_S", 3.0)
    monkeypatch.setattr("libs.cli.demo.play.DEVICES", 1000)
    with Screen(Console(file=io.StringIO())) as screen, pytest.raises(Stuck, match=r"1000 devices.*agent-sim\.log"):
        await Demo(tmp_path / "state", tmp_path / "out", screen).play()
    assert not [record for record in read_processes(tmp_path / "state").values() if record.pid]


def _with_variable(text: str) -> list[int]:
    """Processes whose environment mentions `text`: those that Baton started, jobs among them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
