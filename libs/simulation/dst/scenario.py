"""One seed: a small pool, a dozen jobs, half a minute of faults, then peace; in the end everything must be right.

The seed decides the size of the pool, the jobs, how many of each service there are, how long leases last, how often state is
saved, whether an older version reads along, and which faults happen when.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from nats.errors import Error as NatsError

from libs.adapters.devices.fleet import parse_fleet
from libs.bus.connect import connect
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import NotStored, Outbox
from libs.core.admission.evaluate import DEFAULT_CLASSES, PriorityClass
from libs.simulation.dst.agents import TOLD_STEPS, AgentService
from libs.simulation.dst.archives import Archivist, SimArchive
from libs.simulation.dst.machine import KILL_BOUND_S, Machine
from libs.simulation.dst.older import OlderReader
from libs.simulation.dst.operators import OperatorStory, draw_stories, top_ups
from libs.simulation.dst.process import Process
from libs.simulation.dst.secrecy import key_file
from libs.simulation.dst.telling import tell_secrets
from libs.simulation.dst.world import World
from schemas import subjects
from schemas.budgets import BudgetPeriod, BudgetSet, BudgetUnit, SpendingBudget, WhenSpent
from schemas.catalog import TYPE_OF
from schemas.ids import job_id
from schemas.inbox import ApplyBudgets, ApplyQueues
from schemas.jobs import CancelJob, CheckpointPolicy, JobSpec, RetryPolicy, SecretUse, Simulation, SubmitJob
from schemas.queues import Queue
from schemas.resources import Device, Inventory, MigBoard, Position, Resources
from services.admission.app import make_app as make_admission
from services.admission.settings import AdmissionSettings
from services.agent.settings import AgentSettings
from services.history.app import make_app as make_history
from services.history.settings import HistorySettings
from services.leases.app import make_app as make_leases
from services.leases.settings import LeaseSettings
from services.placement.app import make_app as make_placement
from services.placement.settings import PlacementSettings
from services.preemption.app import make_app as make_preemption
from services.preemption.settings import PreemptionSettings
from services.queries.app import make_app as make_queries
from services.queries.settings import QueriesSettings
from services.quota_billing.app import make_app as make_quota_billing
from services.quota_billing.settings import QuotaBillingSettings
from services.telemetry.app import make_app as make_telemetry
from services.telemetry.settings import TelemetrySettings
from services.vault.app import make_app as make_vault
from services.vault.settings import VaultSettings

POOL = "main"
TEAMS = ("blue", "green")
DEVICES = 4
_MIB = 1024
ASKED_S = 17.0
"""Until then teams ask for jobs."""
SECRETS = {"token": True, "gone": True, "never": False}
"""What jobs name, and whether teams set it. `gone` is removed again."""
KEPT = "kept"
"""The class whose work no silence ends."""
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
        doubled=chance.choice(_TWICE) if chance.random() < 0.3 else "",
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
        retry=_RETRY,
    )


@lru_cache(maxsize=64)
def inventory(number: int, board: bool = False) -> Inventory:
    name = f"n{number}"
    devices = tuple(Device(id=f"{name}-gpu{i}", index=i, model="V100", memory_mib=32 * _MIB) for i in range(DEVICES))
    position = Position(leaf=f"leaf-{number // 2}", spine="spine-0", zone="zone-0")
    boards: tuple[MigBoard, ...] = ()
    if board:
        (made,) = parse_fleet(_BOARD.replace("NAME", name), "the board of a node")
        devices, boards = devices + made.devices, made.boards
    return Inventory(
        node=name, position=position, devices=devices, boards=boards, cpus=96, memory_mib=512 * _MIB, simulated=True
    )


_BOARD = """
groups:
  - name: NAME-mig
    count: 1
    devices: {model: H100, count: 1, mig: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb], dynamic: true}
