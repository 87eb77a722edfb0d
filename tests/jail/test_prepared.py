"""A copy of a prepared view shows what bubblewrap's own shows, and is not taken where it would not. As root, with a keeper."""

import asyncio
import os
import resource
import select
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from services.agent import jobwalls
from services.agent.keeper import walls
from services.agent.keeper.client import KeeperClient
from services.agent.keeper.prepared import MISSED, MOST_FAILURES, Mounts, Views, around
from services.agent.settings import AgentSettings
from services.agent.view import view_of
from tests.agent.conftest import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a view is prepared where the keeper is root")
SEEN = r"""
sed -E 's/^[0-9]+ [0-9]+ [0-9:]+ //; s/(shared|master):[0-9]+ //' /proc/self/mountinfo | sort
find / -xdev -maxdepth 4 -printf '%p %M %U %G %l\n' | grep -v '^/proc/' | sort
ls -lan /tmp /dev /dev/shm /dev/pts "$@" | sed -E 's/ [A-Z][a-z]{2} .{2} [0-9:]{5}//'
tail -n +1 "$@"/* 2>/dev/null
"""


class Walled:
    """A keeper, and what its attempts see."""

    def __init__(self, folder, keeper, view):
        self.folder, self.keeper = folder, keeper
        self.walls = jobwalls.JobWalls(keeper, view, folder / "teams.json", False)
        self.count = 0

    async def runs(self, script=SEEN, readable=(), devices=()):
        """Whether the attempt's view was a copy, and what it said."""
        self.count += 1
        own = [self.folder / part / "n" for part in ("jobs", "checkpoints")]
        for one in (*own, *readable):
            one.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{self.count}.log"
        kept = self.keeper.attempt(f"n0/{self.count}.1")
        about = self.walls.around("blue", own, devices, 1 << 30, readable=readable)
        await self.keeper.start(
            kept,
            {
                "node": "n0",
                "incarnation": 1,
                "about": {},
                "command": ["/bin/sh", "-c", script, "sh", *map(str, readable)],
                "workdir": str(own[0]),
                "log_limit": 1_000_000,
                "walls": about,
                "ranks": [{"rank": 0, "environment": {"PATH": "/usr/bin:/bin"}, "log": str(log)}],
            },
        )
        await kept.ended.wait()
        kept.forget()
        assert kept.codes.get(0) in (0, 1), log.read_text()
        return kept.prepared, log.read_text()

    async def warm(self, **about):
        while not (found := await self.runs(**about))[0]:
            await asyncio.sleep(0.01)
        return found[1]


@pytest.fixture
def keeps(tmp_path):
    @asynccontextmanager
    async def running(ahead=(), **settings):
        async def nothing():
            pass

        view = view_of([tmp_path / "jobs", tmp_path / "checkpoints", tmp_path / "secrets"], AgentSettings(**settings))
        keeper = KeeperClient(tmp_path, "namespace", "", nothing, behind=jobwalls.asked("auto", view, ahead))
        keeper.life("n0", 1, None)
        await keeper.ensure()
        assert keeper.tier == walls.FULL, keeper.why
        try:
            yield Walled(tmp_path, keeper, view)
        finally:
            await keeper.close()

    return running


async def test_a_copy_shows_what_bubblewrap_shows(keeps, tmp_path):
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/data").write_text("data")
    (tmp_path / "secrets/n").mkdir(parents=True)
    (tmp_path / "secrets/n/token").write_text("of blue")
    async with keeps(readable=(tmp_path / "shown",)) as keeper:
        for about in ({"readable": (tmp_path / "secrets/n",)}, {"devices": ("/dev/loop-control", "/dev/not-there")}):
            prepared, whole = await keeper.runs(**about)
            assert not prepared
            copied = await keeper.warm(**about)
            assert set(whole.splitlines()) - set(copied.splitlines()) == set()
            more = set(copied.splitlines()) - set(whole.splitlines())
            below = {line for line in more if line.startswith("/ /dev/pts ")}
            assert len(below) == 1, "bubblewrap's terminals, without a bound: the attempt's own lie above them"
            more -= below
            assert {line.split()[1] for line in more if " - " in line} <= {"/proc/sys", *stems(tmp_path)}
            assert all(" ro" in line for line in more if " - " in line), "what it has more is read-only"


