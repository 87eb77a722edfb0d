"""The price of a device at a moment, for a team and a class.

The more specific entry wins: device and class, then device. A team's contract replaces the list price, which is
reported beside it. There is no default price: what the book does not name is unpriced.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from libs.core.accelerators.kinds import catalogued
from schemas.prices import ContractRate, ListRate, RateBook, Term

PricedBy = tuple[str, str, str]
"""Team, device kind, priority class: all that a price depends on."""
E = TypeVar("E", ListRate, ContractRate)


class Quote(NamedTuple):
    """A price. `tiers`: ascending (device-hours above which it holds, millionths per device-hour); a price without
    tiers has one. `reservable`: the list also has a reservation price."""

    sku: str
    term: Term
    list_micros: int
    tiers: tuple[tuple[int, int], ...]
    contract: str
    reservable: bool = False


class PriceList:
    """A price book prepared for look-up. It must be valid (`check.problems`)."""

    def __init__(self, book: RateBook) -> None:
        self.book = book
        self._listed: dict[tuple[str, str, bool], list[ListRate]] = {}
        """(device, priority class, reservation price or not) -> prices."""
        self._contracts: dict[tuple[str, str, str], list[ContractRate]] = {}
        for price in book.prices:
            key = (catalogued(price.device), price.priority_class, price.term is Term.RESERVATION)
            self._listed.setdefault(key, []).append(price)
        for contract in book.contracts:
            device = catalogued(contract.device)
            self._contracts.setdefault((contract.team, device, contract.priority_class), []).append(contract)
        self._series: dict[tuple[str, str, str], tuple[list[int], list[Quote | None]]] = {}

    def series(self, team: str, device: str, priority_class: str) -> tuple[list[int], list[Quote | None]]:
        """The ascending moments at which the price changes, and the price from each on; None, and before the first:
        unpriced. Equal prices are one object."""
        key = (team, device, priority_class)
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = self._build_series(team, catalogued(device), priority_class)
        return found

    def at(self, team: str, device: str, priority_class: str, wall_us: int) -> Quote | None:
        """The price at a moment; None if unpriced."""
        starts, quotes = self.series(team, device, priority_class)
        number = bisect_right(starts, wall_us) - 1
        return quotes[number] if number >= 0 else None

    def _build_series(self, team: str, device: str, klass: str) -> tuple[list[int], list[Quote | None]]:
        own, own_any = (
            self._contracts.get((team, device, klass), []),
            self._contracts.get((team, device, "*"), []),
        )
        listed, listed_any = (
            self._listed.get((device, klass, False), []),
            self._listed.get((device, "*", False), []),
        )
        kept = (*self._listed.get((device, klass, True), []), *self._listed.get((device, "*", True), []))
        moments = sorted({
            moment for entries in (own, own_any, listed, listed_any, kept) for e in entries for moment in (e.from_us, e.to_us)
            if moment is not None
        })  # fmt: skip
        starts: list[int] = []
        quotes: list[Quote | None] = []
        known: dict[Quote | None, Quote | None] = {}
        for moment in moments:
            price = _valid_at(listed, moment) or _valid_at(listed_any, moment)
            contract = _valid_at(own, moment) or _valid_at(own_any, moment)
            quote = _quote(device, price, contract, reservable=_valid_at(kept, moment) is not None)
            if not quotes or quotes[-1] != quote:
                starts.append(moment)
                quotes.append(known.setdefault(quote, quote))
        return starts, quotes


def _valid_at(entries: Sequence[E], moment: int) -> E | None:
    return next((e for e in entries if e.from_us <= moment and (e.to_us is None or moment < e.to_us)), None)


def _quote(device: str, price: ListRate | None, contract: ContractRate | None, *, reservable: bool) -> Quote | None:
    if price is None:
        return None
    sku = ":".join((device, price.priority_class, price.term.value))
    if contract is None:
        return Quote(sku, price.term, price.micros, ((0, price.micros),), "", reservable)
    tiers = tuple((t.above_hours, t.micros) for t in contract.tiers)
    return Quote(sku, contract.term, price.micros, tiers, contract.contract, reservable)
