"""Quotas in the teams' file. Errors in it are reported at start."""

from pathlib import Path

from libs.core.state.limits import Limits
from libs.service.files import TEAMS_FILE, BadFile, read
from libs.service.teams_file import TeamEntry, TeamsFile
from schemas.resources import WHOLE_MILLI

__all__ = ["BadFile", "TeamEntry", "TeamsFile", "load_quotas", "quota_changes"]


def load_quotas(path: Path) -> dict[str, Limits | None]:
    """Team -> its limits, None for none. Raises BadFile."""
    return {team: _limits(entry) for team, entry in read(path, TeamsFile, TEAMS_FILE).teams.items()}


def _limits(entry: TeamEntry) -> Limits | None:
    total = None if entry.devices is None else round(entry.devices * WHOLE_MILLI)
    return Limits.of(total, {key: round(devices * WHOLE_MILLI) for key, devices in entry.types.items()})


def quota_changes(
    wanted: dict[str, Limits | None], applied: dict[str, Limits | None], ledger: dict[str, Limits]
) -> dict[str, Limits | None]:
    """Quotas to send to placement: entries that are new or changed since they were last applied, unless the ledger
    already has those limits. An entry that was applied before is skipped, so an operator's later command stays."""
    return {
        team: limits
        for team, limits in wanted.items()
        if (team not in applied or applied[team] != limits) and ledger.get(team) != limits
    }
