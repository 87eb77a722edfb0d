"""`baton prices`: the pool's price book, as a record of the ledger."""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from libs.cli.exits import UsageFault
from libs.cli.files import read_yaml
from libs.cli.options import Output, Pool, Url, UserOption
from libs.cli.output import Format, done, hint
from libs.cli.pool_commands import NOTHING_DIFFERS, say_to_pool
from libs.cli.pricesfile import PricesFileError, read_book
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import Failed, Unreachable
from libs.core.admission.priority_class import DEFAULT_CLASSES
from libs.core.billing.prices import unknown_classes
from schemas import subjects
from schemas.inbox import ApplyPrices
from schemas.prices import RateBook
from schemas.queue_status import QueuesQuery, QueuesReply

app = typer.Typer(help="The pool's price book (operators).", no_args_is_help=True, rich_markup_mode=None)

BookFile = Annotated[Path, typer.Option("--file", "-f", help="A price book, YAML; - for standard input.")]


@app.callback()
def _group() -> None:
    pass


@app.command("check")
def check(file: BookFile, output: Output = Format.TABLE) -> None:
    """Say everything that is wrong with a price book; no server is asked."""
    text = read_yaml(file, "-f")
    try:
        book = read_book(text, str(file))
    except PricesFileError as error:
        problems = [asdict(problem) for problem in error.problems]
        done({"file": str(file), "ok": False, "warnings": [], "errors": problems}, [], output)
        raise UsageFault(str(error)) from None
    warnings = _foreign(book)
    for line in warnings:
        hint(f"warning: {line}")
    prices, contracts = len(book.prices), len(book.contracts)
    document = {"version": book.version, "currency": book.currency, "prices": prices, "contracts": contracts}
    line = f"version {book.version}: {prices} prices and {contracts} of contracts in {book.currency}"
    done(
        {"file": str(file), "ok": True, **document, "warnings": warnings, "errors": []},
        [line],
        output,
        names=[str(file)],
    )


@app.command("apply")
def apply(
    file: BookFile,
    reason: Annotated[str, typer.Option("--reason", help="Why: it is in the ledger.")] = "",
    *,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """From now on bill by this book, all of it. What was posted keeps its price; changes of it are corrections."""

    text = read_yaml(file, "-f")

    async def work(baton: Baton) -> dict[str, Any]:
        facts = await _pool_facts(baton)
        book = _checked(text, file, facts.kinds, facts.classes or None) if facts is not None else _checked(text, file)
        about = {"pool": baton.place.pool, "version": book.version, "currency": book.currency}
        if facts is not None and facts.book == book.digest:
            return {**about, "done": NOTHING_DIFFERS, "ledger_seq": None}

        async def applied() -> bool:
            now = await _pool_facts(baton)
            return now is not None and now.book == book.digest

        who = baton.place.user or "operator"
        said = ApplyPrices(book=book, reason=reason, user=who)
        subject = subjects.apply_prices(baton.place.pool, who)
        seq = await say_to_pool(
            baton, baton.place.pool, said, subject, f"prices:{book.version}", done=applied if facts else None
        )
        return {**about, "done": "applied", "ledger_seq": seq}

    document = run(work, subjects.OPERATOR, url, user=user, pool=pool)
    differs = document["done"] != NOTHING_DIFFERS
    done(document, [f"version {document['version']} is applied"] if differs else [], output)
    if not differs:
        hint(NOTHING_DIFFERS)


async def _pool_facts(baton: Baton) -> QueuesReply | None:
    """The pool's classes, devices and book, from queries; None when it is unreachable: the pool decides without them."""
    try:
        reply: QueuesReply = await ask(baton.nats, "queues.list", baton.place, QueuesQuery())
    except (Unreachable, Failed):
        return None
    return reply


def _foreign(book: RateBook) -> list[str]:
    """Classes that are not shipped; only the pool knows whether it has them."""
    shipped = [one.name for one in DEFAULT_CLASSES]
    return [
        f"{'.'.join(map(str, problem.place))}: {problem.value} is not one of the shipped classes ({', '.join(shipped)}); "
        f"`baton prices apply` refuses it where the pool has none of that name"
        for problem in unknown_classes(book, shipped)
    ]


def _checked(text: str, file: Path, offered: Collection[str] = (), classes: Collection[str] | None = None) -> RateBook:
    try:
        return read_book(text, str(file), offered, classes)
    except PricesFileError as error:
        raise UsageFault(str(error)) from None
