"""What a bill counts, kept up to date as use is posted, so that no bill of a team walks the rows of its attempts.

    use      by day, kind of device and priority class, thousandths of a device x microseconds
    things   how many jobs, or attempts, have a row on some day of a span: a thing that has rows on days a < b < c is the
             pairs (none, a), (a, b), (b, c), and each pair is counted; of a span those count that end in it and begin
             before it, which is each thing once

A team's sums grow with its days and not with its jobs. Days of a job are remembered until it ends: what comes after that is
a correction, after which all is counted anew.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

RowKey = tuple[str, int, int, str, str, str]
"""Job id, attempt, UTC day, device kind, priority class, user."""
Thing = tuple[str, int, str]
"""Job id, attempt (0: the job), device kind (empty: any)."""
_NEVER = -1 << 40
"""Before every day."""


@dataclass(slots=True)
class TeamSums:
    """Of one team."""

    use: dict[tuple[int, str, str], int] = field(default_factory=dict)
    jobs: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)
    """Device kind (empty: any) -> (day before, day) -> how many jobs have these two behind each other."""
    attempts: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)

    def count(self, days: "DaysOf", key: RowKey) -> None:
        """A row is new. `days`: of its job, from all its rows so far."""
        job, attempt, day, kind, *_ = key
        for thing in ((job, 0, ""), (job, 0, kind), (job, attempt, ""), (job, attempt, kind)):
            known = days.setdefault(thing, [])
            place = bisect_left(known, day)
            if place < len(known) and known[place] == day:
                continue
            before = known[place - 1] if place else _NEVER
            pairs = (self.attempts if thing[1] else self.jobs).setdefault(thing[2], Counter())
            if place < len(known):
                after = known[place]
                pairs[before, after] -= 1
                pairs[day, after] += 1
            pairs[before, day] += 1
            insort(known, day)

    def dump(self) -> list[Any]:
        """Equal for who counted the same."""
        return [
            [[*key, units] for key, units in sorted(self.use.items())],
            *(
                [
                    [kind, [[*pair, n] for pair, n in sorted(pairs.items()) if n]]
                    for kind, pairs in sorted(of.items())
                    if any(pairs.values())
                ]
                for of in (self.jobs, self.attempts)
            ),
        ]

    @classmethod
    def load(cls, use: Iterable[Any], jobs: Iterable[Any], attempts: Iterable[Any]) -> "TeamSums":
        """The inverse."""
        counted = cls({(day, kind, klass): units for day, kind, klass, units in use})
        for of, told in ((counted.jobs, jobs), (counted.attempts, attempts)):
            of.update((kind, Counter({(before, day): n for before, day, n in pairs})) for kind, pairs in told)
        return counted

    def recount(self, keys: Iterable[RowKey], unfinished: Callable[[str], bool]) -> dict[str, "DaysOf"]:
        """Counts things anew, of all rows. Returns what must be remembered of jobs that may get more."""
        self.jobs, self.attempts = {}, {}
        kept: dict[str, DaysOf] = {}
        days: DaysOf = {}
        last = ""
        for key in sorted(keys, key=itemgetter(0, 2)):
            if key[0] != last:
                last, days = key[0], {}
                if unfinished(last):
                    kept[last] = days
            self.count(days, key)
        return kept


DaysOf = dict[Thing, list[int]]
"""Of one job: on which days each thing of it has rows, in order."""


def within(pairs: Counter[tuple[int, int]] | None, asked: Callable[[int], bool]) -> int:
    """How many things have a row on one of the days that are asked for, which follow each other."""
    if pairs is None:
        return 0
    return sum(n for (before, day), n in pairs.items() if asked(day) and not (before != _NEVER and asked(before)))
