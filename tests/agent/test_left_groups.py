"""Cgroups that keepers left which were killed: they go, wherever they lie and whose ever they are. Folders play the kernel's
part: one with a file in it, as a group with a process, is not removed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.agent import tree
from services.agent.keeper import find
from services.agent.left_groups import GroupsOfOurs, kept_agents, remove_left_groups

OURS, DEAD, ALIVE = "0123456789ab", "dead0dead0de", "a11fe0a11fe0"


def make(*groups: Path) -> None:
    for group in groups:
        group.mkdir(parents=True)


def names(top: Path) -> set[str]:
    return {path.name for path in top.rglob("*") if path.is_dir() and not any(path.iterdir())}


def test_groups_of_agents_without_a_keeper_go(tmp_path: Path) -> None:
    base = tmp_path / "cpu" / "baton"
    stays = {f"baton-n0-{OURS}-77-1", f"baton-n0-{ALIVE}-7-1", "baton-vm", "session-1", f"baton-x-{DEAD}0"}
    make(*(base / name for name in stays), base / f"baton-n0-{DEAD}-7-1", base / f"baton-gpu-{ALIVE}-{DEAD}-7-2")
    make(tmp_path / "unified" / "baton" / f"baton-n0-{DEAD}" / "3" / "job-1.1")
    make(busy := base / f"baton-n1-{DEAD}-7-3")
    (busy / "process").touch()
    ours = GroupsOfOurs(OURS, {base})
    assert remove_left_groups((tmp_path / "cpu", tmp_path / "unified"), ours, lambda: {ALIVE, OURS}) == 3
    assert names(tmp_path) == stays | {"baton"}, "the empty group above them is the machine's"
    assert busy.is_dir()


def test_our_own_go_where_we_make_none_any_more(tmp_path: Path) -> None:
    """Seen: an instance was killed and started again in another session. 14 groups stayed in the first one's, which could
    not be removed for them."""
    now, before = tmp_path / "session-2", tmp_path / "session-1"
    make(now / f"baton-n0-{OURS}-7-1", before / f"baton-n0-{OURS}-6-1", before / f"baton-n0-{DEAD}-5-1")
    assert remove_left_groups([tmp_path], GroupsOfOurs(OURS, {now}), lambda: None) == 1
    assert names(tmp_path) == {f"baton-n0-{OURS}-7-1", f"baton-n0-{DEAD}-5-1"}, "who else runs is not known"


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Path]:
    state = tmp_path / "state"
    (state / "agent").mkdir(parents=True)
    found = find.start(state / "agent", "none", "")
    yield state
    found.sock.close()
    find.kill(state / "agent")


def test_who_has_a_keeper_is_known(keeper: Path) -> None:
    """A keeper that is not seen would have its groups taken away under it."""
    kept = kept_agents()
    if os.stat("/proc/self/ns/pid").st_ino != 0xEFFFFFFC:
        assert kept is None
        return
    assert kept is not None
    assert tree.agent_of(keeper) in kept
    find.kill(keeper / "agent")
    assert tree.agent_of(keeper) not in (kept_agents() or ())
