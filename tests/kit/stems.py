"""The fork server of a stack that a test starts, split off a process that has imported what all services share: each would
import it anew, for more than a second of processor time, and the tests start some sixty stacks.

So it is with a command that starts services (`libs.cli.forking`): there the fork server splits off the command. A test cannot
be split: it has threads. As `__main__` this is the fork server, its channel its standard input, what it prepares its arguments.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import setproctitle

from libs.cli import forking
from libs.embedded.forked import prepare, split_off
from libs.embedded.forkserver import Spawned, of_interpreter
from tests.kit.commands import STEMS, Fork

_ROOT = Path(__file__).parents[2]
_PREPARED = forking.shared(forking.ALL)


def take(what: Sequence[str]) -> Spawned | None:
    """In place of `forking.take`, in a process that runs tests. None: what is wanted is not what can be split off."""
    if not what or not set(what) <= set(_PREPARED):
        return None
    env = {**os.environ, **forking.interpreter()}
    stem, began_with = _stem()
    if of_interpreter(env) != began_with:
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with theirs, open(os.dup(2), "wb") as log:
        forked = stem.start(env, _ROOT, log, arguments=what, stdin=theirs.fileno())
    return Spawned(what, env, forked, ours)


@cache
def _stem() -> tuple[Fork, Mapping[str, str]]:
    """The one of this process, and what its interpreter began with."""
    env = {**os.environ, **forking.interpreter()}
    return Fork(STEMS, env, stacks=True), of_interpreter(env)


def prepare_all() -> None:
    """In the process from which all are split off, or a command that splits its own off."""
    setproctitle.getproctitle()  # it looks where the environment lies before that is moved
    for one in _PREPARED:
        prepare(one)


if __name__ == "__main__":
    os.umask(0o022)
    split_off(socket.socket(fileno=os.dup(0)), sys.argv[1:], os.environ, os.getppid())
