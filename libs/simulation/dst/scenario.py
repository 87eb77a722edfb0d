"""One seed: a small pool, a dozen jobs, half a minute of faults, then peace; in the end everything must be right.

The seed decides the size of the pool, the jobs, how many of each service there are, how long leases last, how often state is
saved, whether an older version reads along, and which faults happen when.
"""

import asyncio
import random
from dataclasses import dataclass, field

from libs.simulation.dst.agents import TOLD_STEPS
from libs.simulation.dst.operators import OperatorStory, draw_stories, top_ups
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget, WhenSpent
from schemas.ids import job_id
from schemas.inbox import ApplyBudgets, ApplyQueues
from schemas.jobs import CheckpointPolicy, JobSpec, RetryPolicy, SecretUse, Simulation
from schemas.queues import Queue
from schemas.resources import Resources

POOL = "main"
TEAMS = ("blue", "green")
DEVICES = 4
ASKED_S = 17.0
"""Until then teams ask for jobs."""
SECRETS = {"token": True, "gone": True, "never": False}
"""What jobs name, and whether teams set it. `gone` is removed again."""
KEPT = "kept"
"""The class whose work no silence ends."""
TWICE = ("preemption", "quota_billing", "telemetry", "queries", "history")
"""Services of which a seed may draw two, besides those of which it draws how many."""
_RETRY = RetryPolicy(on_lost=20, on_failure=0)


@dataclass(slots=True)
class Asked:
    """A job that a team asked for; `done` once the broker has acknowledged the request."""

    team: str
    key: str
    spec: JobSpec
    at: float
    cancel_at: float | None = None
    twin_at: float | None = None
    """When the same key is sent with another body."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False

    @property
    def stored(self) -> bool:
        return self.done.is_set()

    @property
    def id(self) -> str:
        return job_id(self.team, self.key)


@dataclass(slots=True)
class Scenario:
    """What a seed draws.

    Args:
        doubled: one more service of which there are two; "" none.
        leases: which of `LEASES`.
        saves: records between two snapshots of a reader.
        boards: nodes that have a MIG board besides their devices.
        older_until: a reader of an older version reads the ledger until then, s; 0: none.
        theme: what the seed dwells on (libs.simulation.dst.themes).
        two_minds: the second admission refuses what the first lets in.
        vaults: processes of vault; 0: no secrets.
        archivists: operators who archive the ledger.
        trees: what an operator applies as the pool's queues, and when, s.
        budgets: what an operator applies as its budgets, one after the other: the last has no end.
        stories: what operators say besides.
    """

    nodes: int
    placements: int
    admissions: int
    doubled: str = ""
    leases: str = "short"
    saves: int = 5000
    boards: int = 0
    older_until: float = 0.0
    theme: str = ""
    two_minds: bool = False
    vaults: int = 0
    archivists: int = 0
    trees: list[tuple[float, ApplyQueues]] = field(default_factory=list)
    budgets: list[tuple[float, ApplyBudgets]] = field(default_factory=list)
    stories: list[OperatorStory] = field(default_factory=list)
    jobs: list[Asked] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LeaseLengths:
    """Of a node, of the class `serving`, and of all other work, s."""

    node_s: float
    serving_s: float
    other_s: float
    term_s: float


LEASES = {
    "short": LeaseLengths(3, 2, 3, 3),
    "long": LeaseLengths(12, 5, 12, 5),
    "unequal": LeaseLengths(6, 5, 60, 4),
}
"""Silences of less than five seconds end no lease by themselves; a class may say more than its nodes get."""


def draw(chance: random.Random) -> Scenario:
    scenario = Scenario(
        nodes=chance.randint(1, 3),
        placements=2 if chance.random() < 0.5 else 1,
        admissions=2 if chance.random() < 0.4 else 1,
        doubled=chance.choice(TWICE) if chance.random() < 0.3 else "",
        leases=chance.choices(tuple(LEASES), (6, 3, 1))[0],
        saves=chance.choice((8, 20, 5000)),
    )
    if chance.random() < 0.15:
        scenario.boards = chance.randint(1, scenario.nodes)
    if chance.random() < 0.04:
        scenario.vaults = 1
    if chance.random() < 0.04:
        scenario.archivists, scenario.saves = 1, 8
    if chance.random() < 0.1:
        scenario.older_until = chance.uniform(2.0, 12.0)
    for number in range(chance.randint(5, 12)):
        spec = _spec(chance, scenario)
        asked = Asked(chance.choice(TEAMS), f"job-{number}", spec, at=chance.uniform(0.5, ASKED_S))
        if chance.random() < 0.15:
            asked.cancel_at = asked.at + chance.uniform(0.0, chance.choice((0.01, 6.0)))
        scenario.jobs.append(asked)
    if scenario.vaults:
        name_secrets(scenario, chance, 0.5)
    own = random.Random(repr([job.at for job in scenario.jobs]))  # what other seeds mean stays as it is
    if own.random() < 0.25:
        scenario.trees = [
            (own.uniform(first, first + 7), _tree(own, version)) for version, first in ((1, 1.0), (2, 9.0))
        ]
    other = random.Random(repr(("budgets", [job.at for job in scenario.jobs])))
    if other.random() < 0.2:
        _give_budgets(scenario, other)
    kept = random.Random(repr(("kept", [job.at for job in scenario.jobs])))
    for job in scenario.jobs if kept.random() < 0.1 else ():
        if kept.random() < 0.4 and job.spec.priority_class == "experiment":
            job.spec = job.spec.model_copy(update={"priority_class": KEPT})
    if random.Random(repr(("operators", [job.at for job in scenario.jobs]))).random() < 0.15:
        let_operators_speak(scenario)
    return scenario


def _give_budgets(scenario: Scenario, chance: random.Random) -> None:
    first = chance.uniform(0.5, 6.0)
    scenario.budgets = [(first, _budgets(chance, 1)), (max(20.0, first + 10), _budgets(chance, 2))]


def let_operators_speak(scenario: Scenario, *, budgets: float = 0.0) -> None:
    """Operators say something of jobs and teams; so often there are budgets to be topped up as well."""
    chance = random.Random(repr(("stories", [job.at for job in scenario.jobs])))
    asked = [(job.team, job.key, job.at) for job in scenario.jobs]
    scenario.stories = draw_stories(chance, POOL, asked, TEAMS, DEVICES * scenario.nodes)
    if not scenario.budgets and chance.random() < budgets:
        _give_budgets(scenario, chance)
    for _, applied in scenario.budgets[:1]:
        keys = [budget.key for budget in applied.budgets.budgets]
        scenario.stories += top_ups(chance, POOL, keys, 1_000_000 // 3600)


def _budgets(chance: random.Random, version: int) -> ApplyBudgets:
    """Of each team some GPU-seconds, or in the end as many as it can use, so that no budget holds its jobs back for ever."""
    second = 1_000_000 // 3600
    about = tuple(
        SpendingBudget(
            team=team,
            unit=BudgetUnit.GPU_HOURS,
            period=chance.choice(tuple(BudgetPeriod)),
            soft=5 * second,
            hard=chance.choice((15, 25, 60)) * second if version == 1 else None,
            when_spent=chance.choice(tuple(WhenSpent)),
        )
        for team in TEAMS
    )
    return ApplyBudgets(budgets=BudgetSet(version=version, renewal_s=2, budgets=about), user="op")


def _tree(chance: random.Random, version: int) -> ApplyQueues:
    """Guarantees of up to half the pool, of which nobody may hold the teams' jobs back for ever."""
    queues = tuple(
        Queue(
            name=team,
            guaranteed={"*": 1000 * guaranteed} if (guaranteed := chance.randint(0, DEVICES)) else {},
            weight_milli=chance.choice((500, 1000, 3000)),
            order=chance.choice((None, None, "fifo", "least-attained", "shortest-remaining")),
        )
        for team in TEAMS
    )
    return ApplyQueues(version=version, queues=queues, half_life_s=chance.choice((None, 60)), user="op")


