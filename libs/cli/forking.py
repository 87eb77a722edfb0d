"""The fork server for all processes of Baton on one machine, and its early start.

Importing takes longer than the rest of a start. A command that starts services needs a third of the same modules
itself: once it has them it splits the fork server off (`early`), which imports the others while the command starts the
servers.
"""

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from libs.embedded.forkserver import Spawned

ROOT = Path(__file__).parents[2]
"""The source tree, with shipped fleets, prices and traces."""

_SERVING = (
    "schemas.catalog", "schemas.base:complete",
    "uvloop", "uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvicorn.protocols.websockets.auto", "anyio._backends._asyncio",
    "anyio.to_thread", "numpy", "libs.service.app", "libs.ledger.readers:release",
)  # fmt: skip
"""Modules that each service would load only at run time."""
ALL = (
    "vault", "leases", "telemetry", "agent", "history", "placement", "admission", "quota_billing", "preemption", "queries",
)  # fmt: skip

_early: Spawned | None = None


def shared(services: Collection[str]) -> list[str]:
    """What the processes of `services` (perhaps with `agent`) import and load, in order."""
    if not services:
        return []
    return [*_SERVING, *(f"services.{name}.app" for name in ALL if name in services), "libs.service.settings:warm"]


def interpreter() -> dict[str, str]:
    """What a service's interpreter reads when it starts."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONUNBUFFERED": "1", "PYTHONPATH": path}


def early() -> None:
    """Splits the fork server of all services and an agent off this process, for a later `take` (`Spawned.split`)."""
    global _early
    with contextlib.suppress(OSError):
        _early = Spawned.split(shared(ALL), {**os.environ, **interpreter()})


def take(what: Sequence[str]) -> Spawned | None:
    """The server started early, if it prepares exactly that; otherwise it is ended."""
    global _early
    spawned, _early = _early, None
    if spawned is not None and list(spawned.what) != list(what):
        spawned.end()
        return None
    return spawned
