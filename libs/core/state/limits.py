"""What a team may hold at once, and what becomes of a request under it: values. The rule is `libs.core.scheduling.limits`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from schemas.resources import ANY_ACCELERATOR

Usage = Mapping[str, int]
"""Kind of device (`H100`, `H100:1g.10gb`, `CPU`) -> thousandths of devices of that kind."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one team, in thousandths of what each key names; what no key names is not limited.

    `total_milli`: of whole accelerators, of any kind; None: no such limit. `by_type`: (key, thousandths) in order, where a
    key is a device type (`H100`: boards, a slice is its part of one) or a type and a MIG profile (`H100:1g.10gb`: instances).
    """

    total_milli: int | None = None
    by_type: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, total_milli: int | None, by_type: Mapping[str, int]) -> "Limits | None":
        """As a message states them; None when nothing is limited."""
        return cls(total_milli, tuple(sorted(by_type.items()))) if total_milli is not None or by_type else None

    def dump(self) -> list[Any]:
        """For a snapshot, as JSON takes it."""
        return [self.total_milli, dict(self.by_type)]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> "Limits":
        """The inverse of `dump`."""
        total_milli, by_type = dumped
        return cls(total_milli, tuple(sorted(by_type.items())))

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Each limit as (key, thousandths), the total first."""
        if self.total_milli is not None:
            yield ANY_ACCELERATOR, self.total_milli
        yield from self.by_type


class Suspension(NamedTuple):
    """An operator has paused a team: it submits nothing, and nothing of it that waits is granted."""

    since_us: int
    reason: str
    user: str = ""

    def text(self, team: str) -> str:
        """For people: "team vision is suspended since 2026-11-22 21:40 UTC by olga: unpaid"."""
        since = datetime.fromtimestamp(self.since_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")
        by = f" by {self.user}" if self.user else ""
        return f"team {team} is suspended since {since}{by}: {self.reason}"


class Cap(NamedTuple):
    """Of these device models together a request may get at most so many devices."""

    models: tuple[str, ...]
    devices: int
