"""A team's months of use are read some hours at a time: all at once they were gigabytes, eight questions at a time."""

from collections.abc import AsyncGenerator

import pytest

from libs.adapters.mongo.use import UseStore
from libs.bus.queries import InvalidQuestion
from libs.core.billing.use_hours import MOST_ROWS, WHOLE, GroupedUse, UseHour
from libs.core.billing.used import DeviceUseSums
from libs.core.billing.wall import HOUR_US, day_text
from schemas.use import UseQuery
from services.quota_billing import handlers
from services.quota_billing.handlers import MAX_ROWS, list_use


class Counted(UseStore):
    """Knows how many hours were read at a time."""

    read: list[int]

    sums: int

    async def pages(
        self, team: str | None, first: int, last: int, *, limit: int, jobs: bool = True
    ) -> AsyncGenerator[list[UseHour]]:
        self.read, self.sums = [], 0
        async for page in super().pages(team, first, last, limit=limit, jobs=jobs):
            self.read.append(len(page))
            self.sums += sum(len(hour.rows) for hour in page)
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


def busy(hours: int) -> list[UseHour]:
    """Each with as many jobs as are kept, of three users."""
    rows = {(f"u-{n % 3}", f"job-{n}"): DeviceUseSums(7 + n, 5, 300_001 * n, n, n) for n in range(MOST_ROWS)}
    return [UseHour("blue", at, {WHOLE: rows}) for at in range(hours)]


@pytest.mark.parametrize("by", ["team", "user", "day", "hour"])
async def test_what_is_not_asked_by_job_is_read_by_user(mongo_url: str, pool: str, by: str) -> None:
    """Seen: 400 days of a team that is busy took 24 s of a thread, whatever was asked, for its five million sums of jobs."""
    store, kept = Counted(mongo_url, pool), busy(110)
    await store.save(kept, 0)
    told = await list_use(store, UseQuery(group_by=by), "blue")
    assert store.sums == 110 * 3
    whole = GroupedUse(by, lambda hour: day_text(hour // 24))
    whole.add(kept)
    assert list(told.rows) == whole.rows(), "to the last part, and with energy"


async def test_hours_that_were_written_before_are_told_the_same(mongo_url: str, pool: str) -> None:
    store = Counted(mongo_url, pool)
    await store.save(busy(6), 0)
    now = await list_use(store, UseQuery(group_by="user"), "blue")
    bodies = await store.bodies(0, 4)
    for body in bodies:
        del body["users"]
    assert await store.put(bodies) == 4
    assert await list_use(store, UseQuery(group_by="user"), "blue") == now
    assert store.sums == 4 * MOST_ROWS + 2 * 3


async def test_so_much_is_read_for_one_answer_and_no_more(
    mongo_url: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "MAX_READ", 120 * MOST_ROWS)
    store = Counted(mongo_url, pool)
    await store.save(busy(250), 0)
    with pytest.raises(
        InvalidQuestion, match="narrow it with from_us and to_us, or ask for one team; or group by user"
    ):
        await list_use(store, UseQuery(group_by="job"), "blue")
    assert store.read == [100, 100], "the third page is not read"
    assert len((await list_use(store, UseQuery(group_by="user"), "blue")).rows) == 3
    week = UseQuery(group_by="job", from_us=0, to_us=100 * HOUR_US)
    assert len((await list_use(store, week, "blue")).rows) == MOST_ROWS
