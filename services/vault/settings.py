"""The settings of vault, from the environment with the prefix `BATON_VAULT_`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import ServiceSettings


class VaultSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_VAULT_")

    keys: Path | None = Field(
        default=None,
        description="the file of the master key, made when there is none; by default keys.json in the state directory. All "
        "processes of vault use the same file",
    )
    snapshot_records: int = Field(default=20_000, ge=100, description="ledger records between snapshots")
    seen_wait_s: float = Field(
        default=2.0, ge=0, le=60, description="how long an answer waits for a record that its asker has heard of, s"
    )
    asked_at_once: int = Field(default=200, ge=1, le=100_000, description="questions that a team may ask at once")
    changes_at_once: int = Field(
        default=200,
        ge=1,
        le=100_000,
        description="secrets that a team may set or remove at once: the ledger keeps each",
    )
    changes_per_s: float = Field(default=1 / 30, gt=0, le=1000, description="and for ever, a second")
    asked_per_s: float = Field(default=20.0, gt=0, le=100_000, description="and for ever, a second")

    def keys_path(self) -> Path:
        """Where the master key lies."""
        return (self.keys or (self.state_dir or Path()) / "keys.json").absolute()
