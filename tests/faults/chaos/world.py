"""What chaos happens to: three NATS servers, two processes of each service, the cluster's own nodes and some more."""

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from libs.cli.launch import LocalStack
from libs.embedded.servers import VALKEY
from tests.faults.books import auditor
from tests.faults.chaos import disks
from tests.faults.chaos.nodes import Node
from tests.faults.cluster import READY_S, running
from tests.kit.waiting import until

SMALL_MIB = 768
"""Of each file system that a fault fills."""

SHORT = "agent-short"
SHORT_LEASE_S = 8.0
"""Of one node: what outlasts it is lost, as on any node whose lease has ended. The others keep their five minutes."""


@dataclass(slots=True)
class World:
    """`chance` draws what a fault does; whatever it breaks it mends before it returns."""

    cluster: LocalStack
    nodes: list[Node]
    chance: random.Random
    small: tuple[str, ...] = ()
    """Which processes keep their files on a small file system."""
    excused: set[str] = field(default_factory=set)
    """Processes that a fault ends, or makes end."""

    async def back(self, *names: str) -> None:
        """Waits until these run, and are ready."""
        for name in names:
            await self.cluster.supervisor.wait_ready(name, timeout_s=READY_S)


@asynccontextmanager
async def world(state_dir: Path, seed: int, *, replicas: int = 2) -> AsyncIterator[World]:
    """Everything runs until the block ends. `state_dir` is left as it was then."""
    with ExitStack() as stack:
        small = _small(stack, state_dir)
        async with running(state_dir, replicas=replicas, brokers=3) as cluster:
            nodes = [
                Node(cluster, SHORT, {"BATON_AGENT_LEASE_S": str(SHORT_LEASE_S), "BATON_AGENT_HEARTBEAT_S": "1"}),
                Node(cluster, "agent-small"),
            ]
            for node in nodes:
                await node.start()
            await _joined(cluster, nodes)
            yield World(cluster, nodes, random.Random(seed), small)


async def _joined(cluster: LocalStack, nodes: Sequence[Node]) -> None:
    """Waits until the pool knows them: before, it would refuse what only they could run."""
    async with auditor(cluster) as audit:

        async def known() -> bool:
            state = (await audit.catch_up()).state
            return all(f"{node.name}-0" in state.nodes for node in nodes)

        await until(known, READY_S)


def _small(stack: ExitStack, state_dir: Path) -> tuple[str, ...]:
    if disks.why_not():
        return ()
    places = {"nats-3": "nats-3", VALKEY: VALKEY, "agent-small": "services/agent-small"}
    for place in places.values():
        stack.enter_context(disks.small(state_dir / place, SMALL_MIB))
    return tuple(places)


@contextmanager
def no_room(world: World, name: str) -> Iterator[None]:
    """The file system of this process is full until the block ends."""
    at = {"agent-small": "services/agent-small"}.get(name, name)
    with disks.full(world.cluster.state_dir / at):
        yield
