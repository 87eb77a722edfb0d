"""Enforces time limits on the node when placement does not. Pure; times are seconds of one monotonic clock.

Placement stops an attempt at its limit. While placement is down but leases are renewed, work would continue and be
billed. So a node ends a part `grace_s` after its limit, plus the most by which two clocks may differ in rate. `grace_s`
exceeds the duration of a stop by placement (a tick, a decision, a message, the start of another placement), so the node
acts only when placement does not.

The limit counts from when all parts of the attempt run. For an attempt on one node that is when its part began. Nodes
of a gang learn it from placement (`running`). Without that, or if it comes late, a node counts from one lease after its
part began: by then the other parts have begun, or their nodes are lost.
"""

from libs.core.projections.node_health import Terms
from schemas.nodes import DesiredPart
from services.agent.reconcile import Key

GRACE_S = 60.0
KEEPER_S = 10.0
"""The keeper, which can only kill, ends a part this long after its agent should have, all graces included."""
_RATE = 1 + 2 * Terms().rho


class Overtime:
    """Time limits in one life of a node."""

    def __init__(self, grace_s: float, lease_s: float) -> None:
        self._grace_s, self._lease_s = grace_s, lease_s
        self._parts: dict[Key, DesiredPart] = {}
        """Parts with a limit."""
        self._due: dict[Key, float] = {}
        """When each started part is ended here."""
        self._asked: set[Key] = set()
        self._next = float("inf")

    def add(self, part: DesiredPart) -> None:
        """Adds a part that is about to begin."""
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
        """Placement says that all parts of its attempt run. Returns whether that changes its end."""
        due = self._due.get(key)
        if due is None or (earlier := at + self._allowed(self._parts[key])) >= due:
            return False
        self._set(key, earlier)
        return True

    def went_on(self, part: DesiredPart, until: float) -> None:
        """Adds a part of an earlier agent; `until` is what that agent told the keeper."""
        self.add(part)
        self._set((part.job_id, part.attempt), until - _to_end_s(part))

    def keeper_until(self, key: Key) -> float | None:
        """Until when the keeper lets it run, if its end is known."""
        due = self._due.get(key)
        return None if due is None else due + _to_end_s(self._parts[key])

    def to_stop(self, now: float) -> list[Key]:
        """Parts to stop now; each is returned once."""
        if now < self._next:
            return []
        found = [key for key, due in self._due.items() if due <= now and key not in self._asked]
        self._asked.update(found)
        self._next = min((due for key, due in self._due.items() if key not in self._asked), default=float("inf"))
        return found

    def over(self, key: Key, now: float) -> bool:
        """Whether its end has passed."""
        return now >= self._due.get(key, float("inf"))

    def forget(self, key: Key) -> None:
        """Removes an ended part."""
        self._parts.pop(key, None)
        self._due.pop(key, None)
        self._asked.discard(key)

    def _allowed(self, part: DesiredPart) -> float:
        return part.spec.time_limit_s * _RATE + self._grace_s

    def _set(self, key: Key, due: float) -> None:
        self._due[key] = due
        self._next = min(self._next, due)


def _to_end_s(part: DesiredPart) -> float:
    """The longest time from a request to save or stop until the part has ended."""
    policy = part.spec.checkpoint
    return (policy.grace_s if policy is not None else 0.0) + part.spec.stop_grace_s + KEEPER_S
