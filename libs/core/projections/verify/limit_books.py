"""Invariant I7 by the checker's own books: no grant and no hold lifts a team above a limit.

It shares the facts with those who decide (the catalogue and the MIG table), not the rule: `libs.core.scheduling.limits`
counts in integer grains and asks before, this counts in fractions and looks after. A test holds the two together over
random histories (tests/core/test_limits_properties.py).

What is kept for a job counts as far as it is more than what those that give way for it, under the same limit, still hold.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType

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
        self._handed_over: tuple[str, str, Counter[Kind]] = ("", "", Counter())
        """The job whose hold was released last, its team, and what was held: its grant takes what was its own already."""
        self._leaving: dict[str, tuple[str, str, Counter[Kind]]] = {}
        """Job that gives way -> its team, for whom, and what it holds still."""

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
        self._handed_over = (job_id, *self._held.pop(job_id, ("", Counter())))

    def grant(self, team: str, job_id: str, taken: Taken, *, counts_once: bool = True) -> list[str]:
        """A job gets devices, perhaps those that were kept for it until now. `counts_once`: so far as those that give way for
        it, under the same limit, still hold as much, they were not its own yet."""
        own = self._handed_over[1:] if self._handed_over[0] == job_id else None
        who = job_id if counts_once else ""  # to whom nobody gives way
        before = self._all_counted(team, {who: own} if own is not None else {})
        _add(self._used[team], taken, 1)
        return self._lifted(team, before)

    def gives_way(self, team: str, job_id: str, beneficiary: str, taken: Taken) -> None:
        """A job gives way to another: what it holds still."""
        self._leaving[job_id] = (team, beneficiary, _sum(taken))

    def free(self, team: str, job_id: str, taken: Taken) -> None:
        """Devices that a job of a team held are free again."""
        freed = list(taken)
        _add(self._used[team], freed, -1)
        if job_id in self._leaving:
            _add(self._leaving[job_id][2], freed, -1)

    def gone(self, job_id: str) -> None:
        """A job holds nothing any more."""
        self._leaving.pop(job_id, None)

    def _all_counted(
        self, team: str, more: Mapping[str, tuple[str, Counter[Kind]]] = MappingProxyType({})
    ) -> dict[tuple[str, str], Fraction]:
        """What counts against each limit that holds for the team, by whose it is (`team NAME` or `queue NAME`) and its key.
        `more`: what is kept besides, as in the books."""
        found = {}
        for whose, limits, teams in self._bounds(team):
            held = [(job, kinds) for job, (holder, kinds) in (self._held | dict(more)).items() if holder in teams]
            for key in limits:
                total = sum((part_of(key, self._used.get(name, {})) for name in teams), Fraction(0))
                found[whose, key] = total + sum(
                    (max(Fraction(0), part_of(key, kinds) - self._still_there(key, teams, job)) for job, kinds in held),
                    Fraction(0),
                )
        return found

    def _still_there(self, key: str, teams: Collection[str], beneficiary: str) -> Fraction:
        """What those of `teams` that give way to a job hold still."""
        leaving = (kinds for team, whom, kinds in self._leaving.values() if whom == beneficiary and team in teams)
        return sum((part_of(key, kinds) for kinds in leaving), Fraction(0))

    def _bounds(self, team: str) -> Iterator[tuple[str, Mapping[str, int], Collection[str]]]:
        """Whose limits hold for a team, what they are, and the teams that they count."""
        if self._limits.get(team):
            yield f"team {team}", self._limits[team], {team}
        for queue in self._above.get(team, ()):
            if self._queue_limits.get(queue):
                yield f"queue {queue}", self._queue_limits[queue], {n for n, up in self._above.items() if queue in up}

    def counted(self, teams: Collection[str]) -> Counter[Kind]:
        """What teams hold together, and what is kept for their jobs."""
        total: Counter[Kind] = Counter()
        for team in teams:
            total.update(self._used.get(team, {}))
        for holder, kinds in self._held.values():
            if holder in teams:
                total.update(kinds)
        return total

    def _lifted(self, team: str, before: Mapping[tuple[str, str], Fraction]) -> list[str]:
        """The limits that are exceeded now, and were not as much `before` (one may have been lowered)."""
        limit = {(whose, key): milli for whose, limits, _ in self._bounds(team) for key, milli in limits.items()}
        return [
            f"{whose} holds {float(total):g} milli of {key}, its quota is {limit[whose, key]}"
            for (whose, key), total in self._all_counted(team).items()
            if total > limit[whose, key] and total > before[whose, key]
        ]


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
