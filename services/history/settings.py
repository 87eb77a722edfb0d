"""History's settings, from the environment with the prefix `BATON_HISTORY_`."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from libs.service.settings import ServiceSettings


class HistorySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_HISTORY_")

    window_ms: float = Field(
        default=200.0,
        ge=0,
        le=10_000,
        description="changes are gathered for so long, five times as long while they keep coming, ms: a job is written once",
    )
    window_jobs: int = Field(default=500, ge=1, le=5000, description="and at the most for so many changed jobs")
    cache_jobs: int = Field(
        default=4_000,
        ge=100,
        description="unfinished jobs kept in memory, where one takes four times what it takes when it is stored (5 KB and "
        "more); others are read again, 0.07 ms each",
    )
    cache_mib: float = Field(default=32.0, gt=0, description="and of these so many MiB, as they are stored")
    snapshot_records: int = Field(default=5000, ge=100, description="ledger records between snapshots of the feed")
    sum_every_s: float = Field(
        default=300.0, ge=1, description="ledger time between two sums of all teams' lines (docs/proofs.md), s"
    )
    proof_days: float = Field(
        default=400.0,
        gt=0,
        description="lines and sums that are older, in ledger time, are deleted: teams cannot check them",
    )
