"""An exponentially decaying count of recent items. It decides whether a reader opens a batching window.

Every batch has a fixed cost, so under load a reader waits some milliseconds to make its batches larger. A client that sends one
job after the other would only lose that time. So the window is open only while the count is high."""

import math


class DecayingCount:
    """The number of items in about the last `window_s`. The weight of an item decays by a factor of e per window."""

    def __init__(self, window_s: float = 0.05) -> None:
        self._window_s = window_s
        self._count = 0.0
        self._at_s = -math.inf

    def add(self, count: int, now_s: float) -> float:
        """Adds `count` items at `now_s` (seconds of one clock) and returns the count, these included."""
        self._count = count + self._count * math.exp((self._at_s - now_s) / self._window_s)
        self._at_s = now_s
        return self._count
