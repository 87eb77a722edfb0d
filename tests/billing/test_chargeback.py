"""The page of a team: what it used and did not, in money, and its credits with their cause."""

import re
from collections.abc import Mapping
from zoneinfo import ZoneInfo

from libs.core.billing.accounts import Accounts
from libs.core.billing.charges import charges
from libs.core.billing.credits import Credits
from libs.core.billing.use_hours import SLOT_US, WHOLE, GroupedUse, UseHour, added, in_slots
from libs.core.billing.used import Reading
from libs.core.billing.wall import HOUR_US
from libs.report.chargeback import PageOf, chargeback_page
from libs.report.team_story import seen_by, team_story
from schemas import inbox
from schemas.ledger import JobGranted, JobQueued
from schemas.prices import ListRate, RateBook
from schemas.use import UseRow
from tests.billing.ledgers import NOVEMBER, ask
from tests.core.builders import World, node

PERIOD = (NOVEMBER, NOVEMBER + 24 * HOUR_US)
BOOK = RateBook(version=1, currency="USD", prices=(ListRate(device="H100", micros=4_000_000, from_us=0),))


def grouped(hours: list[UseHour], by: str) -> list[UseRow]:
    found = GroupedUse(by, lambda hour: "2026-11-01")
    found.add(hours)
    return found.rows()


def page_of(
    world: World, readings: dict[tuple[str, str], list[Reading]], people: Mapping[str, str] | None = None
) -> str:
    records = list(enumerate(world.records, start=1))
    accounts = Accounts()
    postings = [posting for seq, record in records for posting in accounts.apply(record, seq)]
    rows = {}
    for slot in in_slots(postings, readings, PERIOD[0] // SLOT_US, PERIOD[1] // SLOT_US).values():
        rows = added([rows, slot.get("research", {})])
    kept = [UseHour("research", PERIOD[0] // HOUR_US, {WHOLE: rows})]
    seen, days = (grouped(kept, by) for by in ("job", "day"))
    story = team_story(records, "research", PERIOD, seen_by(seen if readings else (), "job"), Credits(), days)
    about = PageOf(
        "research", "test", "USD", "from", "to", ZoneInfo("UTC"), False, len(records), "hash", story, people or {}
    )
    return chargeback_page(about, (c for c in charges(lambda: records) if c.use.team == "research"))


def cells(text: str, first: str) -> list[list[str]]:
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(rf"<tr>(<td>{first}</td>.*?)</tr>", text)]


def an_hour_of_two() -> tuple[World, list[str]]:
    world = World()
    world.now_us = NOVEMBER
    world.send(inbox.NodeRegistered(incarnation=1, inventory=node("n0"), lease_s=10))
    world.send(inbox.ApplyPrices(book=BOOK, reason="the year begins", user="olga"))
    world.started(name := ask(world, "two", 2))
    (devices,) = ([c.device for c in e.claims] for r in world.records for e in r.events if isinstance(e, JobGranted))
    world.send(after_us=HOUR_US)
    world.released(name)
    return world, devices


def test_what_was_seen_unused_is_told_in_money_and_what_was_not_seen_is_unknown() -> None:
    world, (seen, unseen) = an_hour_of_two()
    every = range(NOVEMBER, NOVEMBER + 2 * HOUR_US, 15_000_000)
    text = page_of(world, {("n0", seen): [Reading(at, 25.0, 300_000) for at in every]})
    (whole,) = cells(text, "research")
    assert whole == ["research", "2.00", "0.25", "0.75", "1.00", "3.00 USD", "0.300"], unseen
    assert "<b>3.00 USD</b>unused, as far as it is known" in text
    for title in ("0.25 device-hours used", "0.75 device-hours unused", "1.00 device-hours unknown"):
        assert f"<title>2026-11-01: {title}</title>" in text
    (nothing,) = cells(page_of(world, {}), "research")
    assert nothing == ["research", "2.00", "0.00", "0.00", "2.00", "unknown", "unknown"]


def test_a_credit_is_told_with_its_cause_and_not_taken_off() -> None:
    world, _ = an_hour_of_two()
    assert "<h2>Credits</h2><p>None.</p>" in page_of(world, {})
    world.started(ask(world, "lost", 2))
    world.send(after_us=HOUR_US)
    paid = page_of(world, {})
    world.send(inbox.NodeSilent(node="n0", incarnation=1, silent_s=6), after_us=116_000_000)
    world.send(inbox.NodeLost(node="n0", incarnation=1, silent_s=31), after_us=25_000_000)
    text = page_of(world, {})
    (fault,), (silent,) = cells(text, "hardware-fault"), cells(text, "node-lost")
    assert "silent for 31.0 s" in fault[1]
    assert silent[2:4] == ["1", "0.02"], "two devices for 31 s"
    assert (fault[2], fault[3], fault[4]) == ("1", "2.06", "8.24 USD"), "an hour and 110 s of two devices at 4 USD"
    assert "<b>8.00 USD</b>cost" in paid
    assert "<b>16.31 USD</b>cost" in text, "all that was held: a credit is not taken off"


def test_jobs_are_told_by_name_and_user_and_people_where_they_are_to_be_named() -> None:
    """Seen: `job-66e6053ad2d25a508291178875f8f87d` and nothing else."""
    world, _ = an_hour_of_two()
    (job_id, spec) = next((e.job_id, e.spec) for r in world.records for e in r.events if isinstance(e, JobQueued))
    assert spec.name == "two"
    for record in world.records:  # who submitted it
        for event in record.events:
            if isinstance(event, JobQueued):
                object.__setattr__(event, "user", "u-1")
    plain, named = page_of(world, {}), page_of(world, {}, {"u-1": "Ana <b> (u-1)"})
    assert f"<td>two ({job_id}), u-1</td>" in plain
    assert f"<td>two ({job_id}), Ana &lt;b&gt; (u-1)</td>" in named
    assert [plain.count(f"<td>two ({job_id})"), plain.count(f"<td>{job_id}")] == [2, 0], "of both tables of jobs"
