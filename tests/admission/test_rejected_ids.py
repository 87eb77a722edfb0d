"""A rejection never names a job that is not its own: followers would take it for the job's end. No server."""

from libs.core.admission.evaluate import AdmissionContext
from libs.core.admission.fleet_shape import FleetShape
from libs.core.scheduling import limits
from schemas import ids
from services.admission.handlers import AdmissionResult, Recent, handle
from tests.admission.test_handlers import CONTEXT, GOOD, judged, received, rejection

BAD = {"client_key": "run-1", "job": {"command": ["x"], "priority_class": "vip"}}
MALFORMED = {"client_key": "run-1", "job": {}}


def test_a_second_request_under_the_key_of_a_job_does_not_name_it() -> None:
    recent = Recent()
    assert handle(received(GOOD), {"main": CONTEXT}, recent).result is AdmissionResult.ADMITTED
    for body in (BAD, MALFORMED):
        told = rejection(handle(received(body), {"main": CONTEXT}, recent))
        assert (told.job_id, told.client_key) == ("", "run-1")
        assert rejection(judged(body)).job_id == ids.job_id("research", "run-1")  # nobody else has the key


def test_a_refused_cancel_names_no_job() -> None:
    job = ids.job_id("research", "run-1")
    context = AdmissionContext(FleetShape(), limits.room)
    assert rejection(handle(received({"job_id": job, "extra": 1}, what="cancel"), {"main": context})).job_id == ""
