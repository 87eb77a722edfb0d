"""Cgroups that attempts have one after the other; folders play the kernel's part."""

import os
from pathlib import Path

from services.agent.keeper.sparegroups import MOST_SPARE, SpareGroups


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


def test_a_weight_and_a_node_have_their_own(tmp_path: Path) -> None:
    groups = SpareGroups(again=True)
    one = taken(groups, tmp_path)
    groups.give_back(str(one))
    assert taken(groups, tmp_path, weight=200) != one
    assert groups.take(f"{tmp_path}/baton-n1", 100) != str(one)
    assert taken(groups, tmp_path) == one


def test_few_are_kept_and_in_the_end_none(tmp_path: Path) -> None:
    groups = SpareGroups(again=True)
    for group in [taken(groups, tmp_path) for _ in range(MOST_SPARE + 8)]:
        groups.give_back(str(group))
        groups.give_back(str(group))  # it was given back before
    assert len(list(tmp_path.iterdir())) == MOST_SPARE
    groups.remove()
    assert not list(tmp_path.iterdir())


def test_where_something_may_be_left_in_one_it_is_not_used_again(tmp_path: Path) -> None:
    groups = SpareGroups(again=False)
    one = taken(groups, tmp_path)
    groups.give_back(str(one))
    assert not one.exists()
    groups.give_back("")
    assert taken(groups, tmp_path) != one
