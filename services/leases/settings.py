"""The settings of leases, from the environment with the prefix `BATON_LEASES_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.ledger.lease_terms import LeaseTerms
from libs.service.settings import ServiceSettings


class LeaseSettings(LeaseTerms, ServiceSettings):
    """Beside these, the terms of all leases."""

    model_config = SettingsConfigDict(env_prefix="BATON_LEASES_")

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
