"""What reaches a terminal or a pipe."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nats.errors import TimeoutError as NatsTimeout

from libs.bus.connect import BusUnavailable
from libs.cli import units
from libs.cli.exits import Exit, code_of, tell
from libs.cli.output import Column, Format, clean, document, show
from libs.cli.up import report
from libs.client.errors import Invalid, Rejected, Unreachable
from libs.embedded.events import EventKind, ProcessEvent
from schemas.jobs import JobState, Reason


def test_nothing_steers_a_terminal() -> None:
    hostile = "a\x1b]0;title\x07\x1b[2Jb\x9bc\u202ed\r\n"
    assert clean(hostile, keep_newlines=True) == "a]0;title[2Jbcd\n"
    assert clean("a\tb\nc") == "a b c"


@pytest.mark.parametrize("format", [Format.JSON, Format.YAML])
def test_what_programs_read_steers_no_terminal_either(
    format: Format, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eight-bit terminal takes one character above ASCII for an escape, and another turns the text around."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    said = {"said": "é\x9b2J\u202e", "more": "\x1b]0;x\x07\x7f"}
    document([said], format)
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown) == [said]
    assert clean(shown.replace("\x7f", ""), keep_newlines=True) == shown.replace("\x7f", "")
    document(["é"], format)
    assert "é" in capsys.readouterr().out


@pytest.mark.parametrize("format", [Format.JSON, Format.YAML])
def test_what_is_one_of_several_words_is_told_to_programs_as_text(
    format: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    """`baton get pools -o yaml` ended in a traceback."""
    document([{"state": JobState.RUNNING, JobState.QUEUED: 3}], format)
    assert yaml.safe_load(capsys.readouterr().out) == [{"state": "running", "queued": 3}]


def test_a_closed_stdout_is_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    """Seen: a traceback, because there is no `sys.stdout` then."""
    book = tmp_path / "book.yaml"
    book.write_text("version: 1\ncurrency: USD\nprices: [{device: H100, price: 2, from: 2026-01-01}]\n")
    said = f"{sys.executable} -m libs.cli prices check -f {book}"
    for script in (f"{said} >&-; exit $?", f"(sleep 0.2; {said}) | true; exit ${{PIPESTATUS[0]}}"):
        ended = subprocess.run(["bash", "-c", script], cwd=Path(__file__).parents[2], capture_output=True, check=False)
        assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_cell_stays_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    show(
        [("x\ty\nz", None, ["a", "b"])],
        [Column("A", lambda r: r[0]), Column("B", lambda r: r[1]), Column("C", lambda r: r[2])],
    )
    assert capsys.readouterr().out == "A\tB\tC\nx y z\t-\ta,b\n"


def test_on_a_terminal_that_is_too_narrow_columns_with_nothing_in_them_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [Column("NAME", lambda r: r), Column("PROGRESS", lambda r: None), Column("REASON", lambda r: r * 3)]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    def titles(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        show(["one", "two"], columns)
        shown = capsys.readouterr().out
        return [column.title for column in columns if column.title in shown]

    needed = len("NAME") + 2 + len("PROGRESS") + 2 + len("oneoneone")
    assert titles(needed) == ["NAME", "PROGRESS", "REASON"]
    assert titles(needed - 1) == ["NAME", "REASON"]


def test_wide_columns_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("A", str), Column("B", lambda r: r * 2, wide=True)]
    show([1], columns, Format.WIDE, header=False)
    show([1], columns, Format.NAME, name=lambda r: f"job-{r}")
    assert capsys.readouterr().out == "1\t2\njob-1\n"


@pytest.mark.parametrize(
    ("micros", "text"), [(0, "0.00"), (1, "0.000001"), (2_990_000, "2.99"), (12_345_678_901, "12345.678901")]
)
def test_money_is_exact(micros: int, text: str) -> None:
    assert units.money(micros) == text
    assert units.money(micros, "USD") == f"{text} USD"


def test_times_and_sizes() -> None:
    assert [units.duration(s) for s in (0, 119, 120, 7200, 200_000)] == ["0s", "119s", "2m", "2h00m", "2d7h"]
    assert [units.devices(m) for m in (None, 500, 4000)] == ["none", "0.5", "4"]
    assert [units.gib(m) for m in (512, 81_920)] == ["512MiB", "80GiB"]
    assert units.moment(1_700_000_000_123_456) == "2023-11-14 22:13:20.123Z"


def test_reasons_stand_on_lines_of_their_own_and_no_sentence_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = [
        Reason(field="job.a", value="1", problem="is wrong (so; so)", fix="do this; then that"),
        Reason(field="job.b", value="", problem="is missing", fix="add it"),
    ]
    tell(Rejected("job-1", reasons))
    assert capsys.readouterr().err == (
        "baton: job-1 was rejected\n  because: job.a = 1: is wrong (so; so) (do this; then that)\n"
        "           job.b: is missing (add it)\n"
    )
    tell(Unreachable("nobody", "silent; very", "wait; then try"))
    assert capsys.readouterr().err == "baton: nobody\n  because: silent; very\n  try: wait; then try\n"


def test_what_dies_under_baton_up_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in EventKind:
        report(ProcessEvent(kind, "history", 7, 1, "signal 9" if kind is EventKind.EXITED else ""))
    assert capsys.readouterr().err == (
        "history died, starting it again: signal 9\nhistory runs again (pid 7)\n"
        "history did not come back, trying again\nhistory does not do its work\n"
    )


def test_numbers_agree_with_their_words() -> None:
    assert (units.counted(1, "device"), units.counted(2, "device")) == ("1 device", "2 devices")
    assert (units.times(1), units.times(2)) == ("once", "2 times")


def test_a_full_disk_is_no_bug_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen: a ledger exported to a full disk ended with a traceback."""
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space left") as raised:
        full.write(b"x")
    assert code_of(raised.value) == Exit.FAILED
    tell(raised.value)
    assert (
        capsys.readouterr().err == "baton: the disk: No space left on device: make room, or name a folder that has it\n"
    )


