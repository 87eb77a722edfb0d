"""A line of posted uses, and credits posted for it later."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from libs.core.billing.credited import Parts
from libs.core.billing.prices import PricedBy
from libs.core.billing.wall import DAY_US

Key = tuple[str, int, int, str, str, str]
"""Job id, attempt, UTC day, device kind, priority class, user."""
UseOwner = tuple[str, str, str, str]
"""Team, user, device kind, priority class."""

DayOf = Callable[[int], int]
"""A function from wall time to its day number."""


def utc_day(wall_us: int) -> int:
    """Days since 1970-01-01."""
    return wall_us // DAY_US


def any_day(day: int) -> bool:
    """Selects every day."""
    return True


class AlikeUses(NamedTuple):
    """`alike` claims of equal devices of one attempt, one after the other: pieces (start, end, wall time of the start).
    Posted by record `seq`, at wall time `posted_us`."""

    team: str
    user: str
    job_id: str
    attempt: int
    device_kind: str
    priority_class: str
    milli: int
    alike: int
    seq: int
    posted_us: int
    straight: tuple[tuple[int, int, int], ...]

    def by_day(self) -> Iterator[tuple[int, int]]:
        """(UTC day, microseconds); a day may occur twice."""
        for start, end, wall in self.straight:
            until = wall + end - start
            while wall < until:
                day = wall // DAY_US
                stop = min(until, (day + 1) * DAY_US)
                yield day, stop - wall
                wall = stop

    @property
    def about(self) -> PricedBy:
        return self.team, self.device_kind, self.priority_class


class CreditedUse(NamedTuple):
    """A credit for one of the devices of a line."""

    use: int
    place: int
    seq: int
    posted_us: int
    parts: Parts
