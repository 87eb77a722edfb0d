import fcntl
import os
import struct
from pathlib import Path

import pytest

from libs.embedded import spread


def _flags(folder: Path) -> int:
    """Raises OSError where the filesystem has none."""
    at = os.open(folder, os.O_RDONLY)
    try:
        (flags,) = struct.unpack("@l", fcntl.ioctl(at, spread._GET_FLAGS, bytes(8)))
    finally:
        os.close(at)
    return int(flags)


def _is_ext4(folder: Path) -> bool:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [mount for mount in mounts if folder.is_relative_to(mount[1])]
    return max(above, key=lambda mount: len(mount[1]))[2] == "ext4"


def test_a_folder_is_made_for_its_user_alone_with_those_above_it_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "services"
    spread.make_apart(folder)
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.listdir(folder.parent) == ["services"]


def test_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "services"
    folder.mkdir(mode=0o750)
    (folder / "ledger").write_text("kept")
    before = folder.stat()
    spread.make_apart(folder)
    assert folder.stat() == before
    assert (folder / "ledger").read_text() == "kept"


def test_where_a_file_has_that_name_it_is_said_and_stays(tmp_path: Path) -> None:
    (tmp_path / "services").write_text("a file")
    with pytest.raises(OSError):
        spread.make_apart(tmp_path / "services")
    assert (tmp_path / "services").read_text() == "a file"
    assert os.listdir(tmp_path) == ["services"]


def test_ext4_is_told_that_what_is_made_there_is_a_tree_of_its_own(tmp_path: Path) -> None:
    if not _is_ext4(tmp_path):
        pytest.skip("the tests' folder is on no ext4")
    spread.make_apart(tmp_path / "state" / "services")
    assert _flags(tmp_path / "state") & spread._TOP
    assert not _flags(tmp_path / "state" / "services") & spread._TOP


def test_a_filesystem_without_such_a_mark_has_the_folder_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> bytes:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "ioctl", unknown)
    spread.make_apart(tmp_path / "state" / "services")
    assert (tmp_path / "state" / "services").is_dir()
