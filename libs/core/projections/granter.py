"""The lease granter: one process at a time, named by a record of the ledger, and what its successor must wait for. Pure.

A process may grant in epoch n when the ledger's last `lease.granter` names it. It grants only while it has seen within
`term_s` (by its own boot clock) that the ledger names no later one. Reading that costs the broker no write; only a change of
granters is a record. So when a successor sees its own record, its predecessor may grant for one more term, and

    no node is reported lost before    term + longest lease of the predecessor + kill bound    have passed since then

with the error of clock rates and the margin on top, as for every lease (P4). Until then heartbeats that the successor answers
may have been answered by the predecessor as well, so no lease ends earlier.

A standby claims the next epoch when it has not heard of the granter for a while, or knows that it has left. That is for speed
alone: a claim that is too early takes over from a working granter, and does no harm.
"""

from dataclasses import dataclass, field

from libs.core.projections.node_health import Terms, Watch
from libs.core.projections.node_lives import GrantRight

NEVER = float("-inf")


@dataclass(slots=True)
class Granter:
    """One process that grants, or stands by. Times are seconds of its boot clock.

    `name`: of this process, unlike every other's. `broker_s`: how long a broker that has lost its peers may still answer
    from the past.
    """

    name: str
    watch: Watch
    term_s: float
    broker_s: float
    standby_s: float
    right: GrantRight = field(default_factory=GrantRight)
    confirmed_at: float = NEVER
    """The ledger was asked then, and names nobody later than what was read."""
    other_heard_at: float = NEVER
    """When another granter's tick was last heard."""
    claimed_at: float = NEVER
    left: str = ""
    """A process that has stopped granting for good."""

    @property
    def terms(self) -> Terms:
        return self.watch.terms

    @property
    def mine(self) -> bool:
        return bool(self.right.epoch) and self.right.holder == self.name

    def named(self, right: GrantRight, now: float) -> None:
        """The ledger names a granter, seen at `now`. A successor begins to wait; its predecessor counts it as heard."""
        before, self.right = self.right, right
        if (
            right.holder != self.name
        ):  # its first tick is to come: who claimed at once would take the right back and forth
            self.other_heard_at = max(self.other_heard_at, now)
        if right.holder == self.name and right != before:
            # Without a predecessor in the ledger there may be one of release 0.1.0, with a shorter lease than ours.
            term_s = before.term_s if before.epoch else self.term_s
            longest_s = max(before.max_lease_s - self.terms.max_lease_s, 0.0)
            self.watch.deaf_until(now + (term_s + longest_s) * (1 + 2 * self.terms.rho) + self.broker_s)

    def confirm(self, asked_at: float) -> None:
        """At `asked_at` the ledger held nothing that was not read since: the right was ours then."""
        if self.mine:
            self.confirmed_at = max(self.confirmed_at, asked_at)

    def may_grant(self, now: float) -> bool:
        return self.mine and self.left != self.name and now - self.confirmed_at <= self.term_s

    def claim(self, now: float) -> int:
        """The epoch to claim now; 0: none. A standby waits until it has not heard the granter for a while, or it has left, and
        gives a claim the time to be decided."""
        heard_at = max(self.other_heard_at, self.watch.began_at)
        gone = self.right.holder in ("", self.left)
        quiet = gone or now - heard_at >= self.standby_s
        if self.mine or not quiet or now - self.claimed_at < self.standby_s:
            return 0
        self.claimed_at = now
        return self.right.epoch + 1