def name_secrets(scenario: Scenario, chance: random.Random, share: float) -> None:
    """So many of the jobs need a secret."""
    for job in scenario.jobs:
        if chance.random() < share:
            names = chance.choices(tuple(SECRETS), (8, 2, 1), k=1 if chance.random() < 0.7 else 2)
            uses = tuple(SecretUse(secret=name) for name in sorted({*names}))
            job.spec = job.spec.model_copy(update={"secrets": uses})


def _spec(chance: random.Random, scenario: Scenario) -> JobSpec:
    nodes = scenario.nodes
    draw = chance.random()
    devices, share, klass, code, limit = 1, 1000, "experiment", 0, 0.0
    types, profile = ("V100",), ""
    saves = chance.random() < 0.5
    if scenario.boards and draw < 0.4:
        types, profile = ("H100",), chance.choice(("1g.10gb", "3g.40gb", "7g.80gb"))
    elif draw < 0.2:
        share = chance.choice((250, 500))
    elif draw < 0.55:
        devices = chance.randint(1, DEVICES)
    elif draw < 0.75:
        devices = chance.randint(1, DEVICES * nodes)
        klass = chance.choice(("experiment", "production"))
    elif draw < 0.85:
        devices, klass, saves = chance.randint(1, DEVICES), "serving", False
    elif draw < 0.9:
        code = 3
    elif draw < 0.95:
        limit = 2.0
    seconds = 100.0 if limit else round(chance.uniform(0.3, 8.0), 3)
    return JobSpec(
        name=f"sim-{devices}",
        priority_class=klass,
        resources=Resources(devices=devices, types=types, share_milli=share, mig_profile=profile),
        simulation=Simulation(duration_s=seconds, exit_code=code),
        checkpoint=CheckpointPolicy(grace_s=2.0, interval_s=1.5) if saves else None,
        time_limit_s=limit,
        env={TOLD_STEPS: str(max(1, round(seconds * 10)))} if saves else {},
        retry=_RETRY.model_copy(update={"on_failure": round(seconds * 1000) % 4}) if code else _RETRY,
    )
