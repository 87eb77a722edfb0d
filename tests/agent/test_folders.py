"""Folders that a job has filled to be in the way: counted, and removed."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from services.agent import folders, limits, pruning
from services.agent.acknowledge import Acknowledgement, BadAcknowledgement, ProgressFile
from services.agent.agent import check_limits
from services.agent.folders import DEEPEST, disk_used, files_below, filled, held_open, remove_tree
from services.agent.secrets import SecretFolders

MIB = 2**20
PLAIN = 1_234_567


@pytest.fixture(autouse=True)
def cleared(tmp_path: Path) -> Iterator[None]:
    """Also when a test fails: pytest itself cannot remove what is made here, and would fail at that in later runs."""
    yield
    subprocess.run(["rm", "-rf", str(tmp_path)], check=False)


def deep(top: Path, depth: int = sys.getrecursionlimit() + 200, inside: int = MIB) -> None:
    """Folders in one another, further than any path reaches, and a file at the bottom."""
    at = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("down", dir_fd=at)
        below = os.open("down", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    with open(os.open("big", os.O_CREAT | os.O_WRONLY, dir_fd=at), "wb") as file:
        file.write(bytes(inside))
    os.close(at)


def test_a_tree_of_any_depth_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    """A task of the agent that fails ends the agent: whoever left such a tree would have ended it again and again."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("of another team")
    top = tmp_path / "job"
    top.mkdir()
    deep(top)
    (top / "link").symlink_to(outside)
    (top / "wide").mkdir()
    for n in range(50):
        (top / "wide" / str(n)).write_text("x")
    (top / "wide" / "link").symlink_to(outside / "kept")
    pruning.prune([top])
    assert not top.exists()
    assert (outside / "kept").read_text() == "of another team"
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    assert (outside / "kept").exists()


@pytest.fixture
def plain_user(tmp_path: Path) -> Iterator[Path]:
    """A folder of a user who is not root, and that user."""
    if os.geteuid():
        yield tmp_path
        return
    with TemporaryDirectory(dir="/tmp") as made:
        os.chown(made, PLAIN, PLAIN)
        os.seteuid(PLAIN)
        try:
            yield Path(made)
        finally:
            os.seteuid(0)


def test_what_a_job_has_closed_is_removed_without_root(plain_user: Path) -> None:
    """Seen: folders that only read were left for ever by every job that had such a cache, and a disk could be filled so."""
    outside, top = plain_user / "outside", plain_user / "job"
    outside.mkdir(mode=0o500)
    top.mkdir()
    for mode in (0o000, 0o500, 0o600):
        for folder in (top / f"{mode:o}" / "a/b", top / f"{mode:o}" / "c"):
            folder.mkdir(parents=True)
            (folder / "file").touch()
            folder.chmod(mode)
        (top / f"{mode:o}" / "link").symlink_to(outside)
        (top / f"{mode:o}").chmod(mode)
    top.chmod(0o500)
    remove_tree(top)
    assert not top.exists()
    assert outside.stat().st_mode & 0o777 == 0o500


def test_a_folder_of_secrets_goes_with_all_that_a_job_without_walls_put_there(tmp_path: Path) -> None:
    """What its removal raised would have kept the attempt's devices for ever."""
    secrets = SecretFolders(tmp_path, root=tmp_path / "memory")
    for kept in ("n1/job-1.1", "n1/job-2.1"):
        secrets.folder(kept).mkdir(parents=True)
        deep(secrets.folder(kept))
    secrets.remove("n1/job-1.1")
    assert not secrets.folder("n1/job-1.1").exists()
    assert secrets.sweep([]) == 1
    assert not secrets.folder("n1/job-2.1").exists()


def test_what_lies_too_deep_to_be_looked_at_counts_as_full(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(MIB))
    assert MIB <= disk_used([tmp_path], 10 * MIB) < 2 * MIB
    deep(tmp_path)
    assert disk_used([tmp_path], 10 * MIB) > 10 * MIB
    remove_tree(tmp_path)


def test_a_look_holds_one_folder_of_each_level_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200,000 folders below a path of 3,800 bytes it had 1.5 GB of the agent's memory, and took 40 s."""
    inside = tmp_path
    for _ in range(20):
        inside = inside / ("x" * 100)
        inside.mkdir()
    for n in range(2000):
        (inside / str(n)).mkdir()
    opened: list[str | Path] = []
    real = os.open
    monkeypatch.setattr(folders.os, "open", lambda path, *how, **at: opened.append(path) or real(path, *how, **at))
    tracemalloc.start()
    try:
        assert files_below(tmp_path) == 2020
        assert not filled([tmp_path], 1 << 40).why
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert {len(str(path)) for path in opened[1:2021]} <= {100, *range(1, 5)}, "no path is followed"


@pytest.mark.parametrize(("depth", "full"), [(DEEPEST, False), (DEEPEST + 1, True)])
def test_folders_are_looked_into_so_deep(tmp_path: Path, depth: int, full: bool) -> None:
    deep(tmp_path, depth, inside=0)
    assert bool(filled([tmp_path], MIB * 100).why) is full
    assert (files_below(tmp_path) == depth + 1) is not full
    remove_tree(tmp_path)


