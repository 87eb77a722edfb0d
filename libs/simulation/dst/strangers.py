"""Nodes that an operator declares dead, and devices that something else uses: faults about which somebody says a word."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from nats.errors import Error as NatsError

from libs.bus.connect import connect
from libs.bus.messages import outgoing
from libs.bus.outbox import NotStored, Outbox
from libs.simulation.dst.machine import Machine
from libs.simulation.dst.process import Process
from libs.simulation.dst.world import World
from schemas import subjects
from schemas.catalog import TYPE_OF
from schemas.inbox import NodeDead
from services.agent.quarantine import DeviceInUse, Since

_SAID_EVERY_S = 1.5


def switched_off(world: World, machine: Machine, lasts_s: float, pool: str) -> None:
    """The node's power is off for so long. An operator sees that, and says it of the life that has ended, until it counts."""
    life = machine.life.incarnation if machine.life is not None else machine.incarnation
    machine.off_until = max(machine.off_until, world.loop.now + lasts_s)
    world.services[f"agent-{machine.name}"].wanted = False
    machine.power_off()
    world.note(f"{machine.name} is switched off")
    if life:
        _operator(world, machine, life, pool, lambda: world.loop.now < machine.off_until - _SAID_EVERY_S)


def look_once_more(world: World, nodes: Mapping[str, Mapping[str, Any]], pool: str) -> None:
    """All faults are over. Where a machine whose disk was restored and whose clock was set back may not come back, as the
    ledger waits for work of a later life that is kept, an operator sees that it was switched off since, and says so. `nodes`:
    rows of the hot state."""
    for name, row in nodes.items():
        machine, waits_for = world.machines[name], int(row["incarnation"])
        if row["status"] == "silent" and machine.incarnation < waits_for:
            _operator(world, machine, waits_for, pool, lambda: False)


def _operator(world: World, machine: Machine, life: int, pool: str, go_on: Callable[[], bool]) -> None:
    said = NodeDead(node=machine.name, incarnation=life, fenced_by="PDU", user="op")
    operator = Process(world, f"operator-{machine.name}", "operator")
    operator.start(_say(world, said, pool, go_on))


def switched_on(world: World, machine: Machine) -> None:
    """Unless another fault keeps it off."""
    if world.loop.now >= machine.off_until - 0.001:
        world.resume(f"agent-{machine.name}")


async def _say(world: World, said: NodeDead, pool: str, go_on: Callable[[], bool]) -> None:
    nats = await connect("sim://broker", name="operator", wait_s=300)
    outbox = Outbox(nats.jetstream(), give_up_s=1)
    while True:
        cause = f"dead:{said.node}:{said.incarnation}:{world.loop.now:.1f}"
        subject = subjects.declare_dead(pool, "op")
        try:
            await outbox.publish(outgoing(said, subject=subject, type=TYPE_OF[NodeDead], source="/sim", cause=cause))
            world.sometimes("a node was said to be dead")
        except (NotStored, NatsError, OSError):
            pass
        await asyncio.sleep(_SAID_EVERY_S)
        if not go_on():
            return


def intrude(world: World, machine: Machine, chance: random.Random) -> None:
    """Something else than an attempt begins to use a device, and the agent sees it."""
    agent = machine.agent
    if agent is None or not agent.alive or machine.node is None or machine.life is None:
        return

    def seen() -> None:
        used = machine.devices()
        free = [d.id for d in machine.node.inventory.devices if d.id not in used and d.id not in machine.strangers]
        if free and not machine.node.dying:
            device = chance.choice(free)
            machine.strangers[device] = DeviceInUse(Since(0), ("stranger (pid 7)",))
            machine.had_strangers = True
            machine.node.quarantine.add(machine.strangers)
            world.note(f"something else uses {device}")
            world.sometimes("a device was in quarantine")

    agent.call_at(world.loop.now, seen)


def leave(world: World, machine: Machine) -> None:
    """It is gone. The agent sees that, or the next one does."""
    gone = list(machine.strangers)
    machine.strangers.clear()
    agent = machine.agent
    if gone and agent is not None and agent.alive and machine.node is not None:
        agent.call_at(world.loop.now, machine.node.quarantine.free, gone)
