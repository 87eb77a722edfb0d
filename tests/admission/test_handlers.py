"""One request: what follows from it. No server."""

import json
from typing import Any

import pytest

from libs.bus.messages import MAX_BYTES
from libs.bus.settle import Received
from libs.core.admission.evaluate import AdmissionContext
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.intake import IDLE_CANCELS, Intake, IntakeLimits
from libs.core.admission.refusal import RefusalCause
from libs.core.scheduling import limits
from libs.ledger.inputs import MAX_INPUT_BYTES, read_input
from libs.ledger.tail import Stored
from schemas import ids, subjects
from schemas import ledger as led
from schemas.envelope import MSG_ID
from schemas.inbox import CancelRequested, JobAdmitted
from schemas.jobs import JobRejected, JobState
from schemas.resources import Level
from services.admission.handlers import AdmissionResult, Handled, busy_answer, handle
from services.admission.one_answer import placed
from tests.core.builders import World, job, node
from tests.core.test_admission import TWO_LEAVES, record

CONTEXT = AdmissionContext(FleetShape(), limits.room)
CONTEXT.fleet.apply(record(*TWO_LEAVES), 1)
GOOD: dict[str, Any] = {"client_key": "run-1", "job": {"command": ["python", "train.py"]}}


def received(
    body: Any,
    *,
    team: str = "research",
    user: str = "ana",
    what: str = "submit",
    seq: int = 7,
    headers: dict[str, str] | None = None,
) -> Received:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Received(
        subject=f"baton.cmd.job.v1.{what}.{team}.{user}", headers=headers or {}, payload=payload, stream="REQUESTS",
        stream_seq=seq, time_us=1_700_000_000_000_000, deliveries=1,
    )  # fmt: skip


def judged(body: Any, **kw: Any) -> Handled:
    return handle(received(body, **kw), {"main": CONTEXT})


def rejection(handled: Handled) -> JobRejected:
    (message,) = (m for m in handled.out if m.subject.startswith("baton.evt."))
    return JobRejected.model_validate_json(message.payload)


def test_what_follows_from_the_largest_request_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a job was admitted whose message to placement was larger than what placement reads. Nobody heard of it again."""
    large = {"client_key": "run-1", "job": {"command": ["python", *["\x01" * 4096] * 10, "\x01" * 2640]}}
    asked = received(large)
    assert MAX_BYTES - 1024 < len(asked.payload) <= MAX_BYTES
    (message,) = handle(asked, {"main": CONTEXT}).out
    assert MAX_BYTES < len(message.payload) <= MAX_INPUT_BYTES
    stored = Stored(1, message.subject, dict(message.headers), message.payload, asked.time_us)
    assert isinstance(read_input(stored, "main").message, JobAdmitted)

    monkeypatch.setattr("services.admission.handlers.MAX_INPUT_BYTES", len(message.payload) - 1)
    refused = handle(asked, {"main": CONTEXT})
    assert (refused.result, refused.whys) == (AdmissionResult.REJECTED, (RefusalCause.LIMIT,))
    assert rejection(refused).job_id == ids.job_id("research", "run-1")
    (reason,) = rejection(refused).reasons
    assert (reason.field, reason.value) == ("job", f"{len(message.payload)} bytes")


def test_a_plain_json_request_is_admitted_to_the_inbox() -> None:
    handled = judged(GOOD)
    (message,) = handled.out
    assert handled.result is AdmissionResult.ADMITTED
    assert message.subject == subjects.inbox("job", "admitted", "main")
    admitted = JobAdmitted.model_validate_json(message.payload)
    assert (admitted.job_id, admitted.team, admitted.user) == (ids.job_id("research", "run-1"), "research", "ana")
    assert (admitted.priority, admitted.submitted_us) == (100, 1_700_000_000_000_000)
    assert message.headers["ce-type"] == "io.baton.job.admitted.v1"
    assert message.headers["ce-source"] == "/baton/main/admission"


def test_a_request_has_one_place_in_the_inbox_however_it_is_judged_and_another_has_another() -> None:
    """The broker stores one message of an id: a job hides no other request of its key, and no cancel its job."""
    vip = {**GOOD, "job": {**GOOD["job"], "priority_class": "vip"}}
    bodies = (
        (GOOD, "submit"),
        (vip, "submit"),
        ({"job": 1}, "submit"),
        ({"job_id": "job-1"}, "cancel"),
        ({}, "cancel"),
    )
    places = [
        {
            placed(received(body, what=what, seq=seq), judged(body, what=what, seq=seq).out, "main")[0].headers[MSG_ID]
            for body, what in bodies
        }
        for seq in (7, 8)
    ]
    assert [len(ids_) for ids_ in places] == [1, 1]
    assert places[0] != places[1]


def test_what_was_answered_has_no_other_answer() -> None:
    asked = received(GOOD)
    handled = handle(asked, {"main": CONTEXT}, answered={ids.answer_id(asked.cause, asked.time_us)})
    assert (handled.result, handled.out) == (AdmissionResult.REPEATED, [])


def test_who_may_send_it_again_takes_no_place() -> None:
    """It is no end: a burst's refusals cost placement nothing, and an inbox that is full keeps none of them from being told."""
    busy = busy_answer(received(GOOD), "main", "INBOX-main is 95% full")
    assert placed(received(GOOD), busy, "main") == busy


