"""The queues of a pool as a tree."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from libs.core.state.limits import Limits
from schemas.inbox import ApplyQueues
from schemas.ledger import QueuesApplied
from schemas.queues import BoostBudget, PreemptionLimits, Queue, QueueOrder
from schemas.resources import ANY_ACCELERATOR

ROOT = ""
"""Stands for the pool, above the top queues."""
OWN = "/own"
"""Ends the name of the queue for what a team with queues below its own submits itself. No name has a slash."""


_S = 1_000_000
EVENS_AFTER = 20
"""Part of a half-life that a job runs at least before others may even out what is lent, if no `share_grace` says otherwise: so
shares over a half-life differ by at most this part of it."""
_UNSAID = Queue(name="unsaid")
_DEFAULT_BUDGET = BoostBudget()
_DEFAULT_LIMITS = PreemptionLimits()


@dataclass(frozen=True)
class QueueTree:
    """Queues without problems (`problems`), by name. `version`: what its writer calls it; it grows with every change."""

    queues: Mapping[str, Queue] = field(default_factory=dict)
    version: int = 0
    order: QueueOrder | None = None
    """Of queues that say none; None: fair-share."""
    half_life_s: int | None = None
    """Of what queues held before; None: only what they hold now counts."""
    preemption: PreemptionLimits | None = None
    """None: the defaults (`preemption_limits`)."""

    @classmethod
    def of(
        cls,
        queues: Collection[Queue],
        version: int = 0,
        order: QueueOrder | None = None,
        half_life_s: int | None = None,
        preemption: PreemptionLimits | None = None,
    ) -> "QueueTree":
        by_name = {queue.name: queue for queue in sorted(queues, key=lambda q: q.name)}
        return cls(by_name, version, order, half_life_s, preemption)

    @classmethod
    def said(cls, told: "ApplyQueues | QueuesApplied") -> "QueueTree":
        """What an operator says of a pool."""
        return cls.of(told.queues, told.version, told.order, told.half_life_s, told.preemption)

    def dump(self) -> dict[str, Any]:
        """For a snapshot, as JSON takes it."""
        return {
            "version": self.version,
            "order": self.order,
            "half_life_s": self.half_life_s,
            "preemption": None if self.preemption is None else self.preemption.model_dump(mode="json"),
            "queues": [queue.model_dump(mode="json") for queue in self],
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> "QueueTree":
        """The inverse of `dump`; an empty tree of nothing."""
        queues = [Queue.model_validate(queue) for queue in dumped.get("queues", ())]
        limits = dumped.get("preemption")
        return cls.of(
            queues,
            dumped.get("version", 0),
            dumped.get("order"),
            dumped.get("half_life_s"),
            None if limits is None else PreemptionLimits.model_validate(limits),
        )

    def __getitem__(self, name: str) -> Queue:
        """A queue that is not there has weight 1, and nothing is guaranteed to it or kept from it."""
        return self.queues.get(name, _UNSAID)

    def __contains__(self, name: str) -> bool:
        return name in self.queues

    def __len__(self) -> int:
        return len(self.queues)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self.queues.values())

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        below: dict[str, list[str]] = {}
        for queue in self.queues.values():
            below.setdefault(queue.parent, []).append(queue.name)
        return below

    def children(self, name: str) -> list[str]:
        """By name; of `ROOT` the top queues."""
        return self._children.get(name, [])

    def path(self, name: str) -> tuple[str, ...]:
        """From the top queue down to `name`, itself included; one that is not there is a top queue."""
        return self._paths.get(name, (name,))

    def line(self, team: str) -> tuple[str, ...]:
        """The queues in which a team's jobs stand, from the top. Those of a team whose queue has others below it stand beside
        these, in a queue of their own."""
        path = self.path(team)
        return (*path, f"{team}{OWN}") if team in self._children else path

    @cached_property
    def _paths(self) -> dict[str, tuple[str, ...]]:
        paths: dict[str, tuple[str, ...]] = {ROOT: ()}
        todo = [ROOT]
        while todo:
            above = todo.pop()
            for child in self.children(above):
                paths[child] = (*paths[above], child)
                todo.append(child)
        return paths

    def classes(self, name: str) -> tuple[str, ...] | None:
        """Which classes a queue's jobs may use: the nearest statement upwards; None: any."""
        return next((q.classes for q in self._upwards(name) if q.classes is not None), None)

    def order_of(self, name: str) -> QueueOrder | None:
        """In which order a queue's jobs come: the nearest statement upwards, at last the pool's."""
        return next((q.order for q in self._upwards(name) if q.order is not None), self.order)

    def by_user(self, team: str) -> bool:
        """Whether the users of a team share: its order is fair share, and no queue above it makes one line of all by age."""
        above = self.path(team)[:-1]
        if self.order == "fifo" or any(self.order_of(name) == "fifo" for name in above):
            return False
        return self.order_of(team) in (None, "fair-share")

    @property
    def preemption_limits(self) -> PreemptionLimits:
        """Those that hold, said or not."""
        return self.preemption or _DEFAULT_LIMITS

    @property
    def evens_after_us(self) -> int | None:
        """How long a job runs before it goes so that what is lent is even; None: it never does."""
        said = self.preemption_limits.share_grace_s
        if said == "never":
            return None
        if said is not None:
            return said * _S
        return None if self.half_life_s is None else self.half_life_s * _S // EVENS_AFTER

    def min_run_s(self, name: str) -> int:
        """How long a queue's jobs run before they give way: the nearest statement upwards, at last the pool's."""
        said = (q.min_run_s for q in self._upwards(name) if q.min_run_s is not None)
        return next(said, self.preemption_limits.min_run_s)

    def default_time_limit_s(self, name: str) -> int | None:
        """Of a queue's jobs that say none: the nearest statement upwards; None: the queue gives none."""
        return next((q.default_time_limit_s for q in self._upwards(name) if q.default_time_limit_s is not None), None)

    def longest_time_limit_s(self, name: str) -> int | None:
        """That a queue's jobs may have: the nearest statement upwards; None: any."""
        return next((q.longest_time_limit_s for q in self._upwards(name) if q.longest_time_limit_s is not None), None)

    def boost_budget(self, team: str) -> BoostBudget:
        """How often a team's jobs may be raised: the nearest statement upwards, at last the default."""
        return next((q.boosts for q in self._upwards(team) if q.boosts is not None), _DEFAULT_BUDGET)

    def _upwards(self, name: str) -> Iterator[Queue]:
        return (self[above] for above in reversed(self.path(name)))

    def below(self, name: str) -> frozenset[str]:
        """The names of a queue and of all under it: those teams' jobs are in it."""
        return self._below.get(name, frozenset((name,)))

    @cached_property
    def _below(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for name, path in self._paths.items():
            for above in path:
                found.setdefault(above, set()).add(name)
        return {name: frozenset(names) for name, names in found.items()}

    def bounds(self, team: str) -> list[tuple[str, Limits]]:
        """The queues whose limits count what `team` holds, from its own upwards."""
        return [(name, self._limits[name]) for name in reversed(self.path(team)) if name in self._limits]

    @cached_property
    def _limits(self) -> dict[str, Limits]:
        found = {}
        for name, queue in self.queues.items():
            rest = {key: milli for key, milli in queue.limit.items() if key != ANY_ACCELERATOR}
            if (limits := Limits.of(queue.limit.get(ANY_ACCELERATOR), rest)) is not None:
                found[name] = limits
        return found

    def bounded_with(self, team: str) -> frozenset[str]:
        """`team`, and those that share a limit with it: what one of them gives back may help all."""
        return frozenset((team,)).union(*(self.below(name) for name, _ in self.bounds(team)))

    def sums(self, of: Mapping[str, int]) -> dict[str, int]:
        """What teams have, summed up for every queue that they stand in."""
        total: dict[str, int] = {}
        for team, amount in of.items():
            for above in self.line(team):
                total[above] = total.get(above, 0) + amount
        return total
