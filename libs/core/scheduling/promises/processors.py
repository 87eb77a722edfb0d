"""When the processors and the memory that a gang needs beside its devices come free on their nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from libs.core.placement.context import reserve_host_resources
from libs.core.placement.view import View, host_at_most
from libs.core.scheduling.precedence.served import Floats, Ints
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas.resources import Claim

_BEYOND = 2**40
"""More thousandths of processors, and more MiB, than any node has."""


@dataclass(frozen=True, slots=True)
class HostFreed:
    """What is free of each node beside all that is held for jobs, shape (N,), and what claims give back, shape (n,): of the
    node, so much, in so many seconds (shape (2, n): P50 and P90)."""

    free_cpu: Ints
    free_host: Ints
    node: Ints
    cpu_milli: Ints
    host_mib: Ints
    ends_s: Floats

    @classmethod
    def of(cls, state: State, free_s: Floats, shared: Sequence[tuple[Claim, Floats]]) -> "HostFreed":
        """`free_s`: until each device is free, shape (2, D). `shared`: claims of parts of devices, and until they end."""
        fleet, view = state.fleet, View.of(state.fleet)
        reserve_host_resources(state, view)
        whole = np.flatnonzero((fleet.holder > 0) & ((fleet.beside_cpu > 0) | (fleet.beside_host > 0)))
        parts = [(fleet.node[fleet.row(c.device)], c.cpu_milli, c.host_memory_mib) for c, _ in shared]
        node, cpu_milli, host_mib = np.array(parts, dtype=np.int64).reshape(len(parts), 3).T
        ends_s = np.array([ends for _, ends in shared]).reshape(len(parts), 2).T
        return cls(
            view.free_cpu,
            view.free_host,
            np.concatenate([fleet.node[whole], node]),
            np.concatenate([fleet.beside_cpu[whole], cpu_milli]),
            np.concatenate([fleet.beside_host[whole], host_mib]),
            np.concatenate([free_s[:, whole], ends_s], axis=1),
        )

    def with_devices(self, state: State, shape: Shape, rows: Ints, free_s: Floats) -> Floats:
        """Until as many of `rows` as are free on their node by then have what `shape` needs beside them, s: shape (2, n), like
        `free_s`; infinite: never. On each node the devices that are free first have it first."""
        fleet = state.fleet
        needs = host_at_most(fleet, rows, shape)
        if not any(need.any() for need in needs):
            return free_s
        found, nodes = free_s.copy(), fleet.node[rows]
        for q in range(len(found)):
            by_node = np.lexsort((found[q], nodes))
            of = nodes[by_node]
            place = np.arange(1, len(of) + 1) - np.searchsorted(of, of)
            for need, free, given in (
                (needs[0], self.free_cpu, self.cpu_milli),
                (needs[1], self.free_host, self.host_mib),
            ):
                most = np.zeros(len(fleet.node_names), dtype=np.int64)
                np.maximum.at(most, nodes, need)
                found[q, by_node] = np.maximum(
                    found[q, by_node], self._until(q, of, place * most[of] - free[of], given)
                )
        return found

    def _until(self, q: int, nodes: Ints, lacking: Ints, given: Ints) -> Floats:
        """Until each of `nodes` (shape (n,)) has been given back so much more than is free, s."""
        order = np.lexsort((self.ends_s[q], self.node))
        of, given = self.node[order], given[order]
        sums = np.cumsum(given)
        first = np.searchsorted(of, of)
        so_far = sums - (sums - given)[first]  # of its own node
        at = np.searchsorted(of * _BEYOND + so_far, nodes * _BEYOND + np.clip(lacking, 0, _BEYOND - 1))
        there = at < np.searchsorted(of, nodes, side="right")
        until_s = np.full(len(nodes), np.inf)
        until_s[there] = self.ends_s[q][order][at[there]]
        until_s[lacking <= 0] = 0.0
        return until_s
