"""Admission's settings, from the environment with the prefix `BATON_ADMISSION_`."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from libs.core.admission.intake import IntakeLimits
from libs.core.admission.priority_class import DEFAULT_CLASSES, PriorityClass
from libs.service.files import CLASSES_FILE, TEAMS_FILE, read_classes
from libs.service.settings import ServiceSettings
from libs.service.teams_file import load_intake
from schemas.base import Name


class AdmissionSettings(ServiceSettings):
    """All problems are reported together, at start."""

    model_config = SettingsConfigDict(env_prefix="BATON_ADMISSION_")

    pools: Annotated[tuple[Name, ...], NoDecode] = Field(
        default=(),
        validation_alias="BATON_POOLS",
        description="the pools that jobs are routed to, separated by commas, the first of equals first; default: BATON_POOL",
    )
    classes: Path | None = Field(
        default=None,
        validation_alias=AliasChoices(CLASSES_FILE, "BATON_ADMISSION_CLASSES"),
        description="priority classes, a file like deploy/classes.yaml; without it the three shipped ones",
    )
    teams: Path | None = Field(
        default=None,
        validation_alias=AliasChoices(TEAMS_FILE, "BATON_ADMISSION_TEAMS"),
        description="how much teams may ask for, the teams' file (deploy/teams.yaml); without it what is shipped",
    )
    batch: int = Field(default=256, ge=1, le=1000, description="requests fetched together at the most")
    undecided: int = Field(
        default=32,
        ge=1,
        description="when more requests wait: how many admitted jobs of the queue may lie undecided in the inboxes at first, "
        "while a team with few requests sends some; from then on as many as are decided without waiting",
    )
    undecided_alone: int = Field(
        default=512, ge=1, description="the same while only one team sends: larger batches cost less"
    )
    snapshot_records: int = Field(
        default=20_000, ge=100, description="ledger records between snapshots of what is known of the pool"
    )

    @field_validator("pools", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else list(value)
        if len(set(names)) != len(names):
            raise ValueError(f"name each pool once (there are: {', '.join(names)})")
        return names

    @property
    def all_pools(self) -> tuple[str, ...]:
        return self.pools or (self.pool,)

    @field_validator("classes")
    @classmethod
    def _readable(cls, path: Path | None) -> Path | None:
        if path is not None:
            read_classes(path)
        return path

    @field_validator("teams")
    @classmethod
    def _usable(cls, path: Path | None) -> Path | None:
        if path is not None:
            load_intake(path)
        return path

    def intake_limits(self) -> dict[str, IntakeLimits]:
        """What each team may ask for."""
        return load_intake(self.teams)

    def priority_classes(self) -> dict[str, PriorityClass]:
        """Classes by name."""
        return read_classes(self.classes) if self.classes else {c.name: c for c in DEFAULT_CLASSES}
