"""Scenario files: each of examples/scenarios in virtual time and through the live services, and files that are wrong."""

from pathlib import Path

import pytest

from libs.cli.demo import load
from libs.cli.scenario.live import play_live, sharing
from libs.cli.scenario.play import spec_of
from libs.cli.scenario.read import ScenarioError, read_scenario
from libs.cli.scenario.simulated import simulate

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))

SMALL = """\
scenario: A job waits behind another
given:
  fleet: {nodes: 1, devices: 2}
  teams: {vision: [ana]}
when:
  - submit: {name: first, team: vision, devices: 2, run: 20s}
  - submit: {name: second, team: vision, user: ana, devices: 2, run: 5s}
    expect:
      - running: first
      - WRONG
expect:
  - succeeded: [first, second]
  - started_in_order: [first, second]
  - started_within: {second: LIMIT}
"""


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_is_as_expected_in_virtual_time(path: Path) -> None:
    played = simulate(read_scenario(path.read_text(), path.name))
    assert [step for step in played.steps if not step.ok] == []
    assert len(played.steps) > 3


@pytest.mark.timeout(400)
async def test_all_scenarios_are_as_expected_through_the_live_services(tmp_path: Path) -> None:
    """One Baton for all: each has teams of its own."""
    scenarios = [read_scenario(path.read_text(), path.name) for path in SCENARIOS]
    assert len(sharing(scenarios)) == 1
    played = await play_live(scenarios, folder=tmp_path)
    assert [(one.scenario, step) for one in played for step in one.steps if not step.ok] == []
    assert len(played) == len(SCENARIOS) >= 11


def test_scenarios_share_a_baton_only_with_the_same_fleet_and_teams_of_their_own() -> None:
    one = read_scenario(small())
    other = read_scenario(small().replace("vision", "language"))
    larger = read_scenario(small().replace("vision", "optics").replace("nodes: 1", "nodes: 2"))
    assert sharing([one, other, larger, one]) == [[one, other], [larger], [one]]


def test_the_demo_tells_the_story_of_its_scenario() -> None:
    """The gang and the serving job that it yields to, the replicas that give nothing away, and the order in which they come."""
    story = read_scenario((ROOT / "examples" / "scenarios" / "9-demo.yaml").read_text())
    told = [load.training(), load.fillers()[0], load.serving()]
    played = [next(iter(step.submit)) for step in story.when if step.submit]
    assert [job.team for job in played] == [job.team for job in told]
    for job, ask in zip(played, told, strict=True):
        mine = spec_of(ask.spec.name, job)
        assert mine.priority_class == ask.spec.priority_class
        assert mine.resources.topology == ask.spec.resources.topology
        assert (mine.checkpoint is None) == (ask.spec.checkpoint is None)
    assert [played[0].devices, played[2].devices] == [told[0].spec.resources.devices, load.SERVING_DEVICES]
    assert [job.name for job in (played[0], played[2])] == [told[0].spec.name, told[2].spec.name]
    fleet = story.given.fleet.nodes * story.given.fleet.devices
    assert played[0].devices + played[1].count * played[1].devices == fleet, (
        "when the serving job comes, the fleet is full"
    )


def small(wrong: str = "waiting: second", limit: str = "40s") -> str:
    return SMALL.replace("WRONG", wrong).replace("LIMIT", limit)


def test_seconds_are_exact_in_virtual_time() -> None:
    assert simulate(read_scenario(small())).ok
    (late,) = [step for step in simulate(read_scenario(small(limit="10s"))).steps if not step.ok]
    assert "second after 2" in late.observed


def test_what_does_not_come_to_hold_is_told_with_what_was_seen() -> None:
    failed = [
        step for step in simulate(read_scenario(small("preempted: {job: first, by: second}"))).steps if not step.ok
    ]
    (step,) = failed
    assert step.expected == "job first, by second"
    assert step.observed == "first gave way to nobody, and is succeeded"


@pytest.mark.parametrize(
    ("text", "line", "field", "said"),
    [
        (small("runing: second"), 10, "when.1.expect.1.runing", "running"),
        (small("running: secnd"), 10, "when.1.expect.1.running", "there are first, second"),
        (small("holds: {visoin: 2}"), 10, "when.1.expect.1.holds.visoin", "use one of vision"),
        (small("{running: first, waiting: second}"), 10, "when.1.expect.1", "one thing"),
        (small(limit="soon"), 14, "expect.2.started_within.second", "duration"),
        (small().replace("team: vision, devices", "team: vison, devices"), 6, "when.0.submit.0.team", "vision"),
        (small().replace("user: ana", "user: bob"), 7, "when.1.submit.0.user", "[bob]"),
        (small().replace("name: second", "name: first"), 7, "when.1.submit.0.name", "own name"),
        (small().replace("run: 20s", "priority_class: servin"), 6, "when.0.submit.0.priority_class", "serving"),
        (
            small().replace("[ana]}", "[ana]}\n  queues: {version: 1, queues: [{name: a, parent: b}]}"),
            5,
            "parent",
            "no queue of this tree",
        ),
        (small().replace("run: 20s", "steps: 100"), 6, "when.0.submit.0", "each step has its time"),
        (small().replace("{nodes: 1, devices: 2}", "{nodes: 0}"), 3, "given.fleet.nodes", "at least 1"),
        ("a: [", 1, "", "YAML"),
        ("- one", 1, "file", "given"),
    ],
)
def test_what_is_wrong_is_told_with_line_field_and_fix(text: str, line: int, field: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_scenario(text, "mine.yaml")
    found = caught.value.problems[0]
    assert found.line == line, caught.value
    assert field in found.field, caught.value
    assert said in f"{found.problem} {found.fix}", caught.value
