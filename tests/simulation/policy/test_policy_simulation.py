"""The policy simulator: figures that can be worked out by hand, and what holds of every run."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from libs.cli.main import app
from libs.cli.queuesfile import read_tree
from libs.core.scheduling.precedence import OrderKnobs, OrderRule
from libs.simulation.policy.engine import KnownRunTime, SimulatedRun, SimulatedWorld, simulate
from libs.simulation.policy.measure import figures
from libs.simulation.policy.recorded import RecordedWorkload
from libs.simulation.policy.workload import WorkloadRow
from schemas.ids import job_id
from schemas.inbox import ApplyQueues
from schemas.resources import Inventory
from tests.core.builders import World, job, node
from tests.kit.filed import filed

FLEET = Path(__file__).parents[3] / "deploy" / "fleets" / "replay-8x8.yaml"


def rows(*jobs: tuple[float, float, int]) -> list[WorkloadRow]:
    """(submitted, runs, devices)."""
    return [WorkloadRow(line, f"job-{line}", *job) for line, job in enumerate(jobs, start=2)]


def fleet(nodes: int = 1) -> list[Inventory]:
    return [node(f"n{i}") for i in range(nodes)]


def crowd(count: int = 80) -> list[WorkloadRow]:
    """More than two nodes can do at once, of all sizes up to both nodes."""
    sizes, lengths = (1, 2, 8, 1, 4, 12, 1, 16), (30.0, 4000.0, 200.0, 90_000.0, 700.0, 15.0, 2500.0)
    return rows(*((97.0 * i, lengths[i % 7], sizes[i % 8]) for i in range(count)))


def ends(run: SimulatedRun) -> list[float]:
    return [(job.end_us - 1) / 1e6 for job in run.jobs]


def test_fifo_by_hand() -> None:
    run = simulate(rows((0, 100, 8), (1, 1000, 8), (2, 10, 8)), fleet(), OrderRule.FIFO)
    assert ends(run) == [100, 1100, 1110]


def test_in_cycles_all_that_happened_is_decided_together() -> None:
    jobs = rows((0, 100, 8), (1, 1000, 8), (2, 12, 8), (1130, 7, 4), (1131, 7, 4))
    run = simulate(jobs, fleet(), OrderRule.FIFO, SimulatedWorld(cycle_s=5.0))
    assert [job.end_us / 1e6 for job in run.jobs] == [5 + 100, 105 + 1000, 1105 + 12, 1135 + 7, 1135 + 7]
    assert [job.longest_wait_us // 1_000_000 for job in run.jobs] == [4, 103, 1102, 4, 3], (
        "from when each was submitted"
    )


def test_many_jobs_are_decided_about_in_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.simulation.policy.engine.MOMENTS", 79)
    for count, cycle_s in ((80, 5.0), (79, 0.0)):
        left_out, asked, other = (
            ends(simulate(crowd(count), fleet(2), OrderRule.FIFO, SimulatedWorld(cycle_s=given)))
            for given in (None, cycle_s, 5.0 - cycle_s)
        )
        assert left_out == asked != other


def test_the_shortest_known_first_by_hand() -> None:
    world = SimulatedWorld(knows=KnownRunTime.DURATIONS)
    run = simulate(rows((0, 1000, 8), (10, 500, 8), (10, 100, 8)), fleet(), OrderRule.SHORTEST_REMAINING, world)
    # At 60 s the first gives way to the third, at 160 s the second (500 s) goes before it (970 s), by the factor and the loss.
    assert ends(run) == [1630, 660, 160]
    told = figures(run)
    assert (told["preemptions"], told["lost_device_s"]) == (1, 240)
    assert told["queueing_mean_s"] == pytest.approx((630 + 150 + 50) / 3, abs=0.1)


def test_a_stop_delay_is_waited_for() -> None:
    world = SimulatedWorld(knows=KnownRunTime.DURATIONS, stop_delay_s=20.0, start_delay_s=5.0)
    run = simulate(rows((0, 1000, 8), (10, 100, 8)), fleet(), OrderRule.SHORTEST_REMAINING, world)
    assert ends(run)[1] == 60 + 20 + 5 + 100


@pytest.mark.parametrize("cycle_s", [0.0, 5.0])
@pytest.mark.parametrize(
    ("rule", "knows"),
    [
        *((rule, KnownRunTime.NOTHING) for rule in OrderRule),
        (OrderRule.SHORTEST_REMAINING, KnownRunTime.PROGRESS),
        (OrderRule.SHORTEST_REMAINING, KnownRunTime.DURATIONS),
    ],
)
def test_every_job_ends_and_the_same_seed_gives_the_same_run(
    rule: OrderRule, knows: KnownRunTime, cycle_s: float
) -> None:
    world = SimulatedWorld(knows=knows, node_faults_per_day=2.0, seed=7, cycle_s=cycle_s)
    first, second = (simulate(crowd(24), fleet(2), rule, world) for _ in range(2))
    told = figures(first)
    assert told == figures(second)
    assert ends(first) == ends(second)
    assert told["ended"] == told["jobs"] == 24


def test_the_fast_path_scores_nothing_and_ends_every_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.simulation.policy.engine.Scorer", lambda: pytest.fail("a scorer was made"))
    fast = SimulatedWorld(fast=True)
    one, two = (simulate(crowd(), fleet(2), OrderRule.SHORTEST_REMAINING, fast) for _ in range(2))
    assert figures(one)["ended"] == 80
    assert ends(one) == ends(two)


def test_another_seed_gives_other_faults() -> None:
    first, second = (
        simulate(crowd(30), fleet(2), OrderRule.FIFO, SimulatedWorld(node_faults_per_day=4.0, seed=seed))
        for seed in (1, 2)
    )
    assert ends(first) != ends(second)


@pytest.mark.parametrize("cycle_s", [0.0, 5.0])
def test_work_is_neither_lost_nor_made(cycle_s: float) -> None:
    run = simulate(crowd(), fleet(2), OrderRule.SHORTEST_REMAINING, SimulatedWorld(cycle_s=cycle_s))
    held = sum(job.held_us * job.row.devices for job in run.jobs)
    assert held == sum(round(job.row.duration_s * 1e6) * job.row.devices for job in run.jobs) + run.lost_device_us
    assert run.lost_device_us == sum(30_000_000 * job.row.devices * job.preemptions for job in run.jobs)


def test_known_durations_make_the_mean_wait_shorter_than_age_does() -> None:
    # Nearly all of this crowd are gangs: without these knobs their turns by age would be all that is seen.
    knobs, world = OrderKnobs(in_turn=0.0, promise_margin=1e6), SimulatedWorld(knows=KnownRunTime.DURATIONS)
    shortest = figures(simulate(crowd(), fleet(2), OrderRule.SHORTEST_REMAINING, world, knobs))
    fifo = figures(simulate(crowd(), fleet(2), OrderRule.FIFO))
    assert shortest["queueing_mean_s"] < fifo["queueing_mean_s"]


def test_a_gang_that_the_fleet_can_never_hold_is_refused_and_the_rest_runs() -> None:
    told = figures(simulate(rows((0, 10, 17), (0, 10, 16)), fleet(2), OrderRule.FIFO))
    assert (told["jobs"], told["refused"], told["ended"]) == (2, 1, 1)


def test_the_command_prints_json_names_bad_rows_by_line_and_writes_a_page(tmp_path: Path) -> None:
    workload, page = tmp_path / "w.csv", tmp_path / "page.html"
    workload.write_text("submit_s,duration_s,num_gpus,gpu_spec\n0,100,8,\nx,1,1,\n5,10,64,\n6,10,65,\n7,10,1,TPU\n")
    asked = [
        "--fleet",
        str(FLEET),
        "--workload",
        str(workload),
        "--policy",
        "fifo",
        "--policy",
        "least-attained",
        "--fast",
    ]
    result = CliRunner().invoke(app, ["simulate", *asked, "-o", "json", "--page", str(page)])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["policies"]
    assert list(told) == ["fifo", "least-attained"]
    named = {
        "jobs", "ended", "jct_mean_s", "jct_p99_s", "queueing_mean_s", "wait_max_s", "utilization_pct", "preemptions",
        "lost_device_s", "promises_kept_pct",
    }  # fmt: skip
    assert named <= told["fifo"].keys()
    said = " ".join(result.stderr.split())
    assert "w.csv:3: left out: submit_s is 'x'" in said
    assert "w.csv:5: refused: it asks for 65 devices" in said
    assert "w.csv:6: least-attained: it never started (1 such rows)" in said
    html = page.read_text()
    assert "least-attained" in html
    assert "http" not in html


def test_a_workload_without_a_readable_row_is_refused(tmp_path: Path) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text("submit_s,duration_s,num_gpus\n")
    result = CliRunner().invoke(app, ["simulate", "--fleet", str(FLEET), "--workload", str(workload)])
    assert "no row could be read" in str(result.exception)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_time_without_end_is_refused_by_the_name_of_its_option(tmp_path: Path, value: str) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text("submit_s,duration_s,num_gpus\n0,1,1\n")
    for option in ("--preemption-loss-s", "--start-delay-s", "--node-faults-per-day", "--cycle-s"):
        result = CliRunner().invoke(
            app, ["simulate", "--fleet", str(FLEET), "--workload", str(workload), option, value]
        )
        assert result.exit_code == 2
        assert f"Invalid value for '{option}'" in " ".join(result.output.split())


QUEUES = """version: 1
order: fifo
queues:
  - name: research
    guaranteed: 8
  - name: vision
    guaranteed: 8