"""


# ---------------------------------------------------------------------------------------------------------- the services


class _Admission(AdmissionSettings):
    """Classes whose work survives seconds of silence, not minutes."""

    serving_s: float
    other_s: float
    of_two_minds: bool = False
    """It knows one class only: its file is an older one."""

    def priority_classes(self) -> dict[str, PriorityClass]:
        serving, other = f"{self.serving_s:g}s", f"{self.other_s:g}s"
        classes = {
            c.name: c.model_copy(update={"lease": serving if c.name == "serving" else other}) for c in DEFAULT_CLASSES
        }
        if self.of_two_minds:
            return {"serving": classes["serving"]}
        return classes | {KEPT: classes["experiment"].model_copy(update={"name": KEPT, "lease": "keep"})}


_OLDER_FIRST_S = 1.0
"""An older reader is there before the ledger has anything: one that comes later stops at what it does not know."""
READERS_HOLD_S = 12.0
"""After an older reader: more than its declarations are apart (libs.ledger.readers)."""


def _settings(lengths: LeaseLengths, saves: int) -> dict[str, Any]:
    """`saves` may be less than anybody should choose."""
    saving = {"snapshot_records": saves}
    read = settings_of(lengths).items()
    return {name: one if name == "agent" else one.model_copy(update=saving) for name, one in read}


@lru_cache(maxsize=8)
def settings_of(lengths: LeaseLengths) -> dict[str, Any]:
    """Each service's. They cost milliseconds to read."""
    common: dict[str, Any] = {
        "nats_url": "sim://broker",
        "redis_url": "sim://redis",
        "mongo_url": "sim://mongo",
        "insecure": True,
        "pool": POOL,
    }

    return {
        "admission": _Admission(**common, serving_s=lengths.serving_s, other_s=lengths.other_s),
        "placement": PlacementSettings(
            **common,
            readers_hold_s=READERS_HOLD_S,
            repartition_after_s=0.5,
            repartition_rest_s=1,
            repartition_answer_s=8,
        ),
        "preemption": PreemptionSettings(**common),
        "quota_billing": QuotaBillingSettings(**common, keep_use_days=0),
        "telemetry": TelemetrySettings(**common),
        "leases": LeaseSettings(
            **common,
            max_lease_s=lengths.node_s,
            kill_bound_s=KILL_BOUND_S,
            margin_s=0.3,
            term_s=lengths.term_s,
            broker_s=0.5,
            silent_s=2,
            standby_s=2,
            stall_s=2,
        ),
        "history": HistorySettings(**common),
        "queries": QueriesSettings(**common),
        "agent": AgentSettings(
            **common, lease_s=lengths.node_s, heartbeat_s=1, repeat_s=3, node="n0", secrets_wait_s=6
        ),
        "vault": VaultSettings(**common),
    }


def populate(world: World, scenario: Scenario, *, doubled: bool = False) -> None:
    """The broker's streams, the machines and the services; `doubled`: two of each of them, named by number."""
    settings = _settings(LEASES[scenario.leases], scenario.saves)
    world.provision([POOL])
    for number in range(scenario.nodes):
        name = f"n{number}"
        kernel = Process(world, f"kernel-{name}", name)
        world.machines[name] = Machine(world, name, kernel)
        world.rates[name] = 1 + world.random.uniform(-0.0009, 0.0009)
        agent = AgentService(settings["agent"], world.machines[name], inventory(number, number < scenario.boards))
        world.add(f"agent-{name}", name, partial(_same, agent))
    for number in range(scenario.placements):
        name = f"placement-{number}"
        slot_name = name

        def make(slot_name: str = slot_name) -> object:
            life = world.services[slot_name].lives
            return make_placement(settings["placement"], writer_id=f"{slot_name}.{life}")

        world.add(name, name, make, after_s=_OLDER_FIRST_S if scenario.older_until else 0.0)
    for number in range(scenario.admissions):
        judge = settings["admission"].model_copy(update={"of_two_minds": scenario.two_minds and number > 0})
        world.add(f"admission-{number}", f"admission-{number}", partial(make_admission, judge))
    for number in range(2):
        world.add(f"leases-{number}", f"leases-{number}", lambda: make_leases(settings["leases"]))
    for name, makes in _MAKES.items():
        first = f"{name}-0" if doubled else name
        world.add(first, first, partial(makes, settings[name]))
        if doubled or name == scenario.doubled:
            world.add(f"{name}-1", f"{name}-1", partial(makes, settings[name]))
    if scenario.vaults:
        vault = settings["vault"].model_copy(update={"keys": key_file(world.folder)})
        for number in range(scenario.vaults):
            world.add(f"vault-{number}", f"vault-{number}", partial(make_vault, vault))
    if scenario.archivists:
        world.archive = SimArchive(world, POOL)
        for number in range(scenario.archivists):
            world.add(f"archivist-{number}", f"archivist-{number}", partial(Archivist, world, world.archive, number))
    if scenario.older_until:
        world.add("older", "older", partial(_same, OlderReader(world, POOL, scenario.older_until)))


