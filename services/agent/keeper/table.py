"""What the keeper knows: the life of each node, until when it may run work, and its attempts. No I/O, no clock."""

from collections.abc import Iterable
from typing import Any

STARTING, RUNNING, GONE = "starting", "running", "gone"
MOST_ATTEMPTS = 20_000
"""Attempts in the table, ended ones that the agent has not acknowledged included. More are not started."""

Note = dict[str, Any]


class Life:
    """One incarnation of a node. `until`: seconds on the lease clock; 0 before the first lease, None without an end."""

    __slots__ = ("incarnation", "note", "until")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.until: float | None = 0.0
        self.note: Note = {}

    def may_run(self, now: float) -> bool:
        return self.until is None or now < self.until

    def over(self, now: float) -> bool:
        """Whether it had a lease that has ended."""
        return self.until is not None and 0.0 < self.until <= now

    def shown(self) -> Note:
        return {"incarnation": self.incarnation, "until": self.until, "note": self.note}


class Attempt:
    """One attempt on one node. `about` is the agent's and opaque here, `note` too: what it must know to go on."""

    __slots__ = ("about", "codes", "failed", "group", "id", "incarnation", "node", "note", "oom_kills", "shim", "state")

    def __init__(self, id: str, node: str, incarnation: int, about: Note, group: str) -> None:
        self.id, self.node, self.incarnation, self.about, self.group = id, node, incarnation, about, group
        self.note: Note = {}
        self.shim = 0
        self.state = STARTING
        self.codes: dict[int, int] = {}
        """Rank -> exit code; minus n for signal n."""
        self.failed: Note | None = None
        self.oom_kills = 0

    def shown(self) -> Note:
        return {
            "id": self.id,
            "node": self.node,
            "incarnation": self.incarnation,
            "about": self.about,
            "note": self.note,
            "shim": self.shim,
            "state": self.state,
            "codes": {str(rank): code for rank, code in self.codes.items()},
            "failed": self.failed,
            "oom_kills": self.oom_kills,
        }


class Refused(ValueError):
    """An attempt that must not be started; the text says why."""


class Table:
    """Nothing is removed from it but by the agent: `forget`, or a new life of the node."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.attempts: dict[str, Attempt] = {}

    def begin(self, node: str, incarnation: int) -> list[Attempt]:
        """A life of the node; returns what earlier lives still run, to be killed. The present life goes on."""
        life = self.lives.get(node)
        if life is None or life.incarnation != incarnation:
            self.lives[node] = Life(incarnation)
        earlier = [a for a in self.attempts.values() if a.node == node and a.incarnation != incarnation]
        for attempt in earlier:
            if attempt.state == GONE:
                del self.attempts[attempt.id]
        return [attempt for attempt in earlier if attempt.state != GONE]

    def until(self, node: str, incarnation: int, until: float | None, now: float) -> None:
        """A new deadline. One of another life, or for a life whose lease has ended, changes nothing."""
        life = self.lives.get(node)
        if life is not None and life.incarnation == incarnation and not life.over(now):
            life.until = until

    def enter(self, id: str, node: str, incarnation: int, about: Note, group: str, now: float) -> Attempt:
        """Raises Refused."""
        life = self.lives.get(node)
        if id in self.attempts:
            raise Refused(f"attempt {id} was started before")
        if life is None or life.incarnation != incarnation:
            raise Refused(f"node {node} has no life {incarnation} here")
        if not life.may_run(now):
            raise Refused("the node's lease ended while the job was being started")
        if len(self.attempts) >= MOST_ATTEMPTS:
            raise Refused(f"{MOST_ATTEMPTS} attempts are kept already")
        made = self.attempts[id] = Attempt(id, node, incarnation, about, group)
        return made

    def over(self, now: float) -> list[Attempt]:
        """The attempts that must be killed: their node's lease has ended."""
        over = {node for node, life in self.lives.items() if life.over(now)}
        return [a for a in self.attempts.values() if a.node in over and a.state != GONE] if over else []

    def next_deadline(self, now: float) -> float | None:
        """The next moment at which `over` may say more."""
        coming = (life.until for life in self.lives.values() if life.until is not None and life.until > now)
        return min(coming, default=None)

    def unwanted(self, now: float) -> bool:
        """Whether nothing here can be adopted any more: no life that an agent could go on with."""
        return not any(life.may_run(now) for life in self.lives.values())

    def forget(self, ids: Iterable[str]) -> None:
        """The agent has told placement how these ended."""
        for id in ids:
            attempt = self.attempts.get(id)
            if attempt is not None and attempt.state == GONE:
                del self.attempts[id]
