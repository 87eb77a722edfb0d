"""A price book as people write it, with every problem found at once and located.

version: 3                             # raise it with every change
currency: USD
prices:
  - {device: H100, price: 2.99, from: 2026-01-01, to: 2026-12-01}
  - {device: H100, price: 2.79, from: 2026-12-01}
  - {device: H100, class: experiment, term: spot, price: 1.50, from: 2026-01-01}
contracts:
  - team: research
    contract: c-17
    device: H100
    from: 2026-01-01
    tiers:                             # or `price: 2.50`, which is one tier
      - {above_hours: 0, price: 2.50}
      - {above_hours: 10000, price: 2.20}
credits: {node-lost: 1000, hardware-fault: 1000, preempted-unsaved: 500}       # thousandths that bills give back

Prices are decimals with at most six places, as they stand: none goes through a binary float. A day is its first moment in UTC;
an end is not included.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from libs.cli.yaml_numbers import millionths, whole
from libs.core.billing.prices import problems
from libs.core.billing.wall import us_of
from schemas.base import Name, Strict
from schemas.prices import (
    BookVersion,
    ClassKey,
    ContractRate,
    CreditCause,
    CreditShare,
    Currency,
    DeviceKey,
    ListRate,
    RateBook,
    RateTier,
    Term,
)
from schemas.yamlmodel import WrongFile, problem_at, read_model

_NO_BOOK = "is of the file of `baton up --prices` (deploy/prices.yaml), which is no price book"
_HOW_A_BOOK_LOOKS = "write e.g. {device: H100, price: 2.99, from: 2026-01-01} (docs/billing.md#the-price-book)"
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PARTS_OF_A_MICROSECOND = re.compile(r"[.,][0-9]{7,}")
_SECONDS_OF_A_ZONE = re.compile(r"[+-][0-9]{2}:?[0-9]{2}:?[0-9]{2}(\.[0-9]+)?")
_MOST_US = 4_102_444_800_000_000
"""2100-01-01: anything later is a typo."""


def _micros(text: Any) -> int:
    return millionths(text, "a price", "write 0 for what costs nothing", "2.99")


def _moment(text: Any) -> int:
    said = str(text)
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        raise ValueError(
            "is no day and no moment: write e.g. 2026-01-01, or with its zone 2026-01-01T12:00:00Z"
        ) from None
    if _PARTS_OF_A_MICROSECOND.search(said):
        raise ValueError("is told more exactly than a microsecond: write at most six places of a second")
    if moment.tzinfo is None:
        if not _DAY.fullmatch(said):
            if "T" not in said and " " not in said:
                raise ValueError("is a day without its hyphens: write e.g. 2026-01-01")
            raise ValueError("is a moment without its time zone: end it with Z for UTC")
        moment = moment.replace(tzinfo=UTC)
    elif _SECONDS_OF_A_ZONE.search(said, said.find(":")):
        raise ValueError("has a zone with seconds: write Z, or hours and minutes like +01:00")
    if not 0 <= us_of(moment) <= _MOST_US:
        raise ValueError("lies outside 1970 to 2100: correct the year")
    return us_of(moment)


_Money = Annotated[int, BeforeValidator(_micros)]
_Moment = Annotated[int, BeforeValidator(_moment)]
_CreditedShare = Annotated[CreditShare, BeforeValidator(whole)]


class TierItem(Strict):
    above_hours: Annotated[int, BeforeValidator(whole)] = Field(ge=0, le=10**12)
    price: _Money


class PriceItem(Strict):
    device: DeviceKey
    priority_class: ClassKey = Field(default="*", alias="class")
    term: Term = Term.STANDARD
    price: _Money
    from_: _Moment = Field(alias="from")
    to: _Moment | None = None


def _some_tiers(tiers: tuple[TierItem, ...]) -> tuple[TierItem, ...]:
    if not tiers:
        raise ValueError("is empty: name at least one tier, from 0 hours on")
    return tiers


class ContractItem(Strict):
    team: Name
    contract: Name
    device: DeviceKey
    priority_class: ClassKey = Field(default="*", alias="class")
    term: Term = Term.STANDARD
    price: _Money | None = None
    tiers: Annotated[tuple[TierItem, ...], Field(max_length=16), AfterValidator(_some_tiers)] | None = None
    from_: _Moment = Field(alias="from")
    to: _Moment | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "ContractItem":
        if (self.price is None) is (self.tiers is None):
            raise ValueError("has both price and tiers, or neither: give one of them")
        return self


def _some(items: tuple[PriceItem, ...]) -> tuple[PriceItem, ...]:
    """Requires items. Runs after their validation, so that an invalid item is not reported as missing."""
    if not items:
        raise ValueError("is empty: name at least one device and its price")
    return items


class PricesFile(Strict):
    """A price book."""

    version: Annotated[BookVersion, BeforeValidator(whole)]
    currency: Currency
    prices: Annotated[tuple[PriceItem, ...], Field(max_length=4000), AfterValidator(_some)]
    contracts: Annotated[tuple[ContractItem, ...], Field(max_length=4000)] = ()
    credits: dict[CreditCause, _CreditedShare] = Field(default_factory=dict)

    @property
    def book(self) -> RateBook:
        return RateBook(
            version=self.version,
            currency=self.currency,
            prices=tuple(
                ListRate(
                    device=p.device,
                    priority_class=p.priority_class,
                    term=p.term,
                    micros=p.price,
                    from_us=p.from_,
                    to_us=p.to,
                )
                for p in self.prices
            ),
            contracts=tuple(
                ContractRate(
                    team=c.team,
                    contract=c.contract,
                    device=c.device,
                    priority_class=c.priority_class,
                    term=c.term,
                    tiers=tuple(RateTier(above_hours=t.above_hours, micros=t.price) for t in c.tiers or ())
                    or (RateTier(above_hours=0, micros=c.price or 0),),
                    from_us=c.from_,
                    to_us=c.to,
                )
                for c in self.contracts
            ),
            credits=self.credits,
        )


class PricesFileError(WrongFile):
    """Raised by `read_book`."""


def read_book(
    text: str, name: str = "price book", offered: Collection[str] = (), classes: Collection[str] | None = None
) -> RateBook:
    """The book of a YAML text. Raises PricesFileError.

    Args:
        offered: kinds of device that the pool has, besides those of the catalogue.
        classes: the priority classes that there are; None: not known.
    """
    try:
        document, file = read_model(
            text,
            name,
            PricesFile,
            PricesFileError,
            "write `version: 1`, `currency: USD` and `prices: [...]`",
            ("price",),
        )
    except PricesFileError as e:
        if of_the_other_form := next((p for p in e.problems if p.field.endswith(".micros_per_device_hour")), None):
            raise PricesFileError(name, [replace(of_the_other_form, problem=_NO_BOOK, fix=_HOW_A_BOOK_LOOKS)]) from None
        raise
    book = file.book
    wrong = [problem_at(document, p.place, f"{p.value}: {p.problem}", p.fix) for p in problems(book, offered, classes)]
    if document.problems or wrong:
        raise PricesFileError(name, [*document.problems, *wrong])
    return book
