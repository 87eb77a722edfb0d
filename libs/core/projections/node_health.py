"""When a silent node has surely stopped its work. Pure: times come in as seconds of one monotonic clock.

A node's agent counts its lease from when it *sent* a renewal, the service leases from when it *received* it, which is later.
So a node has stopped its work by itself no later than

    (lease + kill bound) x (1 + 2 x clock-rate error) + margin

after the last renewal that leases received (P4 in docs/invariants.md). Clock offsets do not matter. Where leases cannot know
(its own start, a broken connection, its own freeze) it assumes that it has just missed a renewal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.inbox import NodeLost, NodeSilent
from schemas.jobs import DEFAULT_LEASE_S

LADDER = (
    *(5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, DEFAULT_LEASE_S, 450, 600, 900),
    *(1800, 3600, 7200, 14_400, 43_200, 86_400),
)
"""Lengths of leases whose end is told while the node is silent, s. Of a length between two, the end is told with the next."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What agents promise. `max_lease_s`: no longer lease is ever granted; assumed of nodes that were not heard yet."""

    max_lease_s: float = 900.0
    kill_bound_s: float = 5.0
    rho: float = 0.001
    margin_s: float = 1.0

    def patience(self, lease_s: float) -> float:
        """How long after its last received renewal a node may still be working, s."""
        return (lease_s + self.kill_bound_s) * (1 + 2 * self.rho) + self.margin_s

    def ended(self, silent_s: float) -> float:
        """Leases of at most this length have surely ended, with their work, after so long a silence, s. It grows in steps
        (`LADDER`), so that a silence is told a few times and not each second."""
        surely = (silent_s - self.margin_s) / (1 + 2 * self.rho) - self.kill_bound_s
        return max((step for step in LADDER if step < surely), default=0.0)


@dataclass(frozen=True, slots=True)
class LastRenewal:
    """The last renewal of one life of a node. `lease_s` is the longest lease that this life has renewed."""

    incarnation: int
    at: float
    lease_s: float


def overdue(
    now: float,
    last_seen: Mapping[str, LastRenewal],
    up: Mapping[str, tuple[int, float]],
    started_at: float,
    terms: Terms,
) -> list[NodeLost]:
    """Nodes whose lease has surely ended by `now`, in order of name.

    Args:
        last_seen: node -> last renewal that was received.
        up: node -> (incarnation, when leases learnt that it joined), as the ledger says.
        started_at: nothing before it can be ruled out: leases's start, or its last deafness.
    """
    lost = []
    for node, (incarnation, joined_at) in sorted(up.items()):
        seen = last_seen.get(node)
        if seen is not None and seen.incarnation == incarnation:
            since, lease_s = max(seen.at, started_at), seen.lease_s
        else:
            since, lease_s = max(joined_at, started_at), terms.max_lease_s
        if now - since > terms.patience(lease_s):
            lost.append(NodeLost(node=node, incarnation=incarnation, silent_s=round(now - since, 3)))
    return lost


