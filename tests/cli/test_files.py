"""Files that are none: what has no end is not read to its end, and nothing takes the name of a device."""

import os
import socket
import sys
from pathlib import Path

import pytest

from libs.cli.backup_files import check_folder
from libs.cli.exits import UsageFault
from libs.cli.files import read_text
from libs.cli.main import main
from libs.cli.tracefile import read_file
from libs.cli.traces import UnknownColumns
from schemas.yamlfile import MAX_BYTES, OWN

HOLE = 1 << 42
"""Bytes: more than any machine that runs this can hold."""


@pytest.mark.parametrize(
    ("command", "odd"),
    [
        ("scenario run FILE", "hole"),
        ("bill --by cost-centre --cost-centres FILE", "hole"),
        ("ledger credits --policy FILE", "hole"),
        ("audit verify --team blue --prices FILE", "hole"),
        ("submit -f FILE", "socket"),
        ("submit -f FILE", "loop"),
        ("submit -f FILE", "long" * 100),
        ("ledger restore --reason x FILE", "socket"),
    ],
)
def test_what_is_no_file_to_read_is_said_in_a_line(
    command: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        monkeypatch.delenv(name)
    with open("hole", "wb") as hole, socket.socket(socket.AF_UNIX) as heard:
        hole.truncate(HOLE)
        heard.bind("socket")
        os.symlink("loop", "loop")
        monkeypatch.setattr(sys, "argv", ["baton", *command.replace("FILE", odd).split()])
        with pytest.raises(SystemExit) as ended:
            main()
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert odd in err
    assert len(err.splitlines()) <= 4


def test_of_what_has_no_end_no_more_is_read_than_could_be_used(tmp_path: Path) -> None:
    """As `apply`, `diff`, `prices` and `simulate` read what they are given."""
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(HOLE)
    assert len(read_text(tmp_path / "hole")) == MAX_BYTES * OWN + 1


def test_a_workload_whose_line_does_not_end_is_not_read_on(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    with trace.open("wb") as file:
        file.truncate(HOLE)
    with pytest.raises(UnknownColumns, match="goes on for more than"):
        read_file(trace, 0)


@pytest.mark.parametrize("command", ["ledger export FILE", "bill export FILE", "bill push --to lago --state FILE"])
def test_what_is_written_takes_the_name_of_no_device(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = command.replace("FILE", str(pipe)).split()
    monkeypatch.setattr(sys, "argv", ["baton", *arguments, *(["--endpoint", "http://x"] if "push" in command else [])])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, pipe.is_fifo()) == (2, True)
    assert "name another" in capsys.readouterr().err


def test_a_backup_takes_no_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    check_folder(tmp_path)
    check_folder(tmp_path / "new")
    (tmp_path / "notes").touch()
    with pytest.raises(UsageFault, match="something else"):
        check_folder(tmp_path)
