"""Old lines of uses and old rows of money lie as bytes: what comes out of them is what went in, and few are objects."""

import hashlib
import json
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libs.core.billing import posted
from libs.core.billing.credited import CreditedPart
from libs.core.billing.in_days import Days, bill_in_days
from libs.core.billing.metering import Meter
from libs.core.billing.posted import AppliedBook, PostedMoney
from libs.core.billing.pricing import Prices
from libs.core.billing.use_lines import lines as use_lines
from libs.core.billing.use_lines.line import AlikeUses, CreditedUse, utc_day
from libs.core.billing.use_lines.lines import LinesBlock, UseLines
from libs.core.billing.use_lines.money_rows import RowsBlock, packed_rows, rows_of
from libs.core.billing.use_lines.packing import JobIds
from libs.core.billing.wall import DAY_US, HOUR_US
from libs.core.state import parts
from libs.core.state.parts import SharedParts
from schemas.billing import BillQuery, Price, PriceBook
from schemas.ids import job_id
from schemas.prices import ClosedPeriod, CreditCause, ListRate, RateBook
from tests.billing.ledgers import priced_world
from tests.core.priced_ledgers import PricedLedger

_FILE = Prices(PriceBook(currency="EUR", prices=(Price(model="H100", micros_per_device_hour=77),)))
JOBS = (*(job_id("red", str(n)) for n in range(10)), "no-id", "job-7")
NUMBERS = st.integers(0, 2**70) | st.integers(0, 10**13)
STRAIGHT = st.lists(
    st.tuples(st.integers(0, 10**13), st.integers(0, 10**12), st.integers(0, 10**16)).map(
        lambda piece: (piece[0], piece[0] + piece[1], piece[2])
    ),
    max_size=3,
).map(tuple)
LINES = st.builds(
    AlikeUses, st.sampled_from(("red", "blue")), st.sampled_from(("", "ana")), st.sampled_from(JOBS), st.integers(1, 99),
    st.sampled_from(("H100", "A100")), st.just("training"), st.integers(1, 1000), st.integers(1, 9), NUMBERS, NUMBERS, STRAIGHT,
)  # fmt: skip
PARTS = st.lists(
    st.builds(CreditedPart, st.sampled_from(CreditCause), st.text(max_size=3), st.integers(0, 1000), NUMBERS, NUMBERS),
    max_size=2,
).map(tuple)
CREDITS = st.builds(CreditedUse, st.integers(0, 20), st.integers(0, 3), NUMBERS, NUMBERS, PARTS)
MONEY = st.lists(st.integers(-(2**65), 2**65), min_size=4, max_size=4)
DAY = st.dictionaries(st.tuples(st.sampled_from(JOBS), st.integers(1, 3)), MONEY, max_size=4)
TEAM = st.dictionaries(st.integers(0, 3), DAY).map(
    lambda days: {
        day: {(job, attempt, day, "H100", "batch", ""): row for (job, attempt), row in rows.items()}
        for day, rows in days.items()
    }
)
ROWS = st.dictionaries(st.sampled_from(("red", "blue")), TEAM)


def _late(seq: int) -> AlikeUses:
    return AlikeUses("red", "", JOBS[0], 1, "H100", "training", 1000, 1, seq, 5, ((0, 5, 0),))


@given(st.lists(st.lists(LINES, min_size=1), min_size=1, max_size=3), st.lists(CREDITS), st.booleans())
@example([[_late(2**62), _late(2**63 + 1)]], [], False)
def test_lines_come_back_as_they_were(packs: list[list[AlikeUses]], credits: list[CreditedUse], restart: bool) -> None:
    kept, every = UseLines(), [one for pack in packs for one in pack]
    for pack in packs:
        for one in pack:
            assert kept.awaited(kept.add(one)) is one
        for credit in credits:
            kept.credit(credit)
        kept.pack({0}, JobIds.of(one.job_id for one in pack))
    if restart:
        again = UseLines()
        for table, rows in kept.dump().items():
            again.load_rows(table, [*map(_as_json, rows)])
        kept = again
    assert [one for _, one in kept.all()] == every
    assert [number for number, _ in kept.all()] == list(range(len(every)))
    assert list(kept.credited()) == credits * len(packs)
    assert kept.awaited(0) == every[0]
    for team in (None, "red"):
        for job in (None, JOBS[0], "no-id", "job-8"):
            wanted = [one for one in every if team in (None, one.team) and job in (None, one.job_id) and one.straight]
            found = kept.of(team, lambda day: True, job)
            assert [one for one in found if one.straight] == wanted
    seq = every[0].seq
    assert list(kept.since(seq)) == [one for one in every if one.seq > seq]
    assert list(kept.credited_since(seq)) == [one for one in credits * len(packs) if one.seq > seq]
    parts = kept.parts_of(1, len(every))
    assert len(every) == 1 or {number: list(some) for number, some in parts.items()} == {
        number: [(one.place, one.parts) for one in credits * len(packs) if one.use == number]
        for number in {one.use for one in credits if 1 <= one.use < len(every)}
    }


