"""A placement as the ledger tells it: the claims of a grant, and how close together its devices are."""

from libs.core.placement.answer import Placed
from libs.core.placement.search.gang import gap
from libs.core.placement.view import View, host_of, memory_of
from libs.core.state.shape import Shape
from schemas.base import of_known
from schemas.resources import Claim, Span


def claims_of(view: View, shape: Shape, placed: Placed) -> tuple[Claim, ...]:
    """The claims of a grant in rank order, each with the next epoch of its device, before `view.take`."""
    fleet, rows = view.fleet, placed.rows
    cpu_milli, host_mib = host_of(view.fleet, rows, shape, placed.roles)
    memory = memory_of(view.fleet, rows, shape)
    nodes, devices = fleet.node_names.names, fleet.devices.names
    roles = [""] * len(rows) if placed.roles is None else [shape.roles[i].name for i in placed.roles.tolist()]
    columns = (rows, fleet.node[rows], memory, cpu_milli, host_mib, view.epoch[rows] + 1)
    return tuple(
        of_known(
            Claim,
            {
                "device": devices[row],
                "node": nodes[node],
                "milli": shape.milli,
                "memory_mib": memory_mib,
                "cpu_milli": cpus,
                "host_memory_mib": host,
                "epoch": epoch,
                "role": role,
            },
        )
        for row, node, memory_mib, cpus, host, epoch, role in zip(*(c.tolist() for c in columns), roles, strict=True)
    )


def span_of_gang(view: View, shape: Shape, placed: Placed) -> Span | None:
    """How close together a gang's devices are; None for a single device."""
    return gap(view, shape, placed) if len(placed.rows) > 1 else None
