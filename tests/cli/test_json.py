"""`-o json`: every command has it, or is here with the reason why not; and what is refused leaves stdout to nobody."""

import re
from pathlib import Path

import pytest

from libs.cli.main import COMMANDS, load, main
from libs.walls.keyring import Keyring
from tests.cli.test_help import leaves
from tests.cli.test_who_may import OPERATORS, argv, folder, lines, ring

__all__ = ["folder", "ring"]

WITHOUT = {
    "up": "it stays until Ctrl-C; the state directory has `processes.json` and `client.json`",
    "demo": "it tells a story to people, and writes a report",
    "team serve": "it stays until Ctrl-C",
    "bill push": "it stays with `--follow`; its state file has what was sent",
    "logs": "what a job wrote is told as it is",
    "placer": "it speaks JSON lines by itself",
    "replay": "it writes its outcome into a JSON file",
    "scenario run": "each expectation is told when it is met, and the exit code says whether all were",
}
"""As docs/cli.md tells it."""


def test_every_command_tells_programs_what_it_did() -> None:
    found = {path: one for name, entry in COMMANDS.items() for path, one in leaves(load(entry.module), name)}
    assert len(found) > 60
    has = {path for path, one in found.items() if any("-o" in option.opts for option in one.params)}
    assert sorted(found.keys() - has) == sorted(WITHOUT), "give a new command `-o json`, or say here why it has none"


def test_the_page_names_those_without() -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    (listed,) = re.findall(r"Every command takes `-o json` but these: (.*?)\.\n", page, re.DOTALL)
    told = dict(re.findall(r"`([a-z ]+)` \((.*?)\)", listed.replace("\n", " ")))
    assert told == WITHOUT


@pytest.mark.parametrize("line", [line for line in lines(OPERATORS) if line.partition(" --")[0] not in WITHOUT])
def test_what_is_refused_as_a_whole_is_told_on_stderr_alone(
    line: str, folder: Path, ring: Keyring, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_NATS_CREDS", str(ring.team("red.ana", admin=True)))
    monkeypatch.setattr("sys.argv", [*argv(line), "-o", "json"])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (4, ""), err
    assert err.startswith("baton: refused: needs an operator's credential")