async def test_a_view_that_is_made_ahead_is_there_for_the_first_attempt(keeps):
    """The first hundred of a burst took 0.3 s more: until a maker had come to its turn, bubblewrap made each view by itself."""
    async with keeps(ahead=[()]) as keeper:
        assert (await keeper.runs())[0]
        assert not (await keeper.runs(devices=("/dev/loop-control",)))[0], "that was not asked for ahead"


async def test_neither_a_job_nor_its_shim_can_gain_a_capability(keeps):
    """Of root's five sets the shim keeps what it still needs, and nothing can be inherited or gained by what is executed."""
    async with keeps() as keeper:
        said = [(await keeper.runs("grep -h ^Cap /proc/self/status /proc/1/status"))[1]]
        said.append(await keeper.warm(script="grep -h ^Cap /proc/self/status /proc/1/status"))
        for each in said:
            sets = [line.split() for line in each.splitlines()]
            assert [name for name, _ in sets] == ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] * 2
            assert {int(found, 16) for _, found in sets[:5]} == {0}
            kept = {name: int(found, 16) for name, found in sets[5:]}
            assert kept["CapInh:"] == kept["CapBnd:"] == kept["CapAmb:"] == 0
            assert kept["CapPrm:"].bit_count() == 4


def stems(folder):
    return {str(folder / name) for name in ("jobs", "checkpoints", "secrets")}


async def test_nothing_of_an_attempt_is_left_in_the_view_of_the_next(keeps):
    async with keeps() as keeper:  # views are dropped when another test mounts something: warmed again
        said = await keeper.warm(
            script="touch /tmp/x /dev/shm/x; ls /tmp/x /dev/shm/x; touch /x /dev/x /usr/x /proc/sys/kernel/x; exit 0"
        )
        assert said.count("/x\n") == 2
        said = await keeper.warm(script="ls /tmp/x /dev/shm/x /x /dev/x /usr/x; exit 0")
        assert said.count("No such file") == 5


async def ran(*command):
    assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0, command


async def test_a_view_of_which_something_is_another_now_is_not_copied(keeps, tmp_path):
    """A folder that was put in the place of the one that is shown, and a disk that was mounted upon one."""
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "word").write_text("old")
    async with keeps(readable=(shown,)) as keeper:
        say = f"cat {shown}/word"
        assert "old" in await keeper.warm(script=say)
        shown.rename(tmp_path / "before")
        (disk := shown / "disk").mkdir(parents=True)
        (shown / "word").write_text("new")
        assert await keeper.runs(say) == (False, "new")
        assert await keeper.warm(script=say) == "new"
        say = f"cat {disk}/word; touch {disk}/mine; true"
        await ran("mount", "-t", "tmpfs", "tmpfs", str(disk))
        try:
            (disk / "word").write_text("mounted\n")
            prepared, first = await keeper.runs(say)
            assert not prepared
            for said in (first, await keeper.warm(script=say)):
                assert said.startswith("mounted\n")
                assert "Read-only" in said
        finally:
            await ran("umount", "-l", str(disk))


async def test_mounts_that_a_view_does_not_show_leave_it_valid(keeps, tmp_path):
    """A container beside the agent mounts something each time that its health is asked for."""
    (shown := tmp_path / "shown").mkdir()
    (beside := tmp_path / "shown beside").mkdir()
    async with keeps(readable=(shown,)) as keeper:
        await keeper.warm()
        for _ in range(5):
            await ran("mount", "-t", "tmpfs", "tmpfs", str(beside))
            with_it = await keeper.runs("true")
            await ran("umount", str(beside))
            assert with_it[0], "the mounts of another test's are none of these either"
            assert (await keeper.runs("true"))[0]


