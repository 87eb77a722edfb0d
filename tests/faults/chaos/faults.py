"""The faults, by name. Each breaks something of a running Baton, mends it, and says in a few words what it did.

One broker at a time: with two of three away nothing is promised but to wait. `FAULTS` is what the runner draws from; the
`rare` ones take long and are drawn only when they are named.
"""

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from nats.js import JetStreamContext
from redis.asyncio import Redis

from libs.bus.retry import UNAVAILABLE
from libs.cli.launch import REAL, SERVICES, SIMULATED
from libs.embedded import ProcessSpec, StartFailed
from libs.embedded.servers import MONGO, VALKEY
from libs.ledger.segments import Segment, readable
from libs.ports import sockdiag
from libs.walls.resolver import tell
from schemas import subjects
from tests.faults.chaos import disks
from tests.faults.chaos.brokers import ask_to_roll, away, brokers, frozen, jetstream, leader_of, settled, whole, wipe
from tests.faults.chaos.nodes import Node, send
from tests.faults.chaos.world import SHORT_LEASE_S, World, no_room
from tests.faults.cluster import READY_S, back, kill9
from tests.kit.waiting import until

KILL_BOUND_S = 5.0
OUTAGE_S = 302.0
"""Until the servers are started again; elections come on top. Leases last 330 s."""


class Of(StrEnum):
    """What a fault happens to. Two of the same at once would be two losses at once, of which nothing is promised."""

    BROKERS = "brokers"
    SERVICES = "services"
    STORES = "stores"
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class Fault:
    """`cannot` says why this machine cannot cause it; "" when it can."""

    cause: Callable[[World], Awaitable[str]]
    of: Of
    rare: bool = False
    spares: bool = False
    """No work is lost to it but that of the node with the short lease."""
    cannot: Callable[[], str] = lambda: ""


FAULTS: dict[str, Fault] = {}

_Cause = Callable[[World], Awaitable[str]]


def _fault(
    name: str, of: Of, *, rare: bool = False, spares: bool = False, cannot: Callable[[], str] = lambda: ""
) -> Callable[[_Cause], _Cause]:
    def named(cause: _Cause) -> _Cause:
        FAULTS[name] = Fault(cause, of, rare, spares, cannot)
        return cause

    return named


def _no_strace() -> str:
    return "" if shutil.which("strace") and os.geteuid() == 0 else "needs strace, and root"


def _no_diagnosis() -> str:
    return "" if sockdiag.tells(sockdiag.LISTENING) else "needs tcp_diag of the kernel"


async def _kill(world: World, *names: str) -> None:
    """All at once; each is back at the end."""
    killed = {name: kill9(world.cluster, name) for name in names}
    for name, pid in killed.items():
        await back(world.cluster, name, pid)


async def _freeze(world: World, name: str, least_s: float, most_s: float) -> str:
    seconds = world.chance.uniform(least_s, most_s)
    async with frozen(world.cluster, name):
        await asyncio.sleep(seconds)
    return f"{name} for {seconds:.0f} s"


# ------------------------------------------------------------------------------------------------------------- brokers


async def _leader(world: World) -> str:
    """Who leads a stream that matters: mostly the ledger's."""
    pool = world.cluster.options.pool
    other = world.chance.choice(("", subjects.inbox_stream(pool), subjects.REQUESTS))
    async with jetstream(world.cluster) as js:
        return await leader_of(js, other or (await settled(js, pool)).name)


@_fault("leader killed", Of.BROKERS, spares=True)
async def _(world: World) -> str:
    name = await _leader(world)
    await _kill(world, name)
    await whole(world.cluster)
    return name


@_fault("leader frozen", Of.BROKERS, spares=True)
async def _(world: World) -> str:
    told = await _freeze(world, await _leader(world), 2.0, 15.0)
    await whole(world.cluster)
    return told


@_fault("leader frozen while the ledger rolls", Of.BROKERS, spares=True)
async def _(world: World) -> str:
    """The server that wakes up hears of the roll, and of the next segment, in any order."""
    pool = world.cluster.options.pool
    async with jetstream(world.cluster) as js:
        name = await leader_of(js, (await settled(js, pool)).name)
        async with frozen(world.cluster, name):
            before = await settled(js, pool)
            await ask_to_roll(js, pool)
            await until(lambda: _goes_on(js, pool, before), 120)
            await asyncio.sleep(world.chance.uniform(0.0, 5.0))
    await whole(world.cluster)
    return name


