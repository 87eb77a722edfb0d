"""The two files that people write: the price book and the teams' quotas. What is wrong in them is said at start."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from libs.core.billing.metering import Prices
from libs.service.files import BadFile, read, read_prices
from schemas.base import Name, Strict

__all__ = ["BadFile", "TeamEntry", "TeamsFile", "load_prices", "load_quotas", "quota_changes"]

_SETTINGS = "BATON_QUOTA_BILLING_*"


def _thousandths(devices: float | None) -> float | None:
    if devices is not None and abs(devices * 1000 - round(devices * 1000)) > 1e-6:
        raise ValueError("quotas are counted in thousandths of a device: give at most three decimals")
    return devices


class TeamEntry(Strict):
    """What a team may hold at once."""

    devices: Annotated[float | None, Field(ge=0, le=1_000_000), AfterValidator(_thousandths)]


class TeamsFile(Strict):
    """`deploy/teams.yaml`."""

    teams: dict[Name, TeamEntry] = Field(default_factory=dict)


def load_prices(path: Path) -> Prices:
    """The price book. Raises BadFile."""
    return read_prices(path, _SETTINGS)


def load_quotas(path: Path) -> dict[str, int | None]:
    """Team -> limit in thousandths of a device, None for no limit. Raises BadFile."""
    teams = read(path, TeamsFile, _SETTINGS).teams
    return {team: None if e.devices is None else round(e.devices * 1000) for team, e in teams.items()}


def quota_changes(
    wanted: dict[str, int | None], applied: dict[str, int | None], ledger: dict[str, int]
) -> dict[str, int | None]:
    """What must be told to placement: entries that are new or were changed since they were applied last, unless the
    ledger has that limit already. An entry that was applied before is left alone, so that what an operator set in the
    meantime stays."""
    return {
        team: limit
        for team, limit in wanted.items()
        if (team not in applied or applied[team] != limit) and ledger.get(team) != limit
    }
