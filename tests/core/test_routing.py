"""Which pool gets a request: one answer, the same when it is asked again."""

from typing import Any

import pytest

from libs.core.admission.evaluate import AdmissionContext, Admitted, NotAdmitted, Repeated
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.refusal import RefusalCause
from libs.core.admission.routing import Pools, home_of, route
from libs.core.scheduling import limits
from libs.core.state.ended import DAY_US, KEPT_US
from schemas.ids import content_hash, job_id
from schemas.ledger import JobQueued, LedgerRecord
from schemas.requests import SubmitJob
from schemas.resources import Inventory
from tests.core.builders import node


def pool(*nodes: Inventory) -> AdmissionContext:
    return AdmissionContext(FleetShape.of(nodes, {}), limits.room)


def request(key: str = "k", pool: str | None = None, **resources: Any) -> SubmitJob:
    return SubmitJob.model_validate(
        {"client_key": key, "job": {"command": ["x"], "pool": pool, "resources": resources}}
    )


def queued(context: AdmissionContext, submit: SubmitJob, team: str = "red") -> None:
    """The pool's ledger shows the job."""
    event = JobQueued(
        job_id=job_id(team, submit.client_key), team=team, spec=submit.job, client_key=submit.client_key, priority=1,
        spec_hash=content_hash(submit.model_dump_json().encode()), preempts=False, submitted_us=0,
    )  # fmt: skip
    record = LedgerRecord(pool="x", prev_seq=0, prev_hash="", inbox_seq=0, t_us=0, writer="w", events=(event,))
    context.fleet.apply(record, 1)


@pytest.fixture
def pools() -> dict[str, AdmissionContext]:
    """East has 8 H100, west 4 H100 and 4 L4."""
    return {
        "east": pool(node("e1", 8, model="H100")),
        "west": pool(node("w1", 4, model="H100"), node("w2", 4, model="L4", memory_gib=24)),
    }


def chosen(pools: Pools, submit: SubmitJob) -> str:
    routed = route(submit, "red", pools, {})
    assert isinstance(routed.verdict, Admitted)
    return routed.pool


def refused(pools: Pools, submit: SubmitJob) -> NotAdmitted:
    verdict = route(submit, "red", pools, {}).verdict
    assert isinstance(verdict, NotAdmitted)
    return verdict


def test_a_job_goes_to_the_pool_that_can_hold_it(pools: Pools) -> None:
    assert chosen(pools, request(types=["L4"])) == "west"
    assert chosen(pools, request(devices=8, types=["H100"])) == "east"


def test_of_several_the_one_with_the_most_suitable_devices_and_of_equals_the_first(pools: Pools) -> None:
    assert chosen(pools, request(types=["H100"])) == "east"
    assert chosen(pools, request(types=["H100", "L4"])) == "east"
    assert chosen({"west": pools["west"], "east": pools["east"]}, request(types=["H100", "L4"])) == "west"
    assert chosen({"west": pools["west"], "east": pools["east"]}, request(types=["H100"])) == "east"


def test_a_named_pool_judges_alone(pools: Pools) -> None:
    assert chosen(pools, request(pool="west", types=["H100"])) == "west"
    verdict = refused(pools, request(pool="east", types=["L4"]))
    assert {refusal.why for refusal in verdict.refusals} == {RefusalCause.TYPE}
    assert "pool west" not in verdict.refusals[0].reason.problem


def test_an_unknown_pool_is_refused_with_those_that_there_are(pools: Pools) -> None:
    (refusal,) = refused(pools, request(pool="wets")).refusals
    assert (refusal.why, refusal.reason.field, refusal.reason.value) == (RefusalCause.POOL, "job.pool", "wets")
    assert "did you mean west?" in refusal.reason.fix
    assert "east, west" in refusal.reason.fix
    (alone,) = refused({"main": pools["east"]}, request(pool="east")).refusals
    assert "use one of: main" in alone.reason.fix


