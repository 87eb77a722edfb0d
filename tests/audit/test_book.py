"""An operator's book: every action has its line, also when its process is killed; the ledger is compared with it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from libs.cli.exits import UsageFault
from libs.cli.operator_action import operator_action, tell
from libs.client.errors import Unreachable
from libs.core.projections.audit import compare, untold
from libs.walls.book import BOOK_FILE, Book, BrokenBook
from schemas.audit import ActionOutcome, OperatorAction, line_hash
from tests.core.lives import book as lines_of

SAID: dict[str, Any] = {
    "what": "team.revoke", "target": "vision", "reason": "left", "at_us": 7, "host": "h", "login": "olga", "tool": "t",
}  # fmt: skip
ROOT = Path(__file__).parents[2]


def acted(book: Book, target: str) -> None:
    with book.entry({**SAID, "target": target}) as act:
        act["detail"] = f"detail of {target}"


def test_each_action_is_a_line_that_names_the_one_before_it(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for target in ("red", "green", "blue"):
        acted(book, target)
    first, second, third = Book(tmp_path).lines()
    assert [line.number for line in (first, second, third)] == [1, 2, 3]
    assert (first.prev_hash, second.prev_hash, third.prev_hash) == ("", line_hash(first), line_hash(second))
    assert {line.outcome for line in (first, second, third)} == {ActionOutcome.DONE}
    assert (third.target, third.detail, third.book) == ("blue", "detail of blue", first.book)
    assert oct(book.file.stat().st_mode)[-3:] == "600"


def test_an_action_that_fails_has_a_line_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Book(tmp_path).entry(SAID):
        raise RuntimeError("the broker is away")
    (line,) = Book(tmp_path).lines()
    assert (line.outcome, line.detail) == (ActionOutcome.FAILED, "RuntimeError: the broker is away")


def test_nothing_is_done_that_cannot_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = False
    with pytest.raises(UsageFault, match=r"file/book: Not a directory: .*XDG_STATE_HOME"):  # noqa: SIM117
        with operator_action("backup", "x", "", folder=tmp_path / "file" / "book"):
            done = True
    assert not done


def test_an_action_whose_process_is_killed_has_a_line_too(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from libs.walls.book import Book\n"
        f"with Book(Path(sys.argv[1])).entry({SAID!r}): print('in', flush=True); time.sleep(60)"
    )
    book = Book(tmp_path)
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        book.settle()
        assert book.lines() == [], "it is still under way"
        os.kill(process.pid, signal.SIGKILL)
    book.settle()
    book.settle()
    assert [(line.what, line.outcome) for line in book.lines()] == [("team.revoke", ActionOutcome.UNFINISHED)]


def test_what_was_told_is_not_told_again_unless_asked_for(tmp_path: Path) -> None:
    book = Book(tmp_path)
    acted(book, "red")
    book.told("main", book.lines()[-1])
    acted(book, "green")
    assert [line.target for line in book.untold("main")] == ["green"]
    assert [line.target for line in book.untold("west")] == ["red", "green"]
    book.tell_again("main")
    assert [line.target for line in book.untold("main")] == ["red", "green"]


def test_a_book_that_was_begun_anew_is_told_from_its_first_line(tmp_path: Path) -> None:
    """Who moved the old one away, as an error asks for, acted unseen until the new one was as long as what had been told."""
    book = Book(tmp_path)
    acted(book, "red")
    acted(book, "green")
    for pool in ("main", "west"):
        book.told(pool, book.lines()[-1])
    book.file.rename(tmp_path / "moved")
    acted(book, "blue")
    assert [line.target for line in book.untold("main")] == ["blue"]
    book.told("main", book.lines()[-1])
    assert book.untold("main") == []
    assert [line.target for line in book.untold("west")] == ["blue"]


def test_a_mark_of_a_release_before_counts(tmp_path: Path) -> None:
    book = Book(tmp_path)
    acted(book, "red")
    (tmp_path / "audit.told.json").write_text('{"main": 1}')
    assert book.untold("main") == []
    acted(book, "green")
    assert [line.target for line in book.untold("main")] == ["green"]
    book.told("main", book.lines()[-1])
    assert "main" not in json.loads((tmp_path / "audit.told.json").read_text())


def test_a_book_that_cannot_be_read_says_where(tmp_path: Path) -> None:
    (tmp_path / BOOK_FILE).write_bytes(b"{}\n")
    with pytest.raises(BrokenBook, match="line 1 cannot be read"):
        Book(tmp_path).lines()


def test_what_is_written_and_told_reads_no_line_that_was_told_before(tmp_path: Path) -> None:
    """Of a year's lines (100,000) each command read all of them, and once more to tell its own: six seconds."""
    book = Book(tmp_path)
    for target in ("red", "green", "blue"):
        acted(book, target)
    book.told("main", book.lines()[-1])
    first, second, third = book.file.read_bytes().splitlines(keepends=True)
    book.file.write_bytes(first + b"?" * (len(second) - 1) + b"\n" + third)
    acted(book, "yellow")
    (line,) = book.untold("main")
    assert (line.target, line.number) == ("yellow", 4)
    assert line.prev_hash == line_hash(OperatorAction.model_validate_json(third))
    with pytest.raises(BrokenBook, match="line 2 cannot be read"):
        book.untold("west")


