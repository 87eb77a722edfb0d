"""Which process of an attempt ran on which node, from history's documents. The agents number processes by the same rules
(`services.agent.variables.slots`)."""

from collections.abc import Sequence

from schemas.jobs import JobSpec, Launch
from schemas.queries import AttemptDocument


def hosts(spec: JobSpec, attempt: AttemptDocument) -> tuple[str, ...]:
    """The node of each process, by rank. Empty when the attempt's nodes are not kept any more, or which device of a nested gang
    served which role is not known."""
    if not attempt.nodes:
        return ()
    places: Sequence[int] = attempt.places or even_places(len(attempt.devices), len(attempt.nodes))
    if spec.launch is Launch.PER_NODE:
        places = _one_of_each_node(spec, places) if spec.resources.roles else range(len(attempt.nodes))
    return tuple(attempt.nodes[place] for place in places)


def even_places(devices: int, nodes: int) -> tuple[int, ...]:
    """Of each device the place of its node, when each node has as many, one after the other."""
    return tuple(rank * nodes // devices for rank in range(devices))


def _one_of_each_node(spec: JobSpec, places: Sequence[int]) -> list[int]:
    """Roles one after the other, and of each the nodes that serve it. One role that has fewer groups than it asked for is known
    by what is missing; of several it is not."""
    roles = spec.resources.roles
    sizes = [role.count * role.devices for role in roles]
    if missing := sum(sizes) - len(places):
        elastic = [i for i, role in enumerate(roles) if role.min_count is not None and role.min_count < role.count]
        if len(elastic) != 1:
            return []
        sizes[elastic[0]] -= missing
    found: list[int] = []
    at = 0
    for size in sizes:
        found += dict.fromkeys(places[at : at + size])
        at += size
    return found
