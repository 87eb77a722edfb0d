"""How soon a node is ready for a job: what it must fetch first."""

import numpy as np
import numpy.typing as npt

from libs.core.state.fleet import Fleet, Ints
from libs.core.state.shape import Shape

Floats = npt.NDArray[np.float64]


def seconds_to_ready(fleet: Fleet, node_codes: Ints, shape: Shape) -> Floats:
    """Seconds that each of the nodes (codes of shape (n,)) needs to fetch those contents of `shape` that it has not.

    The sum of their sizes over the node's fetch speed, shape (n,). Other transfers of that node are not counted.
    """
    missing_mib = np.zeros(len(node_codes), dtype=np.float64)
    for name, size_mib in shape.contents:
        having = fleet.content_nodes.get(name)
        if not having:
            missing_mib += size_mib
        else:
            missing_mib[~np.isin(node_codes, np.fromiter(having, dtype=np.int64, count=len(having)))] += size_mib
    return missing_mib / np.maximum(1, fleet.fetch_mib_s[node_codes])


def soonest(fleet: Fleet, rows: Ints, shape: Shape) -> Ints:
    """Those of the devices `rows` whose nodes are ready first; all of them when the job reads nothing that is known."""
    if not shape.contents or len(rows) == 0:
        return rows
    seconds = seconds_to_ready(fleet, fleet.node[rows], shape)
    first: Ints = rows[seconds == seconds.min()]
    return first
