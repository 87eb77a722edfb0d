"""The settings that all services share; each service adds its own with the prefix `BATON_<SERVICE>_`."""

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings

from schemas.base import Name


def shared(name: str) -> AliasChoices:
    """The environment variable of a shared setting, whatever the service's prefix."""
    return AliasChoices(f"BATON_{name.upper()}", name)


class ServiceSettings(BaseSettings):
    """Shared settings. All problems are reported together, at start."""

    nats_url: str = Field(default="nats://127.0.0.1:4222", validation_alias=shared("nats_url"))
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", validation_alias=shared("redis_url"))
    mongo_url: str = Field(default="mongodb://127.0.0.1:27017", validation_alias=shared("mongo_url"))
    pool: Name = Field(default="main", validation_alias=shared("pool"))
    http_host: str = Field(default="127.0.0.1", validation_alias=shared("http_host"))
    http_port: int = Field(default=0, ge=0, le=65_535, validation_alias=shared("http_port"), description="0: a free one")
    log_level: str = Field(
        default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", validation_alias=shared("log_level")
    )
    state_dir: Path | None = Field(
        default=None, validation_alias=shared("state_dir"), description="where the chosen HTTP port is written"
    )
