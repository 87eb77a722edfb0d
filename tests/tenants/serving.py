"""The type of the fixture `serving`."""

from collections.abc import Callable
from typing import Any

Serving = Callable[[], Any]
