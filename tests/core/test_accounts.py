"""Double entry: each unit of capacity is in one account at each microsecond."""

import os
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.billing.accounts import Account, Accounts, Posting, units_of
from libs.core.billing.metering import Meter
from libs.core.state.clock import Calendar
from libs.ledger.audited import AuditedLedger
from schemas.ledger import DevicesFreed, JobGranted, LedgerEvent, LedgerRecord
from tests.core.accounts_oracle import Cell, truth
from tests.core.lives import EVERY, records_of
from tests.core.random_ledgers import RandomLedger

LEDGERS = int(os.environ.get("RANDOM_LEDGERS", "40"))
"""How many random ledgers; 10,000 take some minutes."""


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


def overcommitted(event: LedgerEvent) -> LedgerEvent:
    claims = tuple(c.model_copy(update={"milli": 1000}) for c in event.claims) if isinstance(event, JobGranted) else ()
    return event.model_copy(update={"claims": claims}) if isinstance(event, JobGranted) else event


def nowhere(event: LedgerEvent) -> LedgerEvent:
    return event.model_copy(update={"devices": ("elsewhere",)}) if isinstance(event, DevicesFreed) else event


@pytest.mark.parametrize("lie", [overcommitted, nowhere])
def test_a_ledger_whose_accounts_do_not_sum_up_is_said_to_be_violated(
    lie: Callable[[LedgerEvent], LedgerEvent],
) -> None:
    audited = AuditedLedger()
    for seq, record in enumerate(records_of("every end"), 1):
        events = tuple(map(lie, record.events))
        audited.step(seq, record.model_copy(update={"events": events, "prev_seq": seq - 1}), valid=True)
    assert any(violation.startswith("I16") for violation in audited.finish().violations)


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
            assert p.account in (Account.BILLED, Account.UNCONFIRMED)
            for day in range(p.wall_start_us // DAY_US, p.wall_end_us // DAY_US + 1):
                span = min(p.wall_end_us, (day + 1) * DAY_US) - max(p.wall_start_us, day * DAY_US)
                ours[p.team, p.job_id, p.attempt, day, p.model, p.profile] += span * p.units * 1000
        else:
            assert p.account not in (Account.BILLED,)
    assert +ours == +billed


DAY_US = 86_400_000_000


# ----------------------------------------------------------------------------------------------------- by brute force


def cells_of(posted: list[Posting], points: list[int]) -> dict[tuple[str, int], Cell]:
    """What the books say of each device in each span between two breakpoints."""
    cells: dict[tuple[str, int], Cell] = {}
    at = {t: i for i, t in enumerate(points)}
    inside = sorted({t for p in posted for t in (p.start_us, p.end_us)} - at.keys())
    assert not inside, "the books know of a moment at which nothing happened"
    for p in posted:
        assert p.wall_end_us - p.wall_start_us == p.end_us - p.start_us
        payer = (p.team, p.user, p.job_id, p.attempt, p.priority_class, p.queue)
        for span in range(at[p.start_us], at[p.end_us]):
            cell = cells.setdefault((p.device, span), {})
            cell[p.account.value, payer] = cell.get((p.account.value, payer), 0) + p.units
    return cells


def check_by_brute_force(records: list[LedgerRecord]) -> None:
    books, posted = fold(tuple(records))
    jumps = [start for start, _ in Calendar(books.calendar).pieces]
    told = truth(records, jumps)
    assert cells_of(posted, told.points) == told.cells
    existed = sum(
        units * (told.points[span + 1] - told.points[span])
        for (_, span), cell in told.cells.items()
        for units in cell.values()
    )
    assert sum(books.balances().values()) == existed == books.capacity_unit_us()


@given(st.integers(0, 2**63))
@settings(max_examples=LEDGERS)
def test_random_ledgers_by_brute_force(seed: int) -> None:
    check_by_brute_force(RandomLedger(seed).records)


def test_random_ledgers_have_every_account() -> None:
    seen: Counter[Account] = Counter()
    for seed in range(20):
        seen.update(p.account for p in fold(tuple(RandomLedger(seed).records))[1])
    assert {account for account in Account if seen[account] < 10} == set(), seen


@given(st.integers(0, 2**63), st.integers(1, 40))
@settings(max_examples=min(LEDGERS, 20))
def test_books_that_were_saved_and_loaded_go_on_as_they_would_have(seed: int, at: int) -> None:
    records = RandomLedger(seed).records
    whole, cut = Accounts(), Accounts()
    for seq, record in enumerate(records, 1):
        if seq == at:
            cut = Accounts.load(list(cut.dump()))
        assert cut.apply(record, seq) == whole.apply(record, seq)
        assert cut.apply(record, seq) == [], "a record counts once"
    assert list(cut.dump()) == list(whole.dump())
    assert list(cut.open(cut.t_us)) == list(whole.open(whole.t_us))
    assert cut.capacity_unit_us() == whole.capacity_unit_us()
