"""Telemetry's settings, from the environment with the prefix `BATON_TELEMETRY_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.core.projections.node_health import Terms
from libs.service.settings import ServiceSettings


class TelemetrySettings(ServiceSettings):
    """The first five decide when a silent node is given up; they must cover what the agents really do (P4)."""

    model_config = SettingsConfigDict(env_prefix="BATON_TELEMETRY_")

    max_lease_s: float = Field(
        default=30.0, gt=0, le=3600, description="no longer lease is granted; assumed of nodes not heard yet, s"
    )
    kill_bound_s: float = Field(
        default=5.0, ge=0, le=600, description="how long after the end of its lease an agent's work may live, s"
    )
    rho: float = Field(default=0.001, ge=0, lt=0.5, description="how wrong the rate of a clock may be, 0.001 is 0.1 %")
    margin_s: float = Field(default=1.0, ge=0, le=600, description="waited on top of all that, s")
    confirm_s: float = Field(
        default=3.0, gt=0, le=600, description="leases are granted only so long after the broker last stored a tick, s"
    )
    tick_s: float = Field(default=1.0, ge=0.05, le=60, description="time between ticks, s")
    stall_s: float = Field(
        default=5.0, gt=0, le=600, description="a gap between ticks from which on we were frozen ourselves, s"
    )
    dcgm_names: bool = Field(
        default=True, description="metrics under dcgm-exporter's names as well, for its stock dashboards"
    )
    snapshot_records: int = Field(default=20_000, ge=100, description="ledger records between snapshots of the figures")
    fresh_s: float = Field(default=60.0, gt=0, le=3600, description="older samples are not shown, s")

    def terms(self) -> Terms:
        """Two telemetry processes on two sides of a broken cluster: the one without the inbox stops granting leases
        within `confirm_s`, so the other waits that much longer."""
        return Terms(self.max_lease_s, self.kill_bound_s, self.rho, self.margin_s + self.confirm_s)
