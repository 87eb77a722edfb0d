"""Faults that are aimed at one service, or at one promise: the theme of a seed draws most of them."""

import random
from collections.abc import Callable

from nats.aio.msg import Msg

from libs.bus.connect import connect
from libs.bus.table import ACK_WAIT_S, snapshots_bucket
from libs.simulation.dst.process import Process
from libs.simulation.dst.scenario import POOL
from libs.simulation.dst.telling import rekey
from libs.simulation.dst.world import World
from schemas.subjects import REQUESTS, changed

Do = Callable[[], None]
FaultDraw = tuple[float, Do, Do | None]
"""How long it lasts, what begins it, what ends it."""


def service_of(world: World, chance: random.Random) -> str:
    names = [name for name in world.services if not name.startswith("agent")]
    # The writer and admission are where most of the protocol is.
    return chance.choice([*names, *(n for n in names if n.startswith(("placement", "admission")))])


def frozen(world: World, name: str, lasts_s: float) -> FaultDraw:
    """A process that stands still, and goes on."""
    slot = world.services[name]

    def begin() -> None:
        if slot.process is not None:
            slot.process.freeze()
            world.sometimes("a process was frozen")

    def end() -> None:
        if slot.process is not None:
            slot.process.thaw()

    return lasts_s, begin, end


def die(world: World, name: str) -> None:
    process = world.services[name].process
    if process is not None and process.alive:
        process.die("killed")


def stop_admission(world: World, chance: random.Random) -> FaultDraw:
    """One that reads requests is killed, or stands still while another goes on."""
    return _stopped(world, chance, "admission", chance.uniform(1.0, 12.0))


def stop_leases(world: World, chance: random.Random) -> FaultDraw:
    return _stopped(world, chance, "leases", chance.uniform(1.0, 8.0))


def _stopped(world: World, chance: random.Random, service: str, lasts_s: float) -> FaultDraw:
    name = chance.choice([name for name in world.services if name.startswith(service)])
    if chance.random() < 0.4:
        return 0.0, lambda: die(world, name), None
    return frozen(world, name, lasts_s)


def stop_vault(world: World, chance: random.Random) -> FaultDraw:
    """One that keeps secrets is killed, or stands still. Nothing happens in a world without any."""
    if not any(name.startswith("vault") for name in world.services):
        return 0.0, _nothing, None
    return _stopped(world, chance, "vault", chance.uniform(1.0, 9.0))


def stop_archivist(world: World, chance: random.Random) -> FaultDraw:
    if "archivist-0" not in world.services:
        return 0.0, _nothing, None
    return _stopped(world, chance, "archivist", chance.uniform(1.0, 6.0))


def rot_archive(world: World, chance: random.Random) -> FaultDraw:
    """A file of the archive is damaged."""
    return 0.0, world.archive.rot if world.archive is not None else _nothing, None


def rekey_vault(world: World, chance: random.Random) -> FaultDraw:
    """The master key is changed, and whoever does it may be ended in the midst of that."""
    if "vault-0" not in world.services:
        return 0.0, _nothing, None
    return 0.0, lambda: rekey(world), None


def _nothing() -> None:
    pass


def deaf_leases(world: World, chance: random.Random) -> FaultDraw:
    """One that grants leases, or stands by, is heard and hears nothing: less long than a broken connection takes to show."""
    machine = chance.choice([name for name in world.services if name.startswith("leases")])
    return _deaf(world, machine, chance.uniform(4.0, 9.5))


def deaf_standby(world: World, chance: random.Random) -> FaultDraw:
    """The same of one that grants only because the other stands still, from just after it has heard its own tick, and then the
    other goes on: what the first says before it could know that it is deaf, counts."""
    first, second = sorted(name for name in world.services if name.startswith("leases"))[:2]
    _, freeze, thaw = frozen(world, first, 0.0)
    assert thaw is not None
    deaf_s, deafen, hear = _deaf(world, second, chance.uniform(4.5, 5.5))
    alone_s, after_s = chance.uniform(3.2, 4.5), chance.uniform(0.01, 0.08)

    def begin() -> None:
        freeze()
        process = world.services[second].process
        if process is not None:
            tick_s = alone_s + 1.0 - (process.boot_s() + alone_s) % 1.0
            _later(world, tick_s + after_s, deafen)
            _later(world, tick_s + 2 * after_s, thaw)

    def end() -> None:
        thaw()
        if hear is not None:
            hear()

    return alone_s + 1.0 + deaf_s, begin, end


def _deaf(world: World, machine: str, lasts_s: float) -> FaultDraw:
    def begin() -> None:
        world.net.partition(machine, {"down"})
        world.sometimes("a granter of leases was deaf")

    return lasts_s, begin, lambda: world.net.heal(machine)


