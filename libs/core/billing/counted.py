"""Sums for bills, updated as use is posted, so that a team's bill need not walk its attempts.

    use      thousandths of a device x microseconds by day, device kind and priority class
    things   the number of distinct jobs, or attempts, with rows in a span of days. A thing with rows on days a < b < c is
             counted as the pairs (none, a), (a, b), (b, c). The number for a span is that of the pairs that end in it and
             begin before it, so each thing counts once.

A team's sums grow with its days, not with its jobs. A job's days are kept until it ends. A later correction causes a
full recount.
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
"""A day before all others."""


@dataclass(slots=True)
class TeamSums:
    """The sums of one team."""

    use: dict[tuple[int, str, str], int] = field(default_factory=dict)
    jobs: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)
    """Device kind (empty: any) -> (previous day, day) -> number of jobs with that pair."""
    attempts: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)

    def count(self, days: "DaysOf", key: RowKey) -> None:
        """Counts a new row. `days`: the days of its job, from all rows so far; updated here."""
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
        """A canonical form: equal sums give equal dumps."""
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
        """The inverse of `dump`."""
        counted = cls({(day, kind, klass): units for day, kind, klass, units in use})
        for of, rows in ((counted.jobs, jobs), (counted.attempts, attempts)):
            of.update((kind, Counter({(before, day): n for before, day, n in pairs})) for kind, pairs in rows)
        return counted

    def recount(self, keys: Iterable[RowKey], unfinished: Callable[[str], bool]) -> dict[str, "DaysOf"]:
        """Counts all rows again. Returns the days of unfinished jobs."""
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
"""For one job: the sorted days on which each of its things has rows."""


def within(pairs: Counter[tuple[int, int]] | None, asked: Callable[[int], bool]) -> int:
    """The number of things with a row on one of the days in `asked`, a contiguous range."""
    if pairs is None:
        return 0
    return sum(n for (before, day), n in pairs.items() if asked(day) and not (before != _NEVER and asked(before)))
