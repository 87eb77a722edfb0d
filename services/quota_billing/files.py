"""The two files that people write: the price book and the teams' quotas. What is wrong in them is said at start."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from libs.core.accelerators.kinds import problem_with
from libs.core.billing.pricing import Prices
from libs.core.state.limits import Limits
from libs.service.files import BadFile, read, read_prices
from schemas.base import Name, Strict
from schemas.resources import WHOLE_MILLI, LimitKey

__all__ = ["BadFile", "TeamEntry", "TeamsFile", "load_prices", "load_quotas", "quota_changes"]

_SETTINGS = "BATON_QUOTA_BILLING_*"


def _thousandths(devices: float) -> float:
    if abs(devices * 1000 - round(devices * 1000)) > 1e-6:
        raise ValueError("quotas are counted in thousandths of a device: give at most three decimals")
    return devices


DeviceCount = Annotated[float, Field(ge=0, le=1_000_000), AfterValidator(_thousandths)]


def _known(types: dict[str, float]) -> dict[str, float]:
    for key in types:
        if problem := problem_with(key):
            raise ValueError(f"{key}: {problem}")
    return types


class TeamEntry(Strict):
    """What a team may hold at once. `devices`: accelerators of any type, null: no limit on them; `types`: besides, by device
    type (`H100`) or device type and MIG profile (`H100:1g.10gb`)."""

    devices: DeviceCount | None
    types: Annotated[dict[LimitKey, DeviceCount], AfterValidator(_known)] = Field(default_factory=dict)


class TeamsFile(Strict):
    """`deploy/teams.yaml`."""

    teams: dict[Name, TeamEntry] = Field(default_factory=dict)


def load_prices(path: Path) -> Prices:
    """The price book. Raises BadFile."""
    return read_prices(path, _SETTINGS)


def load_quotas(path: Path) -> dict[str, Limits | None]:
    """Team -> its limits, None for none. Raises BadFile."""
    return {team: _limits(entry) for team, entry in read(path, TeamsFile, _SETTINGS).teams.items()}


def _limits(entry: TeamEntry) -> Limits | None:
    total = None if entry.devices is None else round(entry.devices * WHOLE_MILLI)
    return Limits.of(total, {key: round(devices * WHOLE_MILLI) for key, devices in entry.types.items()})


def quota_changes(
    wanted: dict[str, Limits | None], applied: dict[str, Limits | None], ledger: dict[str, Limits]
) -> dict[str, Limits | None]:
    """What must be told to placement: entries that are new or were changed since they were applied last, unless the
    ledger has those limits already. An entry that was applied before is left alone, so that what an operator set in the
    meantime stays."""
    return {
        team: limits
        for team, limits in wanted.items()
        if (team not in applied or applied[team] != limits) and ledger.get(team) != limits
    }
