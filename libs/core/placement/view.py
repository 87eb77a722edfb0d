"""What is free, as a cycle sees it: the fleet's arrays with the cycle's own grants already taken out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from libs.core.placement.throughput import Chooser
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.shape import Shape
from libs.core.state.team_claims import Held
from schemas.resources import WHOLE_MILLI, Runtime

Costs = tuple[npt.NDArray[np.float64], npt.NDArray[np.int16]]


class Scores(Protocol):
    """What `find` needs of a scorer; see `libs.core.placement.score.scorer.Scorer`."""

    @property
    def profiles(self) -> Mapping[str, float]: ...

    def costs(self, view: "View", shape: Shape) -> Costs | None: ...


NOBODY = -1
_CPU = Runtime.CPU.value


@dataclass(slots=True)
class SearchBudget:
    """What is left of the search budget for nested gangs of one team that fit nowhere, in one cycle."""

    left: int


@dataclass(frozen=True, slots=True)
class Context:
    """What bears on a request beside its shape."""

    waited_us: int = 0
    """How long it has waited: a preferred topology level widens after `Shape.widen_us`."""
    avoid: tuple[int, ...] = ()
    """Codes of the nodes where jobs run with which it must not share a group (anti-affinity)."""
    fast: bool = False
    """Latency-critical: the first good fit instead of the best one."""
    search_budget: SearchBudget | None = field(default=None, compare=False)
    """None: no limit but that of a single gang."""


@dataclass(slots=True)
class View:
    """Free capacity to plan on. `fleet` is read for its shape only; the other arrays are this view's own copies."""

    fleet: Fleet
    free_milli: Ints
    free_mib: Ints
    held: Ints
    epoch: Ints
    free_cpu: Ints
    """Per node, shape (N,), thousandths of a processor."""
    free_host: Ints
    """Per node, shape (N,), MiB."""
    blocked: Bools
    """Devices reserved for a job that has waited long, and kept from the job that is looked at: it is not placed there, even
    if others are held for it. No device is both held and reserved."""
    scorer: Scores | None = None
    """Says what a placement costs the requests to come; without one the tightest fit is taken."""
    chooser: Chooser | None = None
    """Orders device models by measured throughput, for jobs with an objective; without it their list is the order."""

    @classmethod
    def of(cls, fleet: Fleet, chooser: Chooser | None = None) -> "View":
        return cls(
            fleet,
            fleet.free_milli.copy(),
            fleet.free_mib.copy(),
            fleet.held.copy(),
            fleet.epoch.copy(),
            fleet.free_cpu.copy(),
            fleet.free_host.copy(),
            np.zeros(len(fleet.up), dtype=np.bool_),
            scorer=fleet.scorer,
            chooser=chooser,
        )

    @classmethod
    def of_empty(cls, fleet: Fleet) -> "View":
        """What would be free if nothing were held, nor kept for anybody."""
        devices = len(fleet.up)
        return cls(
            fleet,
            np.full(devices, WHOLE_MILLI, dtype=np.int64),
            fleet.memory_mib.copy(),
            np.full(devices, NOBODY, dtype=np.int64),
            fleet.epoch.copy(),
            fleet.cpu_milli.copy(),
            fleet.host_mib.copy(),
            np.zeros(devices, dtype=np.bool_),
        )

    def hold(self, held: Held) -> None:
        """Takes what a team holds out of what is free."""
        rows, milli, mib, cpu_milli, host_mib = held
        self.free_milli[rows] -= milli
        self.free_mib[rows] -= mib
        np.subtract.at(self.free_cpu, self.fleet.node[rows], cpu_milli)
        np.subtract.at(self.free_host, self.fleet.node[rows], host_mib)

    def take_processors(self, node: int, cpu_milli: int, host_mib: int) -> None:
        """Takes a request without devices; negative amounts give one back."""
        self.free_cpu[node] -= cpu_milli
        self.free_host[node] -= host_mib

    def copy(self) -> "View":
        """The same free capacity in arrays of its own, to plan on further."""
        arrays = ("free_milli", "free_mib", "held", "epoch", "free_cpu", "free_host", "blocked")
        return replace(self, **{name: getattr(self, name).copy() for name in arrays})

    def take(self, rows: Ints, shape: Shape, roles: Ints | None = None) -> None:
        """Takes a placement out of what is free. `roles`: position in `shape.roles` of each rank, shape (n,)."""
        self.free_milli[rows] -= shape.milli
        self.free_mib[rows] -= memory_of(self.fleet, rows, shape)
        self.held[rows] = NOBODY
        self.epoch[rows] += 1
        cpu_milli, host_mib = host_of(self.fleet, rows, shape, roles)
        if np.count_nonzero(cpu_milli) or np.count_nonzero(host_mib):
            np.subtract.at(self.free_cpu, self.fleet.node[rows], cpu_milli)
            np.subtract.at(self.free_host, self.fleet.node[rows], host_mib)

    def give_back(self, rows: Ints, shape: Shape, roles: Ints | None = None) -> None:
        """The inverse of `take`, but for the epochs: they only grow."""
        self.free_milli[rows] += shape.milli
        self.free_mib[rows] += memory_of(self.fleet, rows, shape)
        cpu_milli, host_mib = host_of(self.fleet, rows, shape, roles)
        np.add.at(self.free_cpu, self.fleet.node[rows], cpu_milli)
        np.add.at(self.free_host, self.fleet.node[rows], host_mib)


