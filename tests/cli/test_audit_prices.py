"""The price book of `baton audit verify --prices`: what is wrong is said as `baton prices check` says it."""

from pathlib import Path

import pytest

from libs.cli.audit_own import prices_of, verify_own
from libs.cli.exits import UsageFault
from libs.cli.output import Format
from libs.cli.pricesfile import PricesFileError, read_book
from libs.core.billing.pricing import Prices
from schemas.prices import RateBook

BOOK = """version: 2
currency: USD
prices:
  - {device: H100, price: 2.99, from: 2026-01-01}
"""


def test_todays_book_and_the_file_of_a_pool_without_one_are_read() -> None:
    assert prices_of(BOOK, "book.yaml") == read_book(BOOK)
    assert isinstance(prices_of(BOOK, "book.yaml"), RateBook)
    old = Path(__file__).parents[2] / "deploy" / "prices.yaml"
    assert isinstance(prices_of(old.read_text("utf-8"), "prices.yaml"), Prices)


@pytest.mark.parametrize(
    "wrong",
    [
        BOOK.replace("2.99", "-1"),
        BOOK.replace("version: 2\n", ""),
        BOOK.replace("H100", "H1000x"),
        BOOK.replace("USD", "[["),
        BOOK + "  - {device: H100, price: 3, from: 2026-02-01}\n",
    ],
)
def test_a_wrong_book_is_refused_by_line_field_and_fix(wrong: str) -> None:
    with pytest.raises(PricesFileError) as said:
        read_book(wrong, "book.yaml")
    with pytest.raises(PricesFileError) as same:
        prices_of(wrong, "book.yaml")
    assert str(same.value) == str(said.value)
    assert str(said.value).startswith("book.yaml:")


def test_no_server_is_asked_about_a_wrong_book(tmp_path: Path) -> None:
    file = tmp_path / "book.yaml"
    file.write_text(BOOK.replace("2.99", "-1"))
    with pytest.raises(UsageFault, match=r"book\.yaml:4: prices\.0\.price: -1: a price is not negative"):
        verify_own("research", "main", "nats://127.0.0.1:1", file, Format.TABLE)