def test_a_structured_cloudevent_is_admitted_and_keeps_its_correlation() -> None:
    event = {
        "specversion": "1.0", "id": "1", "source": "/ci", "type": "io.baton.job.submit.v1",
        "correlationid": "build-42", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "data": GOOD,
    }  # fmt: skip
    handled = judged(event, headers={"Content-Type": "application/cloudevents+json"})
    assert handled.result is AdmissionResult.ADMITTED
    assert handled.out[0].headers["ce-correlationid"] == "build-42"
    assert handled.out[0].headers["traceparent"] == event["traceparent"]


def test_a_refused_request_is_answered_with_every_reason() -> None:
    handled = judged({"client_key": "x", "job": {**GOOD["job"], "priority_class": "vip", "env": {"RANK": "1"}}})
    rejected = rejection(handled)
    assert handled.result is AdmissionResult.REJECTED
    assert handled.whys == (RefusalCause.CLASS, RefusalCause.ENVIRONMENT)
    assert [r.field for r in rejected.reasons] == ["job.priority_class", "job.env.RANK"]
    assert rejected.client_key == "x"
    assert handled.out[0].subject == "baton.evt.job.v1.rejected.research"


def test_a_cancel_that_names_a_closed_pool_is_refused() -> None:
    """It went to the first pool, which laid it aside: nobody told who had sent it."""
    cancel = {"job_id": ids.job_id("research", "k")}
    refused = judged({**cancel, "pool": "west"}, what="cancel")
    (reason,) = rejection(refused).reasons
    assert (refused.result, rejection(refused).job_id) == (AdmissionResult.REJECTED, "")
    assert (reason.field, reason.value, "it is closed" in reason.problem) == ("pool", "west", True)
    assert judged({**cancel, "pool": "main"}, what="cancel").result is AdmissionResult.CANCELLED
    assert judged(cancel, what="cancel").result is AdmissionResult.CANCELLED


def test_a_cancel_is_forwarded_and_each_one_counts() -> None:
    job = ids.job_id("research", "run-1")
    first, second = (judged({"job_id": job}, what="cancel", seq=n).out[0] for n in (1, 2))
    asked = CancelRequested.model_validate_json(first.payload)
    assert (asked.job_id, asked.team, asked.user, asked.reason) == (job, "research", "ana", "cancelled by its team")
    assert first.subject == "baton.in.job.v1.cancel-requested.main"
    assert first.headers[MSG_ID] != second.headers[MSG_ID]


