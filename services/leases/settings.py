"""The settings of leases, from the environment with the prefix `BATON_LEASES_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.core.projections.node_health import Terms
from libs.service.settings import ServiceSettings


class LeaseSettings(ServiceSettings):
    """The first four decide when a silent node's work is taken for ended; they must cover what agents really do (P4)."""

    model_config = SettingsConfigDict(env_prefix="BATON_LEASES_")

    max_lease_s: float = Field(
        default=900.0, gt=0, le=86_400, description="no longer lease is granted; assumed of nodes not heard yet, s"
    )
    kill_bound_s: float = Field(
        default=5.0, ge=0, le=600, description="how long after the end of its lease an agent's work may live, s"
    )
    rho: float = Field(default=0.001, ge=0, lt=0.5, description="how wrong the rate of a clock may be, 0.001 is 0.1 %")
    margin_s: float = Field(default=1.0, ge=0, le=600, description="waited on top of all that, s")
    term_s: float = Field(
        default=10.0, ge=0.2, le=600,
        description="leases are granted only so long after the ledger was last seen to name this process, s",
    )  # fmt: skip
    broker_s: float = Field(
        default=10.0,
        ge=0,
        le=600,
        description="how long a broker that lost its peers may still answer from the past, s",
    )
    silent_s: float = Field(
        default=15.0,
        gt=0,
        le=600,
        description="a node is silent so long after its last renewal, s: nothing new is started there",
    )
    standby_s: float = Field(
        default=3.0, ge=0.1, le=600, description="a standby takes over so long after the last tick of another, s"
    )
    tick_s: float = Field(default=1.0, ge=0.05, le=60, description="time between ticks, s")
    stall_s: float = Field(
        default=5.0, gt=0, le=600, description="a gap between ticks from which on we were frozen ourselves, s"
    )
    snapshot_records: int = Field(default=20_000, ge=100, description="ledger records between snapshots of the nodes")

    def terms(self) -> Terms:
        return Terms(self.max_lease_s, self.kill_bound_s, self.rho, self.margin_s)
