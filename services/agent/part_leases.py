"""The leases of one node's parts: each ends with its node's lease, or some seconds before it."""

from dataclasses import dataclass, field

from schemas.nodes import DesiredPart
from services.agent.lease import Lease, early_s
from services.agent.reconcile import Key


@dataclass(eq=False, slots=True)
class PartLeases:
    """`lease_s`: the node's. A part that is kept has no lease."""

    lease_s: float
    _early: dict[Key, float | None] = field(default_factory=dict)
    """How many seconds the lease of each part ends before the node's; None: the part is kept."""

    def add(self, part: DesiredPart) -> None:
        self._early[part.job_id, part.attempt] = early_s(part.lease_s, self.lease_s)

    def forget(self, key: Key) -> None:
        self._early.pop(key, None)

    def clear(self) -> None:
        self._early.clear()

    def is_kept(self, key: Key) -> bool:
        """Whether no lease ends the part; also for an unknown one."""
        return self._early.get(key) is None

    def shortest_s(self) -> float:
        """The shortest lease of the node and these parts, s."""
        return self.lease_s - max((early for early in self._early.values() if early is not None), default=0.0)

    def is_over(self, key: Key, lease: Lease, now: float) -> bool:
        """Whether a lease shorter than the node's has ended; other parts end with the node's lease."""
        return _ended_early(self._early.get(key), lease, now)

    def lasts(self, part: DesiredPart, lease: Lease, now: float) -> bool:
        """Whether the part's lease would still run if it began now."""
        return not _ended_early(early_s(part.lease_s, self.lease_s), lease, now)


def _ended_early(early: float | None, lease: Lease, now: float) -> bool:
    return bool(early) and lease.deadline is not None and now >= lease.deadline - (early or 0.0)