def test_malformed_requests_are_answered_when_their_sender_can_tell_which() -> None:
    handled = judged({"client_key": "k", "job": {"comand": ["x"], "resources": {"devices": 0}}, "extra": 1})
    rejected = rejection(handled)
    assert handled.result is AdmissionResult.REJECTED
    assert rejected.job_id == ids.job_id("research", "k")
    fields = {r.field for r in rejected.reasons}
    assert {"job.comand", "job.resources.devices", "extra"} <= fields
    cancel = judged({"job_id": "job-1"}, what="cancel")
    assert (cancel.result, rejection(cancel).job_id) == (AdmissionResult.REJECTED, "")
    share = judged({"client_key": "k", "job": {**GOOD["job"], "resources": {"devices": 2, "share_milli": 500}}})
    assert "set devices to 1" in rejection(share).reasons[0].fix


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"hello",
    "a number": b"7",
    "a list": b"[]",
    "half an object": b'{"client_key": "k", "job": {',
    "not UTF-8": b'{"client_key": "\xff\xfe", "job": {}}',
    "a NUL": b'{"client_key": "a\\u0000b", "job": {"command": ["x"]}}',
    "a lone surrogate": b'{"client_key": "\\ud800", "job": {"command": ["x"]}}',
    "NaN": b'{"client_key": "k", "job": {"command": ["x"], "time_limit_s": NaN}}',
    "infinity": b'{"client_key": "k", "job": {"command": ["x"], "time_limit_s": 1e999}}',
    "a huge number": b'{"client_key": "k", "job": {"command": ["x"], "resources": {"devices": ' + b"9" * 5000 + b"}}}",
    "deep": b'{"client_key": "k", "job": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "deep lists": b"[" * 100_000,
    "a key twice": b'{"client_key": "k", "client_key": "l", "job": {"command": ["x"]}}',
    "too large": b'{"client_key": "k", "job": {"command": ["' + b"x" * 300_000 + b'"]}}',
    "many unknown fields": json.dumps(GOOD | {f"f{i}": 1 for i in range(10_000)}).encode(),
    "a forged team": json.dumps(GOOD | {"team": "other"}).encode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads_are_answered_or_laid_aside_and_never_raise(name: str) -> None:
    handled = judged(HOSTILE[name])
    assert handled.result in (AdmissionResult.REJECTED, AdmissionResult.DEAD)
    rejected = rejection(handled)
    assert rejected.team == "research"
    assert 1 <= len(rejected.reasons) <= 33
    assert len(rejected.model_dump_json()) < 100_000
    if handled.result is AdmissionResult.DEAD:
        assert handled.out[0].subject == "baton.dead.admission.research"
        assert handled.out[0].payload == HOSTILE[name]


@pytest.mark.parametrize("team", ["Research", "a_b", "-", "x" * 63 + "y"])
def test_a_team_that_cannot_be_one_is_laid_aside(team: str) -> None:
    handled = judged(GOOD, team=team)
    sender = team if len(team) <= 63 else "-"  # a subject token, even where it is no team's name
    assert (handled.result, [m.subject for m in handled.out]) == (
        AdmissionResult.DEAD,
        [f"baton.dead.admission.{sender}"],
    )


def test_an_unknown_command_is_told() -> None:
    handled = judged({"client_key": "k"}, what="delete")
    assert handled.result is AdmissionResult.REJECTED
    assert "subject" in rejection(handled).reasons[0].field


def test_headers_of_another_type_are_told() -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "io.baton.job.cancel.v1"}
    assert judged(GOOD, headers=headers).result is AdmissionResult.REJECTED
    assert judged(GOOD, headers={"ce-specversion": "0.3"}).result is AdmissionResult.REJECTED


def test_level_names_reach_the_reasons() -> None:
    body = {
        **GOOD,
        "job": {**GOOD["job"], "resources": {"devices": 24, "topology": {"level": "leaf", "policy": "required"}}},
    }
    handled = judged(body)
    assert handled.whys == (RefusalCause.TOPOLOGY,)
    assert Level.LEAF.value in rejection(handled).reasons[0].problem


def test_a_job_is_refused_for_now_while_open_jobs_have_more_bytes_than_they_may() -> None:
    intake = Intake({"research": IntakeLimits(open_bytes=4_000)})
    context = AdmissionContext(FleetShape(), limits.room)
    context.fleet.apply(record(*TWO_LEAVES), 1)

    def judged_by(key: str, data: str = "") -> Handled:
        body = {"client_key": key, "job": GOOD["job"] | {"env": {"DATA": data}}}
        return handle(received(body), {"main": context}, None, intake)

    admitted = JobAdmitted.model_validate_json(judged_by("run-1", "x" * 4_000).out[0].payload)
    said = admitted.model_dump(include=set(led.JobQueued.model_fields) - {"kind"})
    queued = led.JobQueued.model_validate(said)
    context.fleet.apply(record(queued), 2)
    told = rejection(other := judged_by("run-2"))
    assert other.result is AdmissionResult.LIMITED
    assert "open_bytes" in told.reasons[0].problem
    assert told.retry_after_s is not None
    context.fleet.apply(record(led.JobFinished(job_id=queued.job_id, state=JobState.SUCCEEDED)), 3)
    assert judged_by("run-2").result is AdmissionResult.ADMITTED


