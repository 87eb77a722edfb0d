"""What an agent keeps of a team is removed when the team has left, and nothing else."""

import asyncio
import os
import stat
import threading
from contextlib import asynccontextmanager

import pytest

from schemas.ids import job_id
from schemas.inbox import Released, Started
from schemas.nodes import TEAMS_PER_QUESTION
from services.agent.folders import remove_tree
from services.agent.owners import Owners, Removal
from tests.agent.build import part, rank, spec
from tests.agent.conftest import until
from tests.agent.test_agent import start, world  # noqa: F401 - fixtures
from tests.agent.test_processes import FOREVER
from tests.kit.tasks import beside

SAVED = (
    "import os, pathlib; pathlib.Path(os.environ['BATON_CHECKPOINT_DIR'], 'step-3').write_text('weights'); print('up')"
)
THEIRS, OTHERS = job_id("blue", "theirs"), job_id("green", "others")


@pytest.fixture
def owners(tmp_path):
    return Owners(tmp_path, "main", shared=False)


def saved(root, job, names=("step-3",)):
    (root / job).mkdir()
    for name in names:
        (root / job / name).write_text("weights")


def lies(tmp_path):
    """What lies in an agent's folders of jobs, without the agent's own."""
    return sorted(
        path.relative_to(tmp_path).as_posix()
        for root in ("jobs", "jobs/.agent", "checkpoints")
        for path in (tmp_path / root).glob("job-*")
    )


def all_of(job, attempt=1, team="blue"):
    return [f"checkpoints/{job}", f"jobs/.agent/{job}.{attempt}.{team}", f"jobs/{job}.{attempt}"]


async def runs(world, *parts):  # noqa: F811
    await world.want("n0", *parts)
    for one in parts:
        await world.sees(one, Released)
    await world.want("n0")


async def look(agent):
    followed = agent._followed()
    assert followed is not None
    return await agent.left.look(followed)


async def followed(agent, world):  # noqa: F811
    await until(lambda: (agent._followed() or 0) >= world.seq)


async def forgotten(agent):
    """The keeper knows of no attempt any more, so one of an old job's id may begin there."""
    await until(lambda: not agent.nodes["n0"].view.parts and not agent.launcher.keeper._forgotten)


async def test_all_of_a_team_that_has_left_goes_and_anothers_stays(world, start, tmp_path):  # noqa: F811
    async with start() as agent:
        mine, other = part(spec(SAVED)), part(spec(SAVED), rank("n0-gpu1"), team="green")
        await runs(world, mine, other)
        await followed(agent, world)
        assert await look(agent)
        assert world.asked_who_left[-1] == ("blue", "green")
        assert lies(tmp_path) == sorted(all_of(mine.job_id) + all_of(other.job_id, team="green")), "nobody has left"
        world.left = {"blue", "red"}
        assert await look(agent)
        assert lies(tmp_path) == all_of(other.job_id, team="green")
        assert (agent.left.removed, agent.left.kept, agent.left.ledger_seq) == (1, 0, world.seq)
        assert await look(agent), "it may be asked again"
        assert agent.left.removed == 1
        assert world.asked_who_left[-1] == ("green",)


async def test_an_agent_that_was_off_removes_it_when_it_starts(world, start, tmp_path):  # noqa: F811
    """Also what only the note beside the checkpoints tells of: the attempt was pruned long ago."""
    async with start(keep_attempts=1) as agent:
        long_ago, lately = part(spec(SAVED)), part(spec(SAVED))
        await runs(world, long_ago)
        await runs(world, lately.model_copy(update={"ranks": (rank(epoch=2),)}))
        await followed(agent, world)
        await agent._prune(agent._followed())
        assert lies(tmp_path) == sorted([f"checkpoints/{long_ago.job_id}", *all_of(lately.job_id)])
        assert agent.launcher.owners.jobs("blue").keys() == {long_ago.job_id, lately.job_id}
    world.left = {"blue"}
    async with start() as agent, beside(agent.run_left()):
        await until(lambda: agent.left.ledger_seq)
        assert lies(tmp_path) == []
        assert agent.left.removed == 2


