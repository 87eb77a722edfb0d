"""Rows of money, of attempts and days, as bytes. A row may be in several blocks, and is their sum: nothing is added to one."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np

from libs.core.billing.use_lines.line import Key, UseOwner, any_day
from libs.core.billing.use_lines.packing import JobIds, Numbering, packed_columns, unpacked_columns

V = TypeVar("V")

FRESH_ROWS: Final = 16_384
"""Rows that are objects, some 600 bytes each. Mostly they are packed with the lines that they are of, which have their ids."""
RowsByTeam = Mapping[str, Mapping[int, Mapping[Key, Sequence[int]]]]
"""Team -> UTC day -> row -> [cost, list cost, units without a price, what of the cost is credits], money in millionths."""


@dataclass(frozen=True, slots=True)
class RowsBlock:
    """`days`: those of which it has rows, by team."""

    jobs: JobIds
    days: Mapping[str, tuple[int, ...]]
    packed: bytes

    def rows(
        self, team: str | None, of_day: Callable[[int], bool], job_id: str | None = None
    ) -> Iterator[tuple[str, Key, tuple[int, int, int, int]]]:
        """With the team of each. `team`, `job_id`: None: all."""
        if team is not None and team not in self.days:
            return
        columns, whose = unpacked_columns(self.packed)
        asked = [day for days in self.days.values() for day in days if of_day(day)]
        wanted = [n for n, (name, *_) in enumerate(whose) if team in (None, name)]
        jobs, abouts, _, days, *_ = columns
        mask = np.isin(days, asked) & np.isin(abouts, wanted)
        if job_id is not None:
            mask &= jobs == self.jobs.number(job_id)
        numbers = (column[mask].tolist() for column in columns)
        for job, about, attempt, day, cost, listed, unpriced, credit in zip(*numbers, strict=True):
            name, user, kind, klass = whose[about]
            yield name, (self.jobs.name(job), attempt, day, kind, klass, user), (cost, cost + listed, unpriced, credit)

    def has(self, team: str | None, of_day: Callable[[int], bool], job_id: str | None = None) -> bool:
        """Whether there is a row of these."""
        days = chain.from_iterable(self.days.values()) if team is None else self.days.get(team, ())
        return any(map(of_day, days)) and (job_id is None or job_id in self.jobs)

    def dump(self, with_lines: int | None) -> list[Any]:
        """`with_lines`: of the block of lines that has the same ids, which then is enough."""
        jobs = self.jobs.dump() if with_lines is None else with_lines
        return [jobs, list(self.days.items()), b64encode(self.packed).decode()]

    @classmethod
    def load(cls, row: Sequence[Any], with_lines: Sequence[JobIds]) -> "RowsBlock":
        """The inverse of `dump`."""
        told, days, packed = row
        jobs = with_lines[told] if isinstance(told, int) else JobIds.load(told)
        return cls(jobs, {team: tuple(some) for team, some in days}, b64decode(packed))


def rows_of(
    rows: Mapping[str, Mapping[int, Mapping[Key, V]]],
    team: str | None = None,
    of_day: Callable[[int], bool] = any_day,
    job_id: str | None = None,
) -> Iterator[tuple[str, Key, V]]:
    """Those that are asked for, with the team of each. `team`, `job_id`: None: all."""
    for name in rows if team is None else (team,):
        for day, some in rows.get(name, {}).items():
            if of_day(day):
                yield from ((name, key, row) for key, row in some.items() if job_id in (None, key[0]))


def packed_rows(rows: RowsByTeam, jobs: JobIds | None = None) -> RowsBlock:
    """All of these as one block. `jobs`: ids of all their jobs, and maybe of others."""
    every = list(rows_of(rows))
    jobs = jobs or JobIds.of(key[0] for _, key, _ in every)
    number_of = jobs.numbers()
    names = Numbering[UseOwner]()
    columns = [
        [number_of[key[0]] for _, key, _ in every],
        [names((team, key[5], key[3], key[4])) for team, key, _ in every],
        [key[1] for _, key, _ in every],
        [key[2] for _, key, _ in every],
        [row[0] for _, _, row in every],
        [row[1] - row[0] for _, _, row in every],
        [row[2] for _, _, row in every],
        [row[3] for _, _, row in every],
    ]
    days = {team: tuple(sorted(of)) for team, of in rows.items()}
    return RowsBlock(jobs, days, packed_columns(columns, list(names.all)))
