"""The keeper's state: the life of each node, until when it may run work, and its attempts. No I/O, no clock."""

from collections.abc import Iterable
from typing import Any

STARTING, RUNNING, GONE = "starting", "running", "gone"
MOST_ATTEMPTS = 20_000
"""Attempts in the table, ended ones that the agent has not acknowledged included. More are not started."""

Note = dict[str, Any]


class HeldLife:
    """One incarnation of a node. `until`: seconds on the lease clock; 0 before the first lease, None without an end."""

    __slots__ = ("goes_on", "incarnation", "note", "until")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.until: float | None = 0.0
        self.note: Note = {}
        self.goes_on = False
        """Its lease has ended while it had work that is kept: with the next deadline it goes on, whatever that did."""

    def may_run(self, now: float) -> bool:
        return self.until is None or now < self.until

    def over(self, now: float) -> bool:
        """Whether it had a lease that has ended."""
        return self.until is not None and 0.0 < self.until <= now

    def shown(self) -> Note:
        return {"incarnation": self.incarnation, "until": self.until, "note": self.note}


class HeldAttempt:
    """One attempt on one node. `about` is the agent's and opaque here, `note` too: what it must know to go on."""

    __slots__ = (
        "about", "codes", "cpu", "doomed", "early", "ends_by", "failed", "group", "id", "incarnation", "memory", "node", "note",
        "oom_kills", "overtime", "pids", "shim", "state", "view",
    )  # fmt: skip

    def __init__(
        self, id: str, node: str, incarnation: int, about: Note, group: str, early: float | None = 0.0
    ) -> None:
        self.early = early
        """Its lease ends so long before the node's, s; None: no lease ends it."""
        self.doomed = False
        """Its lease has ended. A later deadline of the node does not change that."""
        self.ends_by: float | None = None
        """Its time limit is long over then, and its agent should have ended it. None: it has none, or does not run yet."""
        self.overtime = False
        """It was."""
        self.id, self.node, self.incarnation, self.about, self.group = id, node, incarnation, about, group
        self.note: Note = {}
        self.shim = 0
        self.state = STARTING
        self.codes: dict[int, int] = {}
        """Rank -> exit code; minus n for signal n."""
        self.failed: Note | None = None
        self.oom_kills = 0
        self.memory = ""
        """The cgroup that holds it to its memory."""
        self.pids = ""
        """The same of its processes."""
        self.cpu = ""
        """The one by which the processor is shared."""
        self.view: Note | None = None
        """The prepared view that its shim was given, until that has said what it did with it."""

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
            "early": self.early,
            "doomed": self.doomed,
            "ends_by": self.ends_by,
            "overtime": self.overtime,
        }


class StartRefused(ValueError):
    """An attempt that must not be started; the text says why."""


class Table:
    """Nothing is removed from it but by the agent: `forget`, or a new life of the node."""

    def __init__(self) -> None:
        self.lives: dict[str, HeldLife] = {}
        self.attempts: dict[str, HeldAttempt] = {}

    def begin(self, node: str, incarnation: int) -> list[HeldAttempt]:
        """A life of the node; returns what earlier lives still run, to be killed. The present life goes on."""
        life = self.lives.get(node)
        if life is None or life.incarnation != incarnation:
            self.lives[node] = HeldLife(incarnation)
        earlier = [a for a in self.attempts.values() if a.node == node and a.incarnation != incarnation]
        for attempt in earlier:
            if attempt.state == GONE:
                del self.attempts[attempt.id]
        return [attempt for attempt in earlier if attempt.state != GONE]

    def until(self, node: str, incarnation: int, until: float | None, now: float) -> bool:
        """A new deadline. One of another life changes nothing, nor one for a life whose lease has ended, unless it had work
        then that is kept: that one goes on, and what else it had is doomed. Returns whether the life goes on."""
        life = self.lives.get(node)
        if life is None or life.incarnation != incarnation:
            return True
        self.over(now)
        goes_on = not life.over(now) or life.goes_on
        if goes_on:
            life.until, life.goes_on = until, False
        return goes_on

    def enter(
        self, id: str, node: str, incarnation: int, about: Note, group: str, *, now: float, early: float | None = 0.0
    ) -> HeldAttempt:
        """Raises StartRefused."""
        life = self.lives.get(node)
        if id in self.attempts:
            raise StartRefused(f"attempt {id} was started before")
        if life is None or life.incarnation != incarnation:
            raise StartRefused(f"node {node} has no life {incarnation} here")
        if not life.may_run(now):
            raise StartRefused("the node's lease ended while the job was being started")
        if len(self.attempts) >= MOST_ATTEMPTS:
            raise StartRefused(f"{MOST_ATTEMPTS} attempts are kept already")
        made = self.attempts[id] = HeldAttempt(id, node, incarnation, about, group, early)
        return made

    def over(self, now: float) -> list[HeldAttempt]:
        """The attempts that must be killed: their lease has ended, or their time."""
        for node, life in self.lives.items():
            life.goes_on = life.goes_on or (life.over(now) and self._kept(node, life.incarnation))
        found = []
        for attempt in self.attempts.values():
            ends = self.ends(attempt)
            attempt.doomed = attempt.doomed or (ends is not None and ends <= now)
            attempt.overtime = attempt.overtime or (
                attempt.ends_by is not None and attempt.ends_by <= now and attempt.state != GONE
            )
            if (attempt.doomed or attempt.overtime) and attempt.state != GONE:
                found.append(attempt)
        return found

    def next_deadline(self, now: float) -> float | None:
        """The next moment at which `over` may say more."""
        ends = [ends for a in self.attempts.values() if a.state != GONE and (ends := self.ends(a)) is not None]
        limits = [a.ends_by for a in self.attempts.values() if a.state != GONE and a.ends_by is not None]
        lives = [life.until for life in self.lives.values() if life.until is not None]
        return min((at for at in (*ends, *limits, *lives) if at > now), default=None)

    def unwanted(self, now: float) -> bool:
        """Whether nothing here can be adopted any more: no life that an agent could go on with."""
        return not any(life.may_run(now) or self._keeps(node, life.incarnation) for node, life in self.lives.items())

    def ends(self, attempt: HeldAttempt) -> float | None:
        """When its lease ends; None: never, or there was none yet."""
        life = self.lives.get(attempt.node)
        if life is None or not life.until or attempt.early is None:
            return None
        return life.until - attempt.early

    def _keeps(self, node: str, incarnation: int) -> bool:
        return any(
            a.node == node and a.incarnation == incarnation and a.early is None and a.state != GONE
            for a in self.attempts.values()
        )

    def _kept(self, node: str, incarnation: int) -> bool:
        """The same, or such work has ended, and the agent may not know yet: it goes by what it knows."""
        return any(a.node == node and a.incarnation == incarnation and a.early is None for a in self.attempts.values())

    def forget(self, ids: Iterable[str]) -> None:
        """The agent has told placement how these ended."""
        for id in ids:
            attempt = self.attempts.get(id)
            if attempt is not None and attempt.state == GONE:
                del self.attempts[id]