@given(ROWS, st.booleans(), st.booleans())
def test_rows_come_back_as_they_were(rows: Any, shared: bool, restart: bool) -> None:
    jobs = JobIds.of(JOBS) if shared else None
    block = packed_rows(rows, jobs)
    if restart:
        block = RowsBlock.load(_as_json(block.dump(0 if jobs else None)), [jobs] if jobs else [])
    for team in (None, "red", "green"):
        for job in (None, JOBS[0], "no-id", "job-8"):
            for day in (0, 3):
                about = (team, lambda one, until=day: one <= until, job)
                wanted = [(name, key, tuple(row)) for name, key, row in rows_of(rows, *about)]
                assert sorted(block.rows(*about)) == sorted(wanted)
                assert block.has(*about) or not wanted


def test_a_block_with_nothing_of_a_day_or_a_job_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = UseLines()
    for day in (10, 20):
        wall = day * DAY_US
        one = AlikeUses("red", "", JOBS[day // 20], 1, "H100", "batch", 1000, 1, day, wall + 5, ((0, 5, wall),))
        kept.add(one)
        kept.pack((), JobIds.of([one.job_id]))
    opened: list[LinesBlock] = []
    open_ = UseLines._open
    monkeypatch.setattr(UseLines, "_open", lambda self, block: opened.append(block) or open_(self, block))
    for team, of_day, job, wanted in (
        ("red", lambda day: day == 20, None, [1]),
        ("red", lambda day: True, JOBS[0], [0]),
        ("blue", lambda day: True, None, []),
        (None, lambda day: day < 10, None, []),
    ):
        opened.clear()
        list(kept.of(team, of_day, job))
        assert [block.first for block in opened] == wanted


def test_few_lines_and_rows_are_objects_whatever_the_length_of_the_ledger() -> None:
    records = priced_world().records
    with patch.object(use_lines, "FRESH", 2), patch.object(posted, "FRESH_ROWS", 3):
        meter = Meter()
        for seq, record in enumerate(records, start=1):
            meter.apply(record, seq)
            assert len(meter.money.lines.fresh()) < 2
            assert len(list(rows_of(meter.money.rows))) < 3
    assert len(meter.money.lines.blocks) > 1
    assert meter.money.packed
    whole = Meter()
    for seq, record in enumerate(records, start=1):
        whole.apply(record, seq)
    assert list(meter.usage()) == list(whole.usage())
    assert meter.counted == whole.counted


def test_what_is_old_is_stored_once_and_later_snapshots_name_it() -> None:
    records = PricedLedger(6).records
    most = len(records) * 3 // 4
    meter = Meter()
    with (
        patch.object(use_lines, "FRESH", 1),
        patch.object(posted, "FRESH_ROWS", 1),
        patch.object(parts, "SHARED_ROWS", 2),
    ):
        for seq, record in enumerate(records[:most], start=1):
            meter.apply(record, seq)
        before = _shared(meter)
        for seq, record in enumerate(records[most:], start=most + 1):
            meter.apply(record, seq)
        dumped, after = list(meter.dump()), _shared(meter)
        again = Meter.load(dumped)
        assert list(again.dump()) == dumped
    assert before
    assert set(before) < set(after), "a later snapshot names what an older one stored"
    for key, one in after.items():
        assert key == hashlib.sha256(b"".join(one.make())).hexdigest()
    rest = Counter(json.loads(part)[0] for part in dumped[1:] if isinstance(part, bytes))
    assert rest["lines"] < 2, "each other snapshot would write it anew"
    assert rest["packed"] < 2
    assert list(again.usage()) == list(meter.usage())


def _shared(meter: Meter) -> dict[str, SharedParts]:
    return {part.key: part for part in meter.dump() if isinstance(part, SharedParts)}


def _as_json(row: Any) -> Any:
    """As a snapshot has it: lists in the place of tuples."""
    if isinstance(row, list | tuple):
        return [_as_json(one) for one in row]
    return row


@pytest.mark.parametrize("seed", range(60))
def test_every_bill_of_a_day_is_the_same_whether_lines_are_packed_or_not(seed: int) -> None:
    """With a restart in the midst of each ledger, and in every hour of which something is billed."""
    records = PricedLedger(seed).records
    whole, packed = Meter(), Meter()
    restart = seed * len(records) // 60
    for seq, record in enumerate(records, start=1):
        whole.apply(record, seq)
        with patch.object(use_lines, "FRESH", 1), patch.object(posted, "FRESH_ROWS", 1):
            packed.apply(record, seq)
            if seq == restart:
                packed = Meter.load(packed.dump())
    assert list(packed.usage()) == list(whole.usage())
    assert packed.counted == whole.counted
    assert packed.money.sums == whole.money.sums
    if whole.money.book is None:
        return
    for day in {row.day for row in whole.usage()}:
        for start in (day * DAY_US, day * DAY_US + DAY_US // 2):
            days = Days(utc_day, start, start + DAY_US // 2)
            for team in (None, "red"):
                asked = BillQuery(group_by="attempt"), team, days
                assert bill_in_days(packed, _FILE, *asked) == bill_in_days(whole, _FILE, *asked)


def test_what_is_billed_long_after_its_use_is_found_in_its_block() -> None:
    """A line that came late, and a credit that came late, both for a period that was closed by then: they are of the day
    on which they were told. A device whose attempt is not closed is still known when a seal lays lines anew."""
    book = RateBook(version=1, currency="EUR", prices=(ListRate(device="H100", micros=1_000_000, from_us=0),))
    closed = ClosedPeriod(from_us=0, to_us=20 * DAY_US, upto_seq=4, head="a" * 64, rows="b" * 64, currency="EUR")
    found = []
    for fresh in (1, 100):
        money = PostedMoney()
        with patch.object(use_lines, "FRESH", fresh), patch.object(posted, "FRESH_ROWS", fresh):
            money.apply(AppliedBook(1, 0, book))
            money.post(_hour_of(5, seq=3), ["n0-0"])
            money.pack()
            money.post(_hour_of(6, seq=4))
            money.pack()
            money.post(_hour_of(7, seq=5, posted_day=8))  # after the seal was reckoned, before it is told
            money.pack()
            assert money.close_period(closed)
            money.post(_hour_of(9, seq=7, posted_day=30))
            money.pack()
            part = CreditedPart(CreditCause.NODE_LOST, "lost", 1000, 5 * DAY_US, 5 * DAY_US + HOUR_US)
            money.give_back({(JOBS[5], 1, "n0-0"): (part,)}, 8, 40 * DAY_US)
        assert len(money.lines.blocks) == (4 if fresh == 1 else 0)
        for day in range(45):
            recut, _ = money.recut(utc_day, None, (day * DAY_US, (day + 1) * DAY_US), 100)
            found += [(day, key, tuple(row)) for _, key, row in recut.all_rows(None, lambda one, day=day: one == day)]
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert [(day, row[0]) for day, _, row in found[:half]] == [
        (5, 1_000_000),
        (6, 1_000_000),
        (20, 1_000_000),
        (30, 1_000_000),
        (40, -1_000_000),
    ]


def _hour_of(day: int, *, seq: int, posted_day: int | None = None) -> AlikeUses:
    start = day * DAY_US
    posted_us = start + HOUR_US if posted_day is None else posted_day * DAY_US
    return AlikeUses(
        "red", "ana", JOBS[day], 1, "H100", "batch", 1000, 1, seq, posted_us, ((start, start + HOUR_US, start),)
    )
