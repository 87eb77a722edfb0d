"""Tables by job: those added last, in two generations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.core.state.by_job import LatelyByJob, packed_id, unpacked_id


def test_the_last_ones_are_kept_and_the_oldest_go() -> None:
    lately: LatelyByJob[int] = LatelyByJob(4)
    ids = [f"job-{number:032x}" for number in range(9)]
    for number, job in enumerate(ids):
        lately[job] = number
        kept = list(lately)
        assert kept == ids[max(0, number + 1 - len(kept)) : number + 1]
        assert min(number + 1, 2) <= len(lately) <= 4
    assert lately.get(ids[0]) is None
    assert lately[ids[8]] == 8


def test_one_that_is_added_again_is_newer_and_goes_at_once() -> None:
    lately: LatelyByJob[str] = LatelyByJob(4)
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