"""


def test_queues_take_back_what_was_borrowed_when_who_lent_it_comes(tmp_path: Path) -> None:
    file = tmp_path / "shares.yaml"
    file.write_text(QUEUES)
    tree = read_tree(file.read_text(), "shares.yaml")
    said = ApplyQueues(version=tree.version, queues=tuple(tree), order=tree.order)
    workload = [
        WorkloadRow(2, "long", 0, 10_000, 8, team="research"),
        WorkloadRow(3, "borrows", 1, 10_000, 8, team="research"),
        WorkloadRow(4, "lent", 100, 50, 8, team="vision"),
    ]
    run = simulate(workload, fleet(2), said)
    assert ends(run)[2] == 150, "the one that borrowed gave way at once"
    assert (run.preemptions, run.jobs[1].preemptions) == (1, 1)
    assert ends(simulate(workload, fleet(2), None))[2] == 10_050


def test_a_higher_class_makes_a_lower_one_give_way() -> None:
    workload = [
        WorkloadRow(2, "experiment", 0, 1000, 8, team="a"),
        WorkloadRow(3, "serving", 100, 50, 8, team="b", priority=200, preempts=True),
    ]
    assert ends(simulate(workload, fleet(), None)) == [1080, 150]


def test_a_recorded_ledger_is_run_again_with_other_queues(tmp_path: Path) -> None:
    world = World(node("n0"), node("n1"))
    for name, team, devices in (("first", "research", 8), ("second", "research", 8), ("third", "vision", 8)):
        world.submit(job(name, devices, team=team))
        world.send(after_us=10_000_000)
    world.submit(job("never", 16, team="vision"))
    first, second, third = (
        job_id(team, name) for team, name in (("research", "first"), ("research", "second"), ("vision", "third"))
    )
    world.started(first)
    world.started(second)
    world.send(after_us=100_000_000)
    world.released(first)
    world.started(third)
    world.send(after_us=50_000_000)
    world.released(second)
    ledger = tmp_path / "ledger.jsonl"
    filed(world, ledger)
    (tmp_path / "shares.yaml").write_text(QUEUES)
    asked = ["--fleet", str(FLEET), "--workload", str(ledger), "--queues", str(tmp_path / "shares.yaml")]
    result = CliRunner().invoke(app, ["simulate", *asked, "--policy", "fifo", "-o", "json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert list(told["policies"]) == ["fifo", "shares"]
    assert [told["policies"][name]["ended"] for name in ("fifo", "shares")] == [3, 3]
    assert told["rows_left_out"] == 1
    assert "it never ran" in result.stderr
    recorded = RecordedWorkload()
    for seq, record in enumerate(world.records, 1):
        recorded.add(record, seq)
    found, _ = recorded.rows()
    assert [round(row.duration_s) for row in found] == [100, 150, 50]
    assert [(row.team, row.devices) for row in found] == [("research", 8), ("research", 8), ("vision", 8)]


def test_a_queue_file_that_is_wrong_is_refused_by_line(tmp_path: Path) -> None:
    workload, file = tmp_path / "w.csv", tmp_path / "wrong.yaml"
    workload.write_text("submit_s,duration_s,num_gpus\n0,100,8\n")
    file.write_text(QUEUES.replace("guaranteed: 8", "guaranteed: -8", 1))
    asked = ["--fleet", str(FLEET), "--workload", str(workload), "--queues", str(file)]
    result = CliRunner().invoke(app, ["simulate", *asked])
    assert "wrong.yaml:5: " in str(result.exception)


def test_what_history_foretells_is_held_against_what_came() -> None:
    """Lengths drawn from one distribution: half of them end within the P50, nine of ten within the P90."""
    chance = random.Random(5)
    workload = rows(*((50.0 * i, chance.lognormvariate(6, 1), 1) for i in range(1200)))
    told = figures(simulate(workload, fleet(2), OrderRule.SHORTEST_REMAINING))
    assert told["within_p50_pct"] == pytest.approx(50, abs=10)
    assert told["within_p90_pct"] == pytest.approx(90, abs=5)
