"""What is free, as a cycle sees it: the fleet's arrays with the cycle's own grants already taken out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from libs.core.placement.throughput import Chooser
from libs.core.state.fleet import Bools, Fleet, Ints
from libs.core.state.model import Shape

Costs = tuple[npt.NDArray[np.float64], npt.NDArray[np.int16]]


class Scores(Protocol):
    """What `find` needs of a scorer; see `libs.core.placement.score.scorer.Scorer`."""

    @property
    def profiles(self) -> Mapping[str, float]: ...

    def costs(self, view: "View", shape: Shape) -> Costs | None: ...


NOBODY = -1


@dataclass(frozen=True, slots=True)
class Context:
    """What bears on a request beside its shape."""

    waited_us: int = 0
    """How long it has waited: a preferred topology level widens after `Shape.widen_us`."""
    avoid: tuple[int, ...] = ()
    """Codes of the nodes where jobs run with which it must not share a group (anti-affinity)."""
    fast: bool = False
    """Latency-critical: the first good fit instead of the best one."""


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
    """Devices reserved for a gang that has waited long: nobody else is placed there in this cycle."""
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
        self.free_mib[rows] -= memory_of(self, rows, shape)
        self.held[rows] = NOBODY
        self.epoch[rows] += 1
        cpu_milli, host_mib = host_of(shape, roles, len(rows))
        if cpu_milli.any() or host_mib.any():
            np.subtract.at(self.free_cpu, self.fleet.node[rows], cpu_milli)
            np.subtract.at(self.free_host, self.fleet.node[rows], host_mib)

    def give_back(self, rows: Ints, shape: Shape, roles: Ints | None = None) -> None:
        """The inverse of `take`, but for the epochs: they only grow."""
        self.free_milli[rows] += shape.milli
        self.free_mib[rows] += memory_of(self, rows, shape)
        cpu_milli, host_mib = host_of(shape, roles, len(rows))
        np.add.at(self.free_cpu, self.fleet.node[rows], cpu_milli)
        np.add.at(self.free_host, self.fleet.node[rows], host_mib)


def host_of(shape: Shape, roles: Ints | None, ranks: int) -> tuple[Ints, Ints]:
    """Processors (thousandths) and host memory (MiB) of each rank, both of shape (ranks,)."""
    if roles is None:
        return np.full(ranks, shape.cpu_milli, dtype=np.int64), np.full(ranks, shape.host_mib, dtype=np.int64)
    cpu = np.array([role.cpu_milli for role in shape.roles], dtype=np.int64)
    host = np.array([role.host_mib for role in shape.roles], dtype=np.int64)
    return cpu[roles], host[roles]


def memory_of(view: View, rows: Ints, shape: Shape) -> Ints:
    """Memory (MiB, shape (n,)) that a grant takes on each of `rows`: all of a whole device; of a shared one what was
    asked for, or else the share's part."""
    total = view.fleet.memory_mib[rows]
    if shape.whole:
        return total
    if shape.memory_mib:
        return np.full(len(rows), shape.memory_mib, dtype=np.int64)
    return total * shape.milli // 1000
