"""The network between clients and the broker: connections with latency, in order each way, that are cut and break.

A connection is TCP's: what is sent arrives in order or not at all, and a cut that lasts breaks it; what was under way
is then lost, and the client learns that it reconnected, not what was lost. Besides, single core messages may be lost,
repeated or late (a slow consumer, a route of a cluster): core NATS promises no more than that.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from libs.simulation.dst.client import SimClient

if TYPE_CHECKING:
    from libs.simulation.dst.process import Process
    from libs.simulation.dst.world import World

PATIENCE_S = 10.0
"""A peer that is silent for so long is given up: pings are answered no more."""


class Link:
    """One client's connection. `up` goes to the broker, `down` to the client."""

    def __init__(self, net: "SimNet", client: SimClient) -> None:
        self.net = net
        self.client = client
        self.open = True
        self.left = False
        """Its client is dead, and what it had sent arrives all the same: the kernel has it."""
        self.cut = {"up": False, "down": False}
        self._kept: dict[str, deque[tuple[Callable[..., Any], tuple[Any, ...]]]] = {"up": deque(), "down": deque()}
        self._last = {"up": 0.0, "down": 0.0}
        self._cut_at = 0.0

    def send(self, way: str, call: Callable[..., Any], *args: Any) -> None:
        """Calls at the other end, later and in order."""
        if not self.open:
            return
        if self.cut[way] or self._kept[way]:
            self._kept[way].append((call, args))
            return
        net = self.net
        world = net.world
        at = self._last[way] = max(world.loop.now + net.latency(), self._last[way])
        to = net.broker_process if way == "up" else self.client.process
        if to is not None:
            world.loop.call_at(at, self._arrive, call, args, context=to.context)

    def _arrive(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.open or (self.left and call.__name__ == "publish"):
            call(*args)

    def partition(self, way: str, cut: bool) -> None:
        self.cut[way] = cut
        if cut:
            self._cut_at = self.net.world.loop.now
            return
        kept, self._kept[way] = self._kept[way], deque()
        if self.net.world.loop.now - self._cut_at > PATIENCE_S:
            self.reset()
            return
        for call, args in kept:
            self.send(way, call, *args)

    def reset(self) -> None:
        """The connection breaks; what was under way is lost."""
        if self.open:
            self.open = False
            self.net.links.pop(self.client.number, None)
            if self.net.broker is not None:
                self.net.broker.gone(self.client)
            self.client.disconnected()


class SimNet:
    """All connections to one broker."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.links: dict[int, Link] = {}
        self.broker: Any = None
        self.broker_process: Process | None = None
        self.cut_machines: dict[str, set[str]] = {}
        self.always_lose = 0.0
        self.lose = 0.0
        self.repeat = 0.0
        self.late = 0.0
        self._number = 0

    def latency(self) -> float:
        return 0.0002 + self.world.random.random() * 0.002

    def reachable(self, machine: str) -> bool:
        """Whether a new connection can be made."""
        process = self.broker_process
        return process is not None and process.alive and process.held is None and not self.cut_machines.get(machine)

    async def connect(self, process: "Process", name: str, inbox_prefix: str | None, wait_s: float) -> SimClient:
        self._number += 1
        client = SimClient(self, process, name, self._number, inbox_prefix)
        process.clients.append(client)
        await client.first_connection(wait_s)
        return client

    def link(self, client: SimClient) -> Link:
        link = self.links[client.number] = Link(self, client)
        return link

    def partition(self, machine: str, ways: set[str]) -> None:
        """Cuts a machine off, in both directions or one, besides those in which it is already."""
        self.cut_machines[machine] = self.cut_machines.get(machine, set()) | ways
        self.world.note(f"{machine} is cut off: {' and '.join(sorted(ways))}")
        for link in list(self.links.values()):
            if link.client.process.machine == machine:
                for way in sorted(ways):
                    link.partition(way, True)

    def heal(self, machine: str) -> None:
        ways = self.cut_machines.pop(machine, set())
        if not ways:
            return
        self.world.note(f"{machine} is reached again")
        for link in list(self.links.values()):
            if link.client.process.machine == machine:
                for way in sorted(ways):
                    link.partition(way, False)

    def fate(self) -> tuple[int, float]:
        """Of one core message: how many copies arrive, and how much later than the others."""
        draw = self.world.random.random
        if self.lose and draw() < self.lose:
            return 0, 0.0
        copies = 2 if self.repeat and draw() < self.repeat else 1
        delay = self.world.random.uniform(0.05, 3.0) if self.late and draw() < self.late else 0.0
        return copies, delay

    @property
    def troubled(self) -> bool:
        return bool(self.lose or self.repeat or self.late)
