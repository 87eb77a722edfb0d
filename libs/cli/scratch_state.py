"""Scratch state directories of `baton demo` and `baton replay`, emptied when a run begins. Only a directory that such a run has
marked is emptied: `--state-dir .baton` after `baton up` would otherwise cost a ledger and its keys, and `--state-dir ~`
everything."""

import fcntl
import shutil
from pathlib import Path

from libs.cli.exits import UsageFault
from libs.embedded import StateDirLocked

MARK = "emptied-at-the-next-run"
"""The marker file of a scratch directory."""


def emptied(state_dir: Path, what: str) -> None:
    """An empty directory for this run of `what`; what an earlier run left in it is removed.

    Raises StateDirLocked when one runs there, UsageFault when no such run has made it.
    """
    if state_dir.is_dir() and any(state_dir.iterdir()):
        if not (state_dir / MARK).is_file():
            raise UsageFault(
                f"{state_dir} is not empty, and no {what} has marked it as its own: remove it, or name another with --state-dir"
            )
        with open(state_dir / "lock", "a") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateDirLocked(f"a {what} runs in {state_dir}: let it end, or give --state-dir") from None
            shutil.rmtree(state_dir)
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    (state_dir / MARK).touch()
