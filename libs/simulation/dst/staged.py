"""All of Baton in virtual time on a fleet of one's own, without faults: what a scenario is played on.

with alone(World(0)) as world:
    staged(world, fleet)
    world.loop.run(playing(world, what))
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from libs.adapters.devices.fleet import parse_fleet
from libs.simulation.dst import populating, scenario
from libs.simulation.dst.agents import AgentService
from libs.simulation.dst.machine import Machine
from libs.simulation.dst.process import Process
from libs.simulation.dst.world import World

T = TypeVar("T")

POOL = scenario.POOL
_SAVES = 5000


def staged(world: World, fleet: str) -> None:
    """One of each service, and the nodes of a fleet file's text. Raises FleetError."""
    settings = populating.settings_for(scenario.LEASES["long"], _SAVES)
    world.provision([POOL])
    for inventory in parse_fleet(fleet, "the fleet of the scenario"):
        name = inventory.node
        world.machines[name] = Machine(world, name, Process(world, f"kernel-{name}", name))
        agent = AgentService(settings["agent"], world.machines[name], inventory)
        world.add(f"agent-{name}", name, partial(populating.the_same, agent))
    for name, makes in populating.MAKES.items():
        world.add(name, name, partial(makes, settings[name]))


async def playing(world: World, what: Callable[[], Awaitable[T]]) -> T:
    """Runs `what` in a process of the world, where it may connect to the broker by any address."""
    return await Process(world, "teams", "teams").start(what())
