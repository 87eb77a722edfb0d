"""A job's output: capped, read in pieces, for its own team only."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from schemas.ids import job_id
from schemas.queries import LogQuery
from services.agent.failures import why_failed
from services.agent.logs import MOST_ANSWERED, LogStore
from services.agent.pruning import prune, remove_unsaved

JOB = job_id("blue", "a")


@pytest.fixture
def store(tmp_path):
    return LogStore(tmp_path, keep=2)


def write(store, text: str, attempt: int = 1, team: str = "blue") -> None:
    store.begin(JOB, attempt, team)
    store.log(JOB, attempt, 0).write_text(text)


def test_pieces_join_to_the_whole_even_when_a_character_is_cut(store):
    text = "loss ÷ 0.5 🎯 done"
    write(store, text)
    got, offset = "", 0
    while True:
        piece = store.read(LogQuery(job_id=JOB, offset=offset, limit=5), "blue")
        got, offset = got + piece.text, piece.next_offset
        if piece.ended:
            break
    assert got == text
    assert offset == len(text.encode())


@pytest.mark.parametrize("byte", [b"\x01", b"\xff", b'"', b"x"])
def test_a_piece_is_no_longer_than_an_answer_may_be_whatever_bytes_it_has(store, byte):
    """Seen: 256 KiB of control characters were 1.5 MB of JSON, and while one team asked for them another's jobs began after
    1.5 s in place of 0.05."""
    write(store, "")
    store.log(JOB, 1, 0).write_bytes(byte * 600_000)
    got, offset, ended = "", 0, False
    while not ended:
        piece = store.read(LogQuery(job_id=JOB, offset=offset, limit=262_144), "blue")
        assert len(piece.model_dump_json()) < MOST_ANSWERED + 1024
        assert piece.next_offset > offset
        got, offset, ended = got + piece.text, piece.next_offset, piece.ended
    assert got == (byte * 600_000).decode("utf-8", "replace")
    assert offset == 600_000


def test_a_running_job_has_not_ended_its_output(store):
    write(store, "a")
    store.set_live(JOB, 1, 0, True)
    assert not store.read(LogQuery(job_id=JOB), "blue").ended
    store.set_live(JOB, 1, 0, False)
    assert store.read(LogQuery(job_id=JOB), "blue").ended


def test_the_latest_attempt_is_read_unless_one_is_named(store):
    write(store, "one", attempt=1)
    write(store, "ten", attempt=10)
    write(store, "two", attempt=2)
    assert store.read(LogQuery(job_id=JOB), "blue").text == "ten"
    assert store.read(LogQuery(job_id=JOB, attempt=2), "blue").text == "two"


def test_another_teams_output_is_as_if_it_did_not_exist(store):
    write(store, "secret")
    assert store.read(LogQuery(job_id=JOB), "green") is None
    assert store.read(LogQuery(job_id=job_id("x", "y")), "blue") is None
    assert store.read(LogQuery(job_id=JOB, rank=5), "blue") is None
    assert store.read(LogQuery(job_id=JOB), "operator").text == "secret"


def test_old_attempts_are_removed_and_running_ones_stay(store, tmp_path):
    for attempt in range(1, 6):
        write(store, "x", attempt=attempt)
        os.utime(tmp_path / ".agent" / f"{JOB}.{attempt}.blue", ns=(attempt, attempt))
    store.set_live(JOB, 1, 0, True)
    prune(store.prune())
    assert sorted(p.name for p in tmp_path.glob("job-*")) == [f"{JOB}.{n}" for n in (1, 4, 5)]
    assert sorted(p.name for p in (tmp_path / ".agent").iterdir()) == [f"{JOB}.{n}.blue" for n in (1, 4, 5)]


def test_a_team_with_many_short_jobs_takes_away_no_others_output(tmp_path):
    """Seen: the newest 500 of a node stayed, which were one team's of the last seconds."""
    store = LogStore(tmp_path, keep=3)
    write(store, "what blue wrote")
    for attempt in range(1, 10):
        store.begin(job_id("red", "many"), attempt, "red")
    prune(store.prune())
    assert store.read(LogQuery(job_id=JOB), "blue").text == "what blue wrote"
    assert {attempt for (_, attempt), team in store.kept().items() if team == "red"} == {8, 9}


