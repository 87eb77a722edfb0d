"""`baton placer`: anyone can score the placement engine over a pipe; see `libs.simulation.placer` for the protocol."""

import sys
from typing import Annotated

import typer

from libs.simulation.placer import serve


def command(
    fast: Annotated[bool, typer.Option("--fast", help="The first good fit, as for serving classes.")] = False,
) -> None:
    """Read a cluster and requests from stdin, answer on stdout."""
    serve(sys.stdin.buffer, sys.stdout.buffer, sys.stderr, fast)
