"""What a bill's page tells of use where not all of it can be had."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from libs.bus.broker import make_broker
from libs.bus.connect import Address
from libs.bus.queries import InvalidQuestion, serve
from libs.cli.bill_page import Kept, kept_of
from libs.client import Baton
from schemas.catalog import BY_TYPE
from schemas.jobs import Reason
from schemas.use import UseQuery, UseReply, UseRow

HOUR = (0, 3_600_000_000)
ROW = UseRow(key="blue", team="blue", allocated_unit_us=7, known_unit_us=5, used_unit_us=4)


@asynccontextmanager
async def keeping(url: Address, most_rows: bool) -> AsyncIterator[list[str]]:
    """Who answers for what is kept, of a team with more jobs than one answer has rows, or fewer; by what it was asked."""
    asked: list[str] = []

    def answer(query: UseQuery, team: str) -> UseReply:
        asked.append(query.group_by)
        if most_rows and query.group_by == "job":
            why = Reason(field="group_by", value="job", problem="too many rows", fix="group by user")
            raise InvalidQuestion((why,))
        return UseReply(rows=(ROW,), first_us=None, last_us=None)

    broker = make_broker(url, "keeper")
    serve(broker, BY_TYPE["io.baton.use.list.query.v1"], answer, queue="use", pool="main")
    await broker.start()
    try:
        yield asked
    finally:
        await broker.stop()


@pytest.mark.parametrize(("most_rows", "asks"), [(False, ["day", "job"]), (True, ["day", "job", "user"])])
async def test_of_a_team_with_too_many_jobs_its_users_are_told(
    operator: Baton, urls: dict[str, Address], most_rows: bool, asks: list[str]
) -> None:
    async with keeping(urls["services"], most_rows) as asked:
        kept = await kept_of(operator, "blue", HOUR, "UTC")
    assert asked == asks
    assert kept.days == (ROW,)
    assert len(kept.seen) == 1


async def test_where_nobody_keeps_anything_the_page_is_made_and_says_so(
    operator: Baton, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended with an error instead, and there was no page."""
    assert await kept_of(operator, "blue", HOUR, "UTC") == Kept({}, ())
    assert "what was used is told as unknown" in capsys.readouterr().err
