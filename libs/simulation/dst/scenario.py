"""One seed: a small pool, a dozen jobs, a minute of faults, then peace; in the end everything must be right.

The seed decides the size of the pool, the jobs, how many of each service there are, and which faults happen when.
"""

import asyncio
import random
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from nats.errors import Error as NatsError

from libs.bus.connect import connect
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import NotStored, Outbox
from libs.core.admission.evaluate import DEFAULT_CLASSES, PriorityClass
from libs.simulation.dst.agents import AgentService
from libs.simulation.dst.machine import Machine
from libs.simulation.dst.process import Process
from libs.simulation.dst.world import World
from schemas import subjects
from schemas.ids import job_id
from schemas.jobs import CancelJob, CheckpointPolicy, JobSpec, RetryPolicy, Simulation, SubmitJob
from schemas.resources import Device, Inventory, Position, Resources
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

POOL = "main"
TEAMS = ("blue", "green")
DEVICES = 4
_MIB = 1024
_RETRY = RetryPolicy(on_lost=20, on_failure=0)


@dataclass(slots=True)
class Asked:
    """A job that a team asked for; `done` once the broker has acknowledged the request."""

    team: str
    key: str
    spec: JobSpec
    at: float
    cancel_at: float | None = None
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
    """What a seed draws."""

    nodes: int
    placements: int
    admissions: int
    jobs: list[Asked] = field(default_factory=list)


def draw(chance: random.Random) -> Scenario:
    scenario = Scenario(
        nodes=chance.randint(1, 3),
        placements=2 if chance.random() < 0.5 else 1,
        admissions=2 if chance.random() < 0.25 else 1,
    )
    for number in range(chance.randint(5, 12)):
        spec = _spec(chance, scenario.nodes)
        asked = Asked(chance.choice(TEAMS), f"job-{number}", spec, at=chance.uniform(0.5, 25.0))
        if chance.random() < 0.15:
            asked.cancel_at = asked.at + chance.uniform(0.0, 6.0)
        scenario.jobs.append(asked)
    return scenario


def _spec(chance: random.Random, nodes: int) -> JobSpec:
    draw = chance.random()
    devices, share, klass, code, limit = 1, 1000, "experiment", 0, 0.0
    saves = chance.random() < 0.5
    if draw < 0.2:
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
        resources=Resources(devices=devices, types=("V100",), share_milli=share),
        simulation=Simulation(duration_s=seconds, exit_code=code),
        checkpoint=CheckpointPolicy(grace_s=2.0, interval_s=1.5) if saves else None,
        time_limit_s=limit,
        retry=_RETRY,
    )


@lru_cache(maxsize=64)
def inventory(number: int) -> Inventory:
    name = f"n{number}"
    devices = tuple(Device(id=f"{name}-gpu{i}", index=i, model="V100", memory_mib=32 * _MIB) for i in range(DEVICES))
    position = Position(leaf=f"leaf-{number // 2}", spine="spine-0", zone="zone-0")
    return Inventory(node=name, position=position, devices=devices, cpus=96, memory_mib=512 * _MIB, simulated=True)


# ---------------------------------------------------------------------------------------------------------- the services


class _Admission(AdmissionSettings):
    """Classes whose work survives seconds of silence, not minutes: no longer than any lease here."""

    def priority_classes(self) -> dict[str, PriorityClass]:
        lease = {"serving": "2s"}
        return {c.name: c.model_copy(update={"lease": lease.get(c.name, "3s")}) for c in DEFAULT_CLASSES}


