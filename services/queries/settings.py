"""The settings of queries, from the environment with the prefix `BATON_QUERIES_`; what placement decides by, it shares."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import CycleSettings


class QueriesSettings(CycleSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_QUERIES_")

    snapshot_records: int = Field(default=5000, ge=100, description="ledger records between snapshots of the state")
    latency_window: int = Field(default=20_000, ge=100, description="grants kept for the latency quantiles")
    questions_each: int = Field(
        default=32, ge=1, le=1000, description="questions of one team that may wait for their turn; the next is refused"
    )
    decided_wait_s: float = Field(
        default=0.5,
        ge=0,
        le=60,
        description="how long an unknown job may be on its way through the inbox before the answer is that there is none, s",
    )
    seen_wait_s: float = Field(
        default=1.0, ge=0, le=60, description="how long an answer waits for a record that its asker has heard of, s"
    )
