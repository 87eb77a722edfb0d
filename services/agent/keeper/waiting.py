"""How agent and keeper wait for many files where their jobs have the same user: by `poll`.

A machine has so many watches (`epoll`) for each user, and one job can have all of them. Then the next connection ended the
agent (uvloop, SIGABRT), and its keeper started nothing more. `poll` takes none. It looks at each file each time, so root, whose
watches no job has, uses `epoll`.
"""

import math
import os
import select


def shares_user() -> bool:
    """Whether jobs have this process's user."""
    return os.geteuid() != 0


class Polled:
    """As `select.epoll`, as far as the keeper uses it: the numbers of events are the same."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.modify, self.unregister = self._poll.register, self._poll.modify, self._poll.unregister

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._poll.poll(math.ceil(timeout_s * 1000))


FileWaiter = select.epoll | Polled


def waiting() -> FileWaiter:
    return Polled() if shares_user() else select.epoll()
