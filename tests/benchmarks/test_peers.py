"""`./dev bench --peers`: who is here, what a run says, and what makes it no evidence."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, peers

FAKE = """
import json, sys
mode = sys.argv[sys.argv.index("--mode") + 1]
print("a line before")
print(json.dumps(dict(jobs_per_s=300.0, p50_ms=21.0, p99_ms=24.0, cpu_s={"hq": 0.5}, done=100, version="1", durable=False)))
"""


def turn(rate: float, p50: float, **more: Any) -> peers.Figures:
    return {"jobs_per_s": rate, "idle_p50_ms": p50, "idle_p99_ms": 2 * p50, "host_steal": 0.01, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("hyperqueue", "dask"):
        (tmp_path / f"{name}_bench.py").write_text(FAKE)
    return tmp_path


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An interpreter that has hyperqueue, and not dask; and a picture of its own."""
    monkeypatch.setattr(peers, "IMAGE", tmp_path / "peers.svg")
    (tmp_path / "hyperqueue.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(peers.PEERS, "dask", peers.Peer("--mode single", "--mode latency", module="no_such_module"))


def run(folder: Path, *more: str) -> None:
    peers.main(["--folder", str(folder), "--python", sys.executable, "--rounds", "2", "--only", "hyperqueue", *more])


def test_ratios_are_of_the_same_round_and_a_median_is_of_all_rounds() -> None:
    rounds = [
        {"baton-process": turn(100, 10), "hyperqueue": turn(200, 20)},
        {"baton-process": turn(300, 10), "hyperqueue": turn(200, 20)},
        {"baton-process": turn(300, 30), "hyperqueue": turn(300, 20)},
    ]
    found = peers.report(rounds)
    assert found["systems"]["baton-process"] | {"rounds": 3} == {
        "jobs_per_s": 300, "idle_p50_ms": 10, "idle_p99_ms": 20, "host_steal": 0.01, "rounds": 3,
    }  # fmt: skip
    assert found["systems"]["hyperqueue"]["rounds"] == [one["hyperqueue"] for one in rounds]
    ratio = found["ratios"]["baton-process/hyperqueue"]
    assert ratio["jobs_per_s"] == {"median": 1.0, "rounds": [0.5, 1.5, 1.0]}
    assert ratio["idle_p50_ms"] == {"median": 0.5, "rounds": [0.5, 0.5, 1.5]}
    assert found["faults"] == []


def test_a_turn_that_failed_counts_in_no_median_and_is_a_fault() -> None:
    rounds = [
        {"baton-timer": turn(700, 10), "ray": {"error": "no figures", "host_steal": 0.0}},
        {"baton-timer": turn(900, 10, violations=1, billed=True), "ray": turn(200, 5)},
        {"baton-timer": turn(800, 10, violations=0, billed=False), "ray": turn(100, 5)},
    ]
    found = peers.report(rounds)
    assert found["systems"]["ray"]["jobs_per_s"] == 150
    assert found["ratios"]["baton-timer/ray"]["jobs_per_s"]["rounds"] == [4.5, 8.0]
    assert found["faults"] == [
        "round 1, ray: no figures",
        "round 2, baton-timer: 1 violations, billed True",
        "round 3, baton-timer: 0 violations, billed False",
    ]


def test_a_run_writes_what_was_asked_for(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    run(folder, "--require", "hyperqueue")
    drawn = peers.IMAGE.read_text()
    assert ">hyperqueue</text>" in drawn
    peers.IMAGE.unlink()
    peers.main(["--draw"])
    assert peers.IMAGE.read_text() == drawn
    told = json.loads((tmp_path / "results" / "peers.json").read_text())
    assert told["systems"]["hyperqueue"]["idle_p50_ms"] == 21
    assert len(told["systems"]["hyperqueue"]["rounds"]) == 2
    assert "has no no_such_module" in told["absent"]["dask"]
    assert "--folder" in told["absent"]["ray"]


@pytest.mark.parametrize(
    ("name", "why"), [("dask", "no no_such_module"), ("ray", "no ray_bench.py"), ("baton-timer", "left out")]
)
def test_who_is_required_and_absent_is_an_error_before_anything_runs(folder: Path, name: str, why: str) -> None:
    with pytest.raises(SystemExit, match=f"required and absent: {name}: .*{why}"):
        run(folder, "--require", name)


def test_a_name_that_nobody_has_is_refused_with_those_there_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(folder, "--require", "nomad")
    assert "nomad is not known; there are baton-process, baton-timer, hyperqueue" in capsys.readouterr().err


def test_a_peer_that_prints_no_figures_is_a_fault(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    (folder / "hyperqueue_bench.py").write_text("raise SystemExit('no server')")
    with pytest.raises(SystemExit, match=r"round 1, hyperqueue: printed no figures, ended with 1: no server"):
        run(folder)


def test_steal_is_the_share_of_all_processors_time() -> None:
    assert peers.steal([0] * 8, [50, 0, 20, 20, 0, 0, 5, 5]) == 0.05
