"""What a node says is read within its bounds, however wrong it is. No server."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from libs.ledger.inputs import MAX_INPUT_BYTES, InboxItem, read_input
from libs.ledger.tail import Stored
from libs.ledger.writer import MAX_RECORD_BYTES
from schemas.catalog import TYPE_OF
from schemas.inbox import NodeObserved, NodeRegistered, Released, Started
from schemas.jobs import JobState
from schemas.nodes import DeviceSample
from schemas.queries import JobListQuery
from schemas.subjects import node_inbox

JOB = "job-" + "0" * 32
LONG = "9" * 4300


def error(what: str, model: type, body: Any) -> str:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert len(payload) <= MAX_INPUT_BYTES
    headers = {"ce-type": TYPE_OF[model], "ce-specversion": "1.0", "ce-id": "i", "ce-source": "s"}
    item = read_input(Stored(1, node_inbox(what, "main", "n0"), headers, payload, 0), "main")
    assert item.message is None
    assert len(item.error) <= 2000
    return item.error


def registered(**inventory: Any) -> dict[str, Any]:
    return {"incarnation": 1, "lease_s": 10, "inventory": {"node": "n0", "devices": [], **inventory}}


@pytest.mark.parametrize(
    ("inventory", "named"),
    [
        ({"boards": [{"profiles": [{}] * 80_000}]}, "inventory.boards.0.profiles.0.name: Field required"),
        ({"devices": [{}] * 80_000}, "inventory.devices.0.id: Field required"),
        ({"contents": [1] * 100_000}, "inventory.contents.0: Input should be a valid string"),
        ({"labels": {str(n): n for n in range(20_000)}}, "20000 of its members are wrong"),
    ],
)
def test_one_mistake_after_the_other_is_not_made_ready_to_be_told(inventory: dict[str, Any], named: str) -> None:
    """Seen: ten registrations of 256 KiB with half a million mistakes each held up everybody for a minute."""
    told = error("registered", NodeRegistered, registered(**inventory))
    assert named in told
    assert "and 9" not in told


@pytest.mark.parametrize(
    ("observation", "problem"),
    [
        ({"kind": "released", "exit_code": LONG, "own_exit": True}, "exit_code: Value error, is beyond 64 bits"),
    ],
)
def test_a_number_of_thousands_of_digits_reaches_no_ledger(observation: dict[str, Any], problem: str) -> None:
    body = {"node": "n0", "incarnation": 1, "observations": [{"job_id": JOB, "attempt": 1, **observation}]}
    assert problem in error("observed", NodeObserved, body)


def observed(*observations: dict[str, Any]) -> InboxItem:
    said = [{"job_id": JOB, "attempt": 1, **observation} for observation in observations]
    payload = json.dumps({"node": "n0", "incarnation": 1, "observations": said}).encode()
    headers = {"ce-type": TYPE_OF[NodeObserved], "ce-specversion": "1.0", "ce-id": "i", "ce-source": "s"}
    return read_input(Stored(1, node_inbox("observed", "main", "n0"), headers, payload, 0), "main")


RELEASED = {"kind": "released", "exit_code": 0, "own_exit": True}


def test_observations_of_a_later_versions_kinds_are_left_out_and_the_others_count() -> None:
    item = observed({"kind": "started"}, {"kind": "warmed", "by": 3}, RELEASED, {"kind": "cooled"})
    assert (item.error, item.unknown) == ("", ("warmed", "cooled"))
    assert isinstance(item.message, NodeObserved)
    assert [type(seen) for seen in item.message.observations] == [Started, Released]


@pytest.mark.parametrize("wrong", [{}, {"kind": 7}, {"kind": None}, {"kind": ["warmed"]}, RELEASED | {"exit_code": ""}])
def test_what_is_wrong_beside_an_unknown_kind_is_still_an_error(wrong: dict[str, Any]) -> None:
    for said in (observed(wrong), observed({"kind": "warmed"}, wrong), observed(wrong, {"kind": "warmed"})):
        assert said.message is None
        assert "observations." in said.error


def test_a_sample_has_numbers_that_can_be_shown() -> None:
    """Seen: telemetry answered no question for metrics while a sample had a larger one."""
    with pytest.raises(ValidationError, match="is beyond 64 bits"):
        DeviceSample(device="n0-0", utilization_pct=1, memory_used_mib=10**400)


def test_a_state_that_is_asked_for_often_is_asked_for_once() -> None:
    """Seen: each was a query of its own, and history took gigabytes for a question of 90 KB."""
    query = JobListQuery(states=(JobState.SUCCEEDED, JobState.FAILED) * 4000)
    assert query.states == (JobState.SUCCEEDED, JobState.FAILED)


def test_an_input_fits_a_record() -> None:
    assert MAX_INPUT_BYTES < MAX_RECORD_BYTES / 1.5, "with what a decision says of it"
