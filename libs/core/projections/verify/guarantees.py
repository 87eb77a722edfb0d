"""Queue guarantees in the checker's own books: whether a queue may take devices back from another, and whether lent
devices are spread more evenly afterwards (I11).

It counts in fractions, after the fact. The scheduler counts in grains, beforehand
(`libs.core.scheduling.queues.reclaim`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction

from libs.core.projections.verify.limit_books import Kind, counts, part_of

HeldByTeams = Callable[[Collection[str]], Counter[Kind]]
"""Teams -> their joint holdings, thousandths by kind."""


class Guarantees:
    """The tree of queues with their guarantees."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._guaranteed: dict[str, Mapping[str, int]] = {}
        self._weights: dict[str, int] = {}
        self.evens_after_s: Fraction | None = None
        """The least run time before a job may be preempted to even out lent devices; None: never."""

    def __bool__(self) -> bool:
        return bool(self._guaranteed)

    def applied(
        self, queues: Iterable[tuple[str, str, Mapping[str, int], int]], evens_after_s: Fraction | None = None
    ) -> None:
        """Replaces all queues: (name, parent, guaranteed thousandths by key, weight in thousandths)."""
        listed = list(queues)
        self._parent = {name: parent for name, parent, *_ in listed}
        self._guaranteed = {name: dict(guaranteed) for name, _, guaranteed, _ in listed}
        self._weights = {name: weight for name, *_, weight in listed}
        self.evens_after_s = evens_after_s

    def line(self, team: str) -> list[tuple[str, frozenset[str]]]:
        """The queues of the team's jobs, from the top, each with its teams. Beside queues below its own, the team
        counts as one alone."""
        names = [team]
        while (above := self._parent.get(names[-1], "")) and len(names) <= len(self._parent):
            names.append(above)
        line = [(name, self._teams(name)) for name in reversed(names)]
        return [*line, (f"{team} itself", frozenset({team}))] if line[-1][1] != {team} else line

    def lends(self, giver: str, taker: str, asked: Collection[Kind], held: HeldByTeams) -> int | None:
        """The level at which the two paths part, if from there down every queue of the giver holds more than its
        guarantee in the kinds `asked` (none: any accelerator). Else None."""
        ours, theirs = self.line(giver), self.line(taker)
        parted = next((at for at, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two), None)
        if parted is None or not all(self._beyond(name, asked, held(teams)) for name, teams in ours[parted:]):
            return None
        return parted

    def within(
        self, team: str, level: int, gets: Mapping[Kind, int], asked: Collection[Kind], held: HeldByTeams
    ) -> bool:
        """Whether all queues of the team from a level on stay within their guarantees with `gets` more."""
        for name, teams in self.line(team)[level:]:
            total = held(teams) + Counter(gets)
            keys = self._keys(name, asked)
            if not keys or any(part_of(key, total) > self._guaranteed[name][key] for key in keys):
                return False
        return True

    def evens(
        self, giver: str, taker: str, gone: Mapping[Kind, int], gets: Mapping[Kind, int], held: HeldByTeams
    ) -> bool:
        """Whether the giver, after giving `gone`, still holds its guarantee and, beyond it, at least as much per weight
        as the taker with `gets` more, where the two paths part. Counts accelerators. `held`: without both."""
        ours, theirs = self.line(giver), self.line(taker)
        parted = next((at for at, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two), None)
        if parted is None or self.evens_after_s is None:
            return False
        for name, teams in ours[parted:]:
            has = held(teams)
            for key, milli in self._guaranteed.get(name, {}).items():
                if any(counts(key, kind) for kind in gone) and part_of(key, has) < milli:
                    return False
        (gives, its), (takes, mine) = ours[parted], theirs[parted]
        weight, other = self._weights.get(takes, 1000), self._weights.get(gives, 1000)
        left = self._over(gives, held(its))
        return weight > 0 and (not other or left * weight >= self._over(takes, held(mine) + Counter(gets)) * other)

    def _over(self, name: str, held: Mapping[Kind, int]) -> Fraction:
        """Accelerators beyond the guarantee."""
        guaranteed = self._guaranteed.get(name, {})
        covered = sum((min(part_of(key, held), Fraction(milli)) for key, milli in guaranteed.items()), Fraction(0))
        return max(Fraction(0), part_of("*", held) - Fraction(guaranteed.get("*", covered)))

    def _beyond(self, name: str, asked: Collection[Kind], held: Counter[Kind]) -> bool:
        keys, guaranteed = self._keys(name, asked), self._guaranteed.get(name, {})
        if keys or asked:
            return all(part_of(key, held) > guaranteed[key] for key in keys)
        covered = sum((min(part_of(key, held), Fraction(milli)) for key, milli in guaranteed.items()), Fraction(0))
        return part_of("*", held) > covered

    def _keys(self, name: str, asked: Collection[Kind]) -> list[str]:
        guaranteed = self._guaranteed.get(name, {})
        return [
            key
            for key, milli in guaranteed.items()
            if milli and (any(counts(key, kind) for kind in asked) if asked else key == "*")
        ]

    def _teams(self, queue: str) -> frozenset[str]:
        found, todo = {queue}, [queue]
        while todo:
            above = todo.pop()
            below = [name for name, parent in self._parent.items() if parent == above and name not in found]
            found.update(below)
            todo += below
        return frozenset(found)
