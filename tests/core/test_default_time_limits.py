"""The time limit of a job that says none, and the longest that one may ask for: of its class, and of its team's queue."""

from typing import Any

import pytest

from libs.core.admission.evaluate import AdmissionContext, Admitted, NotAdmitted, Repeated, evaluate
from libs.core.admission.priority_class import DEFAULT_CLASSES
from libs.core.admission.refusal import RefusalCause
from libs.core.billing.pricing import Prices
from libs.core.explain.dry_run import DryRunInputs, dry_run
from libs.core.scheduling import limits
from libs.core.state.queue_tree import QueueTree
from schemas import inbox
from schemas import ledger as led
from schemas.billing import Price, PriceBook
from schemas.explanations import PlanVerdict
from schemas.jobs import JobSpec, Network
from schemas.ledger import JobQueued
from schemas.queues import Queue, QueueOrder
from tests.core.builders import World, job, node
from tests.core.test_admission import TWO_LEAVES, fleet, record, submit

HOUR, DAY = 3_600, 86_400


def judged(job: dict[str, Any], *, klass: dict[str, int] | None = None, queues: tuple[Queue, ...] = ()) -> Any:
    """A job of team vision, which says `job`, where its class says `klass`."""
    shape = fleet(*TWO_LEAVES)
    shape.apply(record(led.QueuesApplied(version=1, queues=queues)), 2)
    classes = {c.name: c.model_copy(update=klass or {}) for c in DEFAULT_CLASSES}
    return evaluate(submit(**job), "vision", AdmissionContext(shape, limits.room, classes))


def queue(name: str, parent: str = "", *, default: int | None = None, longest: int | None = None) -> Queue:
    return Queue(name=name, parent=parent, default_time_limit_s=default, longest_time_limit_s=longest)


@pytest.mark.parametrize(
    ("klass", "queues", "limit_s"),
    [
        ({}, (), 0),
        ({"default_time_limit_s": HOUR}, (), HOUR),
        ({"longest_time_limit_s": DAY}, (), DAY),
        ({"default_time_limit_s": HOUR, "longest_time_limit_s": DAY}, (), HOUR),
        ({"default_time_limit_s": DAY, "longest_time_limit_s": HOUR}, (), HOUR),
        ({}, (queue("vision", default=HOUR),), HOUR),
        ({}, (queue("lab", default=DAY), queue("vision", "lab")), DAY),
        ({}, (queue("lab", default=DAY), queue("vision", "lab", default=HOUR)), HOUR),
        ({}, (queue("lab", longest=DAY), queue("vision", "lab")), DAY),
        ({"default_time_limit_s": DAY}, (queue("vision", default=HOUR),), HOUR),
        ({"default_time_limit_s": HOUR}, (queue("vision", default=DAY),), HOUR),
        ({"default_time_limit_s": DAY}, (queue("vision", longest=HOUR),), HOUR),
        ({}, (queue("language", default=HOUR),), 0),
    ],
)
def test_a_job_that_says_no_limit_gets_the_shorter_default_of_class_and_queue(
    klass: dict[str, int], queues: tuple[Queue, ...], limit_s: float
) -> None:
    outcome = judged({}, klass=klass, queues=queues)
    assert isinstance(outcome, Admitted)
    assert outcome.job.time_limit_s == limit_s


def test_what_a_job_says_itself_holds_up_to_the_longest() -> None:
    klass = {"default_time_limit_s": HOUR, "longest_time_limit_s": DAY}
    for said in (60, DAY):
        outcome = judged({"time_limit_s": said}, klass=klass)
        assert isinstance(outcome, Admitted)
        assert outcome.job.time_limit_s == said