def test_who_wrote_most_makes_room_for_the_output_of_others(tmp_path):
    """Five hundred attempts of 64 MiB for each of eight devices are 250 GiB, and none of it counted for a job's disk."""
    store = LogStore(tmp_path, keep=100, bytes=40)
    write(store, "b" * 8)
    many = job_id("red", "many")
    for attempt in range(1, 10):
        store.begin(many, attempt, "red")
        store.log(many, attempt, 0).write_text("r" * 10)
    store.set_live(many, 1, 0, True)
    prune(store.prune())
    assert store.read(LogQuery(job_id=JOB), "blue").text == "b" * 8
    assert {attempt for (_, attempt), team in store.kept().items() if team == "red"} == {1, 7, 8, 9}


def test_an_empty_folder_of_checkpoints_goes_with_the_last_attempt_of_its_job(store, tmp_path):
    """Seen: a node kept a folder for each job that it had ever run."""
    saved, unsaved, runs_again = (job_id("blue", key) for key in ("saved", "unsaved", "again"))
    checkpoints = tmp_path / "checkpoints"
    for job in (saved, unsaved, runs_again):
        store.begin(job, 1, "blue")
        (checkpoints / job).mkdir(parents=True)
    (checkpoints / saved / "step-3").touch()
    store.begin(runs_again, 2, "blue"), store.begin(JOB, 1, "blue")
    pruned = store.prune()
    assert {folder.name for folder in pruned} >= {f"{job}.1" for job in (saved, unsaved, runs_again)}
    prune(pruned)
    remove_unsaved(checkpoints, pruned, {job for job, _ in store.kept()})
    assert {folder.name for folder in checkpoints.iterdir()} == {saved, runs_again}


def test_a_clock_that_is_set_back_does_not_make_the_newest_output_the_oldest(store, tmp_path):
    hour_ns = 3_600_000_000_000
    for attempt, began_ns in ((1, 9 * hour_ns), (2, 10 * hour_ns), (3, 8 * hour_ns)):
        write(store, "x", attempt=attempt)
        os.utime(tmp_path / ".agent" / f"{JOB}.{attempt}.blue", ns=(began_ns, began_ns))
    prune(store.prune())
    assert [store.read(LogQuery(job_id=JOB, attempt=n), "blue") is not None for n in (1, 2, 3)] == [False, True, True]
    after = LogStore(tmp_path, keep=2)
    write(after, "x", attempt=4)
    os.utime(tmp_path / ".agent" / f"{JOB}.4.blue", ns=(7 * hour_ns, 7 * hour_ns))
    prune(after.prune())
    assert after.read(LogQuery(job_id=JOB, attempt=4), "blue"), "what the next agent began is later than all before"


def test_what_an_agent_of_before_made_of_an_attempt_serves_it_and_is_removed_with_its_output(store, tmp_path):
    """It had a folder for the job, the attempt, its home and its acknowledgements."""
    for attempt in (1, 2, 3):
        (tmp_path / JOB / str(attempt) / "home").mkdir(parents=True)
        assert store.adopt(JOB, attempt, "blue") == (
            [tmp_path / JOB / str(attempt) / name for name in ("home", "acknowledge")],
            [],
            f"{tmp_path}/{JOB}/{attempt}/acknowledge/rank-{{rank}}.json",
        ), "it is told these"
        os.utime(tmp_path / ".agent" / f"{JOB}.{attempt}.blue", ns=(attempt, attempt))
    assert [p.relative_to(tmp_path) for p in sorted(store.left())] == [Path(JOB, str(n), "home") for n in (1, 2, 3)]
    prune(store.prune())
    assert sorted(p.name for p in (tmp_path / JOB).iterdir()) == ["2", "3"]


def test_the_agents_own_tree_outlives_its_last_attempt(store, tmp_path):
    """Made again, it would be open to others."""
    write(store, "x")
    prune([store.attempt(JOB, 1), store.log(JOB, 1, 0).parent])
    assert sorted(p.name for p in tmp_path.iterdir()) == [".agent"]
    assert stat.S_IMODE((tmp_path / ".agent").stat().st_mode) == 0o700


def test_an_attempt_costs_the_agent_two_folders_and_a_file_per_process(store, tmp_path):
    write(store, "x")
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == [
        ".agent",
        f".agent/{JOB}.1.blue",
        f".agent/{JOB}.1.blue/rank-0.log",
        f"{JOB}.1",
    ]


