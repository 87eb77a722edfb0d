"""The teams' file, `deploy/teams.yaml`: what each may hold (quota_billing tells placement) and ask for (admission)."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from libs.core.accelerators.kinds import problem_with
from libs.core.admission.intake import EVERYBODY, SHIPPED, IntakeLimits
from libs.core.admission.traffic import EVERYBODYS, TrafficLimits
from libs.service.files import TEAMS_FILE, read
from schemas.base import Name, Strict
from schemas.resources import LimitKey


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
    type (`H100`) or device type and MIG profile (`H100:1g.10gb`). `intake`: how much it may ask for, of admission. `traffic`:
    how much may pass between the broker and it, of who holds the keys."""

    devices: DeviceCount | None
    types: Annotated[dict[LimitKey, DeviceCount], AfterValidator(_known)] = Field(default_factory=dict)
    intake: IntakeLimits = IntakeLimits()
    traffic: TrafficLimits = TrafficLimits()


class TeamsFile(Strict):
    """`deploy/teams.yaml`. `intake`: what every team may ask for, also one that is not named; where it is left out, what is
    shipped. What a team's own entry says of a limit counts in its place, and null lifts it."""

    intake: IntakeLimits = SHIPPED
    traffic: TrafficLimits = EVERYBODYS
    teams: dict[Name, TeamEntry] = Field(default_factory=dict)


def load_intake(path: Path | None, setting: str = TEAMS_FILE) -> dict[str, IntakeLimits]:
    """Team, or `EVERYBODY` -> what it may ask for; without a file what is shipped. Raises BadFile."""
    file = read(path, TeamsFile, setting) if path is not None else TeamsFile()
    named = {team: file.intake.but(entry.intake) for team, entry in file.teams.items()}
    return named if file.intake == IntakeLimits() else {EVERYBODY: file.intake, **named}


def load_traffic(path: Path | None, setting: str = TEAMS_FILE) -> dict[str, TrafficLimits]:
    """The same of what may pass between the broker and each."""
    file = read(path, TeamsFile, setting) if path is not None else TeamsFile()
    return {EVERYBODY: file.traffic, **{team: file.traffic.but(entry.traffic) for team, entry in file.teams.items()}}