@pytest.mark.parametrize(
    ("klass", "queues", "who"),
    [
        ({"longest_time_limit_s": HOUR}, (), "class experiment"),
        ({}, (queue("lab", longest=HOUR), queue("vision", "lab")), "the queue of team vision"),
        ({"longest_time_limit_s": HOUR}, (queue("vision", longest=DAY),), "class experiment"),
        ({"longest_time_limit_s": DAY}, (queue("vision", longest=HOUR),), "the queue of team vision"),
    ],
)
def test_more_than_the_longest_is_refused_with_who_says_it_and_what_would_do(
    klass: dict[str, int], queues: tuple[Queue, ...], who: str
) -> None:
    verdict = judged({"time_limit_s": HOUR + 1}, klass=klass, queues=queues)
    assert isinstance(verdict, NotAdmitted)
    (refusal,) = verdict.refusals
    assert refusal.why is RefusalCause.TIME_LIMIT
    assert refusal.reason.field == "job.time_limit_s"
    assert refusal.reason.value == "3601"
    assert refusal.reason.problem == f"{who} lets a job run for 3600 s"
    assert refusal.reason.fix.startswith("use at most 3600")


def test_the_same_request_again_is_the_first_job_whatever_the_default_is_by_then() -> None:
    """Its body is what its team sent, not what it became."""
    shape, request = fleet(*TWO_LEAVES), submit()
    context = AdmissionContext(shape, limits.room)
    shape.apply(record(led.QueuesApplied(version=1, queues=(queue("vision", default=HOUR),))), 2)
    first = evaluate(request, "vision", context)
    assert isinstance(first, Admitted)
    queued = JobQueued(
        job_id=first.job_id, team="vision", spec=first.job, spec_hash=first.spec_hash, client_key=request.client_key,
        priority=100, preempts=False, submitted_us=0,
    )  # fmt: skip
    shape.apply(record(queued), 3)
    shape.apply(record(led.QueuesApplied(version=2, queues=(queue("vision", default=DAY),))), 4)
    assert evaluate(request, "vision", context) == Repeated(first.job_id)


def test_other_queues_judge_a_spec_anew() -> None:
    """What was found of a spec is remembered while nothing changes."""
    shape, request = fleet(*TWO_LEAVES), submit(time_limit_s=DAY)
    context = AdmissionContext(shape, limits.room)
    assert isinstance(evaluate(request, "vision", context), Admitted)
    shape.apply(record(led.QueuesApplied(version=1, queues=(queue("vision", longest=HOUR),))), 2)
    assert isinstance(evaluate(request, "vision", context), NotAdmitted)


def test_a_dry_run_judges_as_admission_does() -> None:
    world = World(node("a"))
    world.send(inbox.ApplyQueues(version=1, queues=(queue("vision", longest=HOUR),), reason="r", user="op"))
    spec = job("j1").spec.model_copy(update={"time_limit_s": DAY})
    reply = dry_run(
        world.decider.state,
        spec,
        "vision",
        1,
        DryRunInputs(Prices(PriceBook(currency="EUR", prices=(Price(model="H100", micros_per_device_hour=1),)))),
    )
    assert reply.verdict is PlanVerdict.REFUSED
    assert "the queue of team vision lets a job run for 3600 s" in reply.text


@pytest.mark.parametrize("order", ["fifo", None])
def test_admission_counts_kinds_by_user_only_where_users_share(order: QueueOrder | None) -> None:
    """It forgot what a file says for all queues, and so took jobs of ten users for ten kinds in a pool that is one line."""
    shape = fleet(*TWO_LEAVES)
    shape.apply(record(led.QueuesApplied(version=1, queues=(), order=order)), 2)
    again = type(shape).load(shape.dump())
    for known in (shape, again):
        kinds = {
            known.kind_of("vision", user, JobSpec(command=("true",)), network=Network.HOST, priority=1, preempts=False)
            for user in ("ann", "bob")
        }
        assert len(kinds) == (1 if order == "fifo" else 2)


def test_a_tree_survives_a_snapshot_with_its_limits() -> None:
    tree = QueueTree.of([queue("lab", default=HOUR, longest=DAY), queue("vision", "lab")])
    again = QueueTree.load(tree.dump())
    assert (again.default_time_limit_s("vision"), again.longest_time_limit_s("vision")) == (HOUR, DAY)
