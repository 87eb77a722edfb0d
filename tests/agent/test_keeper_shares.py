"""Cgroups that attempts have one after the other; folders play the kernel's part."""

import os
from pathlib import Path

from services.agent.keeper.shares import MOST_SPARE, Shares


def taken(shares: Shares, folder: Path, weight: int = 100) -> Path:
    group = Path(shares.take(f"{folder}/baton-n0", weight))
    group.mkdir(exist_ok=True)  # as a shim does
    return group


def test_no_two_attempts_have_one_at_a_time(tmp_path: Path) -> None:
    shares = Shares(again=True)
    one, other = taken(shares, tmp_path), taken(shares, tmp_path)
    assert one.name == f"baton-n0-{os.getpid()}-1"
    assert one != other
    shares.give_back(str(one))
    assert taken(shares, tmp_path) == one
    assert taken(shares, tmp_path) not in (one, other)


def test_a_weight_and_a_node_have_their_own(tmp_path: Path) -> None:
    shares = Shares(again=True)
    one = taken(shares, tmp_path)
    shares.give_back(str(one))
    assert taken(shares, tmp_path, weight=200) != one
    assert shares.take(f"{tmp_path}/baton-n1", 100) != str(one)
    assert taken(shares, tmp_path) == one


def test_few_are_kept_and_in_the_end_none(tmp_path: Path) -> None:
    shares = Shares(again=True)
    groups = [taken(shares, tmp_path) for _ in range(MOST_SPARE + 8)]
    for group in groups:
        shares.give_back(str(group))
        shares.give_back(str(group))  # it was given back before
    assert len(list(tmp_path.iterdir())) == MOST_SPARE
    shares.remove()
    assert not list(tmp_path.iterdir())


def test_where_something_may_be_left_in_one_it_is_not_used_again(tmp_path: Path) -> None:
    shares = Shares(again=False)
    one = taken(shares, tmp_path)
    shares.give_back(str(one))
    assert not one.exists()
    shares.give_back("")
    assert taken(shares, tmp_path) != one
