"""A node's right to run work, as a state machine without a clock: times are seconds of one monotonic clock.

A lease counts from when its renewal was *sent*. A delayed answer must not extend it beyond what the granter, who counts
from when it *received* the renewal, assumes. A lease that has ended never revives: the node starts a new life
(incarnation) with a new lease. A node with kept work continues its life without one.

Each part of an attempt has its own lease (`early_s`): its class's, and at most its node's.
"""

from dataclasses import dataclass

SAVE_AT = 2 / 3
"""The fraction of the lease after which jobs are asked to save."""


def early_s(part_lease_s: float, node_lease_s: float) -> float | None:
    """How many seconds a part's lease ends before its node's; None: the part is kept, and no lease ends it."""
    return max(0.0, node_lease_s - part_lease_s) if part_lease_s else None


def why_ended(node: str) -> str:
    """The reason reported for a part whose lease has ended."""
    return f"its lease ended: node {node} was not heard for too long"


@dataclass(slots=True)
class Lease:
    """`deadline` is None until the first renewal was confirmed; before that nothing may start."""

    length_s: float
    deadline: float | None = None
    ended: bool = False

    def renew(self, sent: float, now: float) -> bool:
        """A renewal sent at `sent` was confirmed at `now`. Returns whether the lease is valid after it."""
        if self.check(now):
            return False
        until = sent + self.length_s
        if until > now:
            self.deadline = max(self.deadline or until, until)
        return self.valid(now)

    def valid(self, now: float) -> bool:
        return not self.ended and self.deadline is not None and now < self.deadline

    def check(self, now: float) -> bool:
        """Whether the lease has ended by `now`; once ended, it stays so."""
        self.ended = self.ended or (self.deadline is not None and now >= self.deadline)
        return self.ended

    def endangered(self, now: float) -> bool:
        """Whether renewals have failed for so long that work should be saved."""
        return self.deadline is not None and now >= self.deadline - self.length_s * (1 - SAVE_AT)

    def remaining(self, now: float) -> float:
        """Seconds until the end; 0 when it has ended or never began."""
        return 0.0 if self.ended or self.deadline is None else max(0.0, self.deadline - now)
