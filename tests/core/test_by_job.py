"""Tables by job: as a dict, and those added last, in two generations."""

import tracemalloc
from collections.abc import Iterable, MutableMapping
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.core.state import by_job
from libs.core.state.by_job import ByJob, RecentByJob, packed_id, unpacked_id


def test_the_last_ones_are_kept_and_the_oldest_go() -> None:
    lately: RecentByJob[int] = RecentByJob(4)
    ids = [f"job-{number:032x}" for number in range(9)]
    for number, job in enumerate(ids):
        lately[job] = number
        kept = list(lately)
        assert kept == ids[max(0, number + 1 - len(kept)) : number + 1]
        assert min(number + 1, 2) <= len(lately) <= 4
    assert lately.get(ids[0]) is None
    assert lately[ids[8]] == 8


def test_one_that_is_added_again_is_newer_and_goes_at_once() -> None:
    lately: RecentByJob[str] = RecentByJob(4)
    lately["a"], lately["b"] = "old", "old"
    lately["c"] = "new"  # a and b are the older generation now
    lately["a"] = "new"
    assert dict(lately) == {"b": "old", "c": "new", "a": "new"}
    assert len(lately) == 3
    del lately["a"]
    assert "a" not in lately
    with pytest.raises(KeyError):
        del lately["a"]


@given(st.text("0123456789abcdefABCDEF_+- ٣x", min_size=30, max_size=34))
def test_each_id_comes_back_as_it_was(digits: str) -> None:
    for job_id in (f"job-{digits}", f"JOB-{digits}", digits, f"gob-{digits}"):
        assert unpacked_id(packed_id(job_id)) == job_id


def test_an_id_as_we_make_it_is_a_number() -> None:
    assert packed_id("job-" + "0" * 31 + "a") == 10
    assert packed_id("job-" + "0" * 31 + "A") == "job-" + "0" * 31 + "A"


_NUMBERS = st.one_of(
    st.integers(0, 40), st.integers(0, 2**128 - 1), st.integers(0, 15).map(lambda one: one << 124 | one)
)


@given(st.lists(st.tuples(st.sampled_from(["set", "del", "fill"]), _NUMBERS, st.integers()), max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_by_job_is_a_dict(monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, int, int]]) -> None:
    monkeypatch.setattr(by_job, "_FRESH", 4)
    monkeypatch.setattr(by_job, "_MOST", 8)
    table: ByJob[int] = ByJob()
    as_dict: dict[str, int] = {}
    for what, number, value in steps:
        job_id = unpacked_id(number) if number % 7 else f"other-{number}"
        if what == "del":
            assert (job_id in table) == (job_id in as_dict)
            assert table.pop(job_id, None) == as_dict.pop(job_id, None)
        elif what == "fill":
            rows = sorted((unpacked_id(number ^ one), value + one) for one in range(12))
            table.fill(rows)
            as_dict.update(rows)
        else:
            table[job_id] = as_dict[job_id] = value
        assert len(table) == len(as_dict)
    assert dict(table) == as_dict
    assert table.keys() == as_dict.keys()
    for job_id, value in as_dict.items():
        assert table[job_id] == value
    for job_id in list(as_dict):
        del table[job_id]
        assert job_id not in table
        with pytest.raises(KeyError):
            del table[job_id]
    assert not table


def test_many_jobs_take_less_than_half_of_a_dict() -> None:
    ids = [f"job-{sha256(str(number).encode()).hexdigest()[:32]}" for number in range(20_000)]

    def taken(table: MutableMapping[Any, int], keys: Iterable[Any]) -> int:
        tracemalloc.start()
        for key in keys:
            table[key] = 1
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    # Keys that nobody else holds, as a reader has them.
    assert taken(ByJob(), ids) < taken({}, (int(one[4:], 16) for one in ids)) / 2
