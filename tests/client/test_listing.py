"""How lists of jobs that come in pieces are read."""

from collections.abc import Sequence
from dataclasses import dataclass
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


class Lister:
    """Answers as history does: newest first, older than `before_us`, and as many as fit."""

    def __init__(self, fits: int, *times: int) -> None:
        self.fits, self.asked_for = fits, 0
        self.jobs = sorted((Job(f"j{i}", at) for i, at in enumerate(times)), key=lambda job: -job.submitted_us)

    async def asked(self, limit: int, before_us: int | None) -> Sequence[JobDocument]:
        self.asked_for += 1
        found = [job for job in self.jobs if before_us is None or job.submitted_us < before_us]
        return cast(Sequence[JobDocument], found[: min(self.fits, limit)])


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


async def test_a_limit_that_one_answer_reaches_is_one_question() -> None:
    lister = Lister(100, *range(50))
    await read(lister, 20)
    assert lister.asked_for == 1


async def test_more_of_one_moment_than_an_answer_holds_is_said() -> None:
    with pytest.raises(Failed, match="cannot be read on"):
        await read(Lister(3, 5, 5, 5, 5, 1))
