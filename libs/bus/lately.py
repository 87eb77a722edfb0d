"""How busy it is. Each batch has costs of its own, so readers make batches larger by waiting for what comes next; but who
sends one job after the other, each when the one before has ended, waits for each of these pauses in vain. So a reader pauses
only while much has come lately."""

import math


class Lately:
    """How many came in about the last `window_s`: each counts less by a factor of e for every window since."""

    def __init__(self, window_s: float = 0.05) -> None:
        self._window_s = window_s
        self._count = 0.0
        self._at_s = -math.inf

    def add(self, count: int, now_s: float) -> float:
        """`count` came at `now_s`, seconds of one clock; how many it is now, with them."""
        self._count = count + self._count * math.exp((self._at_s - now_s) / self._window_s)
        self._at_s = now_s
        return self._count