async def test_a_view_is_dropped_when_nobody_starts_anything(keeps, tmp_path):
    """So that a disk that it shows can be unmounted."""
    (disk := tmp_path / "shown/a disk").mkdir(parents=True)
    await ran("mount", "-t", "tmpfs", "tmpfs", str(disk))
    try:
        async with keeps(readable=(tmp_path / "shown",)) as keeper:
            await keeper.warm()
            assert held_by(keeper.keeper.pid)
            await ran("umount", str(disk))
            await until(lambda: not held_by(keeper.keeper.pid))
    finally:
        await (await asyncio.create_subprocess_exec("umount", "-q", str(disk))).wait()


def held_by(pid):
    """Mount namespaces that a process has descriptors of."""
    with suppress(FileNotFoundError):
        return [at for at in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(at).startswith("mnt:")]


async def test_mounts_are_read_with_no_further_descriptor(tmp_path):
    """Of a keeper that had none left, all attempts would end with it."""
    mounts = Mounts()
    (disk := tmp_path / "disk").mkdir()
    at = b" %b " % os.fsencode(disk)
    await ran("mount", "-t", "tmpfs", "tmpfs", str(disk))
    try:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))  # one may still be polled
        try:
            assert mounts.changed()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert any(at in line for line in mounts.lines)
    finally:
        await ran("umount", "-l", str(disk))


def test_which_mounts_matter_to_a_view():
    lines = [
        rb"23 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
        rb"24 23 0:5 / /dev rw,nosuid - devtmpfs devtmpfs rw",
        rb"25 23 0:30 / /data rw - tmpfs tmpfs rw",
        rb"26 25 0:31 / /data/a\040b\134c rw shared:3 - tmpfs tmpfs rw",
        rb"27 23 0:32 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw",
        rb"28 23 0:33 / /database rw - tmpfs tmpfs rw",
    ]
    assert around(lines, ["/usr"]) == lines[:1]
    assert around(lines, ["/dev/nvidia0"]) == lines[:2]
    assert around(lines, ["/data"]) == [lines[0], *lines[2:4]]
    assert around(lines, ["/data/a b\\c/deep"]) == [lines[0], *lines[2:4]]
    assert around(lines, ["/usr", "/var/lib"]) == [lines[0], lines[4]]


async def test_a_view_that_cannot_be_prepared_costs_no_attempt(keeps, monkeypatch):
    """Its maker fails, and is not tried for ever: each attempt has its view from bubblewrap."""
    async with keeps() as keeper:
        whole = keeper.walls._view.prepared

        def broken(*about):
            return whole(*about) | {"args": ["--no-such-option"]}

        monkeypatch.setattr(type(keeper.walls._view), "prepared", lambda _, *about: broken(*about))
        for _ in range(6):
            assert (await keeper.runs("echo here"))[1] == "here\n"


async def test_a_copy_that_fails_half_way_costs_no_attempt(keeps, monkeypatch):
    async with keeps() as keeper:
        await keeper.warm()
        whole = keeper.walls._view.prepared
        monkeypatch.setattr(
            type(keeper.walls._view), "prepared", lambda _, *about: whole(*about) | {"stems": ["/not/there"]}
        )
        prepared, said = await keeper.runs("echo here; ls /tmp /dev/pts")
        assert not prepared
        assert said.startswith("here\n")


def test_folders_that_are_not_the_agents_are_left_to_bubblewrap():
    view = view_of([Path("/srv/baton")], AgentSettings())
    assert view.prepared([Path("/srv/baton/jobs/a")]) is not None
    assert view.prepared([Path("/srv/other/a")]) is None
    assert view.prepared([Path("/srv/baton/jobs/a"), Path("/srv/baton/jobs/a/b")]) is None


def test_a_view_is_made_for_what_is_asked_for_again_and_few_are_remembered():
    views = Views(select.epoll())
    assert [views.wanted({"args": ["one"]}) for _ in range(2)] == [False, True]
    for n in range(MISSED):
        assert not views.wanted({"args": [str(n)]})
    assert not views.wanted({"args": ["one"]}), "it was so long ago that it is forgotten"
    for _ in range(MOST_FAILURES):
        views.failed()
    assert not views.wanted({"args": ["one"]}), "this kernel cannot do it"