async def test_who_makes_very_many_files_is_looked_at_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a million empty files the looks lay two minutes apart, and the reason spoke of a limit of bytes."""
    watched = limits.Watched(limits.AttemptLimits(memory=1, disk=MIB, memory_group="held by a cgroup"), [tmp_path])
    assert await watched.look(0)
    monkeypatch.setattr(limits, "MOST_ENTRIES", 100)
    monkeypatch.setattr(folders, "MOST_ENTRIES", 100)
    for n in range(120):
        (tmp_path / str(n)).touch()
    watched._next, watched._gap_s, watched._free = sys.maxsize, limits.LONG_S, limits._Free()
    assert not await watched.look(0)
    watched._free = limits._Free(files=sys.maxsize)  # of before they were made
    assert await watched.look(0)
    assert watched.exceeded is not None
    assert watched.exceeded[0] == "disk limit: its folders hold more than 100 files"


@pytest.mark.parametrize("lost", [10, 1000])
async def test_who_has_very_many_files_is_looked_at_when_the_disk_has_lost_what_it_might_have_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """In the half minute between two looks a job filled more than the disk had."""
    free = limits._Free(files=1, bytes=5000 * MIB, of_all=2000 * MIB)
    monkeypatch.setattr(limits, "_free", lambda _: free)
    watched = limits.Watched(
        limits.AttemptLimits(memory=1, disk=500 * MIB, memory_group="held by a cgroup"), [tmp_path]
    )
    assert await watched.look(0)
    watched._next, watched._gap_s = sys.maxsize, limits.LONG_S
    free = limits._Free(files=1, bytes=(5000 - lost) * MIB, of_all=2000 * MIB)
    assert await watched.look(0) is (lost == 1000)


async def test_an_agent_that_can_open_nothing_holds_that_against_nobody(tmp_path: Path) -> None:
    """Jobs were ended for their "disk limit" while the agent had no descriptor left."""
    watched = limits.Watched(limits.AttemptLimits(memory=1, disk=MIB, memory_group="held by a cgroup"), [tmp_path])
    (tmp_path / "large").write_bytes(b"x" * 2 * MIB)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    await asyncio.to_thread(int)  # its thread has begun
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not await watched.look(0)
        assert folders.disk_used([tmp_path], 10) == 11, "the last to be kept"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert watched.exceeded is None
    watched._next = 0.0
    assert await watched.look(0)
    assert watched.exceeded is not None, "it is looked again"


async def test_who_is_looked_at_for_long_keeps_nobody_from_being_looked_at() -> None:
    class Part:
        def __init__(self, name: str, since: float | None, due: bool = True) -> None:
            self.name, self.since, self.due = name, since, due

        def slow_check_due(self) -> float | None:
            return self.since

        async def check_limits(self) -> bool:
            looked.append(self.name)
            return self.due

    looked: list[str] = []
    parts: Any = [
        Part("long, late", 9.0),
        Part("a", None),
        Part("long", 7.0),
        Part("not due", 5.0, due=False),
        Part("b", None),
    ]
    await check_limits(parts)
    assert looked == ["a", "b", "not due", "long"]


def test_a_file_that_goes_away_hides_nothing_of_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Vanished:
        name, path = "gone", "gone"

        def stat(self, follow_symlinks: bool) -> None:
            raise FileNotFoundError

        def is_dir(self, follow_symlinks: bool) -> bool:
            return False

    (tmp_path / "big").write_bytes(bytes(MIB))
    real = os.scandir

    def churning(folder: int) -> Iterator[object]:
        yield from (Vanished(), *real(folder), Vanished())
        raise FileNotFoundError  # the folder itself

    monkeypatch.setattr(folders.os, "scandir", churning)
    assert disk_used([tmp_path], 10 * MIB) >= MIB


def test_a_file_without_a_name_counts_while_it_is_open(tmp_path: Path) -> None:
    me = [os.getpid()]
    before = held_open(me, [tmp_path]).bytes
    with open(tmp_path / "hidden", "wb") as file, open(tmp_path / "named", "wb") as named:
        os.unlink(file.name)
        for one in (file, named):
            one.write(bytes(4 * MIB))
            one.flush()
        second = os.dup(file.fileno())
        assert 4 * MIB <= held_open(me, [tmp_path]).bytes - before < 8 * MIB, "once, and not the one that has a name"
        os.close(second)
    assert held_open(me, [tmp_path]).bytes == before


OWN_TABLE = """
import ctypes, os, sys, threading, time
def hide():
    if ctypes.CDLL(None).unshare(0x400):  # CLONE_FILES: a table of open files for this thread alone
        os._exit(1)
    os.posix_fallocate(os.open(sys.argv[1], os.O_RDWR | os.O_TMPFILE), 0, 8 << 20)
    print("hidden", flush=True)
    time.sleep(600)
