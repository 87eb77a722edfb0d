"""Gangs against exhaustive search on small fleets, as the live engine places them: with scores, processors and rack power.

A gang is placed exactly when some choice of devices can serve it, with as many devices as can be (elastic), and, when its
level is required, over the fastest slowest link that its model can give.
"""

import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from libs.core.placement.answer import Placed
from libs.core.placement.find import find
from libs.core.placement.score.mix import Mix, kind_of
from libs.core.placement.score.scorer import Scorer
from libs.core.placement.search.links import link_gb_s
from libs.core.placement.search.topology import groups_at
from libs.core.placement.view import View
from libs.core.state.fleet import Fleet
from libs.core.state.levels import LEVELS
from libs.core.state.shape import Shape, shape_of
from schemas.jobs import JobSpec
from schemas.resources import Claim, Device, Inventory, Level, Objective, Position, Resources, Topology, TopologyPolicy

BOARD_W = 700
MIB = 80 * 1024


class Case:
    """A random fleet of at most 10 devices, a quarter of them busy, and a random gang."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.fleet, self.caps, room = Fleet(), {}, 10
        for i in range(rng.randint(1, 4)):
            count = min(room, rng.randint(1, 5))
            room -= count
            self._join(rng, f"n{i}", count)
        self._occupy(rng)
        self.required = rng.random() < 0.7
        self.level = rng.choice((Level.NVLINK, Level.NODE, Level.LEAF, Level.SPINE, Level.POOL))
        self.size = rng.randint(2, 5)
        self.cpu_milli = rng.choice((0, 0, 1000, 2000))
        self.least = rng.choice((None, None, rng.randint(1, self.size)))
        policy = TopologyPolicy.REQUIRED if self.required else TopologyPolicy.PREFERRED
        self.shape = shape_of(
            JobSpec(
                command=("x",),
                resources=Resources(
                    devices=self.size,
                    min_devices=self.least,
                    cpu_milli=self.cpu_milli,
                    objective=rng.choice((Objective.LISTED, Objective.ANY)),
                    topology=Topology(level=self.level, policy=policy),
                ),
            )
        )
        if rng.random() < 0.5:
            self.fleet.scorer = Scorer(Mix.expecting([(kind_of(Shape(devices=rng.choice((1, 2)))), 1.0)]))
        self.view = View.of(self.fleet)
        if self.fleet.scorer is not None:
            self.fleet.scorer.upkeep(self.view)
        self.free = np.flatnonzero(self.fleet.up & (self.fleet.free_milli == 1000)).tolist()
        rows = np.arange(len(self.fleet))
        self.groups = {level: groups_at(self.fleet, level, self.fleet.node[rows]).tolist() for level in LEVELS[1:]}
        self.groups["nvlink"] = [int(d) if d >= 0 else -1 - r for r, d in enumerate(self.fleet.domain[rows].tolist())]
        busy = [r for r in rows.tolist() if r not in self.free]
        self.drawn_w = Counter({leaf: BOARD_W * n for leaf, n in Counter(self.groups["leaf"][r] for r in busy).items()})

    def _join(self, rng: random.Random, name: str, count: int) -> None:
        fabric, islands, leaf = rng.choice(("", "", "F")), rng.randint(0, 2), rng.choice(("l0", "l1"))
        model, cap = rng.choice(("H100", "H100", "MI300X")), self.caps.setdefault(leaf, rng.choice((0, 0, 1500, 3000)))
        devices = tuple(
            Device(
                id=f"{name}-{k}",
                index=k,
                model=model,
                memory_mib=MIB,
                power_limit_w=BOARD_W,
                fabric=f"F-{model}" if fabric else "",
                nvlink_domain=f"v{k % islands}" if islands else "",
            )
            for k in range(count)
        )
        host = {"cpus": rng.choice((2, 3, 4, 8)), "memory_mib": 8192, "rack_power_w": cap}
        self.fleet.join(Inventory(node=name, position=Position(leaf=leaf), devices=devices, **host), 1)

    def _occupy(self, rng: random.Random) -> None:
        for device in list(self.fleet.devices.names):
            if rng.random() < 0.25:
                node = self.fleet.node_names.names[int(self.fleet.node[self.fleet.row(device)])]
                self.fleet.take([Claim(device=device, node=node, milli=1000, memory_mib=MIB, epoch=1)])

    def legal(self, rows: tuple[int, ...]) -> bool:
        if len({int(self.fleet.model[r]) for r in rows}) > 1:
            return False
        if self.required and len({self.groups[self.level][r] for r in rows}) > 1:
            return False
        on_node = Counter(int(self.fleet.node[r]) for r in rows)
        if any(n * self.cpu_milli > self.fleet.free_cpu[node] for node, n in on_node.items()):
            return False
        on_leaf = Counter(self.groups["leaf"][r] for r in rows)
        caps = {leaf: self.caps[self.fleet.leaves.names[leaf].rsplit("/")[-1]] for leaf in on_leaf}
        return all(not caps[leaf] or self.drawn_w[leaf] + BOARD_W * n <= caps[leaf] for leaf, n in on_leaf.items())

    def slowest(self, rows: tuple[int, ...]) -> float:
        model = self.fleet.models.names[int(self.fleet.model[rows[0]])]
        pairs = combinations(rows, 2)
        spans = [next(level for level in LEVELS if self.groups[level][a] == self.groups[level][b]) for a, b in pairs]
        return min((link_gb_s(model, span) for span in spans), default=0.0)

    def best(self) -> tuple[int, dict[int, float]]:
        """The most devices that can be granted, and the fastest slowest link of so many, by model; (0, {}) when none."""
        for size in range(self.size, (self.least or self.size) - 1, -1):
            links: dict[int, float] = {}
            for rows in filter(self.legal, combinations(self.free, size)):
                model = int(self.fleet.model[rows[0]])
                links[model] = max(links.get(model, 0.0), self.slowest(rows))
            if links:
                return size, links
        return 0, {}


@pytest.mark.parametrize("block", range(8))
def test_a_gang_is_placed_as_well_as_can_be(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        case = Case(seed)
        size, links = case.best()
        found = find(case.view, case.shape)
        assert isinstance(found, Placed) == (size > 0), seed
        if not isinstance(found, Placed):
            continue
        rows = tuple(found.rows.tolist())
        assert len(set(rows)) == len(rows) == size, seed
        assert set(rows) <= set(case.free), seed
        assert case.legal(rows), seed
        if size > 1:
            assert found.link_gb_s == pytest.approx(case.slowest(rows)), seed
            if case.required:
                assert case.slowest(rows) == pytest.approx(links[int(case.fleet.model[rows[0]])]), seed