async def test_nothing_is_removed_under_the_feet_of_a_job_that_runs(world, start, tmp_path):  # noqa: F811
    """As on a node that was cut off: the pool has given the job up."""
    async with start() as agent:
        goes_on = part(spec(FOREVER))
        await world.want("n0", goes_on)
        await world.sees(goes_on, Started)
        world.left = {"blue"}
        assert await look(agent)
        assert lies(tmp_path) == all_of(goes_on.job_id)
        assert (agent.left.kept, agent.left.ledger_seq) == (1, None), "so it is not said that nothing is left"
        await world.want("n0")
        await world.sees(goes_on, Released)
        await until(lambda: not agent._runs())
        assert await look(agent)
        assert (lies(tmp_path), agent.left.kept, agent.left.ledger_seq) == ([], 0, world.seq)


async def test_what_a_team_that_came_back_has_saved_stays_however_old_the_answer_is(world, start, tmp_path):  # noqa: F811
    async with start() as agent:
        world.left, world.left_as_of = {"blue"}, world.seq
        new = part(spec(SAVED))
        await runs(world, new)
        await followed(agent, world)
        assert not await look(agent), "this answer was asked for before the job was granted"
        assert lies(tmp_path) == all_of(new.job_id)
        world.left = set()
        world.left_as_of = None
        assert await look(agent)
        assert lies(tmp_path) == all_of(new.job_id)


@asynccontextmanager
async def removing(agent, monkeypatch):
    """Within the block files of teams that have left are being removed, those of the first job at the moment."""
    begun, go, whole = threading.Event(), threading.Event(), agent.launcher.owners.remove

    def slow(*job):
        begun.set()
        assert go.wait(60)
        return whole(*job)

    monkeypatch.setattr(agent.launcher.owners, "remove", slow)
    looking = asyncio.create_task(look(agent))
    try:
        await until(begun.is_set)
        yield
    finally:
        go.set()
    await looking


async def two_of_blue(agent, world):  # noqa: F811
    """Two jobs of a team that has left since, the one first whose files are removed first. Agent and keeper have heard of
    their ends."""
    first, second = sorted((part(spec(SAVED)), part(spec(SAVED))), key=lambda one: one.job_id)
    await runs(world, first)
    await runs(world, second.model_copy(update={"ranks": (rank(epoch=2),)}))
    await followed(agent, world)
    await forgotten(agent)
    world.left = {"blue"}
    return first, second


def granted_again(old):
    """A job of the id of an old one: the team came back, and named it so again."""
    return old.model_copy(update={"ranks": (rank(epoch=3),)})


async def test_what_began_and_ended_while_files_were_removed_stays(world, start, tmp_path, monkeypatch):  # noqa: F811
    async with start() as agent:
        _, second = await two_of_blue(agent, world)
        async with removing(agent, monkeypatch):
            world.left = set()
            await world.want("n0", granted_again(second))
            await until(lambda: len(world.of(second, Released)) == 2)
            await world.want("n0")
            await until(lambda: not agent.nodes["n0"].view.parts)
        assert lies(tmp_path) == all_of(second.job_id)
        assert (tmp_path / "checkpoints" / second.job_id / "step-3").exists()
        assert (agent.left.removed, agent.left.kept) == (1, 0)


async def test_what_would_begin_where_files_are_being_removed_waits_for_that(world, start, tmp_path, monkeypatch):  # noqa: F811
    async with start() as agent:
        first, _ = await two_of_blue(agent, world)
        async with removing(agent, monkeypatch):
            world.left = set()
            await world.want("n0", granted_again(first), part(spec(SAVED), rank("n0-gpu1"), key="another"))
            await until(lambda: len(agent.nodes["n0"].view.parts) == 1)
            await followed(agent, world)
            assert (first.job_id, 1) not in agent.nodes["n0"].view.parts
        await until(lambda: len(world.of(first, Released)) == 2)
        assert set(all_of(first.job_id)) <= set(lies(tmp_path))
        assert (tmp_path / "checkpoints" / first.job_id / "step-3").exists()


