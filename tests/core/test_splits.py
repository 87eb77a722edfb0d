"""However a bill is split, its parts are the whole, exactly; and nobody is given back more than was taken."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from libs.core.billing.charges import Charge, charges
from libs.core.billing.credited import CreditedPart, given_back
from libs.core.billing.metering import Meter
from libs.core.billing.prices import Amount, PriceList, Rater
from libs.core.billing.sealing import Sealing
from libs.core.billing.wall import HOUR_US, month_of, month_us
from schemas.ledger import PeriodClosed, PricesApplied
from schemas.prices import CreditCause, ListRate, PeriodTotal, RateBook
from tests.core.priced_ledgers import PricedLedger

SPLITS: dict[str, Callable[[Charge], object]] = {
    "team": lambda c: c.use.team,
    "user": lambda c: (c.use.team, c.use.user),
    "job": lambda c: c.use.job_id,
    "attempt": lambda c: (c.use.job_id, c.use.attempt),
    "device": lambda c: c.use.device,
    "class": lambda c: c.use.priority_class,
    "month": lambda c: month_of(c.billed_us),
    "hour": lambda c: c.billed_us // HOUR_US,
}
_AHEAD = 10**6


def sealed(found: list[Charge]) -> Sealing:
    made = Sealing()
    for charge in found:
        made.take(charge)
    return made


def added(totals: list[tuple[PeriodTotal, ...]]) -> dict[str, tuple[int, int, int, int]]:
    out: dict[str, tuple[int, int, int, int]] = {}
    for total in (one for some in totals for one in some):
        have = out.get(total.team, (0, 0, 0, 0))
        more = (total.charges, total.units, total.list_micros, total.cost_micros)
        out[total.team] = tuple(a + b for a, b in zip(have, more, strict=True))  # type: ignore[assignment]
    return out


@given(st.integers(0, 2**63), st.lists(st.integers(-_AHEAD, _AHEAD), max_size=5))
@settings(max_examples=30, deadline=None)
def test_any_split_of_a_ledgers_charges_is_the_whole(seed: int, near: list[int]) -> None:
    """By what a bill can be asked, and in half-open periods that are cut anywhere, also at the very moment of a charge."""
    ledger = PricedLedger(seed)
    found = list(charges(lambda: list(enumerate(ledger.records, start=1)), ledger.closed))
    whole = sealed(found)
    for split in SPLITS.values():
        parts: dict[object, list[Charge]] = {}
        for charge in found:
            parts.setdefault(split(charge), []).append(charge)
        made = [sealed(part) for part in parts.values()]
        assert added([part.totals for part in made]) == added([whole.totals])
        assert _same(made, whole)
    moments = [charge.billed_us for charge in found] or [0]
    cuts = sorted({0, 2**62, *(moments[n % len(moments)] + n % 2 for n in near)})
    periods = [sealed([c for c in found if start <= c.billed_us < end]) for start, end in pairwise(cuts)]
    assert sum(one.rows for one in periods) == whole.rows
    assert added([one.totals for one in periods]) == added([whole.totals])
    assert _same(periods, whole)


def _same(parts: list[Sealing], whole: Sealing) -> bool:
    """Unpriced units; a period may take off what another one told."""
    sums = Counter[tuple[str, str]]()
    for part in parts:
        for key, units in part.unpriced.items():
            sums[key] += units
    return {key: n for key, n in sums.items() if n} == {key: n for key, n in whole.unpriced.items() if n}


@given(st.integers(0, 2**63))
@settings(max_examples=30, deadline=None)
def test_nobody_is_given_back_more_than_was_billed_at_any_time(seed: int) -> None:
    """Of each device of an attempt, in each hour, after each record: what was billed with its corrections is not below 0, what
    is given back is not more, and no unit is counted twice or taken off."""
    ledger = PricedLedger(seed)
    billed, back = Counter[tuple[object, ...]](), Counter[tuple[object, ...]]()
    touched: set[tuple[object, ...]] = set()
    seq = 0

    def look() -> None:
        for key in touched:
            assert billed[key] >= 0, key
            assert 0 <= -back[key] <= billed[key], key
        touched.clear()

    for charge in charges(lambda: list(enumerate(ledger.records, start=1)), ledger.closed):
        use, amount = charge.use, charge.amount
        if charge.posted_seq != seq:
            look()
            seq = charge.posted_seq
        key = (use.job_id, use.attempt, use.device, amount.hour)
        (billed if charge.credit is None else back)[key] += amount.cost_micros
        touched.add(key)
        assert amount.units >= 0
        assert charge.credit is None or amount.units == 0
    look()
    assert all(units >= 0 for units in sealed_all(ledger).values())


def sealed_all(ledger: PricedLedger) -> Counter[tuple[str, str]]:
    return sealed(list(charges(lambda: list(enumerate(ledger.records, start=1)), ledger.closed))).unpriced


SHARES = st.integers(1, 1000)
MICROS = st.integers(0, 10**15)
START = st.integers(0, 3 * HOUR_US)


@given(st.lists(st.tuples(SHARES, START, st.integers(1, 5 * HOUR_US)), min_size=1, max_size=6), MICROS)
def test_a_row_is_off_by_half_a_millionth_at_the_most(held: list[tuple[int, int, int]], micros: int) -> None:
    """Parts of a device, from a thousandth on, at prices of any six decimals: units add up exactly, and money to half a
    millionth a row against the exact fraction."""
    rater = Rater(
        PriceList(RateBook(version=1, currency="USD", prices=(ListRate(device="H100", micros=micros, from_us=0),)))
    )
    found = [
        amount
        for milli, start, us in held
        for amount in rater.rate("red", "H100", "experiment", milli, [(start, start + us, start)])
    ]
    units = sum(milli * us for milli, _, us in held)
    assert sum(amount.units for amount in found) == units
    off = sum(amount.cost_micros for amount in found) * 1000 * HOUR_US - units * micros
    assert 2 * abs(off) <= len(found) * 1000 * HOUR_US
    assert all(amount.cost_micros >= 0 and amount.units > 0 for amount in found)


@given(
    SHARES,
    st.lists(MICROS, min_size=1, max_size=3),
    st.lists(st.integers(1, HOUR_US // 3), min_size=1, max_size=3),
    st.lists(st.integers(0, HOUR_US), max_size=6),
    st.lists(st.integers(0, 1000), min_size=7, max_size=7),
)
def test_credits_that_are_told_in_parts_are_the_whole_and_no_more_than_the_cost(
    milli: int, prices: list[int], spans: list[int], cuts: list[int], shares: list[int]
) -> None:
    """An hour at several prices: however its time is cut, equal shares give back what one part would; all of it: the cost."""
    amounts, end = list[Amount](), 0
    for price, us in zip(prices, spans, strict=False):
        book = RateBook(version=1, currency="USD", prices=(ListRate(device="H100", micros=price, from_us=0),))
        amounts += Rater(PriceList(book)).rate("red", "H100", "experiment", milli, [(end, end + us, end)])
        end += us
    cost = sum(amount.cost_micros for amount in amounts)
    edges = sorted({0, end, *(cut % end for cut in cuts)})

    def told(parts: list[tuple[int, int, int]]) -> int:
        made = tuple(CreditedPart(CreditCause.NODE_LOST, "so", share, a, b) for a, b, share in parts)
        back = [one.amount.cost_micros for one in given_back(milli, amounts, made)]
        assert all(micros <= 0 for micros in back)
        return -sum(back)

    for share in (0, 1, 333, 1000):
        parted = told([(a, b, share) for a, b in pairwise(edges)])
        assert parted == told([(0, end, share)])
        assert 0 <= parted <= cost
    assert told([(a, b, 1000) for a, b in pairwise(edges)]) == cost
    mixed = told([(a, b, shares[n % len(shares)]) for n, (a, b) in enumerate(pairwise(edges))])
    assert 0 <= mixed <= cost


def test_months_are_half_open_and_follow_each_other() -> None:
    for year, month in ((2027, 12), (2028, 2), (2028, 1)):
        start, end = month_us(year, month)
        assert (month_of(start), month_of(end - 1)) == ((year, month), (year, month))
        assert month_us(*month_of(end))[0] == end


def unpriced_of_both(ledger: PricedLedger, upto: int) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Of all time, by team and device: what `baton bill` tells, and what exports of all periods tell together."""
    records = list(enumerate(ledger.records[:upto], start=1))
    meter = Meter()
    for seq, record in records:
        meter.apply(record, seq)
    closed = [event.period for _, record in records for event in record.events if isinstance(event, PeriodClosed)]
    return Counter(meter.money.unpriced), Counter(sealed(list(charges(lambda: records, closed))).unpriced)


