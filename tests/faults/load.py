"""A few hundred jobs of many shapes, each with the end that it must come to whatever is killed meanwhile."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from libs.client import Baton, Submitted
from schemas.ids import job_id
from schemas.jobs import CheckpointPolicy, JobSpec, JobState, RetryPolicy, Simulation
from schemas.resources import Resources
from tests.faults.cluster import DEVICES, TEAMS

RETRY = RetryPolicy(on_lost=20, on_failure=0)
"""More losses than any test causes: then every job still comes to the end that is its own."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A job, and how it must end."""

    team: str
    key: str
    spec: JobSpec
    end: JobState = JobState.SUCCEEDED

    @property
    def job_id(self) -> str:
        return job_id(self.team, self.key)


def mixed(name: str, count: int) -> list[Planned]:
    """`count` jobs in an order that only `name` decides."""
    chance = random.Random(name)
    out = []
    for number in range(count):
        spec, end = _one(chance, number)
        out.append(Planned(chance.choice(TEAMS), f"{name}-{number}", spec, end))
    return out


def crowd(name: str, seconds: float = 3.0) -> list[Planned]:
    """Low gangs that fill the fleet for so long, and last a serving gang that needs a quarter of it at once."""
    low = [_timer(8, seconds, "experiment", saves=True) for _ in range(DEVICES // 8)]
    high = _timer(16, 0.3, "serving")
    return [Planned(TEAMS[0], f"{name}-low-{i}", spec) for i, spec in enumerate(low)] + [
        Planned(TEAMS[1], f"{name}-high", high)
    ]


async def submit(clients: dict[str, Baton], jobs: Sequence[Planned], give_up_s: float = 120) -> list[Submitted]:
    """Stores the requests of every team in order; admission's answers are not waited for."""
    done: list[Submitted] = []
    for team in TEAMS:
        done += await clients[team].submit_many([(j.key, j.spec) for j in jobs if j.team == team], give_up_s=give_up_s)
    return done


async def cancel(clients: dict[str, Baton], jobs: Sequence[Planned]) -> None:
    """Their teams no longer want them."""
    for job in jobs:
        await clients[job.team].cancel(job.job_id)


def _one(chance: random.Random, number: int) -> tuple[JobSpec, JobState]:
    draw = chance.random()
    seconds = chance.uniform(0.1, 0.8)
    if number % 40 == 7:
        return _timer(DEVICES + 1, seconds), JobState.REJECTED
    if number % 40 == 17:
        return _timer(1, seconds, exit_code=3), JobState.FAILED
    if number % 40 == 27:
        return _timer(1, 3600).model_copy(update={"time_limit_s": 0.5}), JobState.FAILED
    if number % 10 == 3:
        return _process(chance), JobState.SUCCEEDED
    if draw < 0.5:
        return _timer(1, seconds), JobState.SUCCEEDED
    if draw < 0.65:
        return _timer(1, seconds, share=chance.choice((125, 250, 500))), JobState.SUCCEEDED
    if draw < 0.95:
        klass = chance.choice(("experiment", "experiment", "production"))
        return _timer(chance.choice((2, 4, 8, 16)), seconds, klass, saves=chance.random() < 0.5), JobState.SUCCEEDED
    return _timer(8, 0.2, "serving"), JobState.SUCCEEDED


def _timer(
    devices: int,
    seconds: float,
    klass: str = "experiment",
    *,
    share: int = 1000,
    saves: bool = False,
    exit_code: int = 0,
) -> JobSpec:
    return JobSpec(
        name=f"timer-{devices}",
        priority_class=klass,
        resources=Resources(devices=devices, types=("V100",), share_milli=share),
        simulation=Simulation(duration_s=seconds, exit_code=exit_code),
        checkpoint=CheckpointPolicy(grace_s=5.0, interval_s=1.0) if saves else None,
        retry=RETRY,
    )


def _process(chance: random.Random) -> JobSpec:
    """A real process, on this machine's processors or on a simulated device; it leaves a child behind on purpose."""
    on_cpu = chance.random() < 0.7
    script = "sleep 300 & exec sleep 0.3"
    return JobSpec(
        name="process",
        command=("sh", "-c", script),
        resources=Resources(types=("CPU",) if on_cpu else ("V100",), share_milli=50),
        retry=RETRY,
    )
