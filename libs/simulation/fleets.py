"""Fleet files, for tools that start nothing of the nodes in them."""

from pathlib import Path

from libs.adapters.devices.fleet import FleetError, read_fleet

__all__ = ["FleetError", "check_fleet"]


def check_fleet(path: Path, pool: str = "") -> None:
    """Raises FleetError for a file that cannot be used, by `pool` where that is known."""
    read_fleet(path, pool)
