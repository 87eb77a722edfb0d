"""A rejection never names a job that is not its own: followers would take it for the job's end. No server."""

from libs.core.admission.evaluate import AdmissionContext
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.intake import Intake, IntakeLimits
from libs.core.admission.refusal import RefusalCause
from libs.core.scheduling import limits
from libs.core.state.ended import KEPT_US
from schemas import ids
from schemas import ledger as led
from schemas.jobs import JobSpec
from services.admission.handlers import AdmissionResult, Recent, handle
from tests.admission.test_handlers import CONTEXT, GOOD, judged, received, rejection
from tests.core.test_admission import TWO_LEAVES, record

BAD = {"client_key": "run-1", "job": {"command": ["x"], "priority_class": "vip"}}
MALFORMED = {"client_key": "run-1", "job": {}}


def test_a_second_request_under_the_key_of_a_job_does_not_name_it() -> None:
    recent = Recent()
    assert handle(received(GOOD), {"main": CONTEXT}, recent).result is AdmissionResult.ADMITTED
    for body in (BAD, MALFORMED):
        told = rejection(handle(received(body), {"main": CONTEXT}, recent))
        assert (told.job_id, told.client_key) == ("", "run-1")
        assert rejection(judged(body)).job_id == ids.job_id("research", "run-1")  # nobody else has the key


def test_a_job_for_which_there_was_no_room_is_refused_by_its_name_when_it_comes_again_and_counted_once() -> None:
    """It never was in an inbox: whoever follows it by its id must hear of its end."""
    recent = Recent()
    intake = Intake({"research": IntakeLimits(submits_per_s=0.001, burst=1)})
    empty = {"main": AdmissionContext(FleetShape(), limits.room)}
    large = {"client_key": "run-1", "job": {"command": ["x"], "resources": {"devices": 4096}}}
    first = handle(received(large), empty, recent, intake)
    assert (first.result, first.job) == (AdmissionResult.ADMITTED, ids.job_id("research", "run-1"))
    assert handle(received(large), empty, recent, intake).job == ""  # it was sent before
    recent.put_off(first.job)
    again = handle(received(large), {"main": CONTEXT}, recent, intake)
    assert again.result is AdmissionResult.REJECTED
    assert rejection(again).job_id == first.job


def test_a_job_that_the_ledger_shows_is_remembered_by_the_ledger_alone() -> None:
    """A backlog of 50,000 was kept twice."""
    recent = Recent()
    context = AdmissionContext(FleetShape(), limits.room)
    context.fleet.apply(record(*TWO_LEAVES), 1)
    job = handle(received(GOOD), {"main": context}, recent).job
    assert list(recent) == [job]
    context.fleet.apply(
        record(
            led.JobQueued(
                job_id=job, team="research", spec=JobSpec(command=("python", "train.py")), spec_hash="0" * 64,
                client_key="run-1", priority=1, preempts=False, submitted_us=1,
            )
        ),
        2,
    )  # fmt: skip
    recent.shown(job)
    assert not list(recent)
    assert handle(received(GOOD), {"main": context}, recent).job == ""
    assert rejection(handle(received(BAD), {"main": context}, recent)).job_id == ""


def test_a_refused_cancel_names_no_job() -> None:
    job = ids.job_id("research", "run-1")
    context = AdmissionContext(FleetShape(), limits.room)
    assert rejection(handle(received({"job_id": job, "extra": 1}, what="cancel"), {"main": context})).job_id == ""


def test_a_request_from_before_the_window_of_client_keys_is_refused_and_names_no_job() -> None:
    """Its job may have run and be forgotten: an answer that names it would be taken for its end."""
    stored_us = received(GOOD).time_us
    context = AdmissionContext(FleetShape(), limits.room)
    within, beyond = stored_us + KEPT_US, stored_us + KEPT_US + 3_600_000_000
    context.fleet.apply(record(*TWO_LEAVES).model_copy(update={"t_us": within}), 1)
    assert handle(received(GOOD), {"main": context}).result is AdmissionResult.ADMITTED
    context.fleet.apply(record().model_copy(update={"t_us": beyond}), 2)
    for body, why in ((GOOD, RefusalCause.TOO_OLD), (BAD, RefusalCause.TOO_OLD), (MALFORMED, RefusalCause.MALFORMED)):
        handled = handle(received(body), {"main": context})
        assert handled.whys[0] is why
        assert rejection(handled).job_id == ""
    (reason,) = rejection(handle(received(GOOD), {"main": context})).reasons
    assert "169.0 hours ago" in reason.problem
    assert "168.0 hours" in reason.problem
