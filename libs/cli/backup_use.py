"""Copies hours of use into and out of a backup, in a separate process (`services.quota_billing.use_files`)."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = "use"
"""A folder of a backup, and of a restored state directory before its first start."""
_MODULE = "services.quota_billing.use_files"


class UseAway(Exception):
    """MongoDB, which has the only copy of the hours of use, does not answer."""


async def copy_use(
    mongo_url: str, pools: list[str], folder: Path, before: list[dict[str, Any]], now_us: int
) -> list[dict[str, Any]]:
    """Copies these pools' hours into the backup; returns its manifest's entries. `before`: those of the previous
    backup. Raises UseAway."""
    request = {"do": "copy", "pools": pools, "folder": str(folder), "before": before, "now_us": now_us}
    found: list[dict[str, Any]] = await _done(mongo_url, request)
    return found


async def take_in_use(mongo_url: str, home: Path) -> int:
    """Loads restored hours into MongoDB; returns their number. Raises UseAway, and then they stay where they are."""
    if not (home / FOLDER).exists():
        return 0
    taken: int = await _done(mongo_url, {"do": "take in", "home": str(home)})
    return taken


async def _done(mongo_url: str, request: dict[str, Any]) -> Any:
    pipe = asyncio.subprocess.PIPE
    env = os.environ | {"BATON_MONGO_URL": mongo_url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", _MODULE, stdin=pipe, stdout=pipe, stderr=pipe, env=env
    )
    out, err = await process.communicate(json.dumps(request).encode())
    if process.returncode:
        raise UseAway((err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1])
    return json.loads(out)
