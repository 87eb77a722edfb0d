"""The long files begin first, and a test that kills its worker is one failed test.

Of the long ones, those that compute and those that wait take turns: workers outnumber processors, and each has its next file
from the start. The seeds take what the others leave (tests/simulation/many.py), two files of them at a time.

pytest-xdist 3.8 hands a crashed worker's files to the one that replaces it, those that were done first: a file without a
test to run never asks for the next, and the run waits for ever. The test that crashed would be run again, too.
"""

from collections import Counter
from collections.abc import Iterable

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

LONG = (
    "tests/faults/test_kill9.py",
    "tests/simulation/test_seeds_0.py",
    "tests/agent/test_keeper_faults.py",
    "tests/cli/test_demo.py",
    "tests/simulation/test_seeds_1.py",
    "tests/cli/test_scenarios.py",
    "tests/cli/test_replay.py",
    "tests/billing/test_service.py",
    "tests/architecture/test_checks.py",
    "tests/cli/test_launch.py",
    "tests/agent/test_processes.py",
    "tests/cli/test_operators.py",
    "tests/walls/test_team.py",
    "tests/simulation/policy/test_policy_simulation.py",
    "tests/service/test_app.py",
    "tests/core/test_verify_sweep.py",
    "tests/walls/test_floods.py",
    "tests/walls/test_compose_runs.py",
    "tests/agent/test_agent.py",
    "tests/tenants/test_queues.py",
    "tests/cli/test_command.py",
    "tests/tenants/test_people.py",
    "tests/simulation/test_planted.py",
    "tests/simulation/test_seeds_2.py",
    "tests/core/test_repartition.py",
    "tests/faults/test_two_of_everything.py",
    "tests/tenants/test_drill_agents.py",
    "tests/faults/test_two_placements.py",
    "tests/faults/test_declared_dead.py",
    "tests/core/test_backlog.py",
    "tests/simulation/test_seeds_3.py",
    "tests/faults/test_hostile_input.py",
    "tests/tenants/test_drill.py",
    "tests/cli/test_report.py",
    "tests/faults/test_redis_emptied.py",
    "tests/faults/test_repartition.py",
    "tests/faults/test_three_brokers.py",
    "tests/faults/test_keep_jobs.py",
    "tests/faults/test_clocks.py",
    "tests/core/test_limits_properties.py",
    "tests/bus/test_connect.py",
    "tests/core/test_decider_properties.py",
    "tests/walls/test_attacks.py",
    "tests/walls/test_finance.py",
    "tests/walls/test_later.py",
    "tests/walls/test_cluster.py",
    "tests/walls/test_first_page.py",
    "tests/tenants/test_left.py",
    "tests/walls/test_kept_out.py",
    "tests/walls/test_wire.py",
)
"""By measured time (`slowest`), and the longer ones of those that would be last. A file that is missing here runs later."""

_TOLD = 10


def long_first(items: list[pytest.Item]) -> None:
    """Sorts what was collected, in place: the `LONG` files, then the others as they came."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::")[0], len(LONG)))


def tell_slowest(terminal: pytest.TerminalReporter) -> None:
    """At the end of a run with workers: in which files its time went."""
    if terminal.config.option.dist != "no":
        told = [report for kind in terminal.stats.values() for report in kind]
        terminal.section("slowest files, seconds of all workers together")
        terminal.write("".join(slowest(report for report in told if isinstance(report, pytest.TestReport))))


def slowest(reports: Iterable[pytest.TestReport]) -> list[str]:
    """A line for each of the slowest files: how long its tests took together, and what share of all tests that is."""
    spent: Counter[str] = Counter()
    for report in reports:
        spent[report.nodeid.split("::")[0]] += report.duration
    total = sum(spent.values()) or 1.0
    return [f"{file_s:7.1f} {file_s / total:4.0%}  {file}\n" for file, file_s in spent.most_common(_TOLD)]


class FilesToWorkers(LoadFileScheduling):
    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # as they were collected, and not by the number of their tests

    def remove_node(self, node: WorkerController) -> str | None:
        units = self.assigned_work.pop(node)
        crashed = next(iter(_left(units.values())), None)
        if crashed is None:
            return None
        for scope, tests in units.items():
            if crashed in tests:
                tests[crashed] = True
            if _left([tests]):
                self.workqueue[scope] = tests
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        # A worker starts a test only when it knows the one after it, or that there is none.
        if node.shutting_down:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


def _left(units: Iterable[dict[str, bool]]) -> list[str]:
    return [test for tests in units for test, done in tests.items() if not done]