def test_where_other_nodes_save_too_a_job_that_begins_again_is_noted_at_once(tmp_path):
    here, there = (Owners(tmp_path, "main", shared=True) for _ in range(2))
    saved(tmp_path, THEIRS)
    here.note({THEIRS: "blue"}, 7)
    here.on_start(THEIRS, "blue", 60, saved=True)
    assert there.remove(THEIRS, "blue", 50) is Removal.NOTED_SINCE, "though it was noted with 7 when it was looked at"
    there.note({THEIRS: "blue"}, 50)
    assert there.jobs("blue") == {THEIRS: 60}, "an agent that has heard of less takes nothing back"
    assert (tmp_path / THEIRS / "step-3").exists()
    assert there.remove(THEIRS, "blue", 60) is Removal.GONE
    assert sorted(path.name for path in (tmp_path / ".agent" / "main").iterdir()) == [".lock"]


def test_what_another_node_begins_while_old_files_are_removed_stays(tmp_path, monkeypatch):
    """The removal of a large folder takes long: it took what was saved meanwhile."""
    here, there = (Owners(tmp_path, "main", shared=True) for _ in range(2))
    saved(tmp_path, THEIRS)
    here.note({THEIRS: "blue"}, 7)

    def slow(folder):
        if folder.exists() and not (tmp_path / THEIRS / "new").exists():
            (tmp_path / THEIRS).mkdir(exist_ok=True)
            here.on_start(THEIRS, "blue", 60, saved=False)
            (tmp_path / THEIRS / "new").write_text("weights")
        remove_tree(folder)

    with monkeypatch.context() as patch:
        patch.setattr("services.agent.owners.remove_tree", slow)
        assert there.remove(THEIRS, "blue", 50) is Removal.NOTED_SINCE
    assert [path.name for path in (tmp_path / THEIRS).iterdir()] == ["new"]
    assert there.jobs("blue") == {THEIRS: 60}
    assert there.remove(THEIRS, "blue", 60) is Removal.GONE


def test_many_that_change_one_note_leave_the_latest(tmp_path):
    """Threads of one agent and of another; who reads it meanwhile never sees half of it."""
    agents = [Owners(tmp_path, "main", shared=True) for _ in range(4)]
    saved(tmp_path, THEIRS)
    agents[0].note({THEIRS: "blue"}, 100_000)
    seen, last, together, over = [], 100_400, threading.Barrier(9), threading.Event()

    def change(agent, first):
        together.wait()
        for seq in range(first, last + 1, 8):
            agent.on_start(THEIRS, "blue", seq, saved=True)

    def read():
        together.wait()
        while not over.is_set():
            seen.append(agents[0].jobs("blue"))

    threads = [threading.Thread(target=change, args=(agents[n % 4], 100_001 + n)) for n in range(8)]
    reader = threading.Thread(target=read)
    for thread in (*threads, reader):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    reader.join()
    order = [found[THEIRS] for found in seen if found]  # none: it was just replaced
    assert order == sorted(order)
    assert agents[1].jobs("blue") == {THEIRS: last}


def test_an_agent_that_is_frozen_with_the_lock_freezes_no_other(owners, tmp_path):
    saved(tmp_path, THEIRS)
    with owners._alone():
        owners.note({THEIRS: "blue"}, 7)
    assert owners.jobs("blue") == {THEIRS: 7}


def test_what_was_noted_is_noted_again_of_a_job_that_begins_again(owners, tmp_path):
    saved(tmp_path, THEIRS)
    owners.note({THEIRS: "blue"}, 7)
    owners.on_start(THEIRS, "blue", 60, saved=True)
    owners.note({THEIRS: "blue"}, 61)
    assert owners.jobs("blue") == {THEIRS: 61}


async def test_where_other_nodes_save_too_what_is_noted_there_counts(world, start, tmp_path):  # noqa: F811
    """Another node's agent knows of grants that this one has not heard of."""
    shared = tmp_path / "shared"
    other = Owners(shared, world.pool, shared=True)
    shared.mkdir()
    old, new = job_id("blue", "old"), job_id("blue", "new")
    saved(shared, old), saved(shared, new, names=())
    async with start(checkpoints=shared) as agent:
        await followed(agent, world)
        other.note({old: "blue"}, world.seq)
        other.note({new: "blue"}, world.seq + 50)
        world.left = {"blue"}
        assert await look(agent)
        assert [path.name for path in shared.glob("job-*")] == [new]
        world.left_as_of = world.seq + 50
        assert await look(agent)
        assert [path.name for path in shared.glob("job-*")] == []
        assert other.teams() == []


