"""Nodes whose accelerators no job gets by the thousandth: their operator says so where nothing holds a job to its share."""

from typing import Any

import pytest

from libs.core.admission.evaluate import AdmissionContext, Admitted, NotAdmitted, evaluate
from libs.core.admission.refusal import RefusalCause
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.scheduling import limits
from schemas.resources import NO_SHARING, SHARING, Inventory
from tests.core.builders import World, job, node
from tests.core.test_admission import fleet, submit
from tests.core.test_admission import node as joined

WHOLE_ONLY = {SHARING: NO_SHARING}


def unshared(name: str, devices: int = 2) -> Inventory:
    return node(name, devices).model_copy(update={"labels": WHOLE_ONLY})


def verdict(resources: dict[str, Any], *events: Any) -> Any:
    return evaluate(submit(resources=resources), "research", AdmissionContext(fleet(*events), limits.room))


@pytest.mark.parametrize("asked", [{"share_milli": 10}, {"share_milli": 500, "types": ("H100",)}])
def test_a_share_is_refused_where_no_node_gives_one(asked: dict[str, Any]) -> None:
    outcome = verdict(asked, joined("a", labels=WHOLE_ONLY), joined("b", 1, model="CPU", labels=WHOLE_ONLY))
    assert isinstance(outcome, NotAdmitted)
    (refusal,) = outcome.refusals
    assert (refusal.why, refusal.reason.field) == (RefusalCause.TYPE, "job.resources.share_milli")
    assert "no node of this pool gives out shares of its accelerators" in refusal.reason.problem


@pytest.mark.parametrize("asked", [{}, {"share_milli": 500, "types": ("CPU",)}])
def test_whole_devices_and_shares_of_processors_are_given_there(asked: dict[str, Any]) -> None:
    outcome = verdict(asked, joined("a", labels=WHOLE_ONLY), joined("b", 1, model="CPU", labels=WHOLE_ONLY))
    assert isinstance(outcome, Admitted)


def test_a_share_is_admitted_where_one_node_gives_one() -> None:
    assert isinstance(verdict({"share_milli": 10}, joined("a", labels=WHOLE_ONLY), joined("b")), Admitted)


def test_shares_are_placed_on_nodes_that_share_and_others_wait() -> None:
    world = World(unshared("a"), node("b", 1))
    first = world.submit(job("j1", share_milli=600))
    second = world.submit(job("j2", share_milli=600))
    whole = world.submit(job("j3"))
    assert (world.nodes_of(first), world.state_of(second), world.nodes_of(whole)) == (["b"], "queued", ["a"])
    state = world.decider.state
    told = explain(state, state.jobs[second], Reasons(state))
    assert told.text == "0 fitting devices are free and it needs 0.6 at once"
