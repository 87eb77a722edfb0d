"""`baton finance add|rotate|revoke|let-in|list`: credentials that may read all bills, budgets and ledgers, and nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from libs.cli.broker_keys import ring_of, tell_broker
from libs.cli.exits import UsageFault
from libs.cli.operator_action import MayReason, ReasonOption, operator_action
from libs.cli.options import KeysFolder, NoHeader, Output, Url
from libs.cli.output import Column, Format, done, show
from libs.walls.accounts import CORE, FINANCE
from libs.walls.keyring import NotKeptOut

app = typer.Typer(help="Who reads all bills and does nothing (operators).", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="A person, or what reads bills.", metavar="NAME")]
_COLUMNS = [Column("NAME", lambda row: row["name"]), Column("FILE", lambda row: row["file"])]


@app.callback()
def _group() -> None:
    pass


@app.command()
def add(
    name: Name, reason: MayReason = "", folder: KeysFolder = None, url: Url = None, output: Output = Format.TABLE
) -> None:
    """Make a credential that may ask for bills, use, budgets and the ledger of every pool, and nothing else; print where it is.
    May be repeated."""
    ring = ring_of(folder)
    with operator_action("finance.add", name, reason, folder=ring.folder, url=url):
        try:
            path = ring.finance(name)
        except ValueError as e:
            raise UsageFault(str(e)) from None
        pushed = tell_broker(ring, [CORE, FINANCE], folder, url)
    _print("added", name, path, output, pushed=pushed)


@app.command()
def rotate(
    name: Name, reason: MayReason = "", folder: KeysFolder = None, url: Url = None, output: Output = Format.TABLE
) -> None:
    """Make a new credential in the old one's place; whoever still uses the old one is cut off."""
    ring = ring_of(folder)
    with operator_action("finance.rotate", name, reason, folder=ring.folder, url=url):
        path = ring.rotate_finance(name)
        pushed = tell_broker(ring, [FINANCE], folder, url)
    _print("rotated", name, path, output, pushed=pushed)


@app.command()
def revoke(
    name: Name, reason: ReasonOption, folder: KeysFolder = None, url: Url = None, output: Output = Format.TABLE
) -> None:
    """Cut somebody off who reads bills."""
    ring = ring_of(folder)
    with operator_action("finance.revoke", name, reason, folder=ring.folder, url=url, needs_reason=True):
        ring.revoke_finance(name)
        pushed = tell_broker(ring, [FINANCE], folder, url)
    _print("revoked", name, None, output, pushed=pushed)


@app.command("let-in")
def let_in(reason: MayReason = "", folder: KeysFolder = None, url: Url = None, output: Output = Format.TABLE) -> None:
    """Let finance connect again now, when it is kept out because it sent or heard too much. Revoke first whose fault it was."""
    ring = ring_of(folder)
    with operator_action("team.let-in", FINANCE, reason, folder=ring.folder, url=url):
        try:
            ring.let_in(FINANCE)
        except NotKeptOut:
            raise UsageFault("finance is not kept out; `baton audit` says when it was") from None
        pushed = tell_broker(ring, [FINANCE], folder, url)
    done({"done": "let in", "broker_told": pushed}, [FINANCE], output)


def _print(what: str, name: str, file: Path | None, output: Format, *, pushed: bool) -> None:
    value = {"name": name, "file": file and str(file), "done": what, "broker_told": pushed}
    done(value, [str(file or name)], output, names=[name])


@app.command("list")
def list_(folder: KeysFolder = None, output: Output = Format.TABLE, no_header: NoHeader = False) -> None:
    """Every credential of finance that is good."""
    rows = [{"name": name, "file": str(path)} for name, path in ring_of(folder).finance_users().items()]
    show(rows, _COLUMNS, output, header=not no_header)
