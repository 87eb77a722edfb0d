"""Quota_billing's settings, from the environment with the prefix `BATON_QUOTA_BILLING_`."""

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from libs.service.files import PRICES_FILE, TEAMS_FILE
from libs.service.settings import SHIPPED, ServiceSettings


class QuotaBillingSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="BATON_QUOTA_BILLING_")

    prices: Path = Field(
        default=SHIPPED / "prices.yaml",
        validation_alias=AliasChoices(PRICES_FILE, "BATON_QUOTA_BILLING_PRICES"),
        description="price book (YAML), see docs/billing.md",
    )
    teams: Path = Field(
        default=SHIPPED / "teams.yaml",
        validation_alias=AliasChoices(TEAMS_FILE, "BATON_QUOTA_BILLING_TEAMS"),
        description="hard quotas of teams (YAML)",
    )
    snapshot_records: int = Field(default=5000, ge=1, description="ledger records between snapshots of the meter")
    keep_bills_s: float = Field(default=5.0, gt=0, description="between two writes of bills that changed to MongoDB, s")
    keep_use_days: int = Field(
        default=400,
        ge=0,
        le=4000,
        description="how long hourly sums of use are kept in MongoDB, days; 0: none are made",
    )