def test_a_path_that_will_not_do_is_told_with_a_fix_for_reading_and_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was told to "name a file that can be read" for a folder that was to be made."""
    (tmp_path / "file").touch()
    for folder, fix in (("file/new", "name one below a folder, and not below a file"), ("file", "name a new one")):
        with pytest.raises(OSError, match=folder) as raised:
            (tmp_path / folder).mkdir()
        assert code_of(raised.value) == Exit.USAGE
        tell(raised.value)
        assert capsys.readouterr().err.endswith(f"{raised.value.strerror}: {fix}\n")


def test_what_is_to_be_done_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Invalid("the credential is not valid", "the file cannot be read: correct IT", "correct IT"))
    assert capsys.readouterr().err == (
        "baton: the credential is not valid\n  because: the file cannot be read: correct IT\n"
    )


@pytest.mark.parametrize("kind", [Unreachable, BusUnavailable])
def test_a_credential_that_is_refused_is_denied_and_a_server_that_is_away_is_not(kind: type[Exception]) -> None:
    assert code_of(kind("NATS at nats://h refused the credential (revoked): ask for a new one")) == Exit.DENIED
    assert code_of(kind("no NATS server answered at nats://h")) == Exit.UNREACHABLE


def test_nobody_who_answers_is_no_bug_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen: a team's credential asked for what operators may read, and the broker's silence ended with a traceback."""
    assert code_of(NatsTimeout()) == Exit.UNREACHABLE
    tell(NatsTimeout())
    assert capsys.readouterr().err.startswith(
        "baton: nobody answered in time: check that Baton runs, and that this credential"
    )


def test_of_a_copy_that_has_no_room_the_copy_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen: `baton restore` into a full disk told to make room in the backup."""
    tell(OSError(errno.ENOSPC, "No space left on device", "backup/keys.json", None, "new/keys.json"))
    assert capsys.readouterr().err == (
        "baton: new/keys.json: No space left on device: make room, or name a folder that has it\n"
    )
