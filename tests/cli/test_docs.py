"""The pages about the command line say what it does."""

from pathlib import Path

from libs.cli.exits import Exit
from libs.cli.jobspec_doc import PAGE, page
from libs.cli.main import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_about_job_files_is_current() -> None:
    assert PAGE.read_text() == page(), "run `python -m libs.cli.jobspec_doc` and commit the result"


def test_every_command_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    assert [name for name in COMMANDS if f"`baton {name}" not in text] == []


def test_every_exit_code_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    assert [code for code in Exit if f"| {code.value} |" not in text] == []
