"""Random lives of nodes whose processors and memory are short: who has devices held gets what is held; explain and the dry run
say what the cycle does.

    python -m tests.core.test_kept_properties 1000 500    500 further seeds
"""

import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from libs.core.billing.pricing import Prices
from libs.core.explain.dry_run import DryRunInputs, dry_run
from libs.core.explain.reasons import Reasons
from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of, reserve_host_resources_of
from libs.core.placement.find import find
from libs.core.placement.view import View
from libs.core.scheduling import cycle
from libs.core.scheduling.limits import Tally
from libs.core.state.holds import hold_code
from libs.core.state.job import Job
from schemas import inbox
from schemas.billing import Price, PriceBook
from schemas.explanations import PlanVerdict
from schemas.jobs import JobSpec
from schemas.resources import Resources
from tests.core.builders import GIB
from tests.core.crowds import VERBS, Crowd

INPUTS = DryRunInputs(Prices(PriceBook(currency="EUR", prices=(Price(model="H100", micros_per_device_hour=1),))))
STEPS = (*VERBS, *["ask"] * 6)
SEEDS = (*range(8), 83, 93, 103)
"""Of the last each meets a fault that was mended."""


def much_of_a_node(kind: int, amount: int) -> Resources:
    kinds: list[dict[str, Any]] = [
        {"devices": 1, "cpu_milli": 2000 + 2000 * amount},
        {"devices": 1, "cpu_milli": 15_000},
        {"devices": 1, "cpu_milli": 4000},
        {"devices": 2, "cpu_milli": 1000 + 1000 * amount},
        {"devices": 4, "cpu_milli": 1000 + 1000 * amount, "min_devices": 2},
        {"devices": 6, "cpu_milli": 4000},
        {"devices": 1, "share_milli": 300, "cpu_milli": 2000 * (1 + amount % 4)},
        {"devices": 1, "host_memory_mib": (8 + 8 * amount) * GIB},
        {"devices": 1, "types": ("CPU",), "share_milli": 100 + 150 * amount},
        {"devices": 1},
        {"devices": 1, "types": ("A10",), "cpu_milli": 1000 + 2000 * amount},
        {"devices": 2, "host_memory_mib": (4 + 4 * amount) * GIB},
    ]
    return Resources(**kinds[kind % len(kinds)])


class ShortOfProcessors(Crowd):
    def _job(self, which: int, amount: int) -> inbox.JobAdmitted:
        made = super()._job(which, amount)
        spec = JobSpec.model_validate(
            {**made.spec.model_dump(), "resources": much_of_a_node(which, amount % 7), "priority_class": "batch"}
        )
        return made.model_copy(update={"spec": spec})

    def ask(self, which: int, amount: int) -> None:
        """A dry run of a job that is submitted then."""
        told_of_promises = any(event.kind == "gang.promised" for event in self.world.send(inbox.Tick()))
        decider, now_us = self.world.decider, self.world.now_us
        asked = self._job(which, amount).model_copy(update={"priority": 0, "preempts": False, "submitted_us": now_us})
        unsettled = not decider.plan.complete or cycle.plan(self.state, now_us, self._policy).grants
        if told_of_promises or unsettled or decider.turns.rules.by_number(asked.team):
            return
        told = dry_run(self.state, asked.spec, asked.team, now_us, replace(INPUTS, policy=self._policy))
        self.send(asked, after_us=1)
        if told.verdict is not PlanVerdict.REFUSED:
            now = self.state.jobs[asked.job_id].current is not None
            assert now is (told.verdict is PlanVerdict.NOW), (told.text, asked.spec.resources)

    def check_who_holds(self) -> None:
        for job_id in self.state.holds:
            job = self.state.jobs[job_id]
            if self.world.decider.plan.complete and self._has_all(job):
                grants = cycle.plan(self.state, self.world.now_us, self._policy).grants
                assert job_id in [grant.job.id for grant in grants], "others stopped for what is free, and not for it"

    def _has_all(self, job: Job) -> bool:
        """Whether it fits on what is held for it."""
        state, view = self.state, View.of(self.state.fleet)
        for other in state.holds:
            if other != job.id:
                reserve_host_resources_of(state, view, other)
        view.blocked[:] = True
        view.blocked[[state.fleet.row(device) for device in state.holds[job.id]]] = False
        request, context = Tally(state).room(job).request, context_of(state, job, self.world.now_us)
        return request is not None and isinstance(find(view, request, hold_code(state, job.id), context), Placed)

    def check_reasons(self) -> None:
        """Each queue has a reason exactly if a cycle grants nothing of it."""
        plan = cycle.plan(self.state, self.world.now_us, self._policy)
        reasons = Reasons(self.state, self._policy, self.world.now_us)
        if plan.complete and not plan.grants:
            for key in self.state.queues:
                assert (reasons.of(key) is None) == (key not in plan.waiting), key


@pytest.mark.parametrize("seed", SEEDS)
def test_all_say_and_do_the_same_where_processors_are_short(seed: int) -> None:
    chance = Random(seed)
    crowd = ShortOfProcessors(capped=chance.random() < 0.2)
    crowd.send(inbox.ApplyQueues(version=1, queues=(), order=chance.choice((None, None, "shortest-remaining"))))
    for number in range(120):
        crowd.play((chance.choice(STEPS), chance.randrange(60), chance.randrange(7)))
        crowd.check_who_holds()
        if number % 4 == 0:
            crowd.check_reasons()
    assert crowd.world.decider.faults == []
    crowd.world.check()


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    for one in range(first, first + count):
        try:
            test_all_say_and_do_the_same_where_processors_are_short(one)
        except Exception as error:
            print(f"seed {one}: {type(error).__name__} {str(error)[:300]}")
