"""A team that has left: its name is given to nobody else by a slip."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from libs.cli import team_offboard
from libs.cli.backup_files import _copy_state
from libs.cli.broker_keys import served
from libs.client import Baton
from libs.walls.departed_teams import DEPARTED_FILE, DepartedTeams, TeamIsGone
from libs.walls.keyring import Keyring
from libs.walls.people import People
from tests.cli.test_command import Result, baton

LEFT_S = 1_764_320_000
"""2025-11-28, 08:53:20 UTC."""


async def team(home: Path, *words: str) -> Result:
    return await baton("team", *words, BATON_STATE_DIR=str(home))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An instance whose team vis has left."""
    ring = Keyring(tmp_path)
    ring.team("vis.ana")
    ring.team("red")
    ring.revoke("vis")
    DepartedTeams(tmp_path).note("vis", LEFT_S)
    return tmp_path


def test_who_has_left_did_so_once_and_may_come_back(tmp_path: Path) -> None:
    departed = DepartedTeams(tmp_path)
    departed.check("vis")
    for at_s in (LEFT_S, LEFT_S + 86_400):
        departed.note("vis", at_s)
    assert (tmp_path / DEPARTED_FILE).stat().st_mode & 0o077 == 0
    with pytest.raises(TeamIsGone, match=r"team vis left on 2025-11-28 at 08:53 UTC; .*kept under this name"):
        departed.check("vis")
    departed.check("red")
    assert [departed.forget("vis"), departed.forget("vis")] == [True, False]
    departed.check("vis")


async def test_a_team_is_not_added_under_the_name_of_one_that_has_left(home: Path) -> None:
    """It saw all of the old team's jobs, logs, events and bills, and nothing warned."""
    for name in ("vis", "vis.ben", "vis.cleo"):
        refused = await team(home, "add", name, *(["--admin"] if "cleo" in name else []))
        assert (refused.code, refused.out) == (2, ""), refused.err
        assert "team vis left on 2025-11-28" in refused.err
        assert "`baton team add vis --returns`" in refused.err
    assert Keyring(home).users("vis") == []
    assert People(home).of("vis") == {}, "who is refused is not kept"
    assert (await team(home, "add", "red.ben")).code == 0


async def test_the_same_team_may_come_back(home: Path) -> None:
    back = await team(home, "add", "vis.ana", "--plain", "--returns")
    assert (back.code, "`baton team resume vis`" in back.err) == (0, True), back.err
    assert (await team(home, "add", "vis")).code == 0, "once said, it is a team as any other"
    assert Keyring(home).users("vis") == ["vis", "vis.ana"]
    assert (await team(home, "add", "vis", "--returns")).code == 0, "it may be repeated"


async def test_a_name_that_is_refused_leaves_the_note(home: Path) -> None:
    assert (await team(home, "add", "vis.no name", "--plain", "--returns")).code == 2
    assert (await team(home, "add", "vis")).code == 2


async def test_a_list_that_names_it_still_makes_it_no_credential(home: Path) -> None:
    """As of `baton up`, and of compose, which makes its credentials at each start."""
    made = await baton("credentials", "--teams", "vis,red", "--users", "vis.ana", BATON_STATE_DIR=str(home))
    assert made.code == 0, made.err
    assert made.err.count("no credential is made: team vis left on") == 1
    assert Keyring(home).users("vis") == []


def test_a_team_that_has_left_is_not_told_as_one_that_is_here(home: Path) -> None:
    """`baton up` named it, and showed how to submit as it."""
    assert served(Keyring(home), ["vis", "green"]) == ["green", "red"]
    (home / DEPARTED_FILE).write_text("{")
    assert served(Keyring(home), []) == ["red", "vis"], "who knows"


async def test_offboarding_notes_it_and_a_backup_keeps_the_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(*_: object) -> None:
        with pytest.raises(TeamIsGone):
            DepartedTeams(tmp_path).check("vis")

    monkeypatch.setattr(team_offboard, "tell", told)
    ring = Keyring(tmp_path)
    ring.team("vis")
    nowhere = cast(Baton, SimpleNamespace(place=SimpleNamespace(address=SimpleNamespace(url=""))))
    asked = team_offboard.Leaving("vis", tmp_path / "export", "gone", cancel=True, wait_s=0)
    assert await team_offboard._revoke(nowhere, ring, asked) == "1 credentials are void"
    assert DEPARTED_FILE in {one["file"] for one in _copy_state(tmp_path, tmp_path / "backup", {})}
