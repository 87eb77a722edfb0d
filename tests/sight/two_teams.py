"""A ledger of two teams, for what one of them is told of the other.

What blue does is always the same, to the microsecond. What red does is said by `few`: with few jobs or with many, but always
on the same devices, so that what is free for blue is the same as well. All that is red's own has a name with `SECRET` in it.
"""

from dataclasses import dataclass, field
from typing import Any

from libs.core.scheduling import preemption
from schemas import inbox
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget
from schemas.ids import job_id
from schemas.jobs import CheckpointPolicy, JobSpec, StepProgress
from schemas.resources import Inventory, Resources, Topology
from tests.core.builders import World, node

SECRET = "zzsecret"


@dataclass
class TwoTeams:
    """`world` holds the ledger; `blue` and `red` have the jobs' ids by what they are for."""

    blue_team: str
    red_team: str
    few: bool
    world: World = field(init=False)
    blue: dict[str, str] = field(default_factory=dict)
    red: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(_node("a", 4, "H100"), _node("b", 2, "H100"), _node("d", 2, "H100"), _node("c", 2, "L40S"))
        self.world.send(inbox.QuotaChanged(team=self.red_team, limit_milli=60_000 if self.few else 70_000))
        self.world.send(inbox.QuotaChanged(team=self.blue_team, limit_milli=12_000))
        reds = SpendingBudget(
            team=self.red_team, unit=BudgetUnit.GPU_HOURS, period=BudgetPeriod.MONTH, hard=10**12 + self.few
        )
        self.world.send(inbox.ApplyBudgets(budgets=BudgetSet(version=1, budgets=(reds,))))
        self._red_begins()
        self._blue_lives()
        self._others()
        self.world.check()

    def job(self, team: str, name: str, devices: int, **more: Any) -> inbox.JobAdmitted:
        """`more`: fields of the admission; `node`: the only one that it may run on."""
        where = more.pop("node", "")
        model = more.pop("model", "H100")
        secret = f"{SECRET}-" if team == self.red_team else ""
        spec = JobSpec(
            name=f"{secret}{name}",
            command=(f"{secret}run",),
            env={"TOKEN": f"{secret}value"},
            resources=Resources(
                devices=devices, types=(model,), labels={"at": where} if where else {}, topology=Topology()
            ),
            checkpoint=CheckpointPolicy(),
            time_limit_s=more.pop("time_limit_s", 600),
        )
        how = {"priority": 100, "submitted_us": self.world.now_us + 1} | more
        made = inbox.JobAdmitted(
            job_id=job_id(team, f"{secret}{name}"), team=team, spec=spec, spec_hash=f"of {name}",
            client_key=f"{secret}{name}", user=f"{secret}ana", **how,
        )  # fmt: skip
        (self.red if team == self.red_team else self.blue)[name] = made.job_id
        return made

    def _several(self, name: str, devices: int, **more: Any) -> list[inbox.JobAdmitted]:
        """Red's: one job, or one for each device."""
        if self.few:
            return [self.job(self.red_team, f"{name}-0", devices, **more)]
        return [self.job(self.red_team, f"{name}-{i}", 1, **more) for i in range(devices)]

    def _red_begins(self) -> None:
        """It holds all of node a in a high class, all of c in a low one, and more of it waits for both."""
        holders = [*self._several("high", 4, node="a", priority=300), *self._several("low", 2, node="c", model="L40S")]
        self.world.send(*holders)
        self.world.send(
            *self._several("waits", 4, node="a", priority=300), *self._several("more", 2, node="c", model="L40S")
        )
        running = [self.world.decider.state.jobs[one.job_id] for one in holders]
        assert all(one.current is not None for one in running), "red did not get what it asked for"
        for where in ("a", "c"):
            parts = [one for one in running if one.current is not None and where in one.current.parts]
            started = [inbox.Started(job_id=one.id, attempt=1) for one in parts]
            self.world.observe(where, *started)

    def _blue_lives(self) -> None:
        """One of each end, and every event that a job may have."""
        world, team = self.world, self.blue_team
        gang = world.submit(self.job(team, "gang", 4))
        assert set(world.nodes_of(gang)) == {"b", "d"}
        world.started(gang)
        world.checkpointed(gang, 7)
        for for_s in (60, 0):
            world.send(
                inbox.BoostJob(job_id=gang, priority=150, for_s=for_s, reason="a deadline", user=f"{SECRET}-olga")
            )
        urgent = self.job(self.red_team, "urgent", 4, priority=300, preempts=True)
        world.submit(urgent)
        (plan,) = preemption.plans(world.decider.state, world.now_us, len(world.records))
        world.send(plan)
        world.released(gang, own_exit=False)
        world.started(urgent.job_id)
        world.released(urgent.job_id)
        world.started(gang)
        world.released(gang)
        failing = world.submit(self.job(team, "fails", 1, node="b"))
        world.started(failing)
        world.released(failing, exit_code=3)
        unwanted = world.submit(self.job(team, "unwanted", 1, node="b"))
        world.started(unwanted)
        world.send(inbox.CancelRequested(job_id=unwanted, team=team, reason="not needed", user="ana"))
        world.released(unwanted, own_exit=False)
        other_body = self.job(team, "fails", 1).model_copy(update={"spec_hash": "another"})
        world.send(other_body)
        runs = world.submit(self.job(team, "runs", 1, node="b"))
        world.started(runs)
        far = inbox.ProgressSeen(job_id=runs, attempt=1, progress=StepProgress(step=3, steps=10))
        world.send(inbox.NodeObserved(node="b", incarnation=1, observations=(), progress=(far,)))
        world.submit(self.job(team, "waits-for-a", 2, node="a"))
        world.submit(self.job(team, "waits-for-many", 12))

    def _others(self) -> None:
        """What goes wrong for red, and what blue tries on red's jobs."""
        world = self.world
        doomed = [self.job(self.red_team, f"doomed-{i}", 1, node="d") for i in range(1 if self.few else 2)]
        world.send(*doomed)
        world.observe("d", *(inbox.Started(job_id=one.job_id, attempt=1) for one in doomed))
        ends = [
            inbox.Released(job_id=one.job_id, attempt=1, exit_code=9, own_exit=True, reason=SECRET) for one in doomed
        ]
        world.observe("d", *ends)
        unwanted = [one for name, one in self.red.items() if name.startswith("more")]
        team = self.red_team
        cancels = [inbox.CancelRequested(job_id=one, team=team, reason=SECRET, user=SECRET) for one in unwanted]
        world.send(*cancels)
        world.send(self.job(self.red_team, "doomed-0", 1).model_copy(update={"spec_hash": SECRET}))
        busy = inbox.BusyDevice(device="c-gpu0", users=f"{SECRET} (pid {7 if self.few else 77})", since_us=5)
        world.send(inbox.NodeQuarantine(node="c", incarnation=1, devices=(busy,)))
        world.send(inbox.SuspendTeam(team=self.red_team, reason=SECRET, user=SECRET))
        for target in (self.red["high-0"], job_id(self.red_team, "nothing")):
            world.send(inbox.CancelRequested(job_id=target, team=self.blue_team, reason="to harm", user="ana"))
        assert world.state_of(self.red["high-0"]) == "running"


def _node(name: str, devices: int, model: str) -> Inventory:
    return node(name, devices, model=model).model_copy(update={"labels": {"at": name}})
