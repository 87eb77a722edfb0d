"""How long a team's jobs ran, by whose they were, what they were called and how wide they are: P50 and P90 of the next one.

Of each key the last `LAST` run times are kept. A key is the team, the user, the pattern of the name (its digits folded:
`train-17` and `train-18` are one) and the class of width; wider keys leave out the user, the name, or both. Asked is the most
specific key that has enough, and with none the caller has what is learned of the width (`learned`, which counts jobs that still
run too). A quantile is that of the order statistic of n + 1 (Vovk, Gammerman and Shafer 2005): of exchangeable jobs the next
one is within it in at least that part of cases, and in at most 1 / (n + 1) more.

A key that has all jobs of its width says nothing that the width does not, and is passed by. All of it follows from the ledger.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from libs.core.scheduling.precedence.learned import WIDTHS, width_class

LAST = 64
"""Run times of a key that are kept: what jobs did long ago says less."""
KEYS = 4096
"""Of a pool. Of more one of the team is dropped that has most of them: the one that ended nothing for the longest. So a team
whose jobs all have other names pushes out none of the others'."""
ENOUGH = 10
"""Run times that a quantile needs: the P90 of fewer is none that was seen."""
MOST_PATTERN = 64
"""Characters of a name that count."""
_DIGITS = re.compile(r"[0-9]+")
_ANY = ""


class SimilarJobs(NamedTuple):
    """What a job has in common with others."""

    team: str
    user: str
    pattern: str


_Key = tuple[str, str, str, int]
"""Team, user, pattern, class of width; "" : any."""


def similar_to(team: str, user: str, name: str) -> SimilarJobs:
    return SimilarJobs(team, user, _DIGITS.sub("#", name)[:MOST_PATTERN])


class _Runs:
    """Of one key."""

    __slots__ = ("count", "last_s")

    def __init__(self, count: int = 0, last_s: Sequence[float] = ()) -> None:
        self.count, self.last_s = count, list(last_s)
        """All that ended, and how long the last of them ran, s."""


class RunHistory:
    """Bounded: `KEYS` keys of `LAST` run times each."""

    def __init__(self) -> None:
        self._of: dict[str, dict[_Key, _Runs]] = {}
        """By team; of its keys who ended something last is the last."""
        self._count = 0
        self._ended = [0] * WIDTHS

    def ended(self, kin: SimilarJobs, devices: int, run_s: float) -> None:
        """A job ended by itself after running for so long."""
        self._ended[width_class(devices)] += 1
        own = self._of.setdefault(kin.team, {})
        for key in _keys(kin, devices):
            runs = own.pop(key, None)
            if runs is None:
                runs = _Runs()
                self._count += 1
            runs.count += 1
            runs.last_s = [*runs.last_s[1 - LAST :], run_s]
            own[key] = runs
        while self._count > KEYS:
            team, most = max(self._of.items(), key=lambda one: len(one[1]))
            del most[next(iter(most))]
            if not most:
                del self._of[team]
            self._count -= 1

    def foretold(self, kin: SimilarJobs, devices: int, ran_s: float = 0.0) -> tuple[float, float] | None:
        """P50 and P90 of how long a job runs in all that has run for `ran_s`, s; None: too little is known of its kin."""
        own = self._of.get(kin.team, {})
        for key in _keys(kin, devices):
            runs = own.get(key)
            if runs is None or runs.count == self._ended[width_class(devices)]:
                continue
            last_s = sorted(runs.last_s)
            longer = last_s[bisect_right(last_s, ran_s) :] if ran_s else last_s
            if len(longer) >= ENOUGH:
                return _quantile(longer, 1, 2), _quantile(longer, 9, 10)
        return None

    def dump(self) -> Iterator[list[Any]]:
        """Rows for a snapshot, as JSON takes them: first how many ended of each width."""
        yield list(self._ended)
        for own in self._of.values():
            for key, runs in own.items():
                yield [*key, runs.count, list(runs.last_s)]

    def load(self, rows: Sequence[list[Any]]) -> None:
        """The inverse of `dump`, into an empty one."""
        self._ended = list(rows[0])
        for team, user, pattern, width, count, last_s in rows[1:]:
            self._of.setdefault(team, {})[team, user, pattern, width] = _Runs(count, last_s)
            self._count += 1


def _keys(kin: SimilarJobs, devices: int) -> tuple[_Key, ...]:
    """The most specific first."""
    team, user, pattern = kin
    width = width_class(devices)
    wider: tuple[_Key, ...] = ((team, _ANY, pattern, width), (team, _ANY, _ANY, width))
    if not user:
        return wider
    return (team, user, pattern, width), wider[0], (team, user, _ANY, width), wider[1]


def _quantile(ordered: Sequence[float], part: int, of: int) -> float:
    """The least that at least `part` of `of` next ones are within."""
    return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * part / of)) - 1]
