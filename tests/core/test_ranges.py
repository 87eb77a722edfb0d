"""Long lists of names in ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.core.state.ranges import in_ranges


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([f"gpu-{n:02}" for n in range(16)], ["gpu-[00-15]"]),
        ([f"n{n}" for n in range(8, 12)], ["n[8-11]"]),
        (["a1", "a3", "a2", "a7"], ["a[1-3,7]"]),
        ([f"n{n}-gpu{g}" for n in range(2) for g in range(8)], ["n[0-1]-gpu[0-7]"]),
        (["n0-gpu0", "n0-gpu1", "n1-gpu0"], ["n0-gpu[0-1]", "n1-gpu0"]),
        (["n08", "n09", "n10", "n8"], ["n[08-10]", "n8"]),
        (["login", "gpu-1"], ["login", "gpu-1"]),
        (["x"], ["x"]),
        ([], []),
        (["7", "8"], ["[7-8]"]),
    ],
)
def test_names_that_differ_in_a_number_are_a_range(names: list[str], told: list[str]) -> None:
    assert in_ranges(names) == told


@given(st.lists(st.from_regex(r"[a-c]?[0-9]{0,3}-?[0-9]{0,2}", fullmatch=True), max_size=30))
def test_no_name_is_lost_or_made_up(names: list[str]) -> None:
    assert sorted(name for told in in_ranges(names) for name in _spelt(told)) == sorted(set(names))


def _spelt(told: str) -> list[str]:
    begin, bracket, rest = told.partition("[")
    if not bracket:
        return [told]
    spans, _, after = rest.partition("]")
    out = []
    for span in spans.split(","):
        low, _, high = span.partition("-")
        out += [f"{begin}{n:0{len(low)}}" for n in range(int(low), int(high or low) + 1)]
    return [name + end for name in out for end in _spelt(after)]
