"""What is free, as a cycle sees it: the fleet's arrays with the cycle's own grants already taken out."""

from dataclasses import dataclass

import numpy as np

from libs.core.fleet import Bools, Fleet, Ints
from libs.core.model import Shape
from libs.core.throughput import Chooser

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
            chooser,
        )

    def take(self, rows: Ints, shape: Shape) -> None:
        """Takes a placement out of what is free."""
        self.free_milli[rows] -= shape.milli
        self.free_mib[rows] -= memory_of(self, rows, shape)
        self.held[rows] = NOBODY
        self.epoch[rows] += 1
        if shape.cpu_milli or shape.host_mib:
            np.subtract.at(self.free_cpu, self.fleet.node[rows], shape.cpu_milli)
            np.subtract.at(self.free_host, self.fleet.node[rows], shape.host_mib)


def memory_of(view: View, rows: Ints, shape: Shape) -> Ints:
    """Memory (MiB, shape (n,)) that a grant takes on each of `rows`: all of a whole device; of a shared one what was
    asked for, or else the share's part."""
    total = view.fleet.memory_mib[rows]
    if shape.whole:
        return total
    if shape.memory_mib:
        return np.full(len(rows), shape.memory_mib, dtype=np.int64)
    return total * shape.milli // 1000
