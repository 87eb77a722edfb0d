"""Preemption's settings, from the environment with the prefix `BATON_PREEMPTION_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import ServiceSettings


class PreemptionSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_PREEMPTION_")

    snapshot_records: int = Field(default=5000, ge=100, description="ledger records between snapshots of the state")
    reserve_after_s: float = Field(
        default=60.0, ge=0, description="as placement's, so that both take jobs in one order: see its settings, s"
    )
