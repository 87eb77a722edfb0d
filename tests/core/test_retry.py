"""Category x budget: which end of an attempt lets its job run again, and who pays."""

from collections import Counter

import pytest

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain, queue_view
from libs.core.scheduling.retry import POLICY, Budget, Ending, classify, decide, in_a_row, used, wait_us
from libs.core.scheduling.retry.losses import FIRST_WAIT_US, GOOD_RUN_US, IN_A_ROW, LONGEST_WAIT_US
from libs.core.state.formats import BACK_OFF_FAILURES, FIRST, NEWEST
from schemas import inbox
from schemas.attempts import Category, Cause, Outcome
from schemas.jobs import JobState, RetryPolicy
from tests.core.builders import World, job, node

S = 1_000_000
FREE = (Category.PREEMPTED, Category.DRAINED)
INFRASTRUCTURE = (Category.NODE_LOST, Category.HARDWARE, Category.REFUSED)
USER = (Category.INPUT_MISSING, Category.OUT_OF_MEMORY, Category.USER_ERROR, Category.DISK_LIMIT)
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
    assert decide(category, {category: 1000}, RetryPolicy(on_lost=0, on_failure=0), 0) is JobState.QUEUED


@pytest.mark.parametrize("category", NEVER)
def test_what_was_meant_is_never_tried_again(category: Category) -> None:
    assert decide(category, {category: 1}, RetryPolicy(on_lost=100, on_failure=100), 0) is POLICY[category].final


@pytest.mark.parametrize("category", USER)
def test_a_failure_of_the_job_costs_the_users_budget_alone(category: Category) -> None:
    retry = RetryPolicy(on_failure=2, on_lost=0)
    assert [decide(category, {category: n}, retry, 0) for n in (1, 2, 3)] == [
        JobState.QUEUED, JobState.QUEUED, JobState.FAILED,
    ]  # fmt: skip
    infrastructure = dict.fromkeys(INFRASTRUCTURE, 50) | dict.fromkeys(FREE, 50)
    assert decide(category, {category: 2} | infrastructure, retry, 50) is JobState.QUEUED


@pytest.mark.parametrize("category", INFRASTRUCTURE)
def test_a_failure_of_what_it_runs_on_costs_no_budget_and_ends_a_job_only_many_times_in_a_row(
    category: Category,
) -> None:
    retry, endings = RetryPolicy(on_failure=0, on_lost=3), {category: 1000} | dict.fromkeys(USER, 50)
    assert decide(category, endings, retry, IN_A_ROW) is JobState.QUEUED
    assert decide(category, endings, retry, IN_A_ROW + 1) is JobState.FAILED


@pytest.mark.parametrize("category", INFRASTRUCTURE)
def test_a_job_that_must_not_run_twice_says_so_and_one_that_bears_more_may_say_so(category: Category) -> None:
    assert decide(category, {category: 1}, RetryPolicy(on_lost=0), 1) is JobState.FAILED
    assert decide(category, {category: 20}, RetryPolicy(on_lost=20), 20) is JobState.QUEUED
    assert decide(category, {category: 21}, RetryPolicy(on_lost=20), 21) is JobState.FAILED


def test_a_good_run_begins_the_count_anew_and_a_short_one_shows_nothing() -> None:
    assert in_a_row(3, GOOD_RUN_US - 1, again=True) == 4
    assert in_a_row(3, GOOD_RUN_US - 1, again=False) == 3
    assert in_a_row(3, GOOD_RUN_US, again=True) == 1
    assert in_a_row(3, GOOD_RUN_US, again=False) == 0


