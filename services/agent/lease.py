"""A node's right to run work, as a machine without a clock: times come in as seconds of one monotonic clock.

The lease counts from when the renewal was *sent*: an answer that was long under way must not stretch it beyond what
the granter, which counts from when it *received* the renewal, takes for granted. A lease that has ended never revives:
the node starts a new life (incarnation) with a new lease. A node with work that is kept goes on in its life without one.

Each part of an attempt has a lease of its own (`early_s`): what its class says, and never longer than its node's.
"""

from dataclasses import dataclass

SAVE_AT = 2 / 3
"""The part of the lease after which jobs are asked to save, before its end stops them."""


def early_s(part_lease_s: float, node_lease_s: float) -> float | None:
    """How long before its node's lease a part's lease ends, s; None: it is kept, no lease ends it."""
    return max(0.0, node_lease_s - part_lease_s) if part_lease_s else None


def why_ended(node: str) -> str:
    """What is said of a part whose lease has ended."""
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
        """Whether the lease has ended by `now`; once it has, it stays so."""
        self.ended = self.ended or (self.deadline is not None and now >= self.deadline)
        return self.ended

    def endangered(self, now: float) -> bool:
        """Whether renewals have failed for so long that work should be saved."""
        return self.deadline is not None and now >= self.deadline - self.length_s * (1 - SAVE_AT)

    def remaining(self, now: float) -> float:
        """Seconds until the end; 0 when it has ended or never began."""
        return 0.0 if self.ended or self.deadline is None else max(0.0, self.deadline - now)
