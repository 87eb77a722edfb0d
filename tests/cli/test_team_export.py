"""How an export reads lists that come in pieces."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from libs.cli import team_offboard
from libs.cli.exits import UsageFault
from libs.cli.team_export import jobs
from libs.client import Baton
from libs.client.errors import Failed
from libs.walls.keyring import Keyring


@dataclass(frozen=True)
class Job:
    job_id: str
    submitted_us: int


class Lister:
    """Answers as history does: newest first, older than `before_us`, and as many as fit."""

    def __init__(self, fits: int, *times: int) -> None:
        self.fits = fits
        self.jobs = sorted((Job(f"j{i}", at) for i, at in enumerate(times)), key=lambda job: -job.submitted_us)

    async def list(self, limit: int, before_us: int | None = None) -> list[Job]:
        return [job for job in self.jobs if before_us is None or job.submitted_us < before_us][: min(self.fits, limit)]


async def read(lister: Lister) -> list[Any]:
    return [one async for page in jobs(cast(Baton, lister)) for one in page]


@pytest.mark.parametrize("times", [(), (1,), (1, 2, 3, 4, 5, 6, 7), (5, 5, 4, 4, 3, 3), (9, 5, 5, 1), (5, 5, 5)])
async def test_every_job_is_read_once(times: tuple[int, ...]) -> None:
    for fits in (3, 4, 100):
        lister = Lister(fits, *times)
        assert await read(lister) == lister.jobs


async def test_more_of_one_moment_than_an_answer_holds_is_said() -> None:
    with pytest.raises(Failed, match="cannot be read on"):
        await read(Lister(3, 5, 5, 5, 5, 1))


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
