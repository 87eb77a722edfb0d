"""Several rules on one workload, one after the other."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from libs.adapters.devices.fleet import FleetError, read_fleet
from libs.core.scheduling.precedence import DEFAULT_RULE, OrderRule
from libs.simulation.policy.engine import SimulatedRun, SimulatedWorld, simulate
from libs.simulation.policy.measure import figures
from libs.simulation.policy.workload import WorkloadRow

__all__ = ["DEFAULT_RULE", "FleetError", "compare"]


def compare(
    fleet: Path,
    rows: Sequence[WorkloadRow],
    rules: Sequence[OrderRule],
    world: SimulatedWorld,
    progress: Callable[[OrderRule, int], None] = lambda rule, ended: None,
) -> tuple[dict[str, dict[str, Any]], dict[str, SimulatedRun]]:
    """Figures of each rule by its name, and what happened. Raises FleetError for a fleet file that cannot be used."""
    inventories = read_fleet(fleet)
    runs = {rule.value: simulate(rows, inventories, rule, world, progress=_telling(progress, rule)) for rule in rules}
    return {name: figures(run) for name, run in runs.items()}, runs


def _telling(progress: Callable[[OrderRule, int], None], rule: OrderRule) -> Callable[[int], None]:
    return lambda ended: progress(rule, ended)