def test_a_job_of_one_kind_too_many_is_refused_for_now() -> None:
    """Seen: each of ten thousand jobs of one team asked for something else, and a device that was free again took placement
    1.2 s of the processor."""
    intake = Intake({"research": IntakeLimits(open_kinds=1)})
    context = AdmissionContext(FleetShape(), limits.room)
    context.fleet.apply(record(*TWO_LEAVES), 1)

    def judged_by(key: str, **resources: Any) -> Handled:
        body = {"client_key": key, "job": GOOD["job"] | {"resources": resources}}
        return handle(received(body), {"main": context}, None, intake)

    first = judged_by("run-1", devices=1)
    assert first.result is AdmissionResult.ADMITTED
    admitted = JobAdmitted.model_validate_json(first.out[0].payload)
    said = admitted.model_dump(include=set(led.JobQueued.model_fields) - {"kind"})
    queued = led.JobQueued.model_validate(said)
    context.fleet.apply(record(queued), 2)
    assert judged_by("run-2", devices=1).result is AdmissionResult.ADMITTED
    told = rejection(other := judged_by("run-3", devices=2))
    assert other.result is AdmissionResult.LIMITED
    assert (told.job_id, told.reasons[0].field) == ("", "job.resources")
    assert "open_kinds" in told.reasons[0].problem
    assert told.retry_after_s is not None
    context.fleet.apply(record(led.JobFinished(job_id=queued.job_id, state=JobState.SUCCEEDED)), 3)
    assert judged_by("run-3", devices=2).result is AdmissionResult.ADMITTED


def test_a_reached_limit_is_named_and_ends_no_job() -> None:
    """Nothing is wrong with the request: the same one may come again. One that is too large never will do, and is told so."""
    intake = Intake({"research": IntakeLimits(submits_per_s=0.001, burst=1, request_bytes=2_000)})

    def judged_by(body: Any, **kw: Any) -> Handled:
        return handle(received(body, **kw), {"main": CONTEXT}, None, intake)

    assert judged_by(GOOD).result is AdmissionResult.ADMITTED
    second = judged_by(GOOD | {"client_key": "run-2"})
    assert (second.result, second.whys) == (AdmissionResult.LIMITED, (RefusalCause.LIMIT,))
    told = rejection(second)
    assert (told.job_id, told.client_key) == ("", "run-2")
    assert "submits_per_s" in told.reasons[0].problem
    assert told.retry_after_s is not None
    assert told.retry_after_s > 900, "as long as it takes"
    large = rejection(judged_by({"client_key": "run-3", "job": {"command": ["x" * 3_000]}}))
    assert (large.job_id, large.retry_after_s) == (ids.job_id("research", "run-3"), None)
    assert "request_bytes" in large.reasons[0].problem
    assert judged_by(GOOD | {"client_key": "run-2"}, team="other").result is AdmissionResult.ADMITTED


def test_cancels_that_change_nothing_are_told_when_they_are_too_many() -> None:
    intake, unknown = Intake(), {"job_id": ids.job_id("research", "never")}
    results = [handle(received(unknown, what="cancel"), {"main": CONTEXT}, None, intake) for _ in range(150)]
    assert [each.result for each in results].count(AdmissionResult.CANCELLED) == IDLE_CANCELS
    assert results[-1].result is AdmissionResult.LIMITED
    assert rejection(results[-1]).retry_after_s is not None


def test_who_cancels_jobs_of_another_uses_up_its_own_allowance() -> None:
    """Keys are easily guessed, and so are ids. Of the owner nothing is taken."""
    world = World(node("a", 8))
    jobs = [world.submit(job(f"nightly-{number}", 8, team="green")) for number in range(IDLE_CANCELS + 20)]
    fleet = FleetShape()
    for seq, entry in enumerate(world.records, 1):
        fleet.apply(entry, seq)
    pools, intake = {"main": AdmissionContext(fleet, limits.room)}, Intake()

    def cancels(team: str) -> list[AdmissionResult]:
        asked = [received({"job_id": one}, team=team, what="cancel", seq=n) for n, one in enumerate(jobs, 1)]
        return [handle(each, pools, intake=intake).result for each in asked]

    assert cancels("blue").count(AdmissionResult.LIMITED) == 20
    assert set(cancels("green")) == {AdmissionResult.CANCELLED}
