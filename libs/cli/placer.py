"""`baton placer`: anyone can score the placement engine over a pipe; see `libs.simulation.placer` for the protocol."""

import sys

from libs.simulation.placer import serve


def command(fast: bool = False) -> None:
    """Reads a cluster and requests from stdin, answers on stdout. --fast: the first good fit, as for serving classes."""
    serve(sys.stdin.buffer, sys.stdout.buffer, sys.stderr, fast)