_MAKES: dict[str, Callable[[Any], Any]] = {
    "preemption": make_preemption,
    "quota_billing": make_quota_billing,
    "telemetry": make_telemetry,
    "queries": make_queries,
    "history": make_history,
}
_TWICE = tuple(_MAKES)
MAKES: dict[str, Callable[[Any], Any]] = {
    "placement": partial(make_placement, writer_id="placement.1"),
    "admission": make_admission,
    "leases": make_leases,
    **_MAKES,
}
"""Of one of each service."""


def _same(service: Any) -> Any:
    return service


# --------------------------------------------------------------------------------------------------------------- the teams


async def teams(world: World, scenario: Scenario) -> None:
    """Sends all requests, each until it is stored. Runs in a process of its own."""
    client = await connect("sim://broker", name="teams", wait_s=300)
    outbox = Outbox(client.jetstream(), give_up_s=5)
    asks = [(job.at, job, "submit") for job in scenario.jobs]
    asks += [(job.cancel_at, job, "cancel") for job in scenario.jobs if job.cancel_at is not None]
    asks += [(job.twin_at, job, "twin") for job in scenario.jobs if job.twin_at is not None]
    async with asyncio.TaskGroup() as group:
        for at, job, what in sorted(asks, key=lambda ask: ask[0]):
            group.create_task(_ask(world, outbox, at, job, what))
        for at, tree in scenario.trees:
            subject, cause = subjects.apply_queues(POOL, "op"), f"queues:{tree.version}"
            said = outgoing(tree, subject=subject, type=TYPE_OF[type(tree)], source="/sim", cause=cause)
            group.create_task(_apply(world, outbox, [(at, said)], "queues were applied"))
        if scenario.budgets:
            subject = subjects.apply_budgets(POOL, "op")
            said_at = [
                (
                    at,
                    outgoing(
                        m, subject=subject, type=TYPE_OF[type(m)], source="/sim", cause=f"budgets:{m.budgets.version}"
                    ),
                )
                for at, m in scenario.budgets
            ]
            group.create_task(_apply(world, outbox, said_at, "budgets were applied"))
        for number, story in enumerate(scenario.stories):
            words = [
                (
                    word.at,
                    outgoing(
                        word.message,
                        subject=word.subject,
                        type=TYPE_OF[type(word.message)],
                        source="/sim",
                        cause=f"story:{number}:{place}",
                    ),
                )
                for place, word in enumerate(story.words)
            ]
            group.create_task(_apply(world, outbox, words, story.told))
        if scenario.vaults:
            for team in TEAMS:
                group.create_task(tell_secrets(world, client, team, [name for name, told in SECRETS.items() if told]))


async def _ask(world: World, outbox: Outbox, at: float, job: Asked, what: str) -> None:
    await asyncio.sleep(max(0.0, at - world.loop.now))
    if what == "cancel":
        await job.done.wait()
    message = _cancel(job) if what == "cancel" else _submit(job, what == "twin")
    while True:
        try:
            await outbox.publish(message)
            break
        except (NotStored, NatsError, OSError):
            await asyncio.sleep(0.5)
    match what:
        case "cancel":
            job.cancelled = True
        case "twin":
            world.sometimes("a key was sent with two bodies")
        case _:
            job.done.set()


async def _apply(world: World, outbox: Outbox, said: list[tuple[float, Outgoing]], told: str) -> None:
    """What an operator says, one after the other. A version that comes too late is refused."""
    for at, message in said:
        await asyncio.sleep(max(0.0, at - world.loop.now))
        while True:
            try:
                await outbox.publish(message)
                break
            except (NotStored, NatsError, OSError):
                await asyncio.sleep(0.5)
        world.sometimes(told)


def _submit(job: Asked, twin: bool = False) -> Outgoing:
    spec = job.spec.model_copy(update={"name": f"{job.spec.name}-twin"}) if twin else job.spec
    return outgoing(
        SubmitJob(client_key=job.key, job=spec),
        subject=subjects.submit(job.team, "u"),
        type="io.baton.job.submit.v1",
        source="/sim",
        cause=f"{job.team}/{job.key}{'#2' if twin else ''}",
    )


def _cancel(job: Asked) -> Outgoing:
    return outgoing(
        CancelJob(job_id=job.id, reason="sim"),
        subject=subjects.cancel(job.team, "u"),
        type="io.baton.job.cancel.v1",
        source="/sim",
        cause=f"cancel/{job.team}/{job.key}",
    )
