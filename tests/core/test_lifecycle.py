"""The lifecycle, pair by pair: what each event does in each state of a job and of its attempt."""

import typing
from itertools import product

import pytest

from libs.core.state import lifecycle
from libs.core.state.lifecycle import ACTIVE, OPEN, PREEMPTIBLE, TABLE, UNDECIDED, AttemptState, Forbidden
from schemas import ledger as led
from schemas.attempts import Outcome
from schemas.ids import job_id
from schemas.jobs import Checkpoint, JobState
from schemas.resources import Claim

JOB = job_id("research", "one")
KINDS: tuple[type, ...] = typing.get_args(typing.get_args(led.LedgerEvent)[0])
OF_JOBS: tuple[type, ...] = typing.get_args(led.EventOfJob)
CLAIM = Claim(device="n0-gpu0", node="n0", milli=1000, memory_mib=1, epoch=1)
CHECKPOINT = Checkpoint(step=1, reference="r")


def event(kind: type, state: JobState = JobState.FAILED) -> led.EventOfJob:
    """One event of a type, about `JOB`; `state` is where `job.finished` leads."""
    fields = {
        "job_id": JOB, "attempt": 1, "node": "n0", "devices": ("n0-gpu0",), "claims": (CLAIM,), "reason": "",
        "checkpoint": CHECKPOINT, "beneficiary": JOB, "plan_id": "p", "cause": "cancelled", "evidence": "released",
        "outcome": Outcome.LOST, "state": state,
    }  # fmt: skip
    return kind.model_construct(**{name: value for name, value in fields.items() if name in kind.model_fields})


def spelt(text: str) -> set[tuple[str, str, str]]:
    """Lines `event: from -> to`, several states parted by `|`; `-` is none, `=` the state before."""
    out = set()
    for line in filter(None, (line.strip() for line in text.splitlines())):
        kind, _, rest = line.partition(": ")
        before, _, after = rest.partition(" -> ")
        out |= {(kind, b, b if a == "=" else a) for b, a in product(before.split("|"), after.split("|"))}
    return out


JOBS = spelt("""
    job.queued: - -> queued
    job.granted: queued -> granted
    attempt.starting: granted|starting -> starting
    attempt.running: granted|starting -> running
    attempt.checkpointed: granted|starting|running|preempting|stopping -> =
    attempt.progress: granted|starting|running -> =
    attempt.preempting: granted|starting|running -> preempting
    attempt.stopping: granted|starting|running|preempting -> stopping
    devices.freed: granted|starting|running|preempting|stopping -> =
    attempt.closed: granted|starting|running|preempting|stopping -> =
    job.requeued: granted|starting|running|preempting|stopping -> queued
    job.finished: queued -> cancelled
    job.finished: granted|starting|running|preempting|stopping -> succeeded|failed|cancelled
    devices.held: queued -> =
    hold.released: queued -> =
    gang.promised: queued -> =
    job.boosted: queued|granted|starting|running|preempting|stopping -> =
    job.boost-ended: queued|granted|starting|running|preempting|stopping -> =
""")
ATTEMPTS = spelt("""
    job.queued: - -> -
    job.granted: - -> granted
    attempt.starting: granted|starting -> starting
    attempt.running: granted|starting -> running
    attempt.checkpointed: granted|starting|running|preempting|stopping -> =
    attempt.progress: granted|starting|running -> =
    attempt.preempting: granted|starting|running -> preempting
    attempt.stopping: granted|starting|running|preempting -> stopping
    devices.freed: granted|starting|running|preempting|stopping -> =
    attempt.closed: granted|starting|running|preempting|stopping -> closed
    job.requeued: - -> -
    job.finished: - -> -
    devices.held: - -> -
    hold.released: - -> -
    gang.promised: - -> -
    job.boosted: -|granted|starting|running|preempting|stopping -> =
    job.boost-ended: -|granted|starting|running|preempting|stopping -> =
""")


def kind_of(event_type: type) -> str:
    return event_type.model_fields["kind"].default


def test_the_table_has_a_rule_for_every_kind_of_event_and_for_nothing_else() -> None:
    assert set(TABLE) == set(KINDS)
    assert len(KINDS) >= 19


def test_exactly_the_events_of_jobs_move_something() -> None:
    assert {kind for kind in KINDS if TABLE[kind] != lifecycle.Rule()} == set(OF_JOBS)
    assert {kind for kind in KINDS if "job_id" in kind.model_fields} == set(OF_JOBS)
    for kind in OF_JOBS:
        assert TABLE[kind].job is not None, kind
        assert TABLE[kind].attempt is not None, kind
        assert lifecycle.of_job(event(kind)) is not None


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(OF_JOBS), key=kind_of), ids=kind_of)
def test_an_event_of_no_job_touches_neither(kind: type) -> None:
    assert lifecycle.of_job(kind.model_construct()) is None


