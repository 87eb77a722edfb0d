"""Hours of use in a backup (`baton bill used`). They derive from samples, which are not kept; MongoDB has the only
copy.

    use/<pool>-<month>-<when it was copied>.jsonl     a stored hour of a team per line

A month that was over when copied is not copied again. A restore puts the files into the state directory; `baton up`
loads them into its MongoDB, once, before its services start. Loading replaces stored hours, so loading twice changes
nothing.

`python -m services.quota_billing.use_files` does both as its own process (`libs.cli.backup_use`), since tools open no
database: a JSON request on standard input, a JSON answer on standard output. BATON_MONGO_URL is MongoDB's address.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from libs.adapters.mongo.store import StoreAway
from libs.adapters.mongo.use import UseStore
from libs.bus.copies import sha256
from libs.core.billing.wall import HOUR_US, month_of, month_us

FOLDER = "use"
_SETTLED_US = 48 * HOUR_US
"""A month is copied again until this long after its end, since hours may be saved up to a day late."""
_HOURS = 24
"""Hours requested at once, of all teams."""


async def copy_use(
    url: str, pools: list[str], folder: Path, before: list[dict[str, Any]], now_us: int
) -> list[dict[str, Any]]:
    """Copies these pools' hours into the backup; returns its manifest's entries. `before`: those of the previous
    backup, whose files stay.

    Raises StoreAway, OSError."""
    known = {one["of"]: one for one in before}
    into = folder / FOLDER
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    done = []
    for pool in pools:
        store = UseStore(url, pool)
        try:
            for first_us, end_us in _months(await store.first_hour() * HOUR_US, now_us):
                year, month = month_of(first_us)
                of = f"{pool}-{year}-{month:02d}"
                had = known.get(of)
                if had is None or not had["over"] or not is_whole(folder, had):
                    path = into / f"{of}-{now_us // 1000}.jsonl"
                    await _write(store, path, first_us // HOUR_US, end_us // HOUR_US)
                    over = now_us >= end_us + _SETTLED_US
                    had = {"of": of, "file": f"{FOLDER}/{path.name}", "sha256": sha256(path), "over": over}
                done.append(had)
        finally:
            store.close()
    return done


def is_whole(folder: Path, one: dict[str, Any]) -> bool:
    """Whether a file of the backup is unchanged since it was written."""
    path = folder / one["file"]
    return path.is_file() and sha256(path) == one["sha256"]


async def take_in_use(url: str, home: Path) -> int:
    """Loads restored hours from `home` into MongoDB, and removes the files. Returns the number of hours.

    Raises StoreAway, OSError, ValueError."""
    taken = 0
    for path in sorted((home / FOLDER).glob("*.jsonl")):
        store = UseStore(url, path.stem.rsplit("-", 3)[0])
        try:
            await store.prepare()
            with path.open(encoding="utf-8") as file:
                taken += await store.put(json.loads(line) for line in file)
        finally:
            store.close()
        path.unlink()
    shutil.rmtree(home / FOLDER, ignore_errors=True)
    return taken


async def _write(store: UseStore, path: Path, first: int, last: int) -> None:
    part = path.with_suffix(".part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    for hour in range(first, last, _HOURS):
        bodies = await store.bodies(hour, min(last, hour + _HOURS))
        with part.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(body, separators=(",", ":"), sort_keys=True) + "\n" for body in bodies)
    part.replace(path)


def _months(first_us: int, now_us: int) -> Iterator[tuple[int, int]]:
    """The UTC months from that of `first_us` to now, each with start and end."""
    while first_us and first_us <= now_us:
        begin_us, end_us = month_us(*month_of(first_us))
        yield begin_us, end_us
        first_us = end_us


def main() -> None:
    """Exits with 1 and a message when MongoDB does not answer."""
    request, url = json.load(sys.stdin), os.environ["BATON_MONGO_URL"]
    try:
        if request["do"] == "copy":
            folder, pools = Path(request["folder"]), request["pools"]
            answer: Any = asyncio.run(copy_use(url, pools, folder, request["before"], request["now_us"]))
        else:
            answer = asyncio.run(take_in_use(url, Path(request["home"])))
    except StoreAway as error:
        sys.exit(str(error))
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
