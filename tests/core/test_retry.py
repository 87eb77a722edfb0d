"""Category x budget: which end of an attempt lets its job run again, and who pays."""

from collections import Counter

import pytest

from libs.core.scheduling.retry import POLICY, Budget, Ending, classify, decide, used
from schemas import inbox
from schemas.attempts import Category, Cause, Outcome
from schemas.jobs import JobState, RetryPolicy
from tests.core.builders import World, job, node

FREE = (Category.PREEMPTED, Category.DRAINED)
INFRASTRUCTURE = (Category.NODE_LOST, Category.HARDWARE, Category.REFUSED)
USER = (Category.INPUT_MISSING, Category.OUT_OF_MEMORY, Category.USER_ERROR)
NEVER = (Category.SUCCESS, Category.CANCELLED, Category.TIME_LIMIT)


# ------------------------------------------------------------------------------------------------------------ decide


def test_every_category_has_a_row_and_every_row_is_tested_here() -> None:
    assert set(POLICY) == set(Category)
    rows = {Budget.FREE: FREE, Budget.INFRASTRUCTURE: INFRASTRUCTURE, Budget.USER: USER, Budget.NEVER: NEVER}
    assert {budget: {c for c in POLICY if POLICY[c].budget is budget} for budget in Budget} == {
        budget: set(categories) for budget, categories in rows.items()
    }


@pytest.mark.parametrize("category", FREE)
def test_what_is_nobodys_fault_is_always_tried_again(category: Category) -> None:
    assert decide(category, {category: 1000}, RetryPolicy(on_lost=0, on_failure=0)) is JobState.QUEUED


@pytest.mark.parametrize("category", NEVER)
def test_what_was_meant_is_never_tried_again(category: Category) -> None:
    assert decide(category, {category: 1}, RetryPolicy(on_lost=100, on_failure=100)) is POLICY[category].final


@pytest.mark.parametrize("category", USER)
def test_a_failure_of_the_job_costs_the_users_budget_alone(category: Category) -> None:
    retry = RetryPolicy(on_failure=2, on_lost=0)
    assert [decide(category, {category: n}, retry) for n in (1, 2, 3)] == [
        JobState.QUEUED, JobState.QUEUED, JobState.FAILED,
    ]  # fmt: skip
    infrastructure = dict.fromkeys(INFRASTRUCTURE, 50) | dict.fromkeys(FREE, 50)
    assert decide(category, {category: 2} | infrastructure, retry) is JobState.QUEUED


@pytest.mark.parametrize("category", INFRASTRUCTURE)
def test_a_failure_of_what_it_runs_on_never_costs_the_users_budget_and_is_bounded(category: Category) -> None:
    retry = RetryPolicy(on_failure=0, on_lost=2)
    assert [decide(category, {category: n}, retry) for n in (1, 2, 3)] == [
        JobState.QUEUED, JobState.QUEUED, JobState.FAILED,
    ]  # fmt: skip
    assert decide(category, {category: 2} | dict.fromkeys(USER, 50), retry) is JobState.QUEUED


def test_one_budget_is_shared_by_its_categories() -> None:
    endings = {Category.NODE_LOST: 1, Category.HARDWARE: 2, Category.OUT_OF_MEMORY: 4, Category.PREEMPTED: 8}
    assert {budget: used(budget, endings) for budget in Budget} == {
        Budget.INFRASTRUCTURE: 3, Budget.USER: 4, Budget.FREE: 8, Budget.NEVER: 0,
    }  # fmt: skip


def test_a_job_ends_as_its_last_attempt_was_booked() -> None:
    assert POLICY[Category.SUCCESS].final is JobState.SUCCEEDED
    assert POLICY[Category.CANCELLED].final is JobState.CANCELLED
    assert {POLICY[c].final for c in Category if c not in (Category.SUCCESS, Category.CANCELLED)} == {JobState.FAILED}
    assert {POLICY[c].outcome for c in Category} == set(Outcome)


# ---------------------------------------------------------------------------------------------------------- classify


@pytest.mark.parametrize(
    ("ending", "category"),
    [
        (Ending(None, done=True), Category.SUCCESS),
        (Ending(Cause.PREEMPTED, done=True), Category.SUCCESS),
        (Ending(Cause.CANCELLED, done=True), Category.CANCELLED),
        (Ending(Cause.TIME_LIMIT, done=True), Category.TIME_LIMIT),
        (Ending(Cause.NODE_LEFT, done=False), Category.DRAINED),
        (Ending(Cause.PREEMPTED, done=False, known=Category.OUT_OF_MEMORY, exit_code=137), Category.PREEMPTED),
        (Ending(Cause.CANCELLED, done=False, exit_code=1), Category.CANCELLED),
        (Ending(Cause.PART_LOST, done=False), Category.NODE_LOST),
        (Ending(Cause.PART_LOST, done=False, known=Category.HARDWARE), Category.HARDWARE),
        (Ending(Cause.PART_REFUSED, done=False), Category.REFUSED),
        (Ending(Cause.PART_REFUSED, done=False, known=Category.HARDWARE), Category.HARDWARE),
        (Ending(Cause.PART_REFUSED, done=False, known=Category.USER_ERROR), Category.USER_ERROR),
        (Ending(Cause.PART_FAILED, done=False, exit_code=1), Category.USER_ERROR),
        (Ending(Cause.PART_FAILED, done=False, exit_code=126), Category.USER_ERROR),
        (Ending(Cause.PART_FAILED, done=False, exit_code=127), Category.INPUT_MISSING),
        (Ending(Cause.PART_FAILED, done=False, exit_code=137), Category.OUT_OF_MEMORY),
        (Ending(Cause.PART_FAILED, done=False, exit_code=139), Category.USER_ERROR),
        (Ending(Cause.PART_FAILED, done=False, known=Category.HARDWARE, exit_code=1), Category.HARDWARE),
        (Ending(Cause.PART_FAILED, done=False, known=Category.USER_ERROR, exit_code=137), Category.USER_ERROR),
    ],
)
def test_what_kind_of_end_it_was(ending: Ending, category: Category) -> None:
    assert classify(ending) is category


