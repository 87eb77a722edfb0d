"""Preemption's settings, from the environment with the prefix `BATON_PREEMPTION_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import OrderSettings


class PreemptionSettings(OrderSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_PREEMPTION_")

    snapshot_records: int = Field(default=5000, ge=100, description="ledger records between snapshots of the state")
