"""Ids never change: a stored job, a deduplicated event and a hashed record are found by them again."""

import re
from uuid import uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from schemas import ids
from schemas.base import JobId

names = st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True)


def test_ids_are_those_of_the_first_release() -> None:
    assert ids.job_id("research", "nightly-2026-11-21") == "job-66e6053ad2d25a508291178875f8f87d"
    assert ids.event_id("cause-1", "io.baton.job.admitted.v1", "main") == "619455a3-3856-51d2-895f-f8d911d93882"
    assert ids.event_id("cause-1", "io.baton.job.admitted.v1") == "7debf4f0-801f-51a4-a82c-f0cab3841775"
    assert ids.content_hash(b"{}") == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@given(names, st.text(max_size=40))
def test_ids_are_version_5_uuids(team: str, key: str) -> None:
    assert ids.job_id(team, key) == "job-" + uuid5(ids.NAMESPACE, f"job\x1f{team}\x1f{key}").hex
    assert ids.event_id(team, "t", key) == str(uuid5(ids.NAMESPACE, f"event\x1f{team}\x1ft\x1f{key}"))


@given(names, st.text(max_size=40))
def test_a_job_id_is_a_job_id(team: str, key: str) -> None:
    made = ids.job_id(team, key)
    assert TypeAdapter(JobId).validate_python(made) == made == ids.job_id(team, key)


@given(st.tuples(names, names), st.tuples(names, names))
def test_another_team_or_key_is_another_job(one: tuple[str, str], two: tuple[str, str]) -> None:
    assert (ids.job_id(*one) == ids.job_id(*two)) == (one == two)


@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_another_cause_type_or_key_is_another_event(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    assert (ids.event_id(*one) == ids.event_id(*two)) == (one == two)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", ids.event_id(*one))


@given(names, st.integers(min_value=1, max_value=10**9))
def test_attempt_ids_come_apart_again(key: str, attempt: int) -> None:
    job = ids.job_id("research", key)
    assert ids.split_attempt_id(ids.attempt_id(job, attempt)) == (job, attempt)


@pytest.mark.parametrize("text", ["", "job-1", ".1", "job-1.", "job-1.x", "job-1.-1", "job-1. 1", "job-1.٣"])
def test_what_is_no_attempt_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="attempt id"):
        ids.split_attempt_id(text)
