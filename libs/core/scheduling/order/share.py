"""How busy a team is, as the order compares teams: in whole accelerators, by the same weights as limits
(`libs.core.accelerators.kinds`), so that seven `1g` slices of seven are one board."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from libs.core.accelerators.kinds import grains, is_cpu
from schemas.resources import ANY_ACCELERATOR, parts_of


class Share(NamedTuple):
    """Compared in this order, exactly: both are integers."""

    grains: int = 0
    """Grains of whole accelerators; processors count as none."""
    processors_milli: int = 0
    """Thousandths of processors: what decides between teams that hold as much of accelerators."""

    def plus(self, other: "Share") -> "Share":
        return Share(self.grains + other.grains, self.processors_milli + other.processors_milli)

    def less(self, other: "Share") -> "Share":
        return Share(self.grains - other.grains, self.processors_milli - other.processors_milli)


NOTHING = Share()


def share_of(held: Mapping[str, int]) -> Share:
    """`held`: kind of device -> thousandths of devices."""
    total = NOTHING
    for kind, milli in held.items():
        total = total.plus(_of(kind, milli))
    return total


@lru_cache(maxsize=4096)  # few kinds, and of each few amounts: asked for every grant
def _of(kind: str, milli: int) -> Share:
    return Share(grains(ANY_ACCELERATOR, {kind: milli}), milli if is_cpu(parts_of(kind)[0]) else 0)
