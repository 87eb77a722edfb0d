"""`baton prices`: the pool's price book, as a record of the ledger."""

from pathlib import Path
from typing import Annotated

import typer

from libs.cli.decided import say_to_pool
from libs.cli.exits import UsageFault
from libs.cli.files import read_text
from libs.cli.options import Pool, Url, UserOption
from libs.cli.output import say
from libs.cli.pricesfile import PricesFileError, read_book
from libs.cli.session import run
from libs.client import Baton
from schemas import subjects
from schemas.inbox import ApplyPrices
from schemas.prices import RateBook
from schemas.resources import kind_of

app = typer.Typer(help="The pool's price book (operators).", no_args_is_help=True, rich_markup_mode=None)

BookFile = Annotated[Path, typer.Option("--file", "-f", help="A price book, YAML; - for standard input.")]


@app.callback()
def _group() -> None:
    pass


@app.command("check")
def check(file: BookFile) -> None:
    """Say everything that is wrong with a price book; no server is asked."""
    book = _checked(_read(file), file, set())
    say(f"version {book.version}: {len(book.prices)} prices and {len(book.contracts)} of contracts in {book.currency}")


@app.command("apply")
def apply(
    file: BookFile,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger.")] = "",
    *,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
) -> None:
    """From now on bill by this book, all of it. What was posted keeps its price; changes of it are corrections."""

    text = _read(file)

    async def work(baton: Baton) -> RateBook:
        try:
            book = read_book(text, str(file))
        except PricesFileError:  # perhaps the pool has a device that the catalogue does not know
            found = (await baton.devices("")).devices
            book = _checked(text, file, {kind_of(device.model, device.mig_profile) for device in found})
        who = baton.place.user or "operator"
        said = ApplyPrices(book=book, reason=reason, user=who)
        subject = subjects.apply_prices(baton.place.pool, who)
        await say_to_pool(baton, baton.place.pool, said, subject, f"prices:{book.version}")
        return book

    book = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    say(f"version {book.version} is applied")


def _read(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFault(f"{file} cannot be read: {error}; name a YAML file in UTF-8 with -f") from None


def _checked(text: str, file: Path, offered: set[str]) -> RateBook:
    try:
        return read_book(text, str(file), offered)
    except PricesFileError as error:
        raise UsageFault(str(error)) from None