LINES = lines_of("team.add", "team.rotate", "team.revoke")
TOLD = [(10 + n, line) for n, line in enumerate(LINES)]
OTHER = LINES[1].model_copy(update={"reason": "another"})


def test_a_line_costs_as_much_after_years_as_on_the_first_day(tmp_path: Path) -> None:
    """An admin may have one written twice a minute, for ever, by the process that looks for floods as well: with a million
    lines each took it 2 s, and 0.8 GB."""
    book = Book(tmp_path)
    acted(book, "first")
    first = book.file.read_bytes()
    book.file.write_bytes(b"".join(first.replace(b'"number":1,', b'"number":%d,' % n) for n in range(1, 20_001)))
    (last, *_) = reversed(book.lines())
    before = psutil.Process().io_counters().read_chars
    book.told("main", last)
    acted(book, "next")
    (waits,) = book.untold("main")
    assert (waits.number, waits.target, waits.prev_hash) == (20_001, "next", line_hash(last))
    assert psutil.Process().io_counters().read_chars - before < book.file.stat().st_size // 10


def test_a_line_longer_than_a_piece_that_is_read_is_whole(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for number, length in enumerate((10, 1024, 900), 1):
        with book.entry({**SAID, "target": f"t{number}"}) as act:
            act["detail"] = "x" * length
    for size in (1, 7, 500, 2_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("libs.walls.book._BLOCK", size)
            assert book.untold("main") == book.lines()


def test_a_book_and_a_ledger_that_agree_have_no_problem() -> None:
    assert compare(TOLD, {LINES[0].book: LINES}) == []
    assert compare([*TOLD, TOLD[1]], {}) == [], "a line may be told twice"
    assert compare([], {}) == []


def test_a_line_of_an_archived_record_is_not_missing_and_what_is_told_must_still_agree() -> None:
    """Once a segment was archived and deleted, `baton audit verify` called every book broken."""
    file = {LINES[0].book: LINES}
    assert compare(TOLD[2:], file, whole=False) == []
    assert compare([], file, whole=False) == []
    assert [one.number for one in compare(TOLD[2:], file)] == [1]
    (problem,) = compare([(11, OTHER), TOLD[2]], file, whole=False)
    assert "line 2 (record 11): the file has another line" in str(problem)
    (problem,) = compare([(11, OTHER), TOLD[2]], {}, whole=False)
    assert "line 3 (record 12): it does not follow" in str(problem)


def test_last_lines_that_wait_to_be_told_are_no_fault() -> None:
    """After a restore the ledger has not heard of it: `baton audit verify` called the book broken."""
    book, file = LINES[0].book, {LINES[0].book: LINES}
    assert [(compare(TOLD[:n], file), untold(TOLD[:n], file)) for n in range(4)] == [
        ([], {book: 3}),
        ([], {book: 2}),
        ([], {book: 1}),
        ([], {}),
    ]
    assert untold([TOLD[0], TOLD[2]], file) == {}, "a missing line in the midst waits for nothing"
    assert untold([], file, whole=False) == {}, "archived records may tell them"
    assert untold(TOLD[1:2], file, whole=False) == {book: 1}
    assert [one.number for one in compare(TOLD[:1], {book: [LINES[0], OTHER, LINES[2]]})] == [3], "it must still follow"


def test_lines_that_wait_are_counted_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def away(*_: object) -> int:
        raise Unreachable("Baton cannot be reached")

    monkeypatch.setattr("libs.cli.operator_action._tell", away)
    for target in ("red", "green"):
        acted(Book(tmp_path), target)
        tell(tmp_path)
    one, two = capsys.readouterr().err.splitlines()
    assert f"1 line is in {Book(tmp_path).file}; `baton audit push` tells it" in one
    assert f"2 lines are in {Book(tmp_path).file}; `baton audit push` tells them" in two


@pytest.mark.parametrize(
    ("told", "file", "says"),
    [
        (TOLD, [LINES[0], OTHER, LINES[2]], "line 2 (record 11): the file has another line"),
        (TOLD, LINES[:2], "line 3 (record 12): the file ends before it"),
        ([TOLD[0], TOLD[2]], LINES, "line 2: the ledger tells later lines and not this one"),
        (TOLD, [LINES[0], LINES[2]], "line 2 (record 11): in the file it does not follow"),
        ([TOLD[0], TOLD[2]], None, "line 2: the ledger tells later lines and not this one"),
        ([TOLD[0], (11, OTHER), TOLD[2]], None, "line 3 (record 12): it does not follow"),
        ([*TOLD, (13, OTHER)], None, "line 2 (record 13): record 11 tells it otherwise"),
    ],
)
def test_the_first_fault_is_told_by_its_place(
    told: list[tuple[int, OperatorAction]], file: list[OperatorAction] | None, says: str
) -> None:
    (problem,) = compare(told, {LINES[0].book: file} if file is not None else {})
    assert says in str(problem)


@pytest.mark.parametrize("change", [lambda a: a, lambda a: a.model_copy(update={"detail": ""})])
def test_the_hash_of_a_line_says_nothing_of_fields_that_say_nothing(
    change: Callable[[OperatorAction], OperatorAction],
) -> None:
    assert line_hash(change(LINES[0])) == line_hash(LINES[0])
