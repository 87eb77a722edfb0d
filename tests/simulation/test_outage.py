"""Running work outlives five minutes without broker and services, where nobody sets anything. In virtual time."""

import asyncio

import pytest

from libs.core.admission.priority_class import DEFAULT_CLASSES
from libs.simulation.dst import populating, scenario, teams
from libs.simulation.dst.process import Process
from libs.simulation.dst.run import alone
from libs.simulation.dst.scenario import Asked, LeaseLengths, Scenario
from libs.simulation.dst.world import World
from schemas.jobs import JobSpec, Simulation
from schemas.resources import Resources
from services.agent.settings import AgentSettings
from services.leases.settings import LeaseSettings

OUTAGE_S = 300.0
BEGINS_S, RUNS_S, REST_S = 20.0, 360.0, 60.0
USUAL = AgentSettings(nats_url="sim://broker", insecure=True)


def test_work_outlives_five_minutes_without_a_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    """It went just before a renewal was due, so that a lease of 300 s lasted 297 s of it, and nobody granted yet when it was
    back."""
    (class_s,) = {c.lease_s for c in DEFAULT_CLASSES if c.name != "serving"}
    term_s = LeaseSettings(nats_url="sim://broker", insecure=True).term_s
    monkeypatch.setitem(scenario.LEASES, "usual", LeaseLengths(USUAL.lease_s, class_s, class_s, term_s))
    made = populating.settings_for

    def settings(lengths: LeaseLengths, saves: int) -> dict[str, object]:
        all_ = made(lengths, saves)
        return all_ | {"agent": all_["agent"].model_copy(update={"heartbeat_s": USUAL.heartbeat_s})}

    monkeypatch.setattr(populating, "settings_for", settings)
    spec = JobSpec(name="runs", resources=Resources(devices=1), simulation=Simulation(duration_s=RUNS_S))
    drawn = Scenario(nodes=1, placements=1, admissions=1, leases="usual", jobs=[Asked("blue", "key", spec, at=3.0)])
    with alone(World(1)) as world:
        populating.populate(world, drawn)
        world.loop.run(without_control_plane(world, drawn))
        assert [(key[1], code) for key, code in world.truth.ended.items()] == [(1, 0)]
    assert world.violations == []


async def without_control_plane(world: World, drawn: Scenario) -> None:
    Process(world, "teams", "teams").start(teams.teams(world, drawn))
    await asyncio.sleep(BEGINS_S)
    machine = world.machines["n0"]
    assert machine.running
    last = machine.beat_at
    while machine.beat_at == last:
        await asyncio.sleep(0.01)
    await asyncio.sleep(USUAL.heartbeat_s - 0.05)
    away = [name for name in world.services if not name.startswith("agent")]
    world.kill_broker()
    for name in away:
        world.stop(name)
    await asyncio.sleep(OUTAGE_S)
    world.start_broker()
    for name in away:
        slot = world.services[name]
        slot.wanted = True
        world._start(slot)
    await asyncio.sleep(REST_S)
