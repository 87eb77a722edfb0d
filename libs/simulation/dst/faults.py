"""What goes wrong in a seed: drawn before it begins, each fault with its beginning and its end.

After `HEAL_S` everything works again, and stays so: then the system has to come to rest by itself.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from libs.simulation.dst import aims
from libs.simulation.dst.aimed import (
    Do,
    FaultDraw,
    deaf_leases,
    deaf_standby,
    die,
    freeze_renewal,
    frozen,
    late_admission,
    lost_append,
    nothing_saved,
    old_words,
    overrun,
    rekey_vault,
    rot_archive,
    service_of,
    stop_admission,
    stop_archivist,
    stop_leases,
    stop_vault,
    unclear,
)
from libs.simulation.dst.scenario import POOL
from libs.simulation.dst.store_faults import mongo, old_input, redis, roll, snapshots
from libs.simulation.dst.strangers import intrude, leave, switched_off, switched_on
from libs.simulation.dst.world import World
from schemas.subjects import DEAD, EVENTS, inbox_stream

_LOSES = 0.08
"""Of the seeds lose so many a few messages all the time."""

HEAL_S = 25.0
"""No fault lasts longer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`begin` at `at`, `end` (None: nothing to undo) `lasts_s` later."""

    name: str
    at: float
    lasts_s: float
    begin: Do
    end: Do | None = None


Draw = Callable[[World, random.Random], FaultDraw]


def _kill(world: World, chance: random.Random) -> FaultDraw:
    name = service_of(world, chance)
    return 0.0, lambda: die(world, name), None


def _freeze(world: World, chance: random.Random) -> FaultDraw:
    return frozen(world, service_of(world, chance), chance.choice((0.3, 2.0, 6.0, 14.0)) * chance.uniform(0.5, 1.5))


def _kill_agent(world: World, chance: random.Random) -> FaultDraw:
    name = f"agent-{chance.choice(sorted(world.machines))}"

    def begin() -> None:
        if world.machines[name.removeprefix("agent-")].running:
            world.sometimes("an agent died while jobs ran")
        die(world, name)

    return 0.0, begin, None


def _freeze_agent(world: World, chance: random.Random) -> FaultDraw:
    machine = chance.choice(sorted(world.machines))
    lasts_s, begin, end = frozen(world, f"agent-{machine}", chance.uniform(1.0, 14.0))

    def seen() -> None:
        if world.loop.now < world.machines[machine].keeper_frozen_until:
            return  # both at once: the residue that is documented
        if world.machines[machine].running:
            world.sometimes("an agent was frozen while jobs ran")
        begin()

    return lasts_s, seen, end


def _power_off(world: World, chance: random.Random) -> FaultDraw:
    machine = chance.choice(sorted(world.machines))
    return 0.0, lambda: world.machines[machine].power_off(), None


def _keeper(world: World, chance: random.Random) -> FaultDraw:
    """The keeper alone, killed or frozen: both frozen while the job runs on is the documented residue."""
    machine = world.machines[chance.choice(sorted(world.machines))]
    lasts_s = chance.uniform(1.0, 6.0)
    if chance.random() < 0.5:
        return 0.0, machine.keeper_dies, None

    def begin() -> None:
        if machine.agent is not None and machine.agent.alive and not machine.agent.frozen:
            machine.keeper_frozen_until = world.loop.now + lasts_s

    return lasts_s, begin, None


def _partition(world: World, chance: random.Random) -> FaultDraw:
    """Of nodes more often than of a service: what runs there must be right without anybody."""
    machine = chance.choice(sorted({slot.machine for slot in world.services.values()}))
    if chance.random() < 0.4:
        machine = chance.choice(sorted(world.machines))
    ways = chance.choice(({"up"}, {"down"}, {"up", "down"}))
    lasts_s = chance.choice((0.5, 3.0, 8.0, 18.0)) * chance.uniform(0.6, 1.2)

    def begin() -> None:
        world.net.partition(machine, ways)
        world.sometimes("cut off one way" if len(ways) == 1 else "cut off both ways")

    return lasts_s, begin, lambda: world.net.heal(machine)


def _reset(world: World, chance: random.Random) -> FaultDraw:
    machine = chance.choice(sorted({slot.machine for slot in world.services.values()}))

    def begin() -> None:
        for link in list(world.net.links.values()):
            if link.client.process.machine == machine:
                link.reset()
        world.note(f"the connections of {machine} break")

    return 0.0, begin, None


def _broker_frozen(world: World, chance: random.Random) -> FaultDraw:
    def begin() -> None:
        if world.net.broker_process is not None:
            world.net.broker_process.freeze()
            world.sometimes("the broker was frozen")

    def end() -> None:
        if world.net.broker_process is not None:
            world.net.broker_process.thaw()

    return chance.choice((0.5, 3.0, 8.0, 15.0)) * chance.uniform(0.6, 1.2), begin, end


def _broker_killed(world: World, chance: random.Random) -> FaultDraw:
    def end() -> None:
        if world.net.broker_process is None or not world.net.broker_process.alive:
            world.start_broker()

    return chance.uniform(0.1, 8.0), world.kill_broker, end


def _messages(world: World, chance: random.Random) -> FaultDraw:
    lose, repeat, late = (chance.choice((0.0, 0.02, 0.1, 0.3)) for _ in range(3))

    def begin() -> None:
        world.net.lose, world.net.repeat, world.net.late = lose, repeat, late
        world.note(f"messages: {lose} lost, {repeat} repeated, {late} late")
        for rate, what in (
            (lose, "messages were lost"),
            (repeat, "messages were repeated"),
            (late, "messages were late"),
        ):
            if rate:
                world.sometimes(what)

    return chance.uniform(1.0, 10.0), begin, lambda: _calm(world)


def _calm(world: World) -> None:
    """What the network loses always, it goes on to lose."""
    world.net.lose, world.net.repeat, world.net.late = world.net.always_lose, 0.0, 0.0


def _clock(world: World, chance: random.Random) -> FaultDraw:
    machines = sorted({slot.machine for slot in world.services.values()})
    machine = "broker" if chance.random() < 0.4 else chance.choice(machines)
    step = chance.choice((-3600.0, -300.0, -1.0, 1.0, 300.0, 3600.0, 10_800.0))

    def begin() -> None:
        world.offsets[machine] = world.offset_of(machine) + step
        world.note(f"the clock of {machine} jumps by {step} s")
        world.sometimes("the broker's clock jumped" if machine == "broker" else "a service's clock jumped")

    return 0.0, begin, None


def _slow_disk(world: World, chance: random.Random) -> FaultDraw:
    slow_s = chance.choice((0.1, 0.8, 3.0, 7.0))

    def begin() -> None:
        world.disk.slow_s = slow_s
        world.note(f"the broker's disk takes {slow_s} s")
        world.sometimes("the broker's disk was slow")

    return chance.uniform(1.0, 10.0), begin, lambda: setattr(world.disk, "slow_s", 0.0)


def _full_disk(world: World, chance: random.Random) -> FaultDraw:
    def begin() -> None:
        world.disk.full = True
        world.note("the broker's disk is full")
        world.sometimes("the broker's disk was full")

    return chance.uniform(0.5, 8.0), begin, lambda: setattr(world.disk, "full", False)


def _full_stream(world: World, chance: random.Random) -> FaultDraw:
    """One stream takes nothing more: the inbox, mostly, and then requests are decided that cannot be handed on."""
    name = chance.choice((inbox_stream(POOL), inbox_stream(POOL), EVENTS, DEAD))

    def begin() -> None:
        world.disk.streams[name].full = True
        world.note(f"{name} is full")
        world.sometimes("a stream was full")

    return chance.uniform(2.0, 14.0), begin, lambda: setattr(world.disk.streams[name], "full", False)


def _no_leases(world: World, chance: random.Random) -> FaultDraw:
    """Nobody grants leases for a while, though everything else goes on."""
    both = [frozen(world, name, 0.0) for name in world.services if name.startswith("leases")]

    def begin() -> None:
        for _, freeze, _ in both:
            freeze()

    def end() -> None:
        for _, _, thaw in both:
            assert thaw is not None
            thaw()

    return chance.uniform(1.0, 9.0), begin, end


def _old_node(world: World, chance: random.Random) -> FaultDraw:
    """A node is switched off, and its disk comes back from an old copy. Its clock may have stood still meanwhile."""
    machine = world.machines[chance.choice(sorted(world.machines))]
    back_s = chance.choice((0.0, 0.0, 86_400.0))

    def begin() -> None:
        machine.incarnation = 0
        world.offsets[machine.name] = world.offset_of(machine.name) - back_s
        machine.power_off()
        world.sometimes("a node's disk was restored")

    return 0.0, begin, None


def _node_disk(world: World, chance: random.Random) -> FaultDraw:
    machine = world.machines[chance.choice(sorted(world.machines))]
    return (
        chance.uniform(1.0, 8.0),
        lambda: setattr(machine, "disk_full", True),
        lambda: setattr(machine, "disk_full", False),
    )


def _declared_dead(world: World, chance: random.Random) -> FaultDraw:
    """A node is switched off for a while, and an operator says so."""
    machine = world.machines[chance.choice(sorted(world.machines))]
    lasts_s = chance.uniform(4.0, 16.0)
    return lasts_s, lambda: switched_off(world, machine, lasts_s, POOL), lambda: switched_on(world, machine)


def _stranger(world: World, chance: random.Random) -> FaultDraw:
    """Something else than an attempt uses a device."""
    machine = world.machines[chance.choice(sorted(world.machines))]
    return chance.uniform(1.0, 12.0), lambda: intrude(world, machine, chance), lambda: leave(world, machine)


DRAWS: dict[str, tuple[float, Draw]] = {
    "kill": (4, _kill),
    "freeze": (4, _freeze),
    "kill agent": (4, _kill_agent),
    "freeze agent": (4, _freeze_agent),
    "power off": (1.5, _power_off),
    "keeper": (1.5, _keeper),
    "partition": (4, _partition),
    "reset": (2, _reset),
    "broker frozen": (2, _broker_frozen),
    "broker killed": (2, _broker_killed),
    "messages": (4, _messages),
    "clock": (2, _clock),
    "slow disk": (1.5, _slow_disk),
    "full disk": (1.5, _full_disk),
    "full stream": (1.5, _full_stream),
    "no leases": (1.5, _no_leases),
    "old node": (1, _old_node),
    "node disk full": (0.7, _node_disk),
    "declared dead": (1, _declared_dead),
    "stranger": (0.7, _stranger),
    "redis": (1.5, redis),
    "mongo": (2.5, mongo),
    "old input": (3, old_input),
    "snapshots": (2, snapshots),
    "roll": (1.5, roll),
    "overrun": (1, overrun),
    "unclear": (1.5, unclear),
    "lost append": (0.7, lost_append),
    "stop vault": (0.2, stop_vault),
    "stop archivist": (0.1, stop_archivist),
    "archive damaged": (0.1, rot_archive),
    "rekey": (0.2, rekey_vault),
    "stop admission": (0.7, stop_admission),
    "stop leases": (0.7, stop_leases),
    "deaf leases": (0.7, deaf_leases),
}
"""Name -> how often, and the draw."""

AIMED: dict[str, Draw] = {
    "deaf standby": deaf_standby,
    "freeze renewal": freeze_renewal,
    "late admission": late_admission,
    "nothing saved": nothing_saved,
    "old words": old_words,
}
"""Of aims alone (libs.simulation.dst.aims)."""


def _draw_of(name: str) -> Draw:
    return AIMED[name] if name in AIMED else DRAWS[name][1]


def draw(world: World, chance: random.Random, theme: str = "") -> list[Fault]:
    """The faults of a seed, in order of their beginning."""
    if chance.random() < (aims.named(theme).loses if theme else _LOSES):
        world.net.lose = world.net.always_lose = chance.choice((0.003, 0.01))
        world.sometimes("messages were lost all the time")
    kinds = aims.named(theme).kinds if theme else {name: weight for name, (weight, _) in DRAWS.items()}
    count = chance.choice((3, 4, 6, 8)) if theme else chance.choice((0, 1, 2, 3, 4, 5, 7))
    faults = []
    for name in chance.choices(list(kinds), list(kinds.values()), k=count):
        lasts_s, begin, end = _draw_of(name)(world, chance)
        at = chance.uniform(0.05, HEAL_S - 2.0)
        faults.append(Fault(name, at, min(lasts_s, HEAL_S - at), begin, end))
    return sorted(faults, key=lambda fault: fault.at)


def schedule(world: World, faults: list[Fault]) -> None:
    """Arms them all."""
    loop = world.loop
    for fault in faults:
        loop.call_at(fault.at, _begin, world, fault)
        if fault.end is not None:
            loop.call_at(fault.at + fault.lasts_s, fault.end)


def strike_plan(world: World, chance: random.Random, theme: str) -> dict[str, tuple[int, Do]]:
    """Failpoint -> the pass with which a fault begins."""
    strikes = aims.named(theme).strikes if theme else ()
    if not strikes:
        return {}
    failpoint, name = chance.choice(strikes)
    lasts_s, begin, end = _draw_of(name)(world, chance)

    def strike() -> None:
        left_s = min(lasts_s, HEAL_S - world.loop.now)
        _begin(world, Fault(name, world.loop.now, left_s, begin))
        if end is not None:
            world.loop.call_at(world.loop.now + left_s, end)

    return {failpoint: (1 + int(chance.expovariate(1.0)), strike)}


def _begin(world: World, fault: Fault) -> None:
    world.note(f"fault: {fault.name} for {fault.lasts_s:.2f} s")
    world.seen[f"fault: {fault.name}"] += 1
    fault.begin()


def heal(world: World) -> None:
    """Everything works from now on."""
    world.faults_on = False
    _calm(world)
    world.disk.full, world.disk.slow_s, world.disk.denies = False, 0.0, 0.0
    for stream in world.disk.streams.values():
        stream.full = False
    world.redis.down = world.redis.frozen = world.mongo.down = False
    world.mongo.slow_s = 0.0
    if world.net.broker_process is None or not world.net.broker_process.alive:
        world.start_broker()
    elif world.net.broker_process.frozen:
        world.net.broker_process.thaw()
    for machine in list(world.net.cut_machines):
        world.net.heal(machine)
    for slot in world.services.values():
        if slot.process is not None:
            slot.process.thaw()
            slot.process.overrun = False
    for node in world.machines.values():
        node.disk_full = False
        leave(world, node)
        node.off_until = 0.0
        switched_on(world, node)
    world.note("healed")