@pytest.mark.parametrize("trick", ["a link", "a link to a folder", "a second name", "a pipe", "a folder"])
def test_a_log_that_is_made_another_file_is_not_read(store, tmp_path, trick):
    """Whoever gets at a job's log could make it a name of another's file: then it is as if there were none."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "rank-0.log").write_text("of another team")
    write(store, "own")
    log = store.log(JOB, 1, 0)
    log.unlink()
    if trick == "a link":
        log.symlink_to(secret / "rank-0.log")
    elif trick == "a link to a folder":
        log.parent.rmdir()
        log.parent.symlink_to(secret)
    elif trick == "a second name":
        os.link(secret / "rank-0.log", log)
    elif trick == "a pipe":
        os.mkfifo(log)
    else:
        log.mkdir()
    assert store.read(LogQuery(job_id=JOB, attempt=1), "blue") is None
    assert store.read(LogQuery(job_id=JOB), "operator") is None
    assert why_failed((), 0, log) is None, "and says nothing of why it failed"


def test_what_is_another_users_is_not_read(store, tmp_path, monkeypatch):
    write(store, "text")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert store.read(LogQuery(job_id=JOB), "operator") is None


def test_a_job_cannot_say_whose_its_output_is(store, tmp_path):
    """Its own folder holds nothing that the agent relies on, and the agent's lets nobody else in."""
    write(store, "secret")
    folder = store.attempt(JOB, 1)
    assert sorted(path.name for path in folder.iterdir()) == []
    (folder / "attempt.json").write_text('{"team": "green"}')
    assert store.read(LogQuery(job_id=JOB), "green") is None
    assert LogStore(tmp_path, keep=2).read(LogQuery(job_id=JOB), "green") is None, "nor after a restart"
    assert LogStore(tmp_path, keep=2).read(LogQuery(job_id=JOB), "blue").text == "secret"
    assert stat.S_IMODE((tmp_path / ".agent").stat().st_mode) == 0o700


def test_the_output_of_an_agent_of_before_is_taken_over(tmp_path):
    """It kept everything in the job's folder; a writer that has the file open goes on."""
    old = tmp_path / JOB / "3"
    (old / "logs").mkdir(parents=True)
    (old / "attempt.json").write_text('{"team": "blue"}')
    with (old / "logs" / "rank-0.log").open("w") as writer:
        writer.write("before, ")
        store = LogStore(tmp_path, keep=2)
        writer.write("after")
    assert store.read(LogQuery(job_id=JOB), "blue").text == "before, after"
    assert store.read(LogQuery(job_id=JOB), "green") is None


def test_the_output_of_the_version_before_is_taken_over(tmp_path):
    """It had a folder for each job, attempt and output, and a file for whose it is."""
    for attempt, team in (("3", "blue"), ("4", "../../red")):
        old = tmp_path / ".agent" / JOB / attempt
        (old / "logs").mkdir(parents=True)
        (old / "attempt.json").write_text(json.dumps({"team": team}))
    with (tmp_path / ".agent" / JOB / "3" / "logs" / "rank-0.log").open("w") as writer:
        writer.write("before, ")
        store = LogStore(tmp_path, keep=2)
        writer.write("after")
    assert store.read(LogQuery(job_id=JOB), "blue").text == "before, after"
    assert store.read(LogQuery(job_id=JOB), "green") is None
    assert sorted(p.name for p in (tmp_path / ".agent").iterdir()) == [JOB, f"{JOB}.3.blue"], (
        "a name that is none stays"
    )
    assert store.begin(JOB, 3, "blue"), "as an attempt that goes on is begun again"
    assert store.read(LogQuery(job_id=JOB), "blue").text == "before, after"


def test_a_job_cannot_have_its_output_taken_over_as_anothers(store, tmp_path):
    """What looks like an earlier version's in its own folder is not looked at when the agent has an output of it."""
    write(store, "own")
    (store.earlier(JOB, 1) / "logs").mkdir(parents=True)
    (store.earlier(JOB, 1) / "attempt.json").write_text('{"team": "green"}')
    again = LogStore(tmp_path, keep=2)
    assert again.read(LogQuery(job_id=JOB), "green") is None
    assert again.read(LogQuery(job_id=JOB), "blue").text == "own"


def test_an_attempt_begins_in_a_root_that_somebody_has_removed(tmp_path):
    store = LogStore(tmp_path / "jobs", keep=2)
    shutil.rmtree(tmp_path / "jobs")
    assert store.begin(JOB, 1, "blue")[0][0].is_dir()
    assert store.log(JOB, 1, 0).parent.is_dir()


def test_a_file_where_a_folder_belongs_is_an_error(store, tmp_path):
    (tmp_path / f"{JOB}.1").write_text("")
    with pytest.raises(OSError, match=JOB):
        store.begin(JOB, 1, "blue")
