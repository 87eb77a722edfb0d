"""Requests of a team that come to nothing, and how fast its next ones may be read. Pure; time is the caller's, of one clock.

    InVain().note(team, weight, at_us)    one was refused, repeated, or could not be read
    InVain().wait_s(team, at_us)          until the team's next requests may be read; 0: now

Such a request is read, answered and stored like any other, and no limit on jobs counts it. So each takes something of an
allowance of its team. Where that is used up, the team's requests are read as fast as it comes back. None is refused for it:
they wait in the stream, where other teams overtake them and the broker refuses what is more than a sender may have there.
"""

from typing import Final

from libs.core.admission.intake import Buckets

AT_ONCE: Final = 200.0
PER_S: Final = 20.0
"""Of the usual size, that are read at full speed, and for ever."""
REPEATED: Final = 0.1
"""What a repeat counts for: nothing is stored for it, and who sends all that it has sent once more means no harm."""
_BYTES: Final = 64 * 1024
"""A request counts once more for each so many bytes."""


def weight(size: int, *, repeated: bool = False) -> float:
    """What a request of `size` bytes takes of the allowance."""
    return (REPEATED if repeated else 1.0) + size // _BYTES


class InVain:
    """Of the teams that were seen last; one that comes back begins with the whole allowance."""

    def __init__(self) -> None:
        self._buckets: Buckets[str] = Buckets()

    def note(self, team: str, weight: float, at_us: int) -> None:
        """A request of the team came to nothing. It may owe more than it has."""
        self._buckets.of(team, AT_ONCE, at_us).owe(AT_ONCE, PER_S, at_us, weight)

    def wait_s(self, team: str, at_us: int) -> float:
        """The seconds until a team that has used up its allowance has paid what it owes."""
        return self._buckets.of(team, AT_ONCE, at_us).wait_s(AT_ONCE, PER_S, at_us, 1.0)
