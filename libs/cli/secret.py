"""`baton secret set|list|remove|rekey`: what a team's jobs need and nobody else may know."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from libs.cli.exits import UsageFault
from libs.cli.operator_action import MayReason, operator_action
from libs.cli.options import NoHeader, Output, Team, Url, UserOption
from libs.cli.output import Column, Format, done, hint, show
from libs.cli.session import run
from libs.cli.units import moment
from libs.client import Baton
from schemas.secrets import VALUE_BYTES
from schemas.subjects import OPERATOR

app = typer.Typer(
    help="A team's secrets: set, listed, removed, never read.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(help="What jobs call it: letters, digits, '.', '-' and '_'.", metavar="NAME")]
OfTeam = Annotated[str | None, typer.Option("--of", metavar="TEAM", help="Operators: whose.")]


@app.callback()
def _group() -> None:
    pass


@app.command("set")
def set_(
    name: Name,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Take the value from a file, byte for byte; else from stdin.")
    ] = None,
    *,
    team: Team = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Give a secret a value, or a new one: attempts that start from now on get it. The value is never an argument.

    Of stdin a line's end at the very end is left out; at a terminal it is asked for and not shown. Prints the version.
    """
    value = _from_file(file) if file is not None else _from_stdin(name)
    if len(value) > VALUE_BYTES:
        raise UsageFault(f"the value has more than {VALUE_BYTES} bytes: keep large data elsewhere")
    if not value:
        raise UsageFault("there is no value: write it to stdin, or name a file with --file")
    info = run(lambda baton: baton.set_secret(name, value), team, url, user=user, operator=False)
    done({**info.model_dump(mode="json"), "done": "set"}, [f"{info.name}\t{info.version}"], output, names=[info.name])


@app.command("list")
def list_(
    of: OfTeam = None,
    team: Team = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
    no_header: NoHeader = False,
) -> None:
    """Names, versions and dates. Values are shown to nobody."""
    found = run(lambda baton: baton.secrets(of), OPERATOR if of else team, url, user=user, operator=False)
    show([info.model_dump(mode="json") for info in found], _COLUMNS, output, header=not no_header)


@app.command()
def remove(
    names: Annotated[list[str] | None, typer.Argument(help="Which.", metavar="NAME")] = None,
    *,
    of: OfTeam = None,
    all_: Annotated[bool, typer.Option("--all", help="With --of: all of the team's.")] = False,
    reason: MayReason = "",
    team: Team = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Remove secrets in every version. What runs keeps what it was given; new attempts that name them fail."""
    if bool(names) == all_ or (all_ and of is None):
        raise UsageFault("name the secrets, or use --of TEAM --all (operators)")
    wanted: list[str | None] = [*names] if names else [None]

    async def remove_them(baton: Baton) -> None:
        gone: list[str] = []
        try:
            for name in wanted:
                gone += await baton.remove_secret(name, of)
        finally:
            done({"team": of or baton.team, "removed": gone}, gone, output)

    acts = operator_action("secret.remove", f"{of} {' '.join(names or ['(all)'])}", reason, url=url)
    with nullcontext() if of is None else acts:
        run(remove_them, OPERATOR if of else team, url, user=user, operator=False)


@app.command()
def rekey(reason: MayReason = "", user: UserOption = None, url: Url = None, output: Output = Format.TABLE) -> None:
    """Make a new master key, store every value anew under it, and forget the old key (operators)."""
    with operator_action("secret.rekey", "", reason, url=url) as act:
        rekeyed = run(lambda baton: baton.rekey_secrets(), OPERATOR, url, user=user)
        act["detail"] = f"{rekeyed.values} values, {rekeyed.lost} lost"
    if rekeyed.lost:
        hint(
            f"{rekeyed.lost} values do not open with any key that vault has; its log names them: their teams must set them anew"
        )
    done({**rekeyed.model_dump(mode="json"), "done": "rekeyed"}, [f"{rekeyed.values}"], output)


def _from_file(file: Path) -> bytes:
    with file.open("rb") as source:
        return source.read(VALUE_BYTES + 1)


def _from_stdin(name: str) -> bytes:
    if sys.stdin.isatty():
        value: str = typer.prompt(f"value of {name}", hide_input=True, err=True)
        return value.encode()
    value_read = sys.stdin.buffer.read(VALUE_BYTES + 3)
    return value_read.removesuffix(b"\n").removesuffix(b"\r")


_COLUMNS = [
    Column("NAME", lambda row: row["name"]),
    Column("VERSION", lambda row: row["version"]),
    Column("BYTES", lambda row: row["bytes"]),
    Column("SET", lambda row: moment(row["set_us"])),
]
