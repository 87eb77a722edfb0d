"""Where a job of a class without network can run: on nodes that can take the network from it.

A node tells its tier of walls by a label of its inventory (`schemas.resources.WALLS`). What follows from it is one more label,
which nobody tells and such jobs ask for: so admission, placement and explanations treat it like any label. A node that tells no
tier (simulated, or of an earlier version) has it: it refuses by itself what it cannot do.
"""

from functools import lru_cache

from schemas.jobs import Network
from schemas.resources import NO_WALLS, WALLS, Inventory

OWN_NETWORK = "baton.network-none"
_CAN, _CANNOT = "yes", "no"
ASKED = (OWN_NETWORK, _CAN)


def labels_of(inventory: Inventory) -> dict[str, str]:
    """All labels of a node: those that it tells, and the one that follows."""
    return {**inventory.labels, OWN_NETWORK: _CANNOT if inventory.labels.get(WALLS) == NO_WALLS else _CAN}


Labels = tuple[tuple[str, str], ...]


@lru_cache(maxsize=1024)
def asked_for(labels: Labels, network: Network) -> Labels:
    """The labels that a job's nodes must have, sorted: `labels` of its request, and what its class demands."""
    return labels if network is Network.HOST else tuple(sorted({**dict(labels), OWN_NETWORK: _CAN}.items()))
