"""Plays a scenario on a stage: its steps in order, and the expectations after each and at the end.

The stage is Baton in virtual time (`libs.cli.scenario.simulated`), or a live one on this machine
(`libs.cli.scenario.live`). Both use the client that everybody uses, so actions and questions are the same.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.cli.apply import apply_tree
from libs.cli.pool_commands import PoolRefused, say_to_pool
from libs.cli.queuesfile import QueueFile, tree_of
from libs.cli.scenario.judge import AT_THE_END, Judge, Judged
from libs.cli.scenario.schema import FOR_EVER_S, Boosted, Expected, JobSubmitted, ScenarioFile, ScenarioStep
from libs.cli.scenario.seen import ScenarioWatch
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import ClientError, Rejected, Unreachable
from libs.core.admission.priority_class import DEFAULT_CLASSES
from libs.core.state.queue_tree import QueueTree
from libs.report import collect
from libs.report.document import Step
from libs.simulation.dst.agents import TOLD_STEPS
from schemas import subjects
from schemas.inbox import BoostJob
from schemas.jobs import CheckpointPolicy, JobSpec, Launch, Simulation
from schemas.queue_status import QueuesQuery, QueuesReply
from schemas.resources import Resources, Topology, TopologyPolicy
from schemas.subjects import OPERATOR

_LOOK_S = 0.5
_TRAIN = Path(__file__).parents[3] / "examples" / "train.py"
_PRIORITIES = {one.name: one.priority for one in DEFAULT_CLASSES}
_ENDED = ("succeeded", "failed", "cancelled", "refused")


@dataclass(frozen=True, slots=True)
class ScenarioStage:
    """Where a scenario is played.

    Args:
        clients: `team`, `team.user` and `operator` -> client with that credential.
        live: time is this machine's, so expectations in seconds are skipped.
        patience_s: how long to wait for an expectation, seconds of the stage.
    """

    clients: Mapping[str, Baton]
    live: bool
    patience_s: float


@dataclass(slots=True)
class Played:
    """The result; `steps` are the expectations in order."""

    scenario: str
    steps: list[Step] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.steps) and all(step.ok for step in self.steps)


async def play(
    scenario: ScenarioFile, stage: ScenarioStage, told: Callable[[Step], None] = lambda step: None
) -> Played:
    """Plays it to its end; all its jobs are over then, whatever happened. `told` is called with each expectation's
    result at once.

    Raises ClientError when Baton does not do as it is asked.
    """
    teams = {name: job.team for name, job in scenario.jobs.items()}
    async with ScenarioWatch(stage.clients[OPERATOR], teams) as watched:
        return await _Player(scenario, stage, watched, told).play()


class _Player:
    def __init__(
        self, scenario: ScenarioFile, stage: ScenarioStage, watched: ScenarioWatch, told: Callable[[Step], None]
    ) -> None:
        self._scenario, self._stage, self._watched, self._tell = scenario, stage, watched, told
        self._operator = stage.clients[OPERATOR]
        by_team = {team: stage.clients[team] for team in scenario.given.teams}
        self._judge = Judge(watched, self._operator, by_team, {})
        self._played = Played(scenario.scenario)
        self._submitted: list[str] = []

    async def play(self) -> Played:
        try:
            await self._ready()
            await self._apply(self._scenario.given.queues)
            for number, step in enumerate(self._scenario.when, 1):
                if not await self._step(number, step):
                    return self._played
            for expected in self._scenario.expect:
                await self._expect(expected, "in the end")
        finally:
            await self._clear()
        await self._books()
        return self._played

    async def _step(self, number: int, step: ScenarioStep) -> bool:
        """Returns whether it could be done."""
        where = f"step {number}"
        if step.once is not None and not await self._expect(step.once, f"{where}, before it", aloud=False):
            return False
        try:
            await self._act(step)
        except (ClientError, PoolRefused) as e:
            self._note(f"{where} is done", "Baton does as it is asked", Judged(False, str(e)))
            return False
        for expected in step.expect:
            await self._expect(expected, where)
        return True

    async def _act(self, step: ScenarioStep) -> None:
        for job in step.submit or ():
            for name in job.names:
                await self._submit(name, job)
        for name in step.cancel or ():
            await self._cancel(name, "the scenario says so")
        if step.apply is not None:
            await self._apply(step.apply)
        if step.boost is not None:
            await self._boost(step.boost)
        if step.wait is not None:
            await asyncio.sleep(step.wait)

    async def _submit(self, name: str, job: JobSubmitted) -> None:
        who = job.team if job.user is None else f"{job.team}.{job.user}"
        try:
            await self._stage.clients[who].submit(spec_of(name, job, live=self._stage.live), name)
            self._submitted.append(name)
        except Rejected as e:
            self._watched.refused[name] = e.reasons

    async def _cancel(self, name: str, reason: str) -> None:
        team = self._scenario.jobs[name].team
        await self._stage.clients[team].cancel(self._watched.ids[name], reason)

    async def _apply(self, file: QueueFile | None) -> None:
        """Applies these queues in place of any others, as the next version."""
        reply: QueuesReply = await ask(self._operator.nats, "queues.list", self._operator.place, QueuesQuery())
        before = QueueTree(version=reply.version)
        then = tree_of(file or QueueFile(version=1, queues=()), reply.version + 1)
        await apply_tree(self._operator, before, then, "a scenario")
        self._judge.parents = {item.name: item.parent or "" for item in (file.queues if file is not None else ())}

    async def _boost(self, boost: Boosted) -> None:
        place, found = self._operator.place, self._watched.ids[boost.job]
        who = place.user or OPERATOR
        said = BoostJob(
            job_id=found, priority=_PRIORITIES[boost.to], for_s=boost.length, reason="the scenario says so", user=who
        )
        await say_to_pool(self._operator, place.pool, said, subjects.boost_job(place.pool, who), found)

    # -------------------------------------------------------------------------------------------------- what is expected

    async def _expect(self, expected: Expected, where: str, *, aloud: bool = True) -> bool:
        if expected.what == "started_within" and self._stage.live:
            return True
        answer = await self._come_to_hold(expected)
        if aloud or not answer.met:
            said = expected.model_dump(mode="json", by_alias=True, exclude_unset=True)[expected.what]
            self._note(f"{where}: {expected.what}", _short(said), answer)
        return answer.met

    async def _come_to_hold(self, expected: Expected) -> Judged:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._stage.patience_s
        while True:
            answer = await self._judge.look(expected)
            if answer.met or expected.what in AT_THE_END or loop.time() >= deadline:
                return answer
            await self._watched.news(_LOOK_S)

    def _note(self, name: str, expected: str, answer: Judged) -> None:
        step = Step(name=name, expected=expected, observed=answer.seen, ok=answer.met)
        self._played.steps.append(step)
        self._tell(step)

    # ------------------------------------------------------------------------------------------------ beginning and end

    async def _ready(self) -> None:
        """Waits until the fleet is registered and questions are answered."""
        fleet = self._scenario.given.fleet
        wanted, facts = fleet.nodes * fleet.devices, self._watched.ledger.facts
        async with asyncio.timeout(self._stage.patience_s):
            while len(facts.seats) < wanted or not await self._answered():
                await self._watched.news(_LOOK_S)

    async def _answered(self) -> bool:
        try:
            await ask(self._operator.nats, "queues.list", self._operator.place, QueuesQuery())
        except Unreachable:
            return False
        return True

    async def _clear(self) -> None:
        """Cancels what still runs or waits, and waits for its end."""
        for name in self._submitted:
            if self._watched.state(name) not in _ENDED:
                await self._cancel(name, "the scenario is over")
        async with asyncio.timeout(2 * self._stage.patience_s):
            while any(self._watched.state(name) not in _ENDED for name in self._submitted):
                await self._watched.news(_LOOK_S)

    async def _books(self) -> None:
        story = await collect(self._operator)
        audit, bill = story.audit, story.bill
        first = f"; the first: {audit.violations[0]}" if audit.violations else ""
        text = f"{audit.records} records, {audit.violations_total} violations, {audit.open_attempts} open{first}"
        self._note("the ledger is verified", "no violation", Judged(audit.ok and not audit.open_attempts, text))
        integral = {team: amount for team, amount in audit.by_team.items() if amount}
        billed = {row.key: row.milli_us for row in bill.rows if row.milli_us}
        text = f"{bill.total_milli_us} of {audit.milli_us} milli-device-microseconds"
        self._note("the bill is the ledger's integral", "of each team", Judged(billed == integral, text))


def spec_of(name: str, job: JobSubmitted, *, live: bool = False) -> JobSpec:
    """The job's spec: a timer of the scenario's duration. A job that reports progress is a program on a live agent's
    machine; in virtual time its agent reports the same."""
    resources = Resources(devices=job.devices)
    if job.within is not None:
        nearness = Topology(level=job.within, policy=TopologyPolicy.REQUIRED)
        resources = resources.model_copy(update={"topology": nearness})
    work: dict[str, Any] = {"simulation": Simulation(duration_s=FOR_EVER_S if job.run is None else job.run)}
    if job.steps is not None and job.run is not None:
        work["env"] = {TOLD_STEPS: f"{job.steps}"}
        if live:
            options = ("--steps", f"{job.steps}", "--step-s", f"{job.run / job.steps:g}")
            work = {"command": ("python", str(_TRAIN), *options), "launch": Launch.PER_NODE}
    return JobSpec(
        **work,
        name=name,
        priority_class=job.priority_class,
        resources=resources,
        checkpoint=CheckpointPolicy(grace_s=job.saves.grace, interval_s=job.saves.every) if job.saves else None,
        time_limit_s=job.limit or 0.0,
    )


def _short(said: object) -> str:
    match said:
        case dict():
            return ", ".join(f"{key} {_short(value)}" for key, value in said.items())
        case list() | tuple():
            return ", ".join(_short(one) for one in said)
        case _:
            return str(said)
