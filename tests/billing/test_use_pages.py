"""A team's months of use are read some hours at a time: all at once they were gigabytes, eight questions at a time."""

from collections.abc import AsyncGenerator

import pytest

from libs.adapters.mongo.use import UseStore
from libs.bus.queries import InvalidQuestion
from libs.core.billing.use_hours import MOST_ROWS, WHOLE, UseHour
from libs.core.billing.used import DeviceUseSums
from libs.core.billing.wall import HOUR_US
from schemas.use import UseQuery
from services.quota_billing.handlers import MAX_ROWS, list_use


class Counted(UseStore):
    """Knows how many hours were read at a time."""

    read: list[int]

    async def pages(self, team: str | None, first: int, last: int, *, limit: int) -> AsyncGenerator[list[UseHour]]:
        self.read = []
        async for page in super().pages(team, first, last, limit=limit):
            self.read.append(len(page))
            yield page


async def test_hours_are_summed_as_they_are_read(mongo_url: str, pool: str) -> None:
    store = Counted(mongo_url, pool)
    kept = [UseHour("blue", at, {WHOLE: {("ana", "job-1"): DeviceUseSums(7, 5)}}) for at in range(1000, 1230)]
    await store.save([*kept, UseHour("red", 1000, {WHOLE: {("eve", "job-2"): DeviceUseSums(9, 9)}})], 0)
    told = await list_use(store, UseQuery(), "blue")
    assert [(row.key, row.allocated_unit_us) for row in told.rows] == [("blue", 230 * 7)]
    assert (told.first_us, told.last_us) == (1000 * HOUR_US, 1230 * HOUR_US)
    assert store.read == [100, 100, 30]
    assert await store.hours("blue", 0, 9999, limit=9999) == kept
    assert await store.hours("blue", 0, 9999, limit=120) == kept[:120]
    nothing = await list_use(store, UseQuery(), "green")
    assert (nothing.rows, nothing.first_us, nothing.last_us) == ((), None, None)


async def test_an_answer_that_would_be_too_large_is_refused_before_all_is_read(mongo_url: str, pool: str) -> None:
    store = Counted(mongo_url, pool)
    rows = lambda at: {("ana", f"job-{at}-{n}"): DeviceUseSums(7, 5) for n in range(MOST_ROWS)}  # noqa: E731
    await store.save((UseHour("blue", at, {WHOLE: rows(at)}) for at in range(150)), 0)
    with pytest.raises(InvalidQuestion, match=f"more than the {MAX_ROWS} rows of one answer; narrow it"):
        await list_use(store, UseQuery(group_by="job"), "blue")
    assert store.read == [100]
    (row,) = (await list_use(store, UseQuery(), "blue")).rows
    assert row.allocated_unit_us == 150 * MOST_ROWS * 7