class Watch:
    """Which nodes are up, when each was last heard, and which lives have ended: those are never granted a lease again.

    The last rule makes a decision to give a node up final: a renewal that arrives after it is not answered, so the
    agent stops, registers a new life, and only that one is granted a lease. The exception is a node with work that is kept:
    once the ledger says so (`kept`), it may be renewed again and is not given up, however long it is silent.

    The same holds for a node's shorter leases: once it is told that they have ended (`tell_ended`), the node is not renewed
    until the ledger says so, too (`ended`). Else it could start, on a renewal, what a message on its way frees.
    """

    def __init__(self, started_at: float, terms: Terms) -> None:
        self.terms = terms
        self.began_at = started_at
        self.started_at = started_at
        self.up: dict[str, tuple[int, float]] = {}
        self.last_seen: dict[str, LastRenewal] = {}
        self._ended: dict[str, int] = {}
        self._given_up: dict[str, int] = {}
        self._kept: set[str] = set()
        self._telling: dict[str, tuple[float, bool]] = {}
        """Node -> leases of at most this length are told to have ended, s; whether that may be stored somewhere."""

    def joined(self, node: str, incarnation: int, now: float) -> None:
        """The ledger says that a life of a node began; earlier ones are over."""
        self.up[node] = (incarnation, now)
        self._begin(node)
        self._end(node, incarnation - 1)

    def left(self, node: str, incarnation: int) -> None:
        """The ledger says that this life of the node is over."""
        self.up.pop(node, None)
        self._begin(node)
        self._end(node, incarnation)

    def kept(self, node: str, incarnation: int) -> None:
        """The ledger says that this life goes on although its lease has ended: it has work that no silence ends."""
        self._kept.add(node)
        if self._given_up.get(node) == incarnation:
            del self._given_up[node]

    def back(self, node: str) -> None:
        """The ledger says that the node is heard again."""
        self._kept.discard(node)
        self._telling.pop(node, None)

    def tell_ended(self, node: str, ended_lease_s: float) -> None:
        """Placement is about to be told that leases of at most this length have ended there."""
        before_s, stored = self._telling.get(node, (0.0, False))
        self._telling[node] = (max(before_s, ended_lease_s), stored)

    def told_ended(self, node: str, refused: bool) -> None:
        """What became of that message: one that was refused, and of which no copy got anywhere before, was not sent."""
        ended_lease_s, stored = self._telling.get(node, (0.0, False))
        if ended_lease_s and refused and not stored:
            del self._telling[node]
        elif ended_lease_s:
            self._telling[node] = (ended_lease_s, stored or not refused)

    def ended(self, node: str, ended_lease_s: float) -> None:
        """The ledger says that leases of at most this length have ended there."""
        if self._telling.get(node, (0.0, False))[0] <= ended_lease_s:
            self._telling.pop(node, None)

    def heard(self, nodes: Iterable[tuple[str, int]], lease_s: float, now: float) -> tuple[str, ...]:
        """Nodes of a renewal that may go on: all but lives that have ended, and none when the lease is too long.

        A node that the ledger does not know yet is renewed as well: it may be registering this very moment. But no such life
        takes the place of the one that is up: it may have ended before it was registered, and the one that is up, of a machine
        whose clock was set back, have a lower number.
        """
        if lease_s > self.terms.max_lease_s:
            return ()
        granted = []
        for node, incarnation in nodes:
            if incarnation <= max(self._ended.get(node, 0), self._given_up.get(node, 0)) or node in self._telling:
                continue
            before = self.last_seen.get(node)
            if before is not None and before.incarnation > incarnation and not self._is_up(node, incarnation):
                continue
            longest = max(lease_s, before.lease_s) if before and before.incarnation == incarnation else lease_s
            self.last_seen[node] = LastRenewal(incarnation, now, longest)
            granted.append(node)
        return tuple(granted)

    def _is_up(self, node: str, incarnation: int) -> bool:
        return node in self.up and self.up[node][0] == incarnation

    def deaf_until(self, now: float) -> None:
        """Renewals may have been missed up to now: everybody is taken as renewed now. It may lie ahead: another process may
        still grant leases until then."""
        self.started_at = max(self.started_at, now)

    def overdue(self, now: float) -> list[NodeLost]:
        """As the function, without nodes whose work is kept; what it names is given up."""
        up = {node: life for node, life in self.up.items() if node not in self._kept}
        lost = overdue(now, self.last_seen, up, self.started_at, self.terms)
        for message in lost:
            self._given_up[message.node] = message.incarnation
        return lost

    def silences(self, now: float, silent_s: float) -> list[NodeSilent]:
        """Nodes that were not heard for longer than `silent_s`, each with the leases that have surely ended, by name."""
        out = []
        for node, (incarnation, joined_at) in sorted(self.up.items()):
            seen = self.last_seen.get(node)
            heard_at = seen.at if seen is not None and seen.incarnation == incarnation else joined_at
            quiet = now - max(heard_at, self.started_at)
            if quiet > silent_s:
                ended_s = self.terms.ended(quiet)
                out.append(
                    NodeSilent(node=node, incarnation=incarnation, silent_s=round(quiet, 3), ended_lease_s=ended_s)
                )
        return out

    def is_heard(self, node: str, incarnation: int, now: float, silent_s: float) -> bool:
        """Whether this life of the node was heard within `silent_s`."""
        seen = self.last_seen.get(node)
        return seen is not None and seen.incarnation == incarnation and now - seen.at <= silent_s

    def age(self, node: str, now: float) -> float | None:
        """Seconds since the node was last heard; None when it never was."""
        seen = self.last_seen.get(node)
        return None if seen is None else max(0.0, now - seen.at)

    def _begin(self, node: str) -> None:
        """What was known of the node's last life is of the past."""
        self._kept.discard(node)
        self._given_up.pop(node, None)
        self._telling.pop(node, None)

    def _end(self, node: str, incarnation: int) -> None:
        self._ended[node] = max(incarnation, self._ended.get(node, 0))
        seen = self.last_seen.get(node)
        if seen is not None and seen.incarnation <= self._ended[node] and node not in self.up:
            del self.last_seen[node]
