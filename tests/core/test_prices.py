"""The price book: what is wrong with one is said at its line, and what a use comes to is what an oracle in fractions says."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.cli.pricesfile import PricesFileError, read_book
from libs.core.billing.prices import PriceList, Rater, problems
from libs.core.billing.wall import HOUR_US, month_of, month_us
from libs.core.state.clock import Calendar
from libs.core.state.moments import text_of
from schemas import inbox
from schemas.ledger import InputRejected, PeriodClosed, PricesApplied
from schemas.prices import ClosedPeriod, ContractRate, ListRate, RateBook, RateTier, Term
from tests.core.builders import World
from tests.core.lives import records_of

CUT = month_us(2026, 3)[0]
HEAD = "version: 1\ncurrency: USD\n"
ONE = "prices:\n- {device: H100, price: 1, from: 2026-01-01}\n"


def wrong(text: str) -> list[tuple[int, str]]:
    with pytest.raises(PricesFileError) as refused:
        read_book(dedent(text), "book.yaml")
    for problem in refused.value.problems:
        assert problem.fix, problem
    return [(p.line, p.field) for p in refused.value.problems]


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("prices:\n- {device: H100, price: -1, from: 2026-01-01}", 4, "prices.0.price"),
        ("prices:\n- {device: H100, price: 1e3, from: 2026-01-01}", 4, "prices.0.price"),
        ("prices:\n- {device: H100, price: 2.9900001, from: 2026-01-01}", 4, "prices.0.price"),
        ("prices:\n- {device: H100, price: .nan, from: 2026-01-01}", 4, "prices.0.price"),
        ("prices:\n- {device: H100, price: 1, from: 2026-02-30}", 4, "prices.0.from"),
        ("prices:\n- {device: H100, price: 1, from: 20260-01-01}", 4, "prices.0.from"),
        ("prices:\n- {device: H100, price: 1, from: '2026-01-01T00:00:00'}", 4, "prices.0.from"),
        ("prices:\n- {device: H100, price: 1, from: 2026-01-02, to: 2026-01-02}", 4, "prices.0.to"),
        ("prices:\n- {device: H100, price: 1, from: 2026-01-02, to: 2026-01-01}", 4, "prices.0.to"),
        ("prices:\n- {device: Z100, price: 1, from: 2026-01-01}", 4, "prices.0.device"),
        ("prices:\n- {device: 'H100:9g.1gb', price: 1, from: 2026-01-01}", 4, "prices.0.device"),
        ("prices: []", 3, "prices"),
        (
            "prices:\n- {device: H100, price: 1, from: 2026-01-01, to: 2026-03-01}\n"
            "- {device: H100, price: 2, from: 2026-02-01}",
            5,
            "prices.1.from",
        ),
        (
            "prices:\n- {device: H100, price: 1, from: 2026-01-01, to: 2026-02-01}\n"
            "- {device: H100, price: 2, from: 2026-02-02}",
            5,
            "prices.1.from",
        ),
        (
            "prices:\n- {device: v5e, price: 1, from: 2026-01-01}\n- {device: TPU-v5e, price: 2, from: 2026-01-01}",
            5,
            "prices.1.from",
        ),
        (
            "prices:\n- {device: H100, price: 1, from: 2026-01-01}\ncontracts:\n"
            "- {team: a, contract: c, device: H100, price: 1, from: 2025-01-01}",
            6,
            "contracts.0.device",
        ),
        (
            "prices:\n- {device: H100, price: 1, from: 2026-01-01}\ncontracts:\n"
            "- {team: a, contract: c, device: H100, from: 2026-01-01, tiers: [{above_hours: 5, price: 1}]}",
            6,
            "contracts.0.tiers.0.above_hours",
        ),
        (
            "prices:\n- {device: H100, price: 1, from: 2026-01-01}\ncontracts:\n"
            "- {team: a, contract: c, device: H100, from: 2026-01-01, price: 1, tiers: [{above_hours: 0, price: 1}]}",
            6,
            "contracts.0",
        ),
        *((f"{ONE}credits: {said}", 5, f"credits{field}") for said, field in (
            ("{sunspots: 3}", ".sunspots.[key]"), ("{node-lost: 1001}", ".node-lost"), ("{node-lost: -1}", ".node-lost"),
            ("{node-lost: yes}", ".node-lost"), ("{node-lost: 0.5}", ".node-lost"), ("{node-lost: '500'}", ".node-lost"),
            ("{node-lost: half}", ".node-lost"), ("{node-lost: 9, node-lost: 9}", ".node-lost"), ("[node-lost]", ""), ("", ""),
        )),
        *((f"prices:\n- {{device: H100, price: {said}, from: 2026-01-01}}", 4, "prices.0.price") for said in (
            "true", "~", "1__0", "1_00", "0x10", "010", "1:30", "٢.٩٩", "'2,99'", "[1]", ".inf", "9" * 400,
        )),
        *((f"prices:\n- {{device: H100, price: 1, from: {said}}}", 4, "prices.0.from") for said in (
            "20260101", "2026-W01-1", "2026-01-01T00:00:00", "'2026-01-01 00:00'", "true", "9999-01-01",
            "0001-01-01", "2027-02-29",
        )),
        *((f"prices:\n- {{device: {said}, price: 1, from: 2026-01-01}}", 4, "prices.0.device") for said in (
            "' H100'", "'H100 '", r'"H100\n"', "'H100: 1g.10gb'",
        )),
        *((f"prices:\n- {{device: H100, price: 1, from: {said}}}", 4, "prices.0.from") for said in (
            "'2026-06-30T23:00:00.1234567Z'", "2026-06-30T23:00:00+01:00:30", "'2026-06-30T23:00:00-010030'",
        )),
        (f"{ONE}version: 2", 5, "version"),
        *((f"{ONE}contracts:\n- {{team: a, contract: c, device: H100, from: 2026-01-01, tiers: {said}}}", 6,
           f"contracts.0.tiers{field}") for said, field in (("[{above_hours: no, price: 1}]", ".0.above_hours"), ("[]", ""))),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_book_is_said_with_line_field_and_fix(text: str, line: int, field: str) -> None:
    assert wrong(HEAD + text) == [(line, field)]


def test_the_shipped_file_of_prices_is_no_book_and_is_told_so_once() -> None:
    with pytest.raises(PricesFileError) as told:
        read_book((Path(__file__).parents[2] / "deploy/prices.yaml").read_text(), "prices.yaml")
    (problem,) = told.value.problems
    assert (problem.line, problem.field) == (10, "prices.0.micros_per_device_hour")
    assert "no price book" in str(told.value)
    assert "price: 2.99" in str(told.value)


@pytest.mark.parametrize(
    ("field", "said", "fix"),
    [
        ("price", "-1", "write 0"), ("price", "2.9900001", "e.g. 2.99"), ("price", "1e3", "e.g. 2.99"),
        ("price", "1000000000", "correct the value"), ("from", "20260101", "write e.g. 2026-01-01"),
        ("from", "tomorrow", "write e.g. 2026-01-01"), ("from", "'2026-01-01 00:00'", "end it with Z"),
        ("to", "2026-02-30", "write e.g. 2026-01-01"), ("to", "9999-01-01", "correct the year"),
        ("term", "forever", "use 'standard', 'spot' or 'reservation'"), ("class", "Gold", "small letters: gold"),
        ("device", "Z100", "correct the device"), ("colour", "red", "known here: class, device"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_book_is_said_with_its_value_and_what_to_write(field: str, said: str, fix: str) -> None:
    """Seen: `book.yaml:4: prices.0.price: write a decimal with at most six places, e.g. 2.99; correct the value`."""
    entry = {"device": "H100", "price": "1", "from": "2026-01-01"} | {field: said}
    with pytest.raises(PricesFileError) as refused:
        read_book(f"{HEAD}prices:\n- {{{', '.join(f'{name}: {value}' for name, value in entry.items())}}}", "book.yaml")
    (told,) = str(refused.value).splitlines()
    where, _, rest = told.partition(f": prices.0.{field}: ")
    assert (where, rest.startswith(said.strip("'"))) == ("book.yaml:4", True), told
    assert fix in rest.partition("; ")[2], told


@pytest.mark.parametrize("said", ["dollars", "usd", "UDS", "XXX", "XAU", "NO", "[USD]"])
def test_a_wrong_currency_is_refused(said: str) -> None:
    """A pool has it for good: one that there is not could never be mended."""
    assert wrong(f"version: 1\ncurrency: {said}\n{ONE}") == [(2, "currency")]


def test_a_pool_that_has_a_currency_keeps_it() -> None:
    """Also one that books of before could name."""
    world, book = World(), RateBook(version=1, currency="UDS", prices=(ListRate(device="H100", micros=1, from_us=0),))
    (refused,) = world.send(inbox.ApplyPrices(book=book, user="olga"))
    assert refused.reason.startswith("currency = UDS: is no currency that there is")
    world.decider.state.book = book
    (applied,) = world.send(inbox.ApplyPrices(book=book.model_copy(update={"version": 2}), user="olga"))
    assert applied.kind == "prices.applied"


LISTED = st.tuples(st.integers(0, 9), st.none() | st.integers(1, 12), st.sampled_from(("*", "experiment")))


@given(st.lists(LISTED, min_size=1, max_size=6), st.tuples(st.integers(0, 9), st.none() | st.integers(1, 12)))
@settings(max_examples=200)
def test_a_contract_has_a_list_price_at_each_of_its_moments(listed: list, time: tuple) -> None:
    """By brute force; that its prices overlap or leave gaps is told besides. `far` stands for all moments to come."""
    (from_us, to_us), far = time, 20
    prices = tuple(ListRate(device="H100", priority_class=k, micros=1, from_us=f, to_us=t) for f, t, k in listed)
    contract = ContractRate(
        team="a", contract="c", device="H100", priority_class="experiment", tiers=(RateTier(above_hours=0, micros=1),),
        from_us=from_us, to_us=to_us,
    )  # fmt: skip
    book = RateBook(version=1, currency="USD", prices=prices, contracts=(contract,))
    moments = range(from_us, far if to_us is None else to_us)
    lacks = [at for at in moments if not any(p.from_us <= at < (p.to_us or far) for p in prices)]
    told = [one for one in problems(book) if one.place == ("contracts", 0, "device")]
    assert bool(told) == bool(lacks) or not moments


def test_a_price_that_is_too_large_is_said_to_be() -> None:
    with pytest.raises(PricesFileError, match="below 1000000000"):
        read_book(f"{HEAD}prices:\n- {{device: H100, price: 1000000000, from: 2026-01-01}}")


@pytest.mark.parametrize("said", ["true", "1.0", "'1'", "0", "1_0", "9" * 5000])
def test_a_version_is_a_whole_number(said: str) -> None:
    assert wrong(f"version: {said}\ncurrency: USD\n{ONE}") == [(1, "version")]


def test_prices_are_taken_as_they_are_written() -> None:
    """0.1 + 0.2 is no number of a computer's; nor is 1.005, which a binary float makes 1.00499."""
    book = read_book(
        HEAD
        + "prices:\n- {device: H100, price: 1.005, from: 2026-01-01}\n- {device: L4, price: 0.29, from: 2026-01-01}"
    )
    assert [p.micros for p in book.prices] == [1_005_000, 290_000]