async def _goes_on(js: JetStreamContext, pool: str, before: Segment) -> bool:
    with suppress(*UNAVAILABLE):
        return (await readable(js, pool))[-1].first > before.first
    return False


@_fault("leader away", Of.BROKERS, spares=True)
async def _(world: World) -> str:
    name, seconds = await _leader(world), world.chance.uniform(5.0, 15.0)
    async with away(world.cluster, name):
        await asyncio.sleep(seconds)
    await whole(world.cluster)
    return f"{name} for {seconds:.0f} s"


@_fault("server wiped", Of.BROKERS, spares=True)
async def _(world: World) -> str:
    leader = await _leader(world)
    name = world.chance.choice(
        [other for other in brokers(world.cluster) if other != leader and other not in world.small]
    )
    await wipe(world.cluster, name)
    return name


@_fault("all brokers killed", Of.BROKERS, spares=True)
async def _(world: World) -> str:
    await _kill(world, *brokers(world.cluster))
    await whole(world.cluster)
    return "at once"


async def _outage(world: World, seconds: float) -> str:
    async with away(world.cluster, *brokers(world.cluster)):
        await asyncio.sleep(seconds)
    await whole(world.cluster)
    return f"for {seconds:.0f} s"


@_fault("all brokers away", Of.BROKERS, spares=True)
async def _(world: World) -> str:
    return await _outage(world, world.chance.uniform(SHORT_LEASE_S, 2 * SHORT_LEASE_S))


@_fault("all brokers away for five minutes", Of.BROKERS, rare=True, spares=True)
async def _(world: World) -> str:
    return await _outage(world, OUTAGE_S)


@_fault("slow fsync", Of.BROKERS, spares=True, cannot=_no_strace)
async def _(world: World) -> str:
    name, milliseconds = await _leader(world), world.chance.choice((20, 100, 400))
    await _meddled_with(world, name, "fsync,fdatasync", f"delay_enter={milliseconds * 1000}", 10.0)
    return f"{name}: {milliseconds} ms each, for 10 s"


async def _meddled_with(world: World, name: str, calls: str, how: str, seconds: float) -> None:
    """Its system calls go otherwise than the kernel would have them (strace's `inject`)."""
    pid = str(world.cluster.supervisor.pid(name))
    strace = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:{how}", "-p", pid)
    )
    try:
        await asyncio.sleep(seconds)
    finally:
        with suppress(ProcessLookupError):
            strace.send_signal(signal.SIGINT)  # detaches, and the process goes on
        await strace.wait()


@_fault("connections broken", Of.BROKERS, spares=True, cannot=_no_diagnosis)
async def _(world: World) -> str:
    """All of one broker: of services, agents and clients, and what servers say to each other there."""
    ports = [urlsplit(url).port or 0 for url in world.cluster.servers.nats_url.split(",")]
    port, times = world.chance.choice(ports), world.chance.randint(1, 5)
    for _ in range(times):
        for one in sockdiag.connections(port):
            with suppress(OSError):
                sockdiag.end(one)
        await asyncio.sleep(world.chance.uniform(0.0, 2.0))
    await whole(world.cluster)
    return f"at port {port}, {times} times"


@_fault("disk full under a broker", Of.BROKERS, spares=True, cannot=disks.why_not)
async def _(world: World) -> str:
    name = "nats-3"
    world.excused.add(name)
    with no_room(world, name):
        await asyncio.sleep(world.chance.uniform(5.0, 10.0))
    # nats-server gives up JetStream when it cannot write, until it is started again.
    await _kill(world, name)
    await whole(world.cluster)
    return name


@_fault("credential revoked", Of.NODES)
async def _(world: World) -> str:
    """The agents': each is cut off, and its keeper goes on; the lease of one ends meanwhile."""
    cluster = world.cluster
    pool, ring = cluster.options.pool, cluster.keyring
    world.excused |= {*_agents(world)}
    await tell(cluster.nats_url, ring, ring.revoke_node(pool))
    await asyncio.sleep(world.chance.uniform(3.0, 12.0))
    ring.nodes(pool)  # new ones in the files' places, which agents read when they are started again
    await world.back(*_agents(world))
    return f"nodes of {pool}"