def test_what_no_pool_can_hold_is_told_by_the_nearest(pools: Pools) -> None:
    verdict = refused(pools, request(devices=9, types=["H100"]))
    assert {refusal.why for refusal in verdict.refusals} == {RefusalCause.CAPACITY}
    assert verdict.refusals[0].reason.problem.endswith("(pool east, the nearest of 2)")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"types": ["L4"], "devices": 5}, "this pool has 4 fitting devices"),
        ({"types": ["L4"], "memory_mib": 30_000}, "no acceptable device has so much memory"),
    ],
)
def test_of_pools_that_refuse_for_as_many_reasons_the_one_that_comes_nearer_tells(
    pools: Pools, wanted: dict[str, Any], told: str
) -> None:
    """East has no L4 at all, and comes first."""
    (refusal,) = refused(pools, request(**wanted)).refusals
    assert told in refusal.reason.problem
    assert refusal.reason.problem.endswith("(pool west, the nearest of 2)")


def test_a_pool_without_nodes_comes_last_and_is_better_than_none(pools: Pools) -> None:
    with_new: Pools = {"new": pool(), **pools}
    assert chosen(with_new, request(types=["H100"])) == "east"
    assert chosen(with_new, request(devices=64, types=["H100"])) == "new"


def test_a_repeat_is_the_first_job_whatever_the_pools_have_become(pools: Pools) -> None:
    submit = request(types=["H100"])
    queued(pools["west"], submit)  # east would be chosen for a new one
    routed = route(submit, "red", pools, {})
    assert (routed.pool, routed.verdict) == ("west", Repeated(job_id("red", "k")))
    assert home_of(job_id("red", "k"), pools, {}) == "west"
    assert route(submit, "blue", pools, {}).pool == "east", "the same key of another team is another job"


def test_another_body_under_a_key_is_refused_by_the_pool_that_has_the_job(pools: Pools) -> None:
    queued(pools["west"], request(types=["L4"]))
    for other in (request(types=["H100"]), request(types=["L4"], pool="east"), request(pool="nowhere")):
        routed = route(other, "red", pools, {})
        assert routed.pool == "west"
        assert isinstance(routed.verdict, NotAdmitted)
        assert next(refusal.why for refusal in routed.verdict.refusals) is RefusalCause.CLIENT_KEY


def test_a_job_that_was_just_sent_to_a_pool_stays_there(pools: Pools) -> None:
    submit = request(types=["H100"])
    recent = {job_id("red", "k"): "west"}
    routed = route(submit, "red", pools, recent)
    assert routed.pool == "west"
    assert isinstance(routed.verdict, Admitted)
    assert home_of(job_id("red", "k"), pools, {job_id("red", "k"): "gone"}) is None


def test_a_request_that_one_pool_may_have_forgotten_goes_to_no_other(pools: Pools) -> None:
    """The pool with the shorter memory refuses for all: the other would run the job a second time."""
    submit = request()
    assert isinstance(route(submit, "red", pools, {}, 50).verdict, Admitted)
    pools["west"].fleet.ended.forgotten_us = 100
    for named in (submit, request(pool="east")):
        verdict = route(named, "red", pools, {}, 50).verdict
        assert isinstance(verdict, NotAdmitted)
        assert RefusalCause.TOO_OLD in {refusal.why for refusal in verdict.refusals}
    assert isinstance(route(submit, "red", pools, {}, 101).verdict, Admitted)
    queued(pools["east"], submit)
    assert isinstance(route(submit, "red", pools, {}, 50).verdict, Repeated), "a job that is known is known"


def test_requests_are_taken_when_the_brokers_clock_was_set_back_by_more_than_ids_are_kept(
    pools: dict[str, AdmissionContext],
) -> None:
    """Its machine had begun in a year to come. Each request was older than what is remembered, for good."""
    ledger_us = 30_000 * DAY_US
    shown_us = ledger_us - 365 * DAY_US
    for name, context in list(pools.items()):
        record = LedgerRecord(
            pool="x", prev_seq=0, prev_hash="", inbox_seq=0, t_us=ledger_us, wall_us=shown_us, writer="w", events=()
        )
        context.fleet.apply(record, 1)
        pools[name] = AdmissionContext(FleetShape.load(context.fleet.dump()), limits.room)
    assert isinstance(route(request(), "red", pools, {}, shown_us).verdict, Admitted)
    verdict = route(request(), "red", pools, {}, shown_us - KEPT_US - DAY_US).verdict
    assert isinstance(verdict, NotAdmitted)
    (refusal,) = verdict.refusals
    assert refusal.why is RefusalCause.TOO_OLD
    assert "stored 192.0 hours ago" in refusal.reason.problem
