"""Jobs of a class without network go where nodes can take it from them; where none can, they are refused or told why they
wait."""

from typing import Any

import pytest

from libs.core.admission.evaluate import AdmissionContext, Admitted, NotAdmitted, evaluate
from libs.core.admission.priority_class import PriorityClass
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.scheduling import limits
from libs.core.state.snapshot import dump, load
from schemas.inbox import NodeRegistered
from schemas.jobs import JobSpec, Network
from schemas.requests import SubmitJob
from schemas.resources import WALLS, Inventory, Resources
from tests.core.builders import World, job, node
from tests.core.test_admission import fleet
from tests.core.test_admission import node as joined

LONELY = PriorityClass(name="lonely", priority=1, preempts=False, network=Network.NONE, description="x")
OPEN = PriorityClass(name="open", priority=1, preempts=False, description="x")


def of(tier: str | None, name: str = "a") -> Inventory:
    """A node whose agent tells this tier; None: it tells none."""
    return node(name).model_copy(update={"labels": {WALLS: tier} if tier else {}})


def asked(klass: PriorityClass, *tiers: str | None, **resources: Any) -> Admitted | NotAdmitted:
    nodes = [joined(f"n{i}", labels={WALLS: tier} if tier else {}) for i, tier in enumerate(tiers)]
    context = AdmissionContext(fleet(*nodes), limits.room, {klass.name: klass})
    spec = JobSpec(command=("x",), priority_class=klass.name, resources=Resources(**resources))
    judged = evaluate(SubmitJob(client_key="k", job=spec), "red", context)
    assert isinstance(judged, Admitted | NotAdmitted)
    return judged


@pytest.mark.parametrize("tiers", [("full",), ("namespaces",), (None,), ("none", "full")], ids=str)
def test_it_is_admitted_where_a_node_can_take_its_network(tiers: tuple[str | None, ...]) -> None:
    judged = asked(LONELY, *tiers)
    assert isinstance(judged, Admitted)
    assert judged.job.resources.labels == {}, "what its class demands is not written into its request"


def test_it_is_refused_where_no_node_can() -> None:
    judged = asked(LONELY, "none", "none")
    assert isinstance(judged, NotAdmitted)
    assert [(r.reason.field, r.reason.value) for r in judged.refusals] == [("job.priority_class", "lonely")]
    assert "no node of this pool can take it from them" in judged.refusals[0].reason.problem
    assert isinstance(asked(OPEN, "none", "none"), Admitted)


def test_what_its_team_asks_for_counts_besides() -> None:
    judged = asked(LONELY, "full", labels={"site": "west"})
    assert isinstance(judged, NotAdmitted)
    (refused,) = judged.refusals
    assert refused.reason.field == "job.resources.labels.site"
    assert "baton.network-none" not in refused.reason.fix, "nobody can ask for it"


def lonely(name: str, devices: int = 1) -> Any:
    return job(name, devices).model_copy(update={"network": Network.NONE})


def test_it_is_placed_where_its_network_can_be_taken() -> None:
    w = World(of("none", "a"), of("full", "b"))
    jobs = [w.submit(lonely(f"j{i}", 4)) for i in range(2)]
    assert [w.nodes_of(one) for one in jobs] == [["b"], ["b"]]
    waits = w.submit(lonely("waits"))
    assert w.nodes_of(w.submit(job("open"))) == ["a"]
    assert w.state_of(waits) == "queued"


def test_who_waits_for_such_a_node_is_told_so() -> None:
    w = World(of("none"))
    waits = w.submit(lonely("waits"))
    state = w.decider.state
    told = explain(state, state.jobs[waits], Reasons(state))
    assert (told.reason, told.text) == ("labels", "its class has no network, and no usable node can take it from a job")
    assert told.suggestion == "use a class with network, or ask the operators for nodes with walls around jobs"
    assert load(dump(state)).state.jobs[waits].shape == state.jobs[waits].shape
    w.send(NodeRegistered(incarnation=1, inventory=of("full", "b"), lease_s=10))
    assert w.nodes_of(waits) == ["b"]


def test_a_node_that_tells_no_tier_is_asked_as_before() -> None:
    w = World(of(None))
    assert w.nodes_of(w.submit(lonely("j"))) == ["a"]
