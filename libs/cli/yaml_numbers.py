"""Exact numbers from YAML: decimals are parsed from text, without binary floats."""

import re
from decimal import Decimal
from typing import Any

from schemas.yamlfile import ungrouped

_PLAIN = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_LARGE = re.compile(r"[0-9]{10,}(\.[0-9]*)?")


def millionths(text: Any, what: str, without: str, example: str) -> int:
    """A decimal in millionths. Raises ValueError with the fix; `what` may not be negative, `without` names the
    alternative."""
    said = ungrouped(str(text))
    if said.startswith("-"):
        raise ValueError(f"{what} is not negative: {without}")
    if _LARGE.fullmatch(said):
        raise ValueError(f"{what} is below 1000000000: correct the value")
    if not _PLAIN.fullmatch(said):
        raise ValueError(f"is not written as a plain decimal: write a decimal with at most six places, e.g. {example}")
    return int(Decimal(said) * 1_000_000)


def whole(value: Any) -> Any:
    """An integer. YAML's `yes` and `true` are not a 1. Raises ValueError with the fix."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("is not a whole number: write digits, without quotes")
    return value
