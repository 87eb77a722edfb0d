"""Where the keys lie in a folder that others may enter (`/etc/baton`), another user of the host holds up nothing."""

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from libs.cli.launch import LaunchOptions, LocalStack
from libs.walls.book import Book
from libs.walls.departed_teams import DepartedTeams
from libs.walls.keyring import Keyring
from libs.walls.people import People

HOLDS = """
import fcntl, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for folder, _, files in os.walk(sys.argv[1]):
    for name in files:
        try:
            fcntl.flock(open(os.path.join(folder, name)), fcntl.LOCK_EX | fcntl.LOCK_NB)
            print(name)
        except OSError:
            pass
"""
LINE = {"what": "team.revoke", "target": "red", "reason": "x", "at_us": 1, "host": "", "login": "", "tool": ""}


def change_all(folder: Path) -> None:
    ring = Keyring(folder)
    ring.team("red")
    People(folder).pseudonym("red", "ana")
    DepartedTeams(folder).note("blue", 1.0)
    with Book(folder).entry(LINE):
        pass


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that others may enter; a test's own lies in folders that they may not."""
    with TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
async def test_no_file_beside_the_keys_can_be_locked_by_another_user(folder: Path) -> None:
    """`baton team revoke` waited for as long as a stranger held `keys.json.lock`, which was open to be read by all."""
    (folder / "keys.json.lock").touch(0o644)  # of an older release
    change_all(folder)
    async with LocalStack(LaunchOptions(state_dir=folder, teams=("red",), services=(), sync_always=False)):
        words = [sys.executable, "-c", HOLDS, str(folder)]
        held = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=60)
    assert (held.returncode, held.stdout) == (0, "mongo.pid\n"), held
    locks = [path for path in folder.rglob("*") if path.name.endswith("lock")]
    assert {path.name for path in locks} >= {
        "lock",
        "keys.json.lock",
        "people.json.lock",
        "left.json.lock",
        "audit.jsonl.lock",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in locks} == {0o600}