@pytest.mark.parametrize(
    ("from_us", "to_us", "said"),
    [
        (CUT, CUT, "the period ends at 2026-03-01T00:00:00Z and begins at 2026-03-01T00:00:00Z"),
        (CUT, 4_000_000_000_000_000, "the period ends at 2096-10-02T07:06:40Z, and it is 1970-"),
        (CUT, 10**30, f"the period ends at {10**30} us, and it is 1970-"),
    ],
)
def test_a_period_that_cannot_be_is_refused_in_the_words_of_a_calendar(from_us: int, to_us: int, said: str) -> None:
    period = ClosedPeriod(from_us=from_us, to_us=to_us, upto_seq=0, head="a" * 64, rows="b" * 64, currency="USD")
    (refused,) = World().send(inbox.ClosePeriod(period=period, user="olga"))
    assert isinstance(refused, InputRejected)
    assert refused.reason.startswith(said)


# ---------------------------------------------------------------------------------------------------------------- money

BOOK = RateBook(
    version=1,
    currency="USD",
    prices=(
        ListRate(device="H100", micros=2_990_000, from_us=0, to_us=CUT + 1_234_567),
        ListRate(device="H100", micros=3_333_333, from_us=CUT + 1_234_567),
        ListRate(device="H100", priority_class="experiment", term=Term.SPOT, micros=1_000_001, from_us=CUT),
        ListRate(device="L4", micros=440_000, from_us=CUT, to_us=CUT + HOUR_US),
    ),
    contracts=(
        ContractRate(
            team="red", contract="c-1", device="H100", from_us=0,
            tiers=(RateTier(above_hours=0, micros=2_500_000),
                   RateTier(above_hours=1, micros=2_000_007), RateTier(above_hours=3, micros=7)),
        ),
    ),
)  # fmt: skip

