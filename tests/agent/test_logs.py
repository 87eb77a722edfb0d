"""A job's output: capped, read in pieces, for its own team only."""

import asyncio
import os

import pytest

from schemas.ids import job_id
from schemas.queries import LogQuery
from services.agent.keeper.sink import Sink
from services.agent.launcher import prune
from services.agent.logs import LogStore

JOB = job_id("blue", "a")


@pytest.fixture
def store(tmp_path):
    return LogStore(tmp_path, keep=2)


async def copied(path, data: bytes, limit: int) -> bytes:
    read_fd, write_fd = os.pipe()
    sink = Sink(str(path), read_fd, limit)
    await asyncio.to_thread(os.write, write_fd, data)
    os.close(write_fd)
    sink.close()
    return path.read_bytes()


async def test_output_is_kept_byte_for_byte(tmp_path):
    assert await copied(tmp_path / "log", b"\x1b[31mred\xff\n", 100) == b"\x1b[31mred\xff\n"


async def test_output_beyond_the_limit_is_cut_with_a_line_that_says_so(tmp_path):
    got = await copied(tmp_path / "log", b"x" * 500, 100)
    assert got.startswith(b"x" * 100 + b"\n[baton] output cut here: the limit of 100 bytes")


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
        os.utime(tmp_path / JOB / str(attempt) / "attempt.json", ns=(attempt, attempt))
    store.set_live(JOB, 1, 0, True)
    prune(store.prune())
    assert sorted(p.name for p in (tmp_path / JOB).iterdir()) == ["1", "4", "5"]
