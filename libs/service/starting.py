"""The start of a service: what a person has written wrong, in a setting or a file, ends it with a line that says what."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from libs.service.settings import ServiceSettings

S = TypeVar("S", bound=ServiceSettings)


@contextmanager
def starting(name: str, *mistakes: type[Exception]) -> Iterator[None]:
    """Raises SystemExit with the text of a ValueError, or of one of `mistakes`."""
    told: tuple[type[Exception], ...] = (ValueError, *mistakes)
    try:
        yield
    except told as error:
        sys.exit(f"{name}: {error}")


def read_settings(kind: type[S]) -> S:
    """The settings of a service, from the environment. Raises ValueError naming each variable that is wrong."""
    try:
        return kind()
    except ValidationError as error:
        prefix = kind.model_config["env_prefix"]
        raise ValueError("; ".join(_problem(prefix, one) for one in error.errors(include_url=False))) from None


def _problem(prefix: str, error: ErrorDetails) -> str:
    field = ".".join(map(str, error["loc"]))
    problem = error["msg"].removeprefix("Value error, ")
    if not field:  # of several settings together
        return problem
    return f"{field if field.startswith('BATON_') else (prefix + field).upper()}: {problem}"