def host_of(fleet: Fleet, rows: Ints, shape: Shape, roles: Ints | None = None) -> tuple[Ints, Ints]:
    """Processors (thousandths) and host memory (MiB) that a grant of `rows` takes of each one's node, shape (n,).

    A node's processors may be a device of their own, beside accelerators that draw on the same ones: a share of that
    device counts as its part of the node's processors and memory, so that nobody else is granted them.
    """
    if roles is None:
        cpu, host = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        cpu += shape.cpu_milli
        host += shape.host_mib
    else:
        cpu = np.array([role.cpu_milli for role in shape.roles], dtype=np.int64)[roles]
        host = np.array([role.host_mib for role in shape.roles], dtype=np.int64)[roles]
    own = processors_among(fleet, rows)
    if np.count_nonzero(own):
        part_cpu, part_host = host_part(fleet, rows[own], shape)
        cpu[own], host[own] = np.maximum(cpu[own], part_cpu), np.maximum(host[own], part_host)
    return cpu, host


def host_at_most(fleet: Fleet, rows: Ints, shape: Shape) -> tuple[Ints, Ints]:
    """`host_of` while it is open which role runs where: each device counts as the role that takes most."""
    if shape.roles:
        shape = replace(
            shape,
            cpu_milli=max((shape.cpu_milli, *(role.cpu_milli for role in shape.roles))),
            host_mib=max((shape.host_mib, *(role.host_mib for role in shape.roles))),
        )
    return host_of(fleet, rows, shape)


def processors_among(fleet: Fleet, rows: Ints) -> Bools:
    """Which of `rows` are processors (mask of shape (n,))."""
    code = fleet.runtimes.find(_CPU)
    return fleet.runtime[rows] == code if code >= 0 else np.zeros(len(rows), dtype=np.bool_)


def host_part(fleet: Fleet, rows: Ints, shape: Shape) -> tuple[Ints, Ints]:
    """Of devices that are processors, the part of their nodes' processors (thousandths) and memory (MiB) that `shape`
    takes, both of shape (n,). A node that does not tell what it has loses none."""
    nodes = fleet.node[rows]
    cpu = fleet.cpu_milli[nodes] * shape.milli // WHOLE_MILLI
    host = memory_of(fleet, rows, shape) * fleet.host_mib[nodes] // np.maximum(1, fleet.memory_mib[rows])
    return cpu, host


def memory_of(fleet: Fleet, rows: Ints, shape: Shape) -> Ints:
    """Memory (MiB, shape (n,)) that a grant takes on each of `rows`: all of a whole device; of a shared one what was
    asked for, or else the share's part."""
    total = fleet.memory_mib[rows]
    if shape.whole:
        return total
    if shape.memory_mib:
        return np.full(len(rows), shape.memory_mib, dtype=np.int64)
    return total * shape.milli // 1000