# ------------------------------------------------------------------------------------------------------------- services


def _a_service(world: World) -> str:
    """Any process of any service."""
    number = world.chance.randint(1, world.cluster.options.replicas)
    service = world.chance.choice(SERVICES)
    return service if number == 1 else f"{service}-{number}"


@_fault("service killed", Of.SERVICES, spares=True)
async def _(world: World) -> str:
    name = _a_service(world)
    for _ in range(world.chance.randint(1, 2)):  # the second time while it starts
        await _kill(world, name)
    return name


@_fault("service frozen", Of.SERVICES, spares=True)
async def _(world: World) -> str:
    return await _freeze(world, _a_service(world), 1.0, 12.0)


@_fault("service stopped", Of.SERVICES, spares=True)
async def _(world: World) -> str:
    """In good order, as at an upgrade."""
    name = _a_service(world)
    await _stopped(world, world.chance.uniform(0.0, 5.0), name)
    return name


@_fault("one of each service stopped", Of.SERVICES, spares=True)
async def _(world: World) -> str:
    number = world.chance.randint(1, world.cluster.options.replicas)
    await _stopped(world, world.chance.uniform(0.0, 5.0), *_of_each(number))
    return f"the {number}. of each"


@_fault("no descriptors left", Of.SERVICES, spares=True)
async def _(world: World) -> str:
    name = _a_service(world)
    await _opens_nothing(world, name)
    return name


@_fault("no memory left", Of.SERVICES, spares=True, cannot=_no_strace)
async def _(world: World) -> str:
    """The kernel gives it none: it may end, and is started again."""
    name = _a_service(world)
    world.excused.add(name)
    await _meddled_with(world, name, "mmap,brk,mremap", "error=ENOMEM", world.chance.uniform(2.0, 6.0))
    await world.back(name)
    return name


async def _opens_nothing(world: World, name: str) -> None:
    """It can open no file, and make no connection, for a while."""
    pid = world.cluster.supervisor.pid(name)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1, before[1]))
    try:
        await asyncio.sleep(world.chance.uniform(3.0, 10.0))
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@_fault("one of each service killed", Of.SERVICES, spares=True)
async def _(world: World) -> str:
    number = world.chance.randint(1, world.cluster.options.replicas)
    await _kill(world, *_of_each(number))
    return f"the {number}. of each"


def _of_each(number: int) -> list[str]:
    return [service if number == 1 else f"{service}-{number}" for service in SERVICES]


async def _stopped(world: World, seconds: float, *names: str) -> None:
    """All at once; they are back at the end."""
    supervisor = world.cluster.supervisor
    specs = [supervisor.spec(name) for name in names]
    await supervisor.stop(*names)
    await asyncio.sleep(seconds)
    await _start(world, *specs)


async def _start(world: World, *specs: ProcessSpec) -> None:
    """What they depend on may be away, by another fault."""

    async def started() -> bool:
        with suppress(ValueError, StartFailed):
            await world.cluster.supervisor.start(*specs)
            return True
        return False

    await until(started, READY_S)


# --------------------------------------------------------------------------------------------------------------- stores


@_fault("redis emptied", Of.STORES, spares=True)
async def _(world: World) -> str:
    client: Redis = Redis.from_url(world.cluster.redis_url)
    try:
        await client.flushall()
    finally:
        await client.aclose()
    return "FLUSHALL"


@_fault("store killed", Of.STORES, spares=True)
async def _(world: World) -> str:
    name = world.chance.choice((VALKEY, MONGO))
    await _kill(world, name)
    return name


@_fault("store frozen", Of.STORES, spares=True)
async def _(world: World) -> str:
    return await _freeze(world, world.chance.choice((VALKEY, MONGO)), 2.0, 15.0)


@_fault("disk full under Redis", Of.STORES, spares=True, cannot=disks.why_not)
async def _(world: World) -> str:
    with no_room(world, VALKEY):
        await asyncio.sleep(world.chance.uniform(3.0, 8.0))
    return VALKEY


# ---------------------------------------------------------------------------------------------------------------- nodes