def test_the_first_loss_costs_no_time_and_each_further_one_twice_as_much_up_to_a_bound() -> None:
    assert [wait_us(losses) // S for losses in range(10)] == [0, 0, 5, 10, 20, 40, 80, 160, 300, 300]
    assert wait_us(10_000) == LONGEST_WAIT_US


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
        (Ending(Cause.PART_FAILED, done=False, known=Category.DISK_LIMIT, exit_code=137), Category.DISK_LIMIT),
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
    may_finish = (None, Cause.PREEMPTED, Cause.SUSPENDED, Cause.BUDGET_SPENT)
    assert (category is Category.SUCCESS) == (done and cause in may_finish)


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


def lose(world: World, job_id: str, ran_s: float = 0) -> list:
    """The job's node begins a new life, `ran_s` after it was seen running."""
    (where,) = world.nodes_of(job_id)
    world.started(job_id)
    known = world.decider.state.fleet.nodes[where]
    again = inbox.NodeRegistered(incarnation=known.incarnation + 1, inventory=known.inventory, lease_s=10)
    return world.send(again, after_us=int(ran_s * S) or 1000)


def requeued(events: list):
    return next(e for e in events if e.kind == "job.requeued")


def test_a_job_without_retries_survives_losses_without_end_if_it_has_good_runs(world) -> None:
    single = world.submit(job("single", retry=RetryPolicy(on_failure=0, on_lost=1)))
    for attempt in range(1, 21):
        events = lose(world, single, ran_s=GOOD_RUN_US / S)
        assert closed(events) == (Outcome.LOST, Category.NODE_LOST)
        assert (requeued(events).losses, requeued(events).not_before_us) == (1, None)
        assert world.attempt(single) == attempt + 1


def test_a_job_that_breaks_what_it_runs_on_waits_longer_each_time_and_ends(world) -> None:
    single = world.submit(job("single", retry=RetryPolicy(on_failure=5, on_lost=1)))
    waits = []
    for losses in range(1, IN_A_ROW + 1):
        told = requeued(failed(world, single, category="hardware"))
        assert told.losses == losses
        waits.append((told.not_before_us - world.now_us) // S if told.not_before_us else 0)
        if waits[-1]:
            world.send(inbox.Tick(), after_us=waits[-1] * S - 1000)
            assert world.state_of(single) == "queued"
            world.send(inbox.Tick())
        assert world.attempt(single) == losses + 1
    assert waits == [0, 5, 10, 20, 40, 80, 160, 300]
    events = failed(world, single, category="hardware")
    (ended,) = [e for e in events if e.kind == "job.finished"]
    assert ended.reason.startswith("9 attempts in a row were lost (hardware), none after 10 minutes of work: ")
    assert world.decider.state.finished_by_state == {"failed": 1}


def test_silence_is_no_part_of_a_good_run(world) -> None:
    single = world.submit(job("single"))
    world.started(single)
    (where,) = world.nodes_of(single)
    world.send(inbox.NodeSilent(node=where, incarnation=1, silent_s=6), after_us=60 * S)
    world.send(inbox.NodeLost(node=where, incarnation=1, silent_s=3600), after_us=3600 * S)
    (where,) = world.nodes_of(single)
    events = lose(world, single)
    assert (closed(events), requeued(events).losses) == ((Outcome.LOST, Category.NODE_LOST), 2)


def test_who_waits_after_losses_keeps_no_place_in_its_queue_and_says_why(world) -> None:
    single = world.submit(job("single"))
    lose(world, single)
    lose(world, single)
    other = world.submit(job("other"))
    assert (world.state_of(single), world.state_of(other)) == ("queued", "granted")
    world.send(inbox.Tick(), after_us=FIRST_WAIT_US - 2 * S)
    state = world.decider.state
    told = explain(state, state.jobs[single], Reasons(state))
    assert told.reason == "backing-off"
    assert told.text.startswith(
        "it waits for another 2 s, because it was lost 2 times in a row (in all: node-lost 2 times)"
    )
    assert [(row.job_id, row.reason) for row in queue_view(state, Reasons(state), 9)] == [(single, "backing-off")]
    world.check()
    world.send(inbox.CancelRequested(job_id=single, team="research", reason="enough"))
    assert world.state_of(single) == "ended"
    world.send(inbox.Tick(), after_us=10 * S)


def test_a_job_that_fails_again_and_again_waits_longer_each_time_until_its_budget_is_spent(world) -> None:
    single = world.submit(job("single", retry=RetryPolicy(on_failure=4)))
    waits = []
    for failures in range(1, 5):
        told = requeued(failed(world, single))
        assert (told.failures, told.losses) == (failures, 0)
        waits.append((told.not_before_us - world.now_us) // S if told.not_before_us else 0)
        if waits[-1]:
            state = world.decider.state
            why = explain(state, state.jobs[single], Reasons(state)).text
            assert f"because it failed {failures} times in a row (in all: user-error {failures} times); " in why
            assert f"(failed {failures} times in a row: it is started again in {waits[-1]} s)" in told.reason
            world.send(inbox.Tick(), after_us=waits[-1] * S - 1000)
            assert world.state_of(single) == "queued"
            world.send(inbox.Tick())
        assert world.attempt(single) == failures + 1
    assert waits == [0, 5, 10, 20]
    failed(world, single)
    assert world.decider.state.finished_by_state == {"failed": 1}


def test_a_service_that_ran_well_before_it_failed_is_started_again_at_once(world) -> None:
    single = world.submit(job("single", retry=RetryPolicy(on_failure=100)))
    for attempt in range(1, 6):
        world.started(single)
        world.send(inbox.Tick(), after_us=GOOD_RUN_US)
        told = requeued(failed(world, single))
        assert (told.failures, told.not_before_us) == (1, None)
        assert world.attempt(single) == attempt + 1


def test_losses_and_failures_are_counted_apart(world) -> None:
    single = world.submit(job("single", retry=RetryPolicy(on_failure=5)))
    failed(world, single)
    told = requeued(lose(world, single))
    assert (told.failures, told.losses, told.not_before_us) == (1, 1, None)
    told = requeued(failed(world, single))
    assert (told.failures, told.losses, told.not_before_us) == (2, 1, world.now_us + FIRST_WAIT_US)


def test_while_readers_live_that_know_no_wait_after_failures_nobody_waits_after_them() -> None:
    world = World(node("n0"), node("n1"), allowed=BACK_OFF_FAILURES - 1)
    single = world.submit(job("single", retry=RetryPolicy(on_failure=5)))
    for attempt in range(1, 4):
        told = requeued(failed(world, single))
        assert (told.failures, told.not_before_us) == (0, None)
        assert world.attempt(single) == attempt + 1
    world.check()


def test_while_older_readers_live_nobody_waits_after_losses() -> None:
    world = World(node("n0"), node("n1"), allowed=FIRST)
    single = world.submit(job("single"))
    lose(world, single)
    assert requeued(lose(world, single)).not_before_us is None
    assert world.attempt(single) == 3
    world.check()


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


def test_a_lost_node_and_a_refusal_are_counted_together(world) -> None:
    single = world.submit(job("single"))
    (where,) = world.nodes_of(single)
    world.observe(where, inbox.Refused(job_id=single, attempt=1, reason="stale epoch"))
    (where,) = world.nodes_of(single)
    world.send(inbox.NodeLost(node=where, incarnation=1, silent_s=30))
    assert world.decider.state.jobs[single].losses == 2
    assert world.state_of(single) == "queued"


@pytest.mark.parametrize(("allowed", "losses"), [(NEWEST, 3), (FIRST, 0)])
def test_a_node_that_refuses_again_and_again_costs_a_job_nothing_while_nobody_can_be_told_why(
    allowed: int, losses: int
) -> None:
    """A quarantine that readers of before keep out of the ledger: the job is granted the same device at once."""
    world = World(node("n0"), allowed=allowed)
    single = world.submit(job("single"))
    for number in (1, 2, 3):
        world.send(inbox.Tick(), after_us=LONGEST_WAIT_US)
        world.observe("n0", inbox.Refused(job_id=single, attempt=number, reason="busy", category="hardware"))
    assert world.decider.state.jobs[single].losses == losses


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


@pytest.mark.parametrize(("allowed", "category"), [(NEWEST, Category.DISK_LIMIT), (FIRST, Category.USER_ERROR)])
def test_a_job_that_was_ended_for_its_disk_is_of_a_kind_of_its_own(allowed: int, category: Category) -> None:
    """Unless somebody reads the ledger who knows no such kind."""
    world = World(node("n0"), allowed=allowed)
    single = world.submit(job("single", retry=RetryPolicy(on_failure=1)))
    failed(world, single, exit_code=137, category="user-error", over="disk")
    assert world.decider.state.jobs[single].endings == {category: 1}
    assert world.attempt(single) == 2, "it pays with the job's own budget"
    world.check()
