"""Processors and memory of nodes that are kept with devices: a job that wants much of them beside its device would else be
overtaken for ever by jobs that want less."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from libs.core.placement.view import View, host_at_most
from libs.core.state.fleet import Fleet, Ints
from libs.core.state.shape import Shape

_NONE: Ints = np.zeros(0, dtype=np.int64)


class KeptHost(NamedTuple):
    """What is kept of nodes, a line each: arrays of shape (n,)."""

    nodes: Ints = _NONE
    """Codes, rising."""
    cpu_milli: Ints = _NONE
    host_mib: Ints = _NONE

    def beyond(self, others: list["KeptHost"]) -> Ints:
        """The nodes of which none of `others` keeps as much."""
        more = np.ones(len(self.nodes), dtype=np.bool_)
        for other in others:
            _, mine, its = np.intersect1d(self.nodes, other.nodes, assume_unique=True, return_indices=True)
            enough = (other.cpu_milli[its] >= self.cpu_milli[mine]) & (other.host_mib[its] >= self.host_mib[mine])
            more[mine[enough]] = False
        return self.nodes[more]


NO_HOST = KeptHost()


def take_out(view: View, kept: Iterable[KeptHost], back: Iterable[KeptHost] = ()) -> None:
    """What is free in `view` is less by all of `kept`, and more by all of `back`. Its arrays may be shared: they are not
    written to."""
    free_cpu, free_host = view.free_cpu.copy(), view.free_host.copy()
    for sign, ones in ((-1, kept), (1, back)):
        for one in ones:
            free_cpu[one.nodes] += sign * one.cpu_milli
            free_host[one.nodes] += sign * one.host_mib
    view.free_cpu, view.free_host = free_cpu, free_host


def within_free(kept: Iterable[KeptHost], free_cpu: Ints, free_host: Ints) -> Iterator[KeptHost]:
    """The part of `kept` that is free, a line per node. `free_cpu` and `free_host`: what is free beside all that is held for
    jobs, so this is what `kept` leaves a job of what is held for it: all."""
    left_cpu, left_host = np.maximum(0, free_cpu), np.maximum(0, free_host)
    for one in kept:
        cpu_milli = np.minimum(one.cpu_milli, left_cpu[one.nodes])
        host_mib = np.minimum(one.host_mib, left_host[one.nodes])
        left_cpu[one.nodes] -= cpu_milli
        left_host[one.nodes] -= host_mib
        yield KeptHost(one.nodes, cpu_milli, host_mib)


def host_for(view: View, rows: Ints, shape: Shape) -> KeptHost:
    """What `shape` will need of the nodes of `rows` if it runs on these devices, wherever of them."""
    if not len(rows):
        return NO_HOST
    cpu_milli, host_mib = host_at_most(view.fleet, rows, shape)
    if not cpu_milli.any() and not host_mib.any():
        return NO_HOST
    fleet = view.fleet
    nodes, place = np.unique(fleet.node[rows], return_inverse=True)
    devices = np.minimum(np.bincount(place), shape.least)
    each_cpu, each_host = np.zeros_like(nodes), np.zeros_like(nodes)
    np.maximum.at(each_cpu, place, cpu_milli)
    np.maximum.at(each_host, place, host_mib)
    return KeptHost(
        nodes,
        np.minimum(devices * each_cpu, fleet.cpu_milli[nodes]),
        np.minimum(devices * each_host, fleet.host_mib[nodes]),
    )


def rows_on(fleet: Fleet, nodes: Ints) -> Ints:
    """The devices of some nodes."""
    return np.flatnonzero(np.isin(fleet.node, nodes)) if len(nodes) else _NONE
