"""Several policies on one workload, one after the other."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from libs.adapters.devices.fleet import FleetError, read_fleet
from libs.core.scheduling.precedence import DEFAULT_RULE
from libs.simulation.policy.engine import SimulatedPolicy, SimulatedRun, SimulatedWorld, simulate
from libs.simulation.policy.measure import figures
from libs.simulation.policy.workload import WorkloadRow

__all__ = ["DEFAULT_RULE", "FleetError", "SimulatedPolicy", "compare"]


def compare(
    fleet: Path,
    rows: Sequence[WorkloadRow],
    policies: Mapping[str, SimulatedPolicy],
    world: SimulatedWorld,
    progress: Callable[[str, int], None] = lambda policy, ended: None,
) -> tuple[dict[str, dict[str, Any]], dict[str, SimulatedRun]]:
    """Figures of each policy by its name, and what happened. Raises FleetError for a fleet file that cannot be used."""
    inventories = read_fleet(fleet)
    runs = {
        name: simulate(rows, inventories, policy, world, progress=_telling(progress, name))
        for name, policy in policies.items()
    }
    return {name: figures(run) for name, run in runs.items()}, runs


def _telling(progress: Callable[[str, int], None], name: str) -> Callable[[int], None]:
    return lambda ended: progress(name, ended)
