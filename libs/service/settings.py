"""The settings that all services share; each service adds its own with the prefix `BATON_<SERVICE>_`."""

from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from libs.bus import wire
from libs.bus.creds import Address
from libs.service.files import CLASSES_FILE, PRICES_FILE, THROUGHPUTS_FILE
from schemas.base import Name

SHIPPED = Path(__file__).parents[2] / "deploy"
"""Where the files are that hold when no variable names another."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServiceSettings(BaseSettings):
    """Shared settings, from `BATON_<NAME>` whatever the service's own prefix. All problems are reported together.

    A subclass sets `model_config = SettingsConfigDict(env_prefix="BATON_<SERVICE>_")`; a test passes values by name.
    """

    model_config = SettingsConfigDict(env_prefix="BATON_", populate_by_name=True, env_ignore_empty=True)

    nats_url: str = Field(default="nats://127.0.0.1:4222", validation_alias="BATON_NATS_URL")
    nats_creds: Path | None = Field(
        default=None, validation_alias="BATON_NATS_CREDS", description="the file of this process's credential"
    )
    nats_ca: Path | None = Field(
        default=None,
        validation_alias="BATON_NATS_CA",
        description="the authority that the broker is known by; by default ca.pem beside the credential",
    )
    insecure: bool = Field(
        default=False, validation_alias="BATON_INSECURE", description="a broker will do that lets anybody in"
    )
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", validation_alias="BATON_REDIS_URL")
    mongo_url: str = Field(default="mongodb://127.0.0.1:27017", validation_alias="BATON_MONGO_URL")
    pool: Name = Field(default="main", validation_alias="BATON_POOL")
    http_host: str = Field(default="127.0.0.1", validation_alias="BATON_HTTP_HOST")
    http_port: int = Field(
        default=0, ge=0, le=65_535, validation_alias="BATON_HTTP_PORT", description="0: a free one, see state_dir"
    )
    http_token: SecretStr = Field(
        default=SecretStr(""),
        validation_alias="BATON_HTTP_TOKEN",
        description="who asks for /readyz or /metrics must send it (`Authorization: Bearer`); needed where http_host is not "
        "loopback",
    )
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", validation_alias="BATON_LOG_LEVEL")
    state_dir: Path | None = Field(
        default=None, validation_alias="BATON_STATE_DIR", description="where <service>.http tells the chosen HTTP port"
    )
    leader_ttl_s: float = Field(
        default=3.0,
        ge=0.3,
        le=60,
        validation_alias="BATON_LEADER_TTL_S",
        description="of two equal processes: how long one is silent until the other takes over its work, s",
    )
    trim_keep_s: float = Field(
        default=600.0,
        ge=0,
        validation_alias="BATON_TRIM_KEEP_S",
        description="requests and inputs that were dealt with are kept for so long, s; less when their stream is half full",
    )

    @property
    def bus(self) -> Address:
        """Where the broker is, and the credential to show there."""
        return Address(self.nats_url, self.nats_creds, anonymous=self.insecure, ca=self.nats_ca, plain=self.insecure)

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.http_host not in _LOOPBACK and not self.http_token.get_secret_value():
            raise ValueError(
                f"BATON_HTTP_HOST is {self.http_host}, so others can ask for metrics: set BATON_HTTP_TOKEN, or use 127.0.0.1"
            )
        for url in (self.redis_url, self.mongo_url):
            wire.check(url, allowed=wire.allowed_hosts(), insecure=self.insecure)
        return self


def warm() -> None:
    """Once before a fork: whether a field's type is one of mappings, say, is looked up among all subclasses of all there are,
    and remembered. In each forked process that would touch, and so copy, every one of these classes."""
    global _warm
    EnvSettingsSource(ServiceSettings)()
    _warm = True


_warm = False


def warmed() -> bool:
    """Whether this process was forked from one that has prepared what services share. `gc.get_freeze_count` would tell it, too,
    but counts one by one: 20 ms for each service."""
    return _warm


class OrderSettings(ServiceSettings):
    """Of the services that take waiting jobs in order: set once for both, or they would disagree on who is next."""

    reserve_after_s: float = Field(
        default=60.0,
        ge=0,
        validation_alias="BATON_RESERVE_AFTER_S",
        description="a gang that waits longer gets a reservation, and so does a job of one device where others take parts, s",
    )


class CycleSettings(OrderSettings):
    """What decides where jobs go and what a dry run says of it: of placement, and of queries, which answers for it.

    A dry run by other prices or classes than placement's would be wrong.
    """

    prices: Path = Field(
        default=SHIPPED / "prices.yaml",
        validation_alias=AliasChoices(PRICES_FILE, "BATON_PLACEMENT_PRICES"),
        description="price book, for plans and the objective cost",
    )
    throughputs: Path = Field(
        default=SHIPPED / "throughputs.yaml",
        validation_alias=AliasChoices(THROUGHPUTS_FILE, "BATON_PLACEMENT_THROUGHPUTS"),
        description="measured rates, see docs/plan.md",
    )
    classes: Path | None = Field(
        default=None,
        validation_alias=AliasChoices(CLASSES_FILE, "BATON_PLACEMENT_CLASSES"),
        description="priority classes for plans: admission's file, if it has one",
    )