@pytest.mark.parametrize("before", [None, *JobState], ids=str)
@pytest.mark.parametrize("kind", OF_JOBS, ids=kind_of)
def test_every_pair_of_event_and_state_of_a_job(kind: type, before: JobState | None) -> None:
    found = set()
    for wanted in JobState if kind is led.JobFinished else [JobState.FAILED]:
        try:
            after = lifecycle.job_after(event(kind, wanted), before)
        except Forbidden:
            continue
        found.add((kind_of(kind), before or "-", after))
    assert found == {pair for pair in JOBS if pair[:2] == (kind_of(kind), before or "-")}


@pytest.mark.parametrize("before", [None, *AttemptState], ids=str)
@pytest.mark.parametrize("kind", OF_JOBS, ids=kind_of)
def test_every_pair_of_event_and_state_of_an_attempt(kind: type, before: AttemptState | None) -> None:
    found = set()
    for job in (None, *JobState):  # the attempt's half of the table does not depend on the job's
        try:
            _, after = lifecycle.after(event(kind), job, before)
        except Forbidden:
            continue
        found.add((kind_of(kind), before or "-", after or "-"))
    assert found == {pair for pair in ATTEMPTS if pair[:2] == (kind_of(kind), before or "-")}


@pytest.mark.parametrize("kind", OF_JOBS, ids=kind_of)
def test_allows_says_beforehand_what_after_does(kind: type) -> None:
    for job, attempt in product([None, *JobState], [None, *AttemptState]):
        possible = False
        for wanted in JobState:
            try:
                lifecycle.after(event(kind, wanted), job, attempt)
            except Forbidden:
                continue
            possible = True
        assert lifecycle.allows(kind, job, attempt) is possible, (kind, job, attempt)


def test_nothing_follows_the_end_of_a_job_or_of_an_attempt() -> None:
    for kind in OF_JOBS:
        assert not any(lifecycle.allows(kind, state, None) for state in JobState if state.terminal), kind
        assert not any(lifecycle.allows(kind, job, AttemptState.CLOSED) for job in JobState), kind


def test_while_an_attempt_is_open_its_job_says_where_it_is() -> None:
    """From `granted` on, whatever events come that do not close the attempt, both have the same state."""
    both = {(JobState.GRANTED, AttemptState.GRANTED)}
    waiting = list(both)
    while waiting:
        now = waiting.pop()
        for kind in OF_JOBS:
            if lifecycle.allows(kind, *now) and kind is not led.AttemptClosed:
                then = lifecycle.after(event(kind), *now)
                if then not in both:
                    both.add(then)
                    waiting.append(then)
    assert {(job.value, attempt.value if attempt else "") for job, attempt in both if job} == {
        (state.value, state.value) for state in OPEN
    }


def test_every_state_can_be_reached_and_every_open_one_can_end() -> None:
    jobs, attempts = {None}, {None}
    for _ in range(20):
        jobs |= {JobState(after) for _, before, after in JOBS if (None if before == "-" else before) in jobs}
        attempts |= {
            AttemptState(after)
            for _, before, after in ATTEMPTS
            if after != "-" and (None if before == "-" else before) in attempts
        }
    assert jobs == {None, *JobState} - {JobState.REJECTED}, "rejected is admission's: it never enters a ledger"
    assert attempts == {None, *AttemptState}
    for state in OPEN:
        assert lifecycle.allows(led.AttemptClosed, JobState(state), state)
        assert lifecycle.allows(led.JobFinished, JobState(state), None)


def test_the_named_sets_are_what_the_table_says() -> None:
    assert {JobState(s) for s in OPEN} == ACTIVE
    assert set(TABLE[led.AttemptPreempting].job or ()) == PREEMPTIBLE
    assert set(TABLE[led.AttemptPreempting].attempt or ()) == UNDECIDED
    assert set(TABLE[led.AttemptClosed].attempt or ()) == OPEN


def test_where_an_event_leads_is_the_same_for_readers_that_keep_no_states() -> None:
    for kind in OF_JOBS:
        for before in TABLE[kind].job or ():
            for wanted in JobState:
                try:
                    after = lifecycle.job_after(event(kind, wanted), before)
                except Forbidden:
                    continue
                assert (lifecycle.leads_to(event(kind, wanted)) or before) == after


def test_a_refusal_names_the_job_the_event_the_state_and_what_would_do() -> None:
    with pytest.raises(Forbidden) as refused:
        lifecycle.after(event(led.AttemptRunning), JobState.STOPPING, AttemptState.STOPPING)
    assert str(refused.value) == (
        f"{JOB}: attempt.running is not allowed when it is stopping; allowed from granted, starting"
    )
    with pytest.raises(Forbidden, match=r"job\.finished to succeeded is not allowed when it is queued"):
        lifecycle.after(event(led.JobFinished, JobState.SUCCEEDED), JobState.QUEUED, None)
    with pytest.raises(Forbidden, match="is not allowed when it is no open attempt"):
        lifecycle.after(event(led.DevicesFreed), JobState.RUNNING, None)
