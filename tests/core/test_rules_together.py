"""Random lives of small pools in which rules meet: boards that are cut, gangs that keep devices, jobs that give way, boosts,
clocks that are set, queues that are applied anew, restarts. The checker finds nothing; whoever only reads, or goes on from a
snapshot, has what the writer has; nothing fails; and a dry run says what becomes of the job.

    python -m tests.core.test_rules_together 1000 500    500 further seeds
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from libs.core.admission.priority_class import DEFAULT_CLASSES
from libs.core.billing.pricing import Prices
from libs.core.explain.dry_run import DryRunInputs, dry_run
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.scheduling import preemption
from libs.core.scheduling.decider import Decider
from libs.core.scheduling.precedence.exchange import exchanges
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas import inbox
from schemas.billing import Price, PriceBook
from schemas.explanations import PlanVerdict
from schemas.jobs import JobState, RetryPolicy
from schemas.ledger import BoardRecut
from schemas.queues import BoostBudget, JobPreemptionRate, PoolPreemptionRate, PreemptionLimits, Queue, QueueOrder
from schemas.resources import Device, DeviceKind, Inventory, Position, Resources
from tests.core.builders import GIB, World, job
from tests.core.test_repartition import ONE, ONES, SEVEN, THREE, cut

S = 1_000_000
STEPS = 150
SEEDS = (*range(20), 47, 88, 101)
"""Of the last each meets a fault that was mended."""
TEAMS = ("red", "blue", "green")
ORDERS: tuple[QueueOrder | None, ...] = (None, "fifo", "fair-share", "least-attained", "shortest-remaining")
INPUTS = DryRunInputs(Prices(PriceBook(currency="EUR", prices=(Price(model="H100", micros_per_device_hour=1),))))


class Life:
    """One pool, and what a seed does to it, step by step."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.world = World(*(self._machine(f"n{n}") for n in range(self.chance.randint(1, 3))))
        self.world.send(after_us=6 * 3600 * S)
        self.jobs = self.version = 0

    def live(self, steps: int) -> None:
        does: dict[Callable[[], None], int] = {
            self._submit: 14, self._time_passes: 16, self._start: 12, self._end: 9, self._give_way: 20, self._cut: 7,
            self._cancel: 5, self._boost: 5, self._apply_queues: 1, self._set_clock: 4, self._node: 3, self._restart: 2,
            self._suspend: 1, self._ask: 5,
        }  # fmt: skip
        for does_it in self.chance.choices(list(does), list(does.values()), k=steps):
            does_it()
        self.world.check()

    @property
    def state(self) -> State:
        return self.world.decider.state

    def _send(self, *messages: Any, after_us: int = 1000) -> list[Any]:
        events = self.world.send(*messages, after_us=after_us)
        assert self.world.decider.faults == []
        return events

    def _machine(self, name: str) -> Inventory:
        layouts = (ONES, ((SEVEN, 0),), ((THREE, 0), (THREE, 4)))
        boards = cut(name, {f"{name}-b{n}": self.chance.choice(layouts) for n in range(self.chance.randint(0, 2))})
        first = len(boards.devices)
        whole = (
            Device(id=f"{name}-gpu{n}", index=first + n, model="H100", memory_mib=80 * GIB)
            for n in range(self.chance.randint(1, 4))
        )
        more = {"cpus": 16, "memory_mib": 64 * GIB, "position": Position(leaf=f"leaf-{self.chance.randint(0, 1)}")}
        return boards.model_copy(update={"devices": (*boards.devices, *whole), **more})

    def _asks(self) -> Resources:
        chance = self.chance
        return chance.choice(
            (
                Resources(share_milli=chance.choice((1, 10, 333, 500, 999))),
                Resources(devices=1, cpu_milli=chance.choice((0, 4000))),
                Resources(devices=chance.randint(2, 4), min_devices=chance.choice((None, 1, 2))),
                Resources(devices=chance.randint(4, 9)),
                Resources(devices=chance.choice((1, 1, 2)), mig_profile=chance.choice((ONE, THREE, THREE, SEVEN))),
            )
        )

    def _new(self, team: str, priority: int, preempts: bool, **said: Any) -> inbox.JobAdmitted:
        self.jobs += 1
        limit_s = self.chance.choice((0, 0, 1e-7, 10, 60, 100, 3600))
        retry = RetryPolicy(on_lost=self.chance.choice((0, 2)), on_failure=self.chance.choice((0, 1)))
        made = job(
            f"j{self.jobs}", team=team, priority=priority, preempts=preempts, retry=retry, time_limit_s=limit_s,
            submitted_us=self.world.wall_us,
        )  # fmt: skip
        said = {"resources": self._asks(), **said}
        return made.model_copy(update={"spec": made.spec.model_copy(update=said)})

    def _submit(self) -> None:
        for _ in range(self.chance.choice((1, 1, 4))):
            priority, preempts = self.chance.choice(((100, False), (100, False), (200, True), (300, True)))
            self._send(self._new(self.chance.choice(TEAMS), priority, preempts))

    def _time_passes(self) -> None:
        self._send(inbox.Tick(), after_us=int(self.chance.choice((0.001, 1, 11, 31, 70, 300, 1200)) * S))

    def _start(self) -> None:
        for one in self._those_that(lambda it: it.state in (JobState.GRANTED, JobState.STARTING)):
            self.world.started(one.id)

    def _end(self) -> None:
        for one in self._some(self._those_that(lambda it: it.current is not None)):
            assert one.current is not None
            own = one.state is JobState.RUNNING and self.chance.random() < 0.6
            code = self.chance.choice((0, 0, 1)) if own else 143
            self.world.released(
                one.id, exit_code=code, own_exit=own, nodes=[n for n, p in one.current.parts.items() if not p.freed]
            )

    def _give_way(self) -> None:
        """By plans of this moment, of which the first one holds, but where a boost ends before it is looked at."""
        world, policy = self.world, self.world.decider.policy
        plans = preemption.plans(self.state, world.now_us, len(world.records), policy=policy)
        others = exchanges(self.state, world.decider.turns, world.now_us, len(world.records))
        told = self._send(*plans, *others) if plans or others else []
        declined = [event.plan_id for event in told if event.kind == "plan.declined"]
        as_planned = all(event.kind != "job.boost-ended" for event in told)
        assert not (plans and as_planned) or plans[0].plan_id not in declined

    def _cut(self) -> None:
        for asked in list(self.state.repartitions.values()):
            ok = self.chance.random() < 0.85
            inventory = self._after(asked) if ok else self.state.fleet.nodes[asked.node].inventory
            self._send(
                inbox.BoardCut(
                    node=asked.node, incarnation=asked.incarnation, board=asked.recut.board, number=asked.recut.number, ok=ok,
                    inventory=inventory,
                )
            )  # fmt: skip

    def _after(self, asked: BoardRecut) -> Inventory:
        """What the node offers then. Sometimes it says that an instance of another board is on this one."""
        known, board = self.state.fleet.nodes[asked.node].inventory, asked.recut.board
        profiles = {p.name: p for one in known.boards for p in one.profiles}
        stays = [device for device in known.devices if device.id not in asked.recut.destroy]
        new = [
            Device(
                id=f"{board}-{place.profile}-{place.start}-{asked.recut.number}", index=0, kind=DeviceKind.MIG, model="H100",
                memory_mib=profiles[place.profile].memory_mib, mig_profile=place.profile, mig_start=place.start, parent=board,
            )
            for place in asked.recut.create
        ]  # fmt: skip
        others = [device for device in stays if device.parent not in ("", board)]
        if others and self.chance.random() < 0.4:
            stays.remove(moved := self.chance.choice(others))
            new.append(moved.model_copy(update={"parent": board}))
        devices = (device.model_copy(update={"index": n}) for n, device in enumerate((*stays, *new)))
        return known.model_copy(update={"devices": tuple(devices)})

    def _cancel(self) -> None:
        for one in self._some(list(self.state.jobs.values())):
            self._send(inbox.CancelRequested(job_id=one.id, team=one.team, reason="not needed"))

    def _boost(self) -> None:
        for one in self._some(list(self.state.jobs.values()))[:1]:
            for_s = self.chance.choice((0, 1e-7, 1, 60, 600))
            self._send(inbox.BoostJob(job_id=one.id, priority=250, for_s=for_s, reason="a deadline", user="olga"))

    def _apply_queues(self) -> None:
        chance, self.version = self.chance, self.version + 1
        queues = [
            Queue(
                name=team, order=chance.choice(ORDERS), min_run_s=chance.choice((None, 0, 30)),
                guaranteed=chance.choice(({}, {"*": 1000})), limit=chance.choice(({}, {"*": 4000})),
                boosts=chance.choice((None, BoostBudget(most=chance.randint(0, 2), within_s=60, longest_s=600))),
            )
            for team in TEAMS if chance.random() < 0.8
        ]  # fmt: skip
        limits = PreemptionLimits(
            per_job=JobPreemptionRate(most=chance.randint(1, 3), within_s=chance.choice((1, 60, 600))),
            per_pool=PoolPreemptionRate(most=chance.choice((1, 2, 3, 20)), within_s=chance.choice((1, 60, 3600))),
            reclaim_grace_s=chance.choice((0, 30)), share_grace_s=chance.choice((None, 10, "never")),
        )  # fmt: skip
        said: dict[str, Any] = {
            "order": chance.choice(ORDERS),
            "half_life_s": chance.choice((None, 60)),
            "preemption": limits,
        }
        self._send(inbox.ApplyQueues(version=self.version, queues=tuple(queues), user="olga", **said))

    def _set_clock(self) -> None:
        self.world.set_clock(self.chance.choice((-3600, -60, 60, 3600, 86_400)) * S)

    def _node(self) -> None:
        name, known = self.chance.choice(list(self.state.fleet.nodes.items()))
        if known.up and self.chance.random() < 0.5:
            self._send(inbox.NodeLost(node=name, incarnation=known.incarnation, silent_s=31))
        else:
            next_life = known.incarnation + 1
            self._send(inbox.NodeRegistered(incarnation=next_life, inventory=known.inventory, lease_s=10))

    def _restart(self) -> None:
        self.world.decider = Decider.load(self.world.decider.dump())

    def _suspend(self) -> None:
        team = self.chance.choice(TEAMS)
        if team in self.state.suspended:
            self._send(inbox.ResumeTeam(team=team, reason="paid", user="olga"))
        else:
            self._send(inbox.SuspendTeam(team=team, reason="unpaid", stop=self.chance.random() < 0.5, user="olga"))

    def _ask(self) -> None:
        """A dry run of a job that is submitted then. Where a team's jobs come by numbers it is an estimate; and a promise may
        let in who waits, with the next decision."""
        if any(event.kind == "gang.promised" for event in self._send(inbox.Tick())):
            return
        of_class, team, decider = self.chance.choice(DEFAULT_CLASSES), self.chance.choice(TEAMS), self.world.decider
        asked = self._new(team, of_class.priority, of_class.preempts, priority_class=of_class.name, checkpoint=None)
        complete, inputs = decider.plan.complete, replace(INPUTS, policy=decider.policy)
        told = dry_run(self.state, asked.spec, team, self.world.now_us, inputs)
        if told.verdict is PlanVerdict.REFUSED:
            return
        self._send(asked.model_copy(update={"latency": of_class.latency}), after_us=1)
        known = self.state.jobs.get(asked.job_id)
        if known is None or not complete or decider.turns.rules.by_number(team):
            return
        assert (known.current is not None) is (told.verdict is PlanVerdict.NOW), told.text
        assert explain(self.state, known, Reasons(self.state, decider.policy)).reason != "next"

    def _those_that(self, hold: Callable[[Job], bool]) -> list[Job]:
        return [one for one in self.state.jobs.values() if hold(one)]

    def _some(self, those: list[Job]) -> list[Job]:
        return self.chance.sample(those, min(len(those), self.chance.choice((1, 2, 6))))


@pytest.mark.parametrize("seed", SEEDS)
def test_rules_that_meet_agree(seed: int) -> None:
    Life(seed).live(STEPS)


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    for number in range(first, first + count):
        try:
            Life(number).live(STEPS)
        except Exception as error:
            print(f"seed {number}: {type(error).__name__} {error}")
