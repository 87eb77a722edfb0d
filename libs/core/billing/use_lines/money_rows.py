"""Rows of money per attempt and day, packed. A row may be in several blocks; its value is their sum, and blocks never
change."""

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
"""The most rows kept as objects, some 600 bytes each. Usually they are packed together with their lines, whose blocks
have the ids."""
RowsByTeam = Mapping[str, Mapping[int, Mapping[Key, Sequence[int]]]]
"""Team -> UTC day -> row -> [cost, list cost, units without a price, credits within the cost], money in millionths."""


@dataclass(frozen=True, slots=True)
class RowsBlock:
    """`days`: team -> days with rows."""

    jobs: JobIds
    days: Mapping[str, tuple[int, ...]]
    packed: bytes

    def rows(
        self, team: str | None, of_day: Callable[[int], bool], job_id: str | None = None
    ) -> Iterator[tuple[str, Key, tuple[int, int, int, int]]]:
        """(team, row, value). `team`, `job_id` None: all."""
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
        """Whether the block has a matching row."""
        days = chain.from_iterable(self.days.values()) if team is None else self.days.get(team, ())
        return any(map(of_day, days)) and (job_id is None or job_id in self.jobs)

    def dump(self, with_lines: int | None) -> list[Any]:
        """`with_lines`: the block of lines with the same ids, which are then not stored again."""
        jobs = self.jobs.dump() if with_lines is None else with_lines
        return [jobs, list(self.days.items()), b64encode(self.packed).decode()]

    @classmethod
    def load(cls, row: Sequence[Any], with_lines: Sequence[JobIds]) -> "RowsBlock":
        """The inverse of `dump`."""
        ids, days, packed = row
        jobs = with_lines[ids] if isinstance(ids, int) else JobIds.load(ids)
        return cls(jobs, {team: tuple(some) for team, some in days}, b64decode(packed))


def rows_of(
    rows: Mapping[str, Mapping[int, Mapping[Key, V]]],
    team: str | None = None,
    of_day: Callable[[int], bool] = any_day,
    job_id: str | None = None,
) -> Iterator[tuple[str, Key, V]]:
    """The matching (team, row, value). `team`, `job_id` None: all."""
    for name in rows if team is None else (team,):
        for day, some in rows.get(name, {}).items():
            if of_day(day):
                yield from ((name, key, row) for key, row in some.items() if job_id in (None, key[0]))


def packed_rows(rows: RowsByTeam, jobs: JobIds | None = None) -> RowsBlock:
    """Packs all rows into one block. `jobs`: a superset of their job ids."""
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
