"""Throttles teams whose requests lead to no job: a token bucket per team. Pure; time is the caller's, of one clock.

    RequestThrottle().note(team, weight, at_us)    a request was refused, repeated, or could not be read
    RequestThrottle().wait_s(team, at_us)          seconds until the team's next requests may be read; 0: now

Such a request costs as much as any other (it is read, answered and stored), and no limit on jobs counts it. So each takes
tokens from its team's bucket. While the bucket is empty, the team's requests are read as fast as it fills. None is refused for
that: they wait in the stream, where other teams pass them, and the broker refuses what is more than a sender may have there.
"""

from typing import Final

from libs.core.admission.intake import Buckets

AT_ONCE: Final = 200.0
PER_S: Final = 20.0
"""Size of the bucket and its rate, in requests of the usual size."""
REPEATED: Final = 0.1
"""The weight of a repeat: nothing is stored for it, and a client that sends everything once more means no harm."""
_BYTES: Final = 64 * 1024
"""A request weighs 1 more for each so many bytes."""


def weight(size: int, *, repeated: bool = False) -> float:
    """The tokens that a request of `size` bytes takes."""
    return (REPEATED if repeated else 1.0) + size // _BYTES


class RequestThrottle:
    """Buckets of the teams that were seen last; a team that was forgotten begins with a full one."""

    def __init__(self) -> None:
        self._buckets: Buckets[str] = Buckets()

    def note(self, team: str, weight: float, at_us: int) -> None:
        """A request of the team led to no job. The bucket may go below zero."""
        self._buckets.of(team, AT_ONCE, at_us).owe(AT_ONCE, PER_S, at_us, weight)

    def wait_s(self, team: str, at_us: int) -> float:
        """The seconds until the team's bucket has a token again."""
        return self._buckets.of(team, AT_ONCE, at_us).wait_s(AT_ONCE, PER_S, at_us, 1.0)
