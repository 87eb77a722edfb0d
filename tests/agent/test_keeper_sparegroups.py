"""Cgroups that attempts have one after the other; folders play the kernel's part."""

import os
from pathlib import Path

from services.agent.keeper.sparegroups import LITTLE, MOST_SPARE, MemoryGroups, SpareGroups


def taken(groups: SpareGroups, folder: Path, weight: int = 100) -> Path:
    group = Path(groups.take(f"{folder}/baton-n0", weight))
    group.mkdir(exist_ok=True)  # as a shim does
    return group


def test_no_two_attempts_have_one_at_a_time(tmp_path: Path) -> None:
    groups = SpareGroups(again=True)
    one, other = taken(groups, tmp_path), taken(groups, tmp_path)
    assert one.name == f"baton-n0-{os.getpid()}-1"
    assert one != other
    groups.give_back(str(one))
    assert taken(groups, tmp_path) == one
    assert taken(groups, tmp_path) not in (one, other)


def test_a_weight_has_its_own_and_all_nodes_of_an_agent_the_same(tmp_path: Path) -> None:
    groups = SpareGroups(again=True)
    one = taken(groups, tmp_path)
    groups.give_back(str(one))
    assert taken(groups, tmp_path, weight=200) != one
    assert groups.take(f"{tmp_path}/other/baton-n0", 100) != str(one)
    assert groups.take(f"{tmp_path}/baton-n1", 100) == str(one)


def test_few_are_kept_and_in_the_end_none(tmp_path: Path) -> None:
    groups = SpareGroups(again=True)
    for group in [taken(groups, tmp_path) for _ in range(MOST_SPARE + 8)]:
        groups.give_back(str(group))
        groups.give_back(str(group))  # it was given back before
    assert len(list(tmp_path.iterdir())) == MOST_SPARE
    groups.remove()
    assert not list(tmp_path.iterdir())


def test_what_is_asked_for_no_more_keeps_no_place(tmp_path: Path) -> None:
    groups = SpareGroups(again=True)
    for group in [taken(groups, tmp_path, weight=1 + n) for n in range(MOST_SPARE)]:
        groups.give_back(str(group))
    one = taken(groups, tmp_path, weight=1000)
    groups.give_back(str(one))
    assert taken(groups, tmp_path, weight=1000) == one
    assert len(list(tmp_path.iterdir())) == MOST_SPARE


def test_where_something_may_be_left_in_one_it_is_not_used_again(tmp_path: Path) -> None:
    groups = SpareGroups(again=False)
    one = taken(groups, tmp_path)
    groups.give_back(str(one))
    assert not one.exists()
    groups.give_back("")
    assert taken(groups, tmp_path) != one


LIMIT = 200 << 20


def limited(groups: MemoryGroups, folder: Path, *, taken: int = 0, kills: int = 0) -> Path:
    group = Path(groups.take(f"{folder}/baton-n0", LIMIT))
    group.mkdir(exist_ok=True)
    left_in(group, taken, kills)
    return group


def left_in(group: Path, taken: int, kills: int = 0) -> None:
    (group / "memory.usage_in_bytes").write_text(f"{taken}\n")
    (group / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")


def is_used_again(groups: MemoryGroups, group: Path, *, well: bool = True) -> bool:
    groups.give_back(str(group), well=well)
    return groups.take(f"{group.parent}/baton-n0", LIMIT) == str(group)


def test_a_group_of_memory_in_which_little_is_left_is_used_again(tmp_path: Path) -> None:
    groups = MemoryGroups(again=True)
    group = limited(groups, tmp_path, taken=LIMIT // LITTLE)
    assert is_used_again(groups, group)
    left_in(group, LIMIT // LITTLE + 4096)
    assert not is_used_again(groups, group), "it is looked at after each attempt"


def test_nobody_has_a_group_of_memory_in_which_much_is_left_or_something_was_killed(tmp_path: Path) -> None:
    groups = MemoryGroups(again=True)
    assert not is_used_again(groups, limited(groups, tmp_path, taken=LIMIT // 2))
    assert not is_used_again(groups, limited(groups, tmp_path, kills=1))
    assert not is_used_again(groups, limited(groups, tmp_path), well=False)
    assert not is_used_again(groups, Path(groups.take(f"{tmp_path}/baton-n0", LIMIT))), (
        "its shim did not come to make it"
    )


def test_files_of_groups_of_memory_are_closed_with_them(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    groups = MemoryGroups(again=True)
    for group in [limited(groups, tmp_path) for _ in range(MOST_SPARE + 8)]:
        groups.give_back(str(group))
    assert len(os.listdir("/proc/self/fd")) == before + 2 * MOST_SPARE
    groups.remove()
    assert len(os.listdir("/proc/self/fd")) == before
