"""A test that kills its worker is one failed test.

pytest-xdist 3.8 hands a crashed worker's files to the one that replaces it, those that were done first: a file without a
test to run never asks for the next, and the run waits for ever. The test that crashed would be run again, too.
"""

from collections.abc import Iterable

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FilesToWorkers(LoadFileScheduling):
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
