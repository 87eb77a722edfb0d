"""Pseudonyms: drawn once, kept in one place, and forgotten."""

import json
from pathlib import Path

import pytest

from libs.cli.launch import LaunchOptions, LocalStack
from libs.walls.people import MOST_NAME, NoSuchPerson, People
from tests.cli.test_command import Result, baton


def test_a_pseudonym_is_a_persons_of_one_team_until_it_is_erased(tmp_path: Path) -> None:
    people = People(tmp_path)
    ana = people.pseudonym("red", "ana")
    assert (people.pseudonym("red", "ana"), people.known("red", "ana"), people.known("red", "ben")) == (ana, ana, "ben")
    assert people.pseudonym("blue", "ana") != ana
    assert (tmp_path / "people.json").stat().st_mode & 0o077 == 0
    assert people.erase("red", "ana") == [ana]
    with pytest.raises(NoSuchPerson, match="nobody of team red is called 'ana'"):
        people.erase("red", "ana")
    assert people.pseudonym("red", "ana") != ana, "who comes back is somebody else"
    assert len(people.erase("red")) == 1
    assert people.erase("red") == []
    assert "red" not in json.loads((tmp_path / "people.json").read_text())["teams"]
    for bad in ("", "x" * (MOST_NAME + 1)):
        with pytest.raises(ValueError, match="a person's name has"):
            people.pseudonym("red", bad)


async def test_the_command_knows_people_by_their_names(tmp_path: Path) -> None:
    options = LaunchOptions(state_dir=tmp_path, teams=("red",), services=(), sync_always=False, scale=0.01)
    async with LocalStack(options) as cluster:

        async def team(*words: str) -> Result:
            return await baton("team", *words, BATON_STATE_DIR=str(cluster.state_dir))

        added = await team("add", "red.ana", "--pseudonym")
        path = Path(added.out.strip())
        assert (added.code, path.is_file(), "ana" in path.name) == (0, True, False), added.err
        assert [name for name in cluster.keyring.users("red") if "ana" in name] == []
        before = path.read_text()
        assert (await team("rotate", "red.ana")).out == added.out
        assert path.read_text() != before
        erased = await team("erase", "red.ana")
        assert (erased.code, erased.out) == (0, f"{path.stem}\n"), erased.err
        assert not path.exists()
        assert (await team("erase", "red.ana")).code == 3