@given(st.integers(0, 2**63))
@example(2353)  # two books in one record
@settings(max_examples=30, deadline=None)
def test_what_is_unpriced_is_told_alike_but_for_prices_that_were_taken_back(seed: int) -> None:
    """Decision 0119: a bill says what has no price now, exports what had none when it was posted. Over all periods they agree,
    closed ones or not, until a book takes back a price of the past: then the bill has that use besides, and never less. But
    for hours of which a part has a price: what a later book prices of the rest may be money alone, and exports go on telling
    its units."""
    ledger = PricedLedger(seed)
    books = [at for at, one in enumerate(ledger.records) for event in one.events if isinstance(event, PricesApplied)]
    if not books:
        return
    second = books[1] if len(books) > 1 else len(ledger.records)
    if second > books[0]:  # else the second one may have taken back a price in the very record of the first
        bill, exports = unpriced_of_both(ledger, second)
        assert +bill == +exports
    bill, exports = unpriced_of_both(ledger, len(ledger.records))
    apart = half_priced(ledger)
    for key in {*bill, *exports}:
        assert exports[key] >= 0
        assert bill[key] >= exports[key] - apart[key]


def half_priced(ledger: PricedLedger) -> Counter[tuple[str, str]]:
    """Units that are told to be without a price, of hours of a use of which another part has one, or had."""
    hours: dict[tuple[object, ...], list[Charge]] = {}
    for charge in charges(lambda: list(enumerate(ledger.records, start=1)), ledger.closed):
        if charge.credit is None and not charge.correction:
            use = charge.use
            hours.setdefault((use.job_id, use.attempt, use.device, charge.amount.hour), []).append(charge)
    found = Counter[tuple[str, str]]()
    for some in hours.values():
        if any(one.amount.quote is not None for one in some):
            for (team, kind), units in sealed(some).unpriced.items():
                found[team, kind] += units
    return found
