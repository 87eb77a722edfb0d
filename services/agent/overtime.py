"""Enforces time limits on the node when placement does not. Pure; times are seconds of one monotonic clock.

Placement stops an attempt at its limit. While placement is down but leases are renewed, work would go on and be billed. So a
node ends a part `grace_s` after its limit, and later by as much as two clocks may differ in rate. `grace_s` is longer than a
stop by placement takes (a tick, a decision, a message, the start of another placement), so the node acts only when placement
does not.

The limit counts from when all parts of the attempt run. For an attempt on one node that is when its part began. The nodes of a
gang get that from placement (`running`). A node that does not get it, or gets it late, counts from one lease after its part
began: by then the other parts have begun, or their nodes are lost.
"""

from libs.core.projections.node_health import Terms
from schemas.nodes import DesiredPart
from services.agent.reconcile import Key

GRACE_S = 60.0
KEEPER_S = 10.0
"""The keeper, which only kills, ends a part so long after its agent should have, with every grace that it may have had."""
_RATE = 1 + 2 * Terms().rho


class Overtime:
    """Of one life of a node."""

    def __init__(self, grace_s: float, lease_s: float) -> None:
        self._grace_s, self._lease_s = grace_s, lease_s
        self._parts: dict[Key, DesiredPart] = {}
        """Those that have a limit."""
        self._due: dict[Key, float] = {}
        """When each is ended here, once it has begun."""
        self._asked: set[Key] = set()
        self._next = float("inf")

    def add(self, part: DesiredPart) -> None:
        """A part that is about to begin."""
        if part.spec.time_limit_s:
            self._parts[part.job_id, part.attempt] = part

    def began(self, key: Key, at: float) -> bool:
        """Its processes run. Returns whether its end is known by that."""
        part = self._parts.get(key)
        if part is None or key in self._due:
            return False
        self._set(key, at + (self._lease_s if len(part.nodes) > 1 else 0.0) + self._allowed(part))
        return True

    def all_run(self, key: Key, at: float) -> bool:
        """Placement says that all parts of its attempt run. Returns whether its end is another by that."""
        due = self._due.get(key)
        if due is None or (earlier := at + self._allowed(self._parts[key])) >= due:
            return False
        self._set(key, earlier)
        return True

    def went_on(self, part: DesiredPart, until: float) -> None:
        """An earlier agent began it; `until` is what that had told the keeper."""
        self.add(part)
        self._set((part.job_id, part.attempt), until - _to_end_s(part))

    def keeper_until(self, key: Key) -> float | None:
        """Until when the keeper lets it run, once its end is known."""
        due = self._due.get(key)
        return None if due is None else due + _to_end_s(self._parts[key])

    def to_stop(self, now: float) -> list[Key]:
        """The parts that are to be stopped now: each is named once."""
        if now < self._next:
            return []
        found = [key for key, due in self._due.items() if due <= now and key not in self._asked]
        self._asked.update(found)
        self._next = min((due for key, due in self._due.items() if key not in self._asked), default=float("inf"))
        return found

    def over(self, key: Key, now: float) -> bool:
        """Whether it is past that moment."""
        return now >= self._due.get(key, float("inf"))

    def forget(self, key: Key) -> None:
        """It has ended."""
        self._parts.pop(key, None)
        self._due.pop(key, None)
        self._asked.discard(key)

    def _allowed(self, part: DesiredPart) -> float:
        return part.spec.time_limit_s * _RATE + self._grace_s

    def _set(self, key: Key, due: float) -> None:
        self._due[key] = due
        self._next = min(self._next, due)


def _to_end_s(part: DesiredPart) -> float:
    """Whoever was asked to save or to stop by then has ended so long after it."""
    policy = part.spec.checkpoint
    return (policy.grace_s if policy is not None else 0.0) + part.spec.stop_grace_s + KEEPER_S
