"""Data derived from a fleet's devices and nodes alone, cached until one of them is added or removed."""

from collections.abc import Callable
from typing import TypeVar

from libs.core.state.fleet import Fleet

T = TypeVar("T")

_REMEMBERED = 64


def remembered(fleet: Fleet, key: object, reckon: Callable[[], T]) -> T:
    """What `reckon` gives, kept in the fleet until devices or nodes come or go: the last few keys that were asked for.
    It must depend on nothing else of the fleet."""
    if fleet.lasting_version != fleet.version:
        fleet.lasting.clear()
        fleet.lasting_version = fleet.version
    known: T | None = fleet.lasting.pop(key, None)
    if known is None:
        known = reckon()
        if len(fleet.lasting) >= _REMEMBERED:
            del fleet.lasting[next(iter(fleet.lasting))]
    fleet.lasting[key] = known
    return known
