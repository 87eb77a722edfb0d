"""`baton restore FOLDER`: a new state directory from a backup, verified and fenced (`libs.cli.fencing`)."""

import asyncio
import time
from typing import Annotated

import typer

from libs.cli.backup import Archive, FolderArgument, StateDir
from libs.cli.backup_files import put_into
from libs.cli.exits import UsageFault
from libs.cli.fencing import Fence, lease_terms
from libs.cli.moments import read
from libs.cli.operator_action import operator_action
from libs.cli.options import Output
from libs.cli.output import Format, done, hint
from libs.client.where import state_dir


def command(
    folder: FolderArgument,
    *,
    archive: Archive = None,
    state: StateDir = None,
    lost_at: Annotated[
        str | None,
        typer.Option(
            "--lost-at", help="When the old instance surely stopped, UTC, e.g. 2026-11-22T21:40; else: just now."
        ),
    ] = None,
    fenced_by: Annotated[
        str,
        typer.Option("--fenced-by", help="How you made sure that nothing runs on any node: power off, agents stopped."),
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Make a state directory out of a backup, verify it, and end all lives of nodes in it; then start `baton up` there.

    The old instance must be gone for good. What ran is not known here: nodes end it by themselves when their leases end, and
    nothing may be started before. `baton up` waits for that moment."""
    home = state or state_dir()
    if home.exists() and any(home.iterdir()):
        raise UsageFault(f"{home} is not empty: a backup is restored into a new state directory (--state-dir)")
    gone_s = _time(lost_at) if lost_at else time.time()
    lease_terms()  # report invalid terms before doing anything
    began = time.monotonic()
    fenced = asyncio.run(put_into(folder, home, Fence(gone_s, fenced_by), archive))
    with operator_action("restore", str(folder), fenced_by, folder=home, tells=False) as act:
        act["detail"] = ", ".join(f"{pool} to {found['seq']}" for pool, found in fenced.items())
    for pool, found in fenced.items():
        hint(
            f"pool {pool}: {found['records']} records verified to {found['seq']}; the lives of {found['nodes']} nodes are ended"
        )
    wait_s = max(0.0, max((found["not_before_s"] for found in fenced.values()), default=0.0) - time.time())
    waits = f"; `baton up` starts in {wait_s:.0f} s, when leases of before have ended (at once with --fenced-by)"
    hint(f"restored in {time.monotonic() - began:.1f} s" + (waits if wait_s else ""))
    done({"state_dir": str(home), "pools": fenced, "done": "restored"}, [str(home)], output)


def _time(text: str) -> float:
    try:
        at_s = read(text)[0].timestamp()
    except ValueError:
        raise UsageFault(f"--lost-at {text}: not a time; write e.g. 2026-11-22T21:40 (UTC)") from None
    if at_s > time.time():
        raise UsageFault(f"--lost-at {text} is to come: say when the old instance surely stopped")
    return at_s
