"""Credits: what attempts paid for and lost, each with its cause; by hand, and within what was billed."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from libs.core.billing.accounts import Account, Accounts, Posting
from libs.core.billing.credited import CreditedTime
from libs.core.billing.credits import EVERYTHING, Credit, CreditCause, Credits
from libs.core.scheduling import preemption
from libs.core.state.formats import UNCREDITED
from schemas import inbox
from schemas import ledger as led
from schemas.attempts import Category
from schemas.jobs import Checkpoint, PromiseCause, StartPromise
from schemas.ledger import GangPromised, LedgerRecord
from tests.core.builders import World, job, node
from tests.core.lives import EVERY, S, records_of

T0_US = 1_790_000_000 * S


def credits_of(
    records: tuple[LedgerRecord, ...] | list[LedgerRecord], policy: dict[CreditCause, int] | None = None
) -> tuple[list[Credit], list[Posting]]:
    books, credit, out, posted = Accounts(), Credits(EVERYTHING if policy is None else policy), [], []
    for seq, record in enumerate(records, 1):
        made = books.apply(record, seq)
        posted += made
        out += credit.apply(record, seq, made)
    return out, posted


def lost_node() -> World:
    """The example of docs/billing.md."""
    w = World()
    w.now_us = T0_US

    def at(seconds: int, *messages: Any) -> None:
        w.send(*messages, after_us=T0_US + seconds * S - w.now_us)

    at(0, inbox.NodeRegistered(incarnation=1, inventory=node("n0", 2), lease_s=10))
    at(10, train := job("train", 2, submitted_us=T0_US))
    saved = inbox.CheckpointTaken(job_id=train.job_id, attempt=1, checkpoint=Checkpoint(step=5, reference="s3://5"))
    at(
        50,
        inbox.NodeObserved(
            node="n0", incarnation=1, observations=(inbox.Started(job_id=train.job_id, attempt=1), saved)
        ),
    )
    at(116, inbox.NodeSilent(node="n0", incarnation=1, silent_s=6))
    at(141, inbox.NodeLost(node="n0", incarnation=1, silent_s=31))
    w.check()
    return w


def test_the_example_of_the_documentation() -> None:
    world = lost_node()
    found, posted = credits_of(world.records)
    by_cause, by_account = Counter[str](), Counter[str]()
    for credit in found:
        by_cause[credit.cause.value] += credit.unit_us
        assert (credit.posting.team, credit.posting.attempt) == ("research", 1)
        assert "silent for 31.0 s" in credit.why
    for p in posted:
        by_account[p.account.value] += p.unit_us
    text = (Path(__file__).parents[2] / "docs" / "billing.md").read_text()
    example = text.partition("### Example\n\nA node with two")[2].partition("\n### ")[0]
    told = dict(re.findall(r"^\| `?([a-z-]+)`? \|.*?([\d ]+?)(?:: what existed)? \|$", example, re.M))
    said = {name: int(amount.replace(" ", "")) for name, amount in told.items()}
    assert said == {**by_account, **by_cause, "all": by_account.total()}


def test_the_policy_says_how_much_of_each_cause_is_credited() -> None:
    found, _ = credits_of(lost_node().records, {CreditCause.NODE_LOST: 500})
    assert {credit.cause for credit in found} == {CreditCause.NODE_LOST}
    assert sum(credit.unit_us for credit in found) == 7000 * 31 * S


@pytest.mark.parametrize("saves", [False, True])
def test_giving_way_without_a_checkpoint_is_credited(saves: bool) -> None:
    w = World(node("n0"))
    low = w.submit(job("low", 8))
    w.started(low)
    w.send(after_us=50 * S)
    w.submit(job("urgent", 8, team="vision", priority=100, preempts=True))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    if saves:
        w.checkpointed(low, 7)
    w.released(low, exit_code=143, own_exit=False)
    found, posted = credits_of(w.records)
    lost = sum(p.unit_us for p in posted if p.job_id == low and p.account is Account.BILLED)
    assert sum(credit.unit_us for credit in found) == (0 if saves else lost)
    assert {credit.cause for credit in found} <= {CreditCause.PREEMPTED_UNSAVED}


def test_giving_way_to_a_job_of_its_own_team_is_credited_nothing() -> None:
    """Else a team computes for days, keeps its results, and then has itself preempted by what it submits."""
    w = World(node("n0"))
    low = w.submit(job("low", 8))
    w.started(low)
    w.send(after_us=50 * S)
    w.submit(job("urgent", 8, team=w.decider.state.jobs[low].team, priority=100, preempts=True))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    w.released(low, exit_code=143, own_exit=False)
    assert any(p.job_id == low and p.account is Account.BILLED for p in credits_of(w.records)[1])
    assert credits_of(w.records)[0] == []


def test_while_a_reader_would_credit_it_nothing_says_that_it_is_not() -> None:
    """Bills of readers of both versions are the same."""
    w = World(node("n0"), allowed=UNCREDITED - 1)
    low = w.submit(job("low", 8))
    w.submit(job("urgent", 8, team=w.decider.state.jobs[low].team, priority=100, preempts=True))
    (plan,) = preemption.plans(w.decider.state, w.now_us, len(w.records))
    w.send(plan)
    said = inbox.Released(job_id=low, attempt=1, exit_code=1, own_exit=True, category=Category.HARDWARE, unproven=True)
    w.observe("n0", said)
    told = [event for record in w.records for event in record.events]
    assert [event.for_own_team for event in told if isinstance(event, led.AttemptPreempting)] == [False]
    assert [event.unproven for event in told if isinstance(event, led.DevicesFreed)] == [False]


@pytest.mark.parametrize("unproven", [False, True])
def test_a_fault_of_which_only_the_job_speaks_is_credited_nothing(unproven: bool) -> None:
    """A job that prints "GPU is lost" and exits with 1 had all its time given back. It runs again all the same."""
    w = World(node("n0", 2), node("n1", 2))
    gang = w.submit(job("gang", 4))
    w.started(gang)
    w.send(after_us=50 * S)
    for name, said in (("n0", unproven), ("n1", not unproven)):  # what fails first counts
        w.observe(
            name,
            inbox.Released(
                job_id=gang, attempt=1, exit_code=1, own_exit=True, category=Category.HARDWARE, unproven=said
            ),
        )
    found, posted = credits_of(w.records)
    billed = sum(p.unit_us for p in posted if p.attempt == 1 and p.account is Account.BILLED)
    assert billed
    assert sum(credit.unit_us for credit in found) == (0 if unproven else billed)
    assert w.decider.state.jobs[gang].endings == {Category.HARDWARE: 1}


@pytest.mark.parametrize("life", EVERY)
def test_nobody_is_credited_more_than_was_billed(life: str) -> None:
    found, posted = credits_of(records_of(life))
    billed: Counter[tuple[str, int, str, int]] = Counter()
    for p in posted:
        billed[p.job_id, p.attempt, p.device, p.end_us] += p.unit_us
    for credit in found:
        p = credit.posting
        billed[p.job_id, p.attempt, p.device, p.end_us] -= credit.unit_us
        assert p.attempt
        assert credit.why
    assert min(billed.values(), default=0) >= 0


def test_a_job_that_ends_well_is_credited_nothing() -> None:
    w = World(node("n0"))
    runs = w.submit(job("runs", 2))
    w.started(runs)
    w.released(runs)
    assert credits_of(w.records)[0] == []


def test_a_job_that_starts_later_than_promised_has_as_much_of_its_time_given_back() -> None:
    promised = StartPromise(start_us=100 * S, p50_us=90 * S, p90_us=95 * S)
    put_off = promised.model_copy(update={"start_us": 900 * S, "cause": PromiseCause.FAULT})
    policy = promised.model_copy(update={"start_us": 118 * S, "cause": PromiseCause.HIGHER_CLASS})
    for told, late_s in (
        ((promised,), 20),
        ((promised, put_off), 20),
        ((promised, policy), 2),
        ((policy, put_off), 2),
        ((), 0),
    ):
        w = World(node("n0"))
        w.send(after_us=120 * S - w.now_us - 1000)
        runs = w.submit(job("runs", 2))
        w.started(runs)
        w.send(after_us=60 * S)
        w.released(runs)
        records = list(w.records)
        queued = next(n for n, r in enumerate(records) if any(e.kind == "job.queued" for e in r.events))
        said = tuple(GangPromised(job_id=runs, promise=one) for one in told)
        events = [x for e in records[queued].events for x in ((e, *said) if e.kind == "job.queued" else (e,))]
        records[queued] = records[queued].model_copy(update={"events": tuple(events)})
        found, _ = credits_of(records)
        assert sum(credit.unit_us for credit in found) == 2 * 7000 * late_s * S
        assert {credit.cause for credit in found} == ({CreditCause.PROMISE_BROKEN} if late_s else set())


def test_what_is_forgotten_while_a_snapshot_is_written_does_not_end_it() -> None:
    kept = CreditedTime(recent=100)
    for seq, record in enumerate(lost_node().records, 1):
        kept.apply(record, seq, {})
    rows = iter(kept.dump()["recent"])
    first = next(rows)
    kept.forget(2**62)
    assert [first, *rows], "the snapshot has them still"
    assert not kept.recent
