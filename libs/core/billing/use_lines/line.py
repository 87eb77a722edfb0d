"""What a line of uses has, and what is said of one later."""

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
"""The number of the day on which a moment of the wall lies."""


def utc_day(wall_us: int) -> int:
    """Days since 1970-01-01."""
    return wall_us // DAY_US


def any_day(day: int) -> bool:
    """For who asks for all."""
    return True


class AlikeUses(NamedTuple):
    """`alike` claims of one attempt of devices of one kind, one after the other, by the wall: (start, end, start by the wall)
    pieces. Record `seq` posted them, at `posted_us` of the wall."""

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
        """(UTC day, microseconds); a day may come twice."""
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
    """What is given back of one of the devices of a line of uses."""

    use: int
    place: int
    seq: int
    posted_us: int
    parts: Parts
