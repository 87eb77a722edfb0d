"""`baton quota set TEAM N`."""

from typing import Annotated

import typer

from libs.cli.exits import UsageFault
from libs.cli.options import Url
from libs.cli.output import say
from libs.cli.session import run
from schemas.subjects import OPERATOR

app = typer.Typer(help="Set a team's quota (operators).", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("set")
def set_quota(
    team: Annotated[str, typer.Argument(help="Whose quota.")],
    devices: Annotated[str, typer.Argument(help="Devices it may hold at once, e.g. 16 or 2.5; `none` for no limit.")],
    url: Url = None,
) -> None:
    """From now on the team holds at most so many devices at once; what it holds already is left to it."""
    limit = _milli(devices)
    run(lambda baton: baton.set_quota(team, limit), OPERATOR, url)
    say(f"{team}\t{devices}")


def _milli(text: str) -> int | None:
    if text.lower() in ("none", "unlimited"):
        return None
    try:
        value = float(text)
        if not 0 <= value <= 1_000_000:
            raise ValueError
    except ValueError:
        raise UsageFault(f"{text!r} is not a number of devices: write e.g. 16, 2.5 or none") from None
    return round(value * 1000)
