"""Double entry: each unit of capacity is in one account at each microsecond."""

from collections import Counter

import pytest

from libs.core.billing.accounts import PAID, Account, Accounts, Posting, units_of
from libs.core.billing.metering import Meter
from libs.ledger.audited import AuditedLedger
from schemas.ledger import LedgerRecord
from tests.core.lives import EVERY, records_of


def fold(records: tuple[LedgerRecord, ...]) -> tuple[Accounts, list[Posting]]:
    """The books after a ledger, and all that was posted, with what is open at its end."""
    books, posted = Accounts(), []
    for seq, record in enumerate(records, 1):
        posted += books.apply(record, seq)
    return books, [*posted, *books.open(books.t_us)]


@pytest.mark.parametrize("life", EVERY)
def test_the_sum_of_all_accounts_is_what_existed(life: str) -> None:
    books, posted = fold(records_of(life))
    assert sum(books.balances().values()) == books.capacity_unit_us() == sum(p.unit_us for p in posted) > 0
    assert all(p.end_us > p.start_us and p.units > 0 for p in posted)


@pytest.mark.parametrize("life", EVERY)
def test_the_checker_comes_to_the_same_sums_by_its_own_books(life: str) -> None:
    audited = AuditedLedger()
    head = 0
    for seq, record in enumerate(records_of(life), 1):
        audited.step(seq, record.model_copy(update={"prev_seq": head}), valid=True)
        head = seq
    report = audited.finish()
    assert report.violations == []
    assert sum(report.accounts.values()) == report.capacity_unit_us > 0


@pytest.mark.parametrize("life", EVERY)
def test_attempts_are_in_the_books_with_what_they_are_billed(life: str) -> None:
    records, meter = records_of(life), Meter()
    for seq, record in enumerate(records, 1):
        meter.apply(record, seq)
    _, posted = fold(records)
    billed: Counter[tuple[str, str, int, int, str, str]] = Counter()
    for row in meter.usage(open_until_us=records[-1].t_us):
        model, _, profile = row.model.partition(":")
        key = (row.team, row.job_id, row.attempt, row.day, model, profile)
        billed[key] += row.milli_us * units_of(model, profile)
    ours: Counter[tuple[str, str, int, int, str, str]] = Counter()
    for p in posted:
        if p.attempt:
            assert p.account in PAID
            for day in range(p.wall_start_us // DAY_US, p.wall_end_us // DAY_US + 1):
                span = min(p.wall_end_us, (day + 1) * DAY_US) - max(p.wall_start_us, day * DAY_US)
                ours[p.team, p.job_id, p.attempt, day, p.model, p.profile] += span * p.units * 1000
        else:
            assert p.account not in (Account.BILLED,)
    assert +ours == +billed


DAY_US = 86_400_000_000