@pytest.mark.parametrize("cause", [None, *Cause])
@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("code", [None, 0, 1, 126, 137])
def test_every_end_has_a_category(cause: Cause | None, done: bool, code: int | None) -> None:
    category = classify(Ending(cause, done, None, code))
    assert (category is Category.SUCCESS) == (done and cause in (None, Cause.PREEMPTED))


# ----------------------------------------------------------------------------------------------------- in a real pool


@pytest.fixture
def world():
    w = World(node("n0"), node("n1"))
    yield w
    w.check()


def failed(world: World, job_id: str, **told) -> list:
    (where,) = world.nodes_of(job_id)
    fields = {"exit_code": 1, "own_exit": True} | told
    return world.observe(where, inbox.Released(job_id=job_id, attempt=world.attempt(job_id), **fields))


def closed(events: list):
    return next((e.outcome, e.category) for e in events if e.kind == "attempt.closed")


def test_broken_hardware_lets_a_job_without_retries_run_again_until_the_bound_for_losses(world) -> None:
    single = world.submit(job("single", retry=RetryPolicy(on_failure=0, on_lost=2)))
    for attempt in (1, 2):
        events = failed(world, single, category="hardware")
        assert closed(events) == (Outcome.LOST, Category.HARDWARE)
        assert world.attempt(single) == attempt + 1
    failed(world, single, category="hardware")
    assert world.decider.state.finished_by_state == {"failed": 1}


def test_the_budgets_are_counted_apart(world) -> None:
    single = world.submit(job("single", retry=RetryPolicy(on_failure=1, on_lost=1)))
    failed(world, single, category="hardware")
    failed(world, single, exit_code=3)
    assert world.decider.state.jobs[single].endings == {Category.HARDWARE: 1, Category.USER_ERROR: 1}
    assert world.attempt(single) == 3
    failed(world, single, exit_code=137)
    assert world.decider.state.finished_by_state == {"failed": 1}


def test_the_first_part_that_failed_says_why_the_gang_ended(world) -> None:
    gang = world.submit(job("gang", 16, retry=RetryPolicy(on_lost=1)))
    first, second = world.nodes_of(gang)
    key = {"job_id": gang, "attempt": 1}
    world.observe(first, inbox.Released(**key, exit_code=1, own_exit=True, category="hardware"))
    events = world.observe(second, inbox.Released(**key, exit_code=137, own_exit=True, category="out-of-memory"))
    assert closed(events) == (Outcome.LOST, Category.HARDWARE)
    assert world.attempt(gang) == 2


def test_a_part_that_ends_after_it_was_told_to_says_nothing_of_why(world) -> None:
    gang = world.submit(job("gang", 16))
    world.started(gang)
    world.send(inbox.CancelRequested(job_id=gang, team="research", reason="no need"))
    events = []
    for where in world.nodes_of(gang):
        report = inbox.Released(job_id=gang, attempt=1, exit_code=137, own_exit=True, category="out-of-memory")
        events = world.observe(where, report)
    assert closed(events) == (Outcome.CANCELLED, Category.CANCELLED)


def test_a_lost_node_and_a_refusal_cost_the_same_budget(world) -> None:
    single = world.submit(job("single", retry=RetryPolicy(on_lost=1)))
    (where,) = world.nodes_of(single)
    world.observe(where, inbox.Refused(job_id=single, attempt=1, reason="stale epoch"))
    (where,) = world.nodes_of(single)
    world.send(inbox.NodeLost(node=where, incarnation=1, silent_s=30))
    assert world.decider.state.finished_by_state == {"failed": 1}


def test_an_agent_cannot_claim_what_is_placements_to_know() -> None:
    for category in set(Category) - {*USER, Category.HARDWARE}:
        with pytest.raises(ValueError, match="category"):
            inbox.Released(job_id=job("j").job_id, attempt=1, exit_code=1, own_exit=True, category=category)


def test_records_without_a_category_are_counted_by_their_outcome(world) -> None:
    """Written before 0.2; the counts decide about retries as they did then."""
    single = world.submit(job("single", retry=RetryPolicy(on_failure=1, on_lost=1)))
    failed(world, single)
    (where,) = world.nodes_of(single)
    world.observe(where, inbox.Refused(job_id=single, attempt=2, reason="stale epoch"))
    old = World()
    for seq, record in enumerate(world.records, 1):
        events = tuple(
            e.model_copy(update={"category": None}) if e.kind == "attempt.closed" else e for e in record.events
        )
        old.decider.apply(record.model_copy(update={"events": events}), seq)
    assert Counter(old.decider.state.jobs[single].endings) == {Category.USER_ERROR: 1, Category.REFUSED: 1}
