"""Hours of use in a backup and out of it: the process that does it (`services.quota_billing.use_files`)."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = "use"
"""Of a backup, and of a state directory that was restored and not yet started."""
_MODULE = "services.quota_billing.use_files"


class UseAway(Exception):
    """MongoDB, which alone has the hours of use, does not answer."""


async def copy_use(
    mongo_url: str, pools: list[str], folder: Path, before: list[dict[str, Any]], now_us: int
) -> list[dict[str, Any]]:
    """Copies the hours of these pools into the backup; returns what is there, for its manifest. `before`: the same of the
    backup before. Raises UseAway."""
    told = {"do": "copy", "pools": pools, "folder": str(folder), "before": before, "now_us": now_us}
    found: list[dict[str, Any]] = await _done(mongo_url, told)
    return found


async def take_in_use(mongo_url: str, home: Path) -> int:
    """Puts restored hours into MongoDB; how many. Raises UseAway: they stay where they are."""
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
