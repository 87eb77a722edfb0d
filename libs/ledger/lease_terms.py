"""What decides when a silent node's work is taken for ended, from the environment with the prefix `BATON_LEASES_`: leases reads
it, and whoever goes on with a restored ledger."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from libs.core.projections.node_health import Terms

_DEFAULT = Terms()


class LeaseTerms(BaseSettings):
    """They must cover what agents really do (P4)."""

    model_config = SettingsConfigDict(env_prefix="BATON_LEASES_", env_ignore_empty=True)

    max_lease_s: float = Field(
        default=_DEFAULT.max_lease_s,
        gt=0,
        le=86_400,
        description="no longer lease is granted; assumed of nodes not heard yet, s",
    )
    kill_bound_s: float = Field(
        default=_DEFAULT.kill_bound_s,
        ge=0,
        le=600,
        description="how long after the end of its lease an agent's work may live, s",
    )
    rho: float = Field(
        default=_DEFAULT.rho, ge=0, lt=0.5, description="how wrong the rate of a clock may be, 0.001 is 0.1 %"
    )
    margin_s: float = Field(default=_DEFAULT.margin_s, ge=0, le=600, description="waited on top of all that, s")

    def terms(self) -> Terms:
        return Terms(self.max_lease_s, self.kill_bound_s, self.rho, self.margin_s)
