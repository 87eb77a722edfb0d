"""`--help` of every command, at first sight: what it is, what each of its words and options means, in whole sentences."""

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from libs.cli.main import COMMANDS, load, main


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, one in (below or {}).items():
        yield from leaves(one, f"{path} {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_word_and_option_is_told_in_a_sentence(name: str) -> None:
    wrong = []
    for path, command in leaves(load(COMMANDS[name].module), name):
        told = {"": command.help} | {one.name: getattr(one, "help", None) for one in command.params}
        for what, text in told.items():
            if not text or not text[0].isupper() or text.rstrip()[-1] not in ".)":
                wrong.append((path, what, text))
    assert wrong == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_usage_line_names_each_argument_in_capitals_and_once(name: str) -> None:
    """Seen: `{JOB...}...`, `[[-- COMMAND...]]...`, and `{node}` beside `{JOB}`: dots and brackets are added to a name."""
    wrong = []
    for path, command in leaves(load(COMMANDS[name].module), name):
        for one in command.params:
            if one.param_type_name == "argument" and not re.fullmatch(
                r"(-- )?[A-Z]+(\[\.[A-Z]+\])?", one.metavar or ""
            ):
                wrong.append((path, one.name, one.metavar))
    assert wrong == []


def test_lines_are_as_wide_as_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Seen: what a command does was cut at 80 columns, however wide the terminal was."""
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(sys, "argv", ["baton", "node", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "Make new credentials for a node's agent in the place of the old ones" in capsys.readouterr().out