def overrun(world: World, chance: random.Random) -> FaultDraw:
    """A process that does not keep up: its client drops what it is told, and nobody says so."""
    names = [name for name in world.services if not name.startswith("agent")]
    if chance.random() < 0.6:
        names = [name for name in names if name.startswith("leases")]
    slot = world.services[chance.choice(names)]

    def begin() -> None:
        if slot.process is not None:
            slot.process.overrun = True
            world.note(f"{slot.process.name} drops what it is told")
            world.sometimes("a client dropped what it was told")

    def end() -> None:
        if slot.process is not None:
            slot.process.overrun = False

    return chance.uniform(3.0, 12.0), begin, end


def lost_append(world: World, chance: random.Random) -> FaultDraw:
    """The connections of who writes the ledger break when something is on its way: it was stored or not, nobody says which."""
    after_s = chance.uniform(0.0001, 0.004)

    def broken() -> None:
        for link in list(world.net.links.values()):
            if link.client.process.machine.startswith("placement"):
                link.reset()
        world.note("the connections of placement break")
        world.sometimes("a writer's connection broke")

    return 0.0, lambda: _later(world, after_s, broken), None


def freeze_renewal(world: World, chance: random.Random) -> FaultDraw:
    """An agent stands still when it has asked for a renewal, and goes on with the answer in the moment in which the lease of
    some of its work has ended and its keeper is about to kill that."""
    machine = world.machines[chance.choice(sorted(world.machines))]
    _, freeze, thaw = frozen(world, f"agent-{machine.name}", 0.0)
    assert thaw is not None
    until_s, after_s = 4.0, chance.uniform(0.0001, 0.0008)

    def begin() -> None:
        seen, began = machine.beat_at, world.loop.now

        def look() -> None:
            early_s = max((machine.early_s(process.part) for process in machine.running.values()), default=0.0)
            if machine.life is not None and early_s and machine.beat_at != seen:
                freeze()
                left_s = (machine.life.until - early_s - machine.kernel.boot_s()) / world.rate_of(machine.name)
                _later(world, max(0.0, left_s) + after_s, thaw)
            elif world.loop.now - began < until_s:
                _later(world, 0.0005, look)

        look()

    return 2 * until_s, begin, thaw


def late_admission(world: World, chance: random.Random) -> FaultDraw:
    """An admission stands still with a request that it was just given, until long after another was given it."""
    until_s, lasts_s = 2.0, chance.uniform(ACK_WAIT_S + 4.5, ACK_WAIT_S + 6.0)
    still: list[Process] = []

    def begin() -> None:
        consumer = world.disk.consumers[REQUESTS]["admission"]
        before, began = {ask.reply: ask.left for ask in consumer.requests}, world.loop.now

        def look() -> None:
            now = {ask.reply: ask.left for ask in consumer.requests}
            given = [reply for reply, left in before.items() if reply in now and now[reply] < left]
            before.update(now)
            for reply in given[:1]:
                for slot in world.services.values():
                    if slot.process and any(reply.startswith(f"{one._inbox}.") for one in slot.process.clients):
                        still.append(slot.process)
                        slot.process.freeze()
            if not still and world.loop.now - began < until_s:
                _later(world, 0.0005, look)

        look()

    def end() -> None:
        for process in still:
            process.thaw()

    return lasts_s + until_s, begin, end


def _later(world: World, after_s: float, do: Do) -> None:
    world.loop.call_at(world.loop.now + after_s, do)


def unclear(world: World, chance: random.Random) -> FaultDraw:
    """The broker stores, and says that it has not."""
    denies = chance.choice((0.1, 0.3, 0.6))

    def begin() -> None:
        world.disk.denies = denies
        world.note(f"the broker denies {denies} of what it stores")

    return chance.uniform(1.0, 8.0), begin, lambda: setattr(world.disk, "denies", 0.0)


_SAVERS = ("preemption", "quota_billing", "queries")


def nothing_saved(world: World, chance: random.Random) -> FaultDraw:
    """A reader of the ledger reads on and can save nothing of what it has read; then it is killed."""
    name = chance.choice(_SAVERS)
    stream = world.disk.streams[f"OBJ_{snapshots_bucket(name)}"]

    def begin() -> None:
        stream.full = True
        world.note(f"{name} can save nothing")

    def end() -> None:
        for slot in [slot for slot in world.services if slot.startswith(name)]:
            die(world, slot)

    return chance.uniform(8.0, 20.0), begin, end


def old_words(world: World, chance: random.Random) -> FaultDraw:
    """What nodes were told is told once more, long after."""
    told: list[Msg] = []

    async def listen() -> None:
        nats = await connect("sim://broker", name="listener", wait_s=300)

        async def keep(message: Msg) -> None:
            told.append(message)

        await nats.subscribe(changed(POOL), cb=keep)

    Process(world, "listener", "listener").start(listen())

    def begin() -> None:
        server = world.net.broker
        if world.net.broker_process is not None and world.net.broker_process.alive:
            for message in chance.sample(told, min(len(told), chance.choice((1, 5, 50)))):
                server.process.context.run(
                    server.publish, message.subject, "", message.data, dict(message.headers or {})
                )

    return 0.0, begin, None
