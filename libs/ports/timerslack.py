"""How exactly the kernel wakes this process when a timer of its ends: its timer slack, in nanoseconds (prctl(2),
PR_SET_TIMERSLACK). Threads and processes that it starts have the same. Events, such as bytes that arrive, wake it at once."""

import contextlib
from pathlib import Path

EXACT_NS = 50_000
"""Linux' own, for jobs: a process that asks for 1 ms sleeps 1.05."""
SHARED_NS = 2_000_000
"""Of Baton's services and servers: timers that end within 2 ms of each other wake it once. nats-server gains most: Go looks
at its threads every 20 us while any of them has something to do, and so every 2 ms."""
_OWN = Path("/proc/self/timerslack_ns")


def set_slack(nanoseconds: int) -> None:
    """For the main thread of this process, and what it starts from now on. Does nothing where the system has no timer slack."""
    with contextlib.suppress(OSError):
        _OWN.write_text(str(nanoseconds))
