"""Invariant I7 by the checker's own books: no grant and no hold lifts a team above a limit.

It shares the facts with those who decide (the catalogue and the MIG table), not the rule: `libs.core.scheduling.limits`
counts in integer grains and asks before, this counts in fractions and looks after. A test holds the two together over
random histories (tests/core/test_limits_properties.py).
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from functools import cache

from libs.core.accelerators.catalog import catalog
from libs.core.accelerators.mig_boards import GEOMETRIES

Kind = tuple[str, str]
"""Model and MIG profile of a device."""

Taken = Iterable[tuple[Kind | None, int]]
"""Devices by kind with the thousandths of each; those of no known kind count for nothing."""


class LimitBooks:
    """What teams hold, what is kept for their jobs, and their limits. What lifts a team above one is answered in words."""

    def __init__(self) -> None:
        self._limits: dict[str, dict[str, int]] = {}
        """Team -> key of a limit (`*`, type, type:profile) -> thousandths of what the key names."""
        self._queue_limits: dict[str, dict[str, int]] = {}
        self._above: dict[str, list[str]] = {}
        """Queue -> itself and all above it."""
        self._used: dict[str, Counter[Kind]] = defaultdict(Counter)
        self._held: dict[str, tuple[str, Counter[Kind]]] = {}
        self._handed_over: tuple[str, Counter[Kind]] = ("", Counter())
        """The job whose hold was released last, and what was held: its grant takes what was its own already."""

    def set(self, team: str, limit_milli: int | None, by_type: Mapping[str, int]) -> None:
        """From here on these are all of its limits. What it holds already is left to it."""
        self._limits[team] = dict(by_type) | ({} if limit_milli is None else {"*": limit_milli})

    def set_queues(self, queues: Iterable[tuple[str, str, Mapping[str, int]]]) -> None:
        """From here on these are all queues: (name, parent, limits).

        A queue holds what teams called like it or like one below it hold."""
        parent: dict[str, str] = {}
        self._queue_limits = {}
        for name, above, limits in queues:
            parent[name], self._queue_limits[name] = above, dict(limits)
        self._above = {name: [name] for name in parent}
        for line in self._above.values():
            while line[-1] in parent and parent[line[-1]] and len(line) <= len(parent):
                line.append(parent[line[-1]])

    def hold(self, team: str, job_id: str, taken: Taken) -> list[str]:
        """Devices are kept for a job."""
        before = self._all_counted(team)
        self._held[job_id] = (team, _sum(taken))
        return self._lifted(team, before)

    def release(self, job_id: str) -> None:
        """Nothing is kept for a job any more."""
        _, kinds = self._held.pop(job_id, ("", Counter()))
        self._handed_over = (job_id, kinds)

    def grant(self, team: str, job_id: str, taken: Taken) -> list[str]:
        """A job gets devices, perhaps those that were kept for it until now."""
        before = self._all_counted(team)
        if self._handed_over[0] == job_id:
            for counted in before.values():
                counted.update(self._handed_over[1])
        _add(self._used[team], taken, 1)
        return self._lifted(team, before)

    def free(self, team: str, taken: Taken) -> None:
        """Devices of a team are free again."""
        _add(self._used[team], taken, -1)

    def _all_counted(self, team: str) -> dict[str, Counter[Kind]]:
        """What counts against each limit that holds for the team, by whose it is: `team NAME` or `queue NAME`."""
        counted = {f"team {team}": self.counted({team})} if self._limits.get(team) else {}
        for queue in self._above.get(team, ()):
            if self._queue_limits.get(queue):
                counted[f"queue {queue}"] = self.counted({name for name, up in self._above.items() if queue in up})
        return counted

    def counted(self, teams: Collection[str]) -> Counter[Kind]:
        """What teams hold together, and what is kept for their jobs."""
        total: Counter[Kind] = Counter()
        for team in teams:
            total.update(self._used.get(team, {}))
        for holder, kinds in self._held.values():
            if holder in teams:
                total.update(kinds)
        return total

    def _lifted(self, team: str, before: Mapping[str, Counter[Kind]]) -> list[str]:
        """The limits that are exceeded now, and were not as much `before` (one may have been lowered)."""
        found = []
        for whose, now in self._all_counted(team).items():
            what, _, name = whose.partition(" ")
            limits = self._limits[name] if what == "team" else self._queue_limits[name]
            for key, limit in limits.items():
                total = part_of(key, now)
                if total > limit and total > part_of(key, before[whose]):
                    found.append(f"{whose} holds {float(total):g} milli of {key}, its quota is {limit}")
        return found


def _sum(taken: Taken) -> Counter[Kind]:
    total: Counter[Kind] = Counter()
    _add(total, taken, 1)
    return total


def _add(total: Counter[Kind], taken: Taken, sign: int) -> None:
    for kind, milli in taken:
        if kind is not None:
            total[kind] += sign * milli


def part_of(key: str, kinds: Mapping[Kind, int]) -> Fraction:
    """What `kinds` count against `key` of a limit or guarantee, thousandths of what the key names."""
    return sum((milli * counts(key, kind) for kind, milli in kinds.items()), Fraction(0))


@cache
def counts(key: str, kind: Kind) -> Fraction:
    """What one device of a kind counts of what `key` names."""
    model, profile = kind
    if key == (f"{model}:{profile}" if profile else model):
        return Fraction(1)
    return part_of_board(model, profile) if key == model or (key == "*" and model != "CPU") else Fraction(0)


@cache
def part_of_board(model: str, profile: str) -> Fraction:
    """The compute slices of an instance of those of its board; 1 for a whole device, and where no board is known."""
    boards = sorted({a.mig for a in catalog().values() if a.model == model} & GEOMETRIES.keys())
    if not profile or not boards:
        return Fraction(1)
    for board in boards:
        for known in GEOMETRIES[board].profiles:
            if known.name == profile:
                return Fraction(known.compute_slices, GEOMETRIES[board].compute)
    number, named, _ = profile.partition("g.")
    whole = max(GEOMETRIES[board].compute for board in boards)
    return min(Fraction(1), Fraction(int(number), whole)) if named and number.isdecimal() else Fraction(1)