threading.Thread(target=hide).start()
if sys.argv[2] == "ends":
    time.sleep(0.2)
    ctypes.CDLL(None).syscall(60, 0)  # this thread alone; the process goes on
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="it ends a thread by the number of the call")
@pytest.mark.parametrize("leader", ["lives", "ends"])
def test_a_file_without_a_name_counts_whichever_thread_has_it_open(tmp_path: Path, leader: str) -> None:
    """Seen: a file in a table that only one thread had was not counted, nor any when the first thread had ended."""
    command = [sys.executable, "-c", OWN_TABLE, str(tmp_path), leader]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as hiding:
        try:
            assert hiding.stdout is not None
            assert hiding.stdout.readline() == b"hidden\n"
            while leader == "ends" and ") Z " not in Path(f"/proc/{hiding.pid}/stat").read_text():
                time.sleep(0.05)
            assert 8 * MIB <= held_open([hiding.pid], [tmp_path]).bytes < 9 * MIB
        finally:
            hiding.kill()


def test_who_left_most_makes_room_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"small": 1, "large": 8, "middle": 4}
    for name, mib in sizes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(bytes(mib * MIB))
    ended = [tmp_path / name for name in sizes]
    monkeypatch.setattr(pruning, "_lacks", lambda root: "its room" if disk_used([root], 100 * MIB) > 6 * MIB else "")
    pruning.make_room(tmp_path, lambda: ended)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["middle", "small"]
    pruning.make_room(tmp_path, lambda: ended[:1])
    assert (tmp_path / "small").exists(), "there is room"


def test_a_disk_that_does_not_say_how_full_it_is_ends_nothing(tmp_path: Path) -> None:
    """An agent whose folder of jobs somebody had removed ended within a minute."""
    (left := tmp_path / "left").mkdir()
    pruning.make_room(tmp_path / "removed", lambda: [left])
    assert left.is_dir()


def test_who_left_most_files_makes_room_first_when_the_disk_has_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty files take no room, and a disk has so many: forty jobs of half a million could have used up one of 16 millions."""
    for name, files, mib in (("large", 1, 4), ("many", 300, 0), ("few", 20, 0)):
        for number in range(files):
            (tmp_path / name / str(number)).mkdir(parents=True)
        (tmp_path / name / "x").write_bytes(bytes(mib * MIB))
    real = os.statvfs(tmp_path)

    def disk(root: Path) -> os.statvfs_result:
        left = 340 - files_below(root)
        return os.statvfs_result((*real[:2], 1000, 900, 900, 340, left, left, *real[8:10]))

    monkeypatch.setattr("os.statvfs", disk)
    pruning.make_room(tmp_path, lambda: [tmp_path / name for name in ("large", "many", "few")])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["few", "large"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"step": 10**15 + 1, "reference": "r"}, "step: is larger than any job has"),
        ({"step": 1, "reference": "a\0b"}, "reference: has a NUL, which no environment variable can hold"),
        ({"step": 1}, "reference: Field required"),
    ],
)
def test_what_no_attempt_could_go_on_with_is_not_believed(
    tmp_path: Path, said: dict[str, object], problem: str
) -> None:
    """Seen: with a NUL in its reference no attempt of the job could be started any more."""
    file = Acknowledgement(tmp_path / "rank-0.json")
    file.path.write_text(json.dumps(said))
    with pytest.raises(BadAcknowledgement, match=problem):
        file.news()
    assert file.news() is None, "it is told once"


def test_an_acknowledgement_that_is_nested_too_deep_is_told_like_any_bad_one(tmp_path: Path) -> None:
    file = Acknowledgement(tmp_path / "rank-0.json")
    file.path.write_text("[" * 16_000)
    with pytest.raises(BadAcknowledgement, match="is not JSON"):
        file.news()


def _pipe(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)  # as its job holds it: there is nothing to read, and no end


@pytest.mark.parametrize("file", [Acknowledgement, ProgressFile])
def test_a_pipe_in_the_place_of_what_a_job_says_is_told_like_any_bad_one(
    tmp_path: Path, file: type[Acknowledgement | ProgressFile]
) -> None:
    """Seen: it ended the agent's part, and the job counted as lost with its node, again and again."""
    one = file(tmp_path / "rank-0.json")
    held = _pipe(one.path)
    with pytest.raises(BadAcknowledgement, match="is not a regular file"):
        one.news()
    assert one.news() is None, "it is told once"
    os.close(held)


@pytest.mark.parametrize("file", [Acknowledgement, ProgressFile])
def test_nothing_is_looked_at_behind_a_link_in_the_place_of_what_a_job_says(
    tmp_path: Path, file: type[Acknowledgement | ProgressFile]
) -> None:
    """Its size and times neither: the job would be told what only the agent may see, and a disk that hangs holds that up."""
    one = file(tmp_path / "rank-0.json")
    (tmp_path / "another").write_bytes(bytes(20_000))
    one.path.symlink_to("another")
    with pytest.raises(BadAcknowledgement, match="cannot be read"):
        one.news()
    (tmp_path / "another").write_bytes(bytes(30_000))
    assert one.news() is None, "what is behind it is news to nobody"