uses = st.lists(
    st.tuples(
        st.sampled_from(["red", "blue"]),
        st.sampled_from(["H100", "L4", "A100"]),
        st.sampled_from(["experiment", "production"]),
        st.integers(1, 1000),
        st.integers(CUT - 3 * HOUR_US, CUT + 3 * HOUR_US),
        st.integers(0, 4 * HOUR_US),
    ),
    max_size=6,
)


def oracle(book: RateBook, listed_uses: list[tuple[str, str, str, int, int, int]]) -> tuple[int, dict[str, int], int]:
    """(units, money by team, unpriced units), by every breakpoint there is and in fractions: shares no line with the rater."""
    used: dict[tuple[str, tuple[int, int]], Fraction] = {}
    pieces: dict[tuple[int, int, int, int, bool], tuple[str, Fraction, Fraction]] = {}
    unpriced = 0
    for number, (team, device, klass, milli, start, us) in enumerate(listed_uses):
        end = start + us
        points = {start, end} | {h * HOUR_US for h in range(start // HOUR_US + 1, -(-end // HOUR_US))}
        points |= {p.from_us for p in book.prices} | {p.to_us for p in book.prices if p.to_us is not None}
        for low, high in pairwise(sorted(p for p in points if start <= p <= end)):
            fitting = [
                p for p in book.prices if p.device == device and p.from_us <= low and (p.to_us is None or low < p.to_us)
            ]
            exact = [p for p in fitting if p.priority_class == klass] or [p for p in fitting if p.priority_class == "*"]
            units = (high - low) * milli
            if not exact:
                unpriced += units
                continue
            deals = [c for c in book.contracts if (c.team, c.device) == (team, device) and c.from_us <= low]
            tiers = [(Fraction(t.above_hours), t.micros) for c in deals for t in c.tiers] or [
                (Fraction(0), exact[0].micros)
            ]
            hours, month = Fraction(units, 1000 * HOUR_US), (team, month_of(low))
            before = used.get(month, Fraction(0)) if deals else Fraction(0)
            if deals:
                used[month] = before + hours
            for place, (above, price) in enumerate(tiers):
                until = tiers[place + 1][0] if place + 1 < len(tiers) else before + hours
                part = min(before + hours, until) - max(before, above)
                if part > 0:
                    key = (number, low // HOUR_US, exact[0].micros, place, bool(deals))
                    known = pieces.get(key, (team, Fraction(price), Fraction(0)))
                    pieces[key] = (team, Fraction(price), known[2] + part)
    money: dict[str, int] = {}
    for team, price, hours in pieces.values():
        money[team] = money.get(team, 0) + round(price * hours)  # of Fractions: half to even
    return sum(milli * us for _, _, _, milli, _, us in listed_uses), money, unpriced


@settings(max_examples=150, deadline=None)
@given(uses)
def test_what_uses_come_to_is_what_an_oracle_in_fractions_says(
    listed_uses: list[tuple[str, str, str, int, int, int]],
) -> None:
    assert problems(BOOK) == []
    rater = Rater(PriceList(BOOK))
    found = [
        (team, amount)
        for team, device, klass, milli, start, us in listed_uses
        for amount in rater.rate(team, device, klass, milli, [(start, start + us, start)])
    ]
    units, money, unpriced = oracle(BOOK, listed_uses)
    assert sum(a.units for _, a in found) == units
    assert sum(a.units for _, a in found if a.quote is None) == unpriced
    for team in ("red", "blue"):
        assert sum(a.cost_micros for t, a in found if t == team) == money.get(team, 0)


def test_an_hour_that_was_there_twice_is_one_piece() -> None:
    calendar = Calendar([(0, 0), (5 * HOUR_US, -HOUR_US)])
    straight = tuple(calendar.straight(4 * HOUR_US, 6 * HOUR_US))
    (amount,) = Rater(PriceList(BOOK)).rate("blue", "H100", "production", 1000, straight)
    assert (amount.hour, amount.units, amount.cost_micros) == (4, 2000 * HOUR_US, 2 * 2_990_000)


def test_moments_are_written_as_people_read_them() -> None:
    assert text_of(CUT) == "2026-03-01T00:00:00Z"
    assert text_of(CUT + 1_234_560) == "2026-03-01T00:00:01.23456Z"
    assert month_us(2028, 2)[1] - month_us(2028, 2)[0] == 29 * 24 * HOUR_US


# ------------------------------------------------------------------------------------------------------------- decisions


def test_placement_takes_a_book_that_is_right_and_newer_and_closes_what_is_over_and_follows() -> None:
    events = [event for record in records_of("priced") for event in record.events]
    assert [e.book.version for e in events if isinstance(e, PricesApplied)] == [1, 2]
    assert [e.user for e in events if isinstance(e, PeriodClosed)] == ["olga"]
    refused = [e.reason for e in events if isinstance(e, InputRejected)]
    assert ["EUR" in refused[0], "not above" in refused[1], "closed up to" in refused[2]] == [True] * 3
    assert ["begin there" in refused[3], "when it is over" in refused[4]] == [True] * 2