@lru_cache(maxsize=1)
def _settings() -> dict[str, Any]:
    """Settings cost milliseconds to read; they never change."""
    common: dict[str, Any] = {
        "nats_url": "sim://broker",
        "redis_url": "sim://redis",
        "mongo_url": "sim://mongo",
        "pool": POOL,
    }
    return {
        "admission": _Admission(**common),
        "placement": PlacementSettings(**common),
        "preemption": PreemptionSettings(**common),
        "quota_billing": QuotaBillingSettings(**common),
        "telemetry": TelemetrySettings(**common),
        "leases": LeaseSettings(
            **common,
            max_lease_s=3,
            kill_bound_s=0.5,
            margin_s=0.3,
            term_s=2,
            broker_s=0.5,
            silent_s=2,
            standby_s=2,
            stall_s=2,
        ),
        "history": HistorySettings(**common),
        "queries": QueriesSettings(**common),
        "agent": AgentSettings(**common, lease_s=3, repeat_s=3, node="n0"),
    }


def populate(world: World, scenario: Scenario) -> None:
    """The broker's streams, the machines and the services."""
    settings = _settings()
    world.provision([POOL])
    for number in range(scenario.nodes):
        name = f"n{number}"
        kernel = Process(world, f"kernel-{name}", name)
        world.machines[name] = Machine(world, name, kernel)
        world.rates[name] = 1 + world.random.uniform(-0.0009, 0.0009)
        agent = AgentService(settings["agent"], world.machines[name], inventory(number))
        world.add(f"agent-{name}", name, partial(_same, agent))
    for number in range(scenario.placements):
        name = f"placement-{number}"
        slot_name = name

        def make(slot_name: str = slot_name) -> object:
            life = world.services[slot_name].lives
            return make_placement(settings["placement"], writer_id=f"{slot_name}.{life}")

        world.add(name, name, make)
    for number in range(scenario.admissions):
        world.add(f"admission-{number}", f"admission-{number}", lambda: make_admission(settings["admission"]))
    world.add("preemption", "preemption", lambda: make_preemption(settings["preemption"]))
    world.add("quota_billing", "quota_billing", lambda: make_quota_billing(settings["quota_billing"]))
    world.add("telemetry", "telemetry", lambda: make_telemetry(settings["telemetry"]))
    for number in range(2):
        world.add(f"leases-{number}", f"leases-{number}", lambda: make_leases(settings["leases"]))
    world.add("queries", "queries", lambda: make_queries(settings["queries"]))
    world.add("history", "history", lambda: make_history(settings["history"]))


def _same(service: Any) -> Any:
    return service


# --------------------------------------------------------------------------------------------------------------- the teams


async def teams(world: World, scenario: Scenario) -> None:
    """Sends all requests, each until it is stored. Runs in a process of its own."""
    client = await connect("sim://broker", name="teams", wait_s=300)
    outbox = Outbox(client.jetstream(), give_up_s=5)
    asks = [(job.at, job, False) for job in scenario.jobs]
    asks += [(job.cancel_at, job, True) for job in scenario.jobs if job.cancel_at is not None]
    async with asyncio.TaskGroup() as group:
        for at, job, cancel in sorted(asks, key=lambda ask: ask[0]):
            group.create_task(_ask(world, outbox, at, job, cancel))


async def _ask(world: World, outbox: Outbox, at: float, job: Asked, cancel: bool) -> None:
    await asyncio.sleep(max(0.0, at - world.loop.now))
    if cancel:
        await job.done.wait()
    message = _cancel(job) if cancel else _submit(job)
    while True:
        try:
            await outbox.publish(message)
            break
        except (NotStored, NatsError, OSError):
            await asyncio.sleep(0.5)
    if cancel:
        job.cancelled = True
    else:
        job.done.set()


def _submit(job: Asked) -> Outgoing:
    return outgoing(
        SubmitJob(client_key=job.key, job=job.spec),
        subject=subjects.submit(job.team, "u"),
        type="io.baton.job.submit.v1",
        source="/sim",
        cause=f"{job.team}/{job.key}",
    )


def _cancel(job: Asked) -> Outgoing:
    return outgoing(
        CancelJob(job_id=job.id, reason="sim"),
        subject=subjects.cancel(job.team, "u"),
        type="io.baton.job.cancel.v1",
        source="/sim",
        cause=f"cancel/{job.team}/{job.key}",
    )
