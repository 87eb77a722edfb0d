"""Validation of a price book."""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from libs.core.accelerators.kinds import catalogued, problem_with
from libs.core.billing.prices.currencies import CURRENCIES
from libs.core.state.moments import text_of
from schemas.prices import ContractRate, ListRate, RateBook, Term

Entry = ListRate | ContractRate


class RateProblem(NamedTuple):
    """One problem and how to fix it. `place`: `prices` or `contracts`, index, field."""

    place: tuple[str | int, ...]
    value: str
    problem: str
    fix: str


def problems(
    book: RateBook, offered: Collection[str] = (), classes: Collection[str] | None = None, *, first: bool = True
) -> list[RateProblem]:
    """All problems; empty when the book is valid.

    Args:
        offered: kinds of device in the pool, besides those of the catalogue.
        classes: names of the priority classes; None if unknown here.
        first: whether the pool has no book yet. Later books keep the currency of the first.
    """
    found = [
        *(_currency(book.currency) if first else ()),
        *_each("prices", book.prices, offered),
        *_each("contracts", book.contracts, offered),
        *(unknown_classes(book, classes) if classes is not None else ()),
        *_series("prices", book.prices, gaps=True),
        *_series("contracts", book.contracts, gaps=False),
    ]
    listed: dict[tuple[str, str], list[ListRate]] = {}
    for price in book.prices:
        if price.term is not Term.RESERVATION:
            listed.setdefault((catalogued(price.device), price.priority_class), []).append(price)
    covered: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for number, contract in enumerate(book.contracts):
        found += _tiers(number, contract)
        key = device, klass = catalogued(contract.device), contract.priority_class
        if key not in covered:
            covered[key] = _spans(chain(listed.get(key, ()), listed.get((device, "*"), ()) if klass != "*" else ()))
        if not _covers(covered[key], contract):
            found.append(
                RateProblem(
                    ("contracts", number, "device"),
                    contract.device,
                    "has no list price for all of this contract's time",
                    "add the list price: a contract is told beside it, and bills name both",
                )
            )
    return found


def _currency(code: str) -> Iterator[RateProblem]:
    if code not in CURRENCIES:
        yield RateProblem(
            ("currency",),
            code,
            "is no currency that there is",
            "write its code of ISO 4217, e.g. USD: it is the pool's for good",
        )


def _each(what: str, entries: Sequence[Entry], offered: Collection[str]) -> Iterator[RateProblem]:
    for number, entry in enumerate(entries):
        if entry.device != entry.device.strip() or not entry.device.isprintable():
            yield RateProblem(
                (what, number, "device"), repr(entry.device), "has blanks around it, or what cannot be printed",
                "write the device's name alone",
            )  # fmt: skip
        elif wrong := problem_with(catalogued(entry.device), offered):
            yield RateProblem((what, number, "device"), entry.device, wrong, "correct the device, or remove the entry")
        if entry.to_us is not None and entry.to_us <= entry.from_us:
            yield RateProblem(
                (what, number, "to"), text_of(entry.to_us), f"is not after the start, {text_of(entry.from_us)}",
                "an end comes after its start, and is not included",
            )  # fmt: skip


def unknown_classes(book: RateBook, known: Collection[str]) -> Iterator[RateProblem]:
    """Entries with unknown classes."""
    listed: tuple[tuple[str, Sequence[Entry]], ...] = (("prices", book.prices), ("contracts", book.contracts))
    for what, entries in listed:
        for number, entry in enumerate(entries):
            if entry.priority_class not in ("*", *known):
                yield RateProblem(
                    (what, number, "class"), entry.priority_class, "is no priority class that there is",
                    f"there are {', '.join(sorted(known))}; leave class out for all of them",
                )  # fmt: skip


def _key(entry: Entry) -> tuple[str, ...]:
    if isinstance(entry, ContractRate):
        return (entry.team, catalogued(entry.device), entry.priority_class)
    reserved = "reservation" if entry.term is Term.RESERVATION else ""
    return (catalogued(entry.device), entry.priority_class, reserved)


def _series(what: str, entries: Sequence[Entry], *, gaps: bool) -> Iterator[RateProblem]:
    """Checks that entries of one device and class never overlap, and that list prices leave no gap."""
    series: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for number, entry in enumerate(entries):
        series.setdefault(_key(entry), []).append((entry.from_us, number))
    for numbered in series.values():
        for (_, first), (_, second) in pairwise(sorted(numbered)):
            one, two = entries[first], entries[second]
            label = f"{two.device} for class {two.priority_class}"
            if one.to_us is None or one.to_us > two.from_us:
                until = "without end" if one.to_us is None else f"until {text_of(one.to_us)}"
                yield RateProblem(
                    (what, second, "from"), text_of(two.from_us),
                    f"overlaps: {label} has another price from {text_of(one.from_us)} {until}",
                    f"end that one with `to: {text_of(two.from_us)}`, or remove one",
                )  # fmt: skip
            elif gaps and one.to_us < two.from_us:
                yield RateProblem(
                    (what, second, "from"), text_of(two.from_us),
                    f"leaves a gap: {label} has no price from {text_of(one.to_us)} to {text_of(two.from_us)}",
                    f"write `from: {text_of(one.to_us)}`, or add a price for the time between",
                )  # fmt: skip


def _spans(listed: Iterable[ListRate]) -> list[tuple[int, float]]:
    """The union of the times of these prices: sorted, disjoint spans that do not touch."""
    found: list[tuple[int, float]] = []
    for price in sorted(listed, key=lambda p: p.from_us):
        until = math.inf if price.to_us is None else price.to_us
        if found and price.from_us <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((price.from_us, until))
    return found


def _covers(spans: list[tuple[int, float]], contract: ContractRate) -> bool:
    at = bisect_right(spans, (contract.from_us, math.inf)) - 1
    return at >= 0 and (math.inf if contract.to_us is None else contract.to_us) <= spans[at][1]


def _tiers(number: int, contract: ContractRate) -> Iterator[RateProblem]:
    hours = [tier.above_hours for tier in contract.tiers]
    if hours[0] != 0:
        yield RateProblem(
            ("contracts", number, "tiers", 0, "above_hours"), str(hours[0]), "is where the first tier begins",
            "begin with 0: the first hour has a price, too",
        )  # fmt: skip
    for place, (low, high) in enumerate(pairwise(hours), start=1):
        if high <= low:
            yield RateProblem(
                ("contracts", number, "tiers", place, "above_hours"), str(high), f"is not above {low}, the tier before",
                "write tiers in rising order",
            )  # fmt: skip
