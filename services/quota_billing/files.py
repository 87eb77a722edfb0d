"""The two files that people write: the price book and the teams' quotas. What is wrong in them is said at start."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from libs.core.metering import NoPrice, Prices
from schemas.base import Name, Strict
from schemas.billing import PriceBook

M = TypeVar("M", bound=BaseModel)


class BadFile(ValueError):
    """A configuration file cannot be used; the text names file, place, problem and fix."""


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
    try:
        return Prices(_load(path, PriceBook))
    except NoPrice as error:
        raise BadFile(f"{path}: {error}") from None


def load_quotas(path: Path) -> dict[str, int | None]:
    """Team -> limit in thousandths of a device, None for no limit. Raises BadFile."""
    teams = _load(path, TeamsFile).teams
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


def _load(path: Path, model: type[M]) -> M:
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile(f"{path} cannot be read ({error.strerror}): name another with BATON_QUOTA_BILLING_*") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadFile(f"{path} is not YAML: {error}") from None
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors(include_url=False)]
        raise BadFile(f"{path}: {'; '.join(problems)}") from None
