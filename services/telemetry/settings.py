"""Telemetry's settings, from the environment with the prefix `BATON_TELEMETRY_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import ServiceSettings


class TelemetrySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_TELEMETRY_")

    dcgm_names: bool = Field(
        default=True, description="metrics under dcgm-exporter's names as well, for its stock dashboards"
    )
    snapshot_records: int = Field(default=20_000, ge=100, description="ledger records between snapshots of the figures")
    fresh_s: float = Field(default=60.0, gt=0, le=3600, description="older samples are not shown, s")
