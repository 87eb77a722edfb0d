"""The start of a service: a mistake in a setting or a file ends it with one line that says what to correct."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from libs.bus import wire
from libs.bus.creds import speaker
from libs.ports.variables import wrong_variables
from libs.service.settings import ServiceSettings

S = TypeVar("S", bound=ServiceSettings)

ADMINISTERS = "services"
"""Whose credential may do everything (`libs.walls.accounts`)."""
_STORES = {"BATON_REDIS_URL": ("redis", "rediss", "unix"), "BATON_MONGO_URL": ("mongodb", "mongodb+srv")}


@contextmanager
def starting(name: str, *mistakes: type[Exception]) -> Iterator[None]:
    """Raises SystemExit with the text of a ValueError, or of one of `mistakes`."""
    told: tuple[type[Exception], ...] = (ValueError, *mistakes)
    try:
        yield
    except told as error:
        sys.exit(f"{name}: {error}")


def read_settings(kind: type[S], service: str = "") -> S:
    """The settings of a service, from the environment. `service`: whose credential it must be.

    Raises ValueError naming each variable that is wrong."""
    for variable, schemes in _STORES.items():
        if url := os.environ.get(variable):
            wire.check_store(url, variable, schemes)
    try:
        settings = kind()
    except ValidationError as error:
        raise ValueError(wrong_variables(kind, error)) from None
    wire.check_form(settings.nats_url, "BATON_NATS_URL")
    if service and settings.nats_creds is not None:
        _check_speaker(settings.nats_creds, service)
    return settings


def _check_speaker(creds: Path, service: str) -> None:
    """The broker drops what a service says or asks with another's credential, and it would wait for ever."""
    if (who := speaker(creds)) not in (service, ADMINISTERS):
        raise ValueError(
            f"BATON_NATS_CREDS is {creds}, the credential of {who!r}, and this is {service}: set it to that of {service} "
            f"(`baton credentials` writes it as creds/services/{service}/nats.creds)"
        )
