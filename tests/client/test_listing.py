"""How lists of jobs that come in pieces are read."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Any, cast

import pytest

from libs.client.errors import Failed
from libs.client.listing import pages
from schemas.queries import JobDocument


@dataclass(frozen=True)
class Job:
    job_id: str
    submitted_us: int
    size: int = 1


class Lister:
    """Answers as history does: newest first, older than `before_us`, and as many as fit."""

    def __init__(self, fits: int, *times: int, large: Collection[int] = ()) -> None:
        """`large`: the times of jobs that fill an answer each."""
        self.fits, self.asked_for = fits, 0
        jobs = (Job(f"j{i}", at, fits if at in large else 1) for i, at in enumerate(times))
        self.jobs = sorted(jobs, key=lambda job: -job.submitted_us)

    async def asked(self, limit: int, before_us: int | None) -> Sequence[JobDocument]:
        self.asked_for += 1
        found = [job for job in self.jobs if before_us is None or job.submitted_us < before_us]
        total = list(accumulate(job.size for job in found[:limit]))
        fitting = sum(size <= self.fits for size in total) or 1
        return cast(Sequence[JobDocument], found[: min(fitting, limit)])


async def read(lister: Lister, limit: float = inf, before_us: int | None = None) -> list[Any]:
    return [one async for page in pages(lister.asked, before_us=before_us, limit=limit) for one in page]


@pytest.mark.parametrize("times", [(), (1,), (1, 2, 3, 4, 5, 6, 7), (5, 5, 4, 4, 3, 3), (9, 5, 5, 1), (5, 5, 5)])
async def test_every_job_is_read_once(times: tuple[int, ...]) -> None:
    for fits in (3, 4, 100):
        lister = Lister(fits, *times)
        assert await read(lister) == lister.jobs
        for limit in range(1, 9):
            assert await read(lister, limit) == lister.jobs[:limit]
        assert await read(lister, before_us=5) == [job for job in lister.jobs if job.submitted_us < 5]


@pytest.mark.parametrize("large", [(7,), (4,), (1,), (4, 3), (7, 6, 5, 4, 3, 2, 1)])
async def test_a_job_as_large_as_an_answer_does_not_end_the_list(large: tuple[int, ...]) -> None:
    """Nothing was told: neither it nor what had been submitted before it was in a list, an export or what offboarding ends."""
    lister = Lister(5, 1, 2, 3, 4, 5, 6, 7, large=large)
    assert await read(lister) == lister.jobs
    assert await read(lister, 5) == lister.jobs[:5]


async def test_a_limit_that_one_answer_reaches_is_one_question() -> None:
    lister = Lister(100, *range(50))
    await read(lister, 20)
    assert lister.asked_for == 1


async def test_more_of_one_moment_than_an_answer_holds_is_said() -> None:
    with pytest.raises(Failed, match="cannot be read on"):
        await read(Lister(3, 5, 5, 5, 5, 1))
