"""Files that are replaced whole, for their owner alone."""

import os
import stat
from pathlib import Path

import pytest

from libs.ports.private_files import write_private
from libs.walls.keyring import Keyring


def test_a_file_is_its_owners_alone_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "made" / "a"
    write_private(path, "before")
    with path.open() as reader:
        write_private(path, "after")
        assert reader.read() == "before"
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["a"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced, and what gets its name, in order."""
    seen = list[tuple[str, str]]()
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        seen.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def replaced(source: Path, target: Path) -> None:
        seen.append(("replace", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    return seen


def test_what_is_durable_is_on_the_disk_before_it_has_its_name(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    write_private(tmp_path / "a", "text", durable=True)
    assert steps == [("sync", "a.new"), ("replace", "a"), ("sync", tmp_path.name)]


def test_a_change_of_the_keys_outlasts_a_loss_of_power(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    """Without them no credential can be made, and none that was is believed."""
    ring = Keyring(tmp_path / "keys")
    ring.team("research")
    steps.clear()
    ring.team("vision")
    at = steps.index(("replace", "keys.json"))
    assert steps[at - 1] == ("sync", "keys.json.new")
    assert ("sync", "keys") in steps[at:]
