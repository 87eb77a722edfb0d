"""The start of a service: what a person has written wrong, in a setting or a file, ends it with a line that says what."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import ValidationError

from libs.ports.variables import wrong_variables
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
        raise ValueError(wrong_variables(kind, error)) from None