async def test_more_teams_than_one_question_takes_are_asked_of_in_several(world, start):  # noqa: F811
    async with start() as agent:
        teams = [f"team-{n:03d}" for n in range(TEAMS_PER_QUESTION + 1)]
        for team in (*teams, "-no-team-is-called-so"):
            agent.launcher.logs.begin(job_id(team, "x"), 1, team)
        await followed(agent, world)
        world.left = set(teams)
        assert await look(agent)
        assert [len(asked) for asked in world.asked_who_left] == [TEAMS_PER_QUESTION, 1]
        assert [*agent.launcher.logs.kept().values()] == ["-no-team-is-called-so"]


async def test_where_nobody_answers_everything_stays(world, start, tmp_path, nats_url):  # noqa: F811
    async with start() as agent:
        mine = part(spec(SAVED))
        await runs(world, mine)
        agent.left._pool = f"{world.pool}-of-an-earlier-version"
        assert not await look(agent)
        assert lies(tmp_path) == all_of(mine.job_id)


def test_of_checkpoints_those_are_noted_that_are_some(owners, tmp_path):
    saved(tmp_path, THEIRS), saved(tmp_path, OTHERS, names=())
    owners.note({THEIRS: "blue", OTHERS: "green", job_id("red", "none"): "red"}, 7)
    assert (owners.teams(), owners.jobs("blue")) == (["blue"], {THEIRS: 7})
    owners.note({THEIRS: "blue"}, 9)
    assert owners.jobs("blue") == {THEIRS: 7}, "once is enough"
    again = Owners(tmp_path, "main", shared=False)
    again.note({THEIRS: "blue"}, 9)
    assert again.jobs("blue") == {THEIRS: 9}, "but a team that came back may have given the id again"
    assert Owners(tmp_path, "west", shared=False).teams() == [], "sequences of another pool say nothing here"
    assert stat.S_IMODE((tmp_path / ".agent").stat().st_mode) == 0o700


def test_links_are_not_followed_and_what_resists_is_told(owners, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "kept").touch()
    saved(tmp_path, THEIRS)
    (tmp_path / THEIRS / "away").symlink_to(outside)
    owners.note({THEIRS: "blue"}, 7)
    assert owners.remove(THEIRS, "blue", 7) is Removal.GONE
    (tmp_path / THEIRS).symlink_to(outside)
    assert owners.remove(THEIRS, "blue", 7) is Removal.RESISTS, "it is no folder of a job's"
    assert (outside / "kept").exists()


def test_a_note_that_is_a_link_or_has_two_names_or_another_name_is_none(owners, tmp_path):
    saved(tmp_path, THEIRS)
    owners.note({THEIRS: "blue"}, 7)
    note = tmp_path / ".agent" / "main" / "blue" / THEIRS
    os.link(note, note.with_name(OTHERS))
    (note.parent / "elsewhere").write_text("7")
    assert owners.jobs("blue") == {}
    note.with_name(OTHERS).unlink()
    assert owners.jobs("blue") == {THEIRS: 7}
    (note.parent.parent / "green").symlink_to(note.parent)
    assert owners.jobs("green") == {}


def test_checkpoints_of_an_earlier_version_are_known_by_their_user(owners, tmp_path):
    for job in (THEIRS, OTHERS):
        saved(tmp_path, job)
    theirs = (tmp_path / THEIRS).stat().st_uid
    owners.note({OTHERS: "green"}, 5)
    owners.note_older(lambda uid: "", 6)
    assert owners.teams() == ["green"], "whose it is, is not known"
    owners.note_older(lambda uid: "blue" if uid == theirs else "", 7)
    assert (owners.jobs("blue"), owners.jobs("green")) == ({THEIRS: 7}, {OTHERS: 5}), "what is noted counts"
