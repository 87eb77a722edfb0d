"""How an export reads lists that come in pieces."""

import hashlib
import json
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from libs.cli import team_export, team_offboard
from libs.cli.exits import UsageFault
from libs.client import Baton
from libs.walls.keyring import Keyring
from schemas.jobs import JobEvent, JobState
from schemas.queries import EventList, EventListQuery


@pytest.mark.parametrize("fits", [4, 5])
async def test_all_events_of_a_job_are_read_and_none_twice(fits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer ends between two events of one microsecond, too."""
    told = [
        JobEvent(job_id="job-" + "0" * 32, team="red", name="x", what=what, state=JobState.QUEUED, at_us=at)
        for what, at in (("queued", 1), ("granted", 2), ("starting", 2), ("running", 2), ("finished", 5))
    ]

    async def answer(nats: Any, question: str, place: Any, query: EventListQuery) -> EventList:
        found = [event for event in told if event.at_us > (query.after_us or 0)]
        return EventList(events=tuple(found[:fits]), more=fits < len(found))

    monkeypatch.setattr(team_export, "ask", answer)
    assert await team_export._events(cast(Baton, Mock()), told[0].job_id) == told


def test_a_team_leaves_into_a_folder_of_its_own_or_nothing_begins(tmp_path: Path) -> None:
    """It was suspended, its jobs ended and all exported before the folder's place was found to be taken."""
    Keyring(tmp_path).team("red")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()
    exported(tmp_path / "green's", "green")
    (exported(tmp_path / "changed", "red") / "jobs.jsonl").write_text("{}\n")
    for taken in ("link", "full", "full/x", "empty", "green's", "changed"):
        with pytest.raises(UsageFault, match="name a new folder"):
            team_offboard.command("red", tmp_path / taken, "gone", folder=tmp_path, url="nats://127.0.0.1:1")
    for nowhere in ("none/out", "full/x/out"):
        with pytest.raises(UsageFault, match=r"there is no folder .*: make it first"):
            team_offboard.command("red", tmp_path / nowhere, "gone", folder=tmp_path, url="nats://127.0.0.1:1")


def test_a_team_leaves_into_no_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, how: path != tmp_path)  # root may write everywhere
    with pytest.raises(UsageFault, match="may not be written"):
        team_offboard.check_folder(tmp_path / "out", "red")


def test_leaving_goes_on_with_its_own_export(tmp_path: Path) -> None:
    team_offboard.check_folder(exported(tmp_path / "out", "red"), "red")
    team_offboard.check_folder(tmp_path / "new", "red")


def exported(folder: Path, team: str) -> Path:
    """A folder as `baton team export` leaves it."""
    folder.mkdir()
    (folder / "jobs.jsonl").write_text("")
    digest = hashlib.sha256(b"").hexdigest()
    (folder / "about.json").write_text(json.dumps({"team": team, "sha256": {"jobs.jsonl": digest}}))
    return folder