def _agents(world: World) -> list[str]:
    return [REAL, SIMULATED, *(node.name for node in world.nodes)]


@_fault("agent killed", Of.NODES)
async def _(world: World) -> str:
    name = world.chance.choice(_agents(world))
    await _kill(world, name)
    return name


@_fault("agent stopped", Of.NODES)
async def _(world: World) -> str:
    name = world.chance.choice(_agents(world))
    await _stopped(world, world.chance.uniform(0.0, 2 * SHORT_LEASE_S), name)
    return name


@_fault("no descriptors left for an agent", Of.NODES)
async def _(world: World) -> str:
    name = world.chance.choice(_agents(world))
    await _opens_nothing(world, name)
    return name


@_fault("an agent's disk fails", Of.NODES, cannot=_no_strace)
async def _(world: World) -> str:
    name = world.chance.choice(_agents(world))
    await _meddled_with(world, name, "fsync,fdatasync", "error=EIO", world.chance.uniform(3.0, 10.0))
    world.excused.add(name)
    await world.back(name)
    return name


@_fault("no memory left for an agent", Of.NODES, cannot=_no_strace)
async def _(world: World) -> str:
    name = world.chance.choice(_agents(world))
    world.excused.add(name)
    await _meddled_with(world, name, "mmap,brk,mremap", "error=ENOMEM", world.chance.uniform(2.0, 6.0))
    await world.back(name)
    return name


@_fault("agent frozen", Of.NODES)
async def _(world: World) -> str:
    return await _freeze(world, world.chance.choice(_agents(world)), 2.0, 3 * SHORT_LEASE_S)


def _with_keeper(world: World) -> Node:
    """Any node whose processes a keeper holds; a node without processes has none."""
    nodes = [*world.nodes, Node(world.cluster, REAL)]
    return world.chance.choice([node for node in nodes if node.keeper()] or nodes)


@_fault("keeper killed", Of.NODES)
async def _(world: World) -> str:
    node = _with_keeper(world)
    keeper = node.keeper()
    send([keeper] if keeper else [], signal.SIGKILL)
    return f"{node.name}{'' if keeper else ', which has none'}"


@_fault("keeper frozen", Of.NODES)
async def _(world: World) -> str:
    node, seconds = _with_keeper(world), world.chance.uniform(2.0, 2 * SHORT_LEASE_S)
    keeper = node.keeper()
    send([keeper] if keeper else [], signal.SIGSTOP)
    await asyncio.sleep(seconds)
    send([keeper] if keeper else [], signal.SIGCONT)
    return f"{node.name} for {seconds:.0f} s"


@_fault("agent and keeper killed", Of.NODES)
async def _(world: World) -> str:
    node = _with_keeper(world)
    keeper, agent = node.keeper(), node.agent()
    send([agent, *([keeper] if keeper else [])], signal.SIGKILL)
    await back(world.cluster, node.name, agent)
    world.excused.add(node.name)
    return node.name


@_fault("node frozen", Of.NODES)
async def _(world: World) -> str:
    """Everything on it, for longer than the lease and the kill bound: its work is started elsewhere before it wakes up."""
    node = world.nodes[0]
    seconds = world.chance.uniform(SHORT_LEASE_S, 3 * SHORT_LEASE_S) + KILL_BOUND_S
    pids = node.everything()
    send(pids, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    send(pids, signal.SIGCONT)
    return f"{node.name} for {seconds:.0f} s"


@_fault("node switched off", Of.NODES)
async def _(world: World) -> str:
    """Everything on it ends at once, and its agent comes back some time later."""
    node = world.chance.choice(world.nodes)
    spec = world.cluster.supervisor.spec(node.name)
    pids = node.everything()
    send(pids, signal.SIGSTOP)  # so that none of them sees another end
    send(pids, signal.SIGKILL)
    await world.cluster.supervisor.stop(node.name)
    await asyncio.sleep(world.chance.uniform(0.0, 2 * SHORT_LEASE_S))
    await _start(world, spec)
    world.excused.add(node.name)
    return node.name


@_fault("node's disk full", Of.NODES, cannot=disks.why_not)
async def _(world: World) -> str:
    with no_room(world, "agent-small"):
        await asyncio.sleep(world.chance.uniform(3.0, 10.0))
    return "agent-small"
