"""Every event of ledgers that lived, left out, doubled, swapped with the next and told a record later: found, or there is a
reason why nobody can find it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.state import fold
from libs.core.state.model import State
from schemas.ledger import JobQueued, LedgerEvent, LedgerRecord
from tests.core.lives import EVERY, LIVES, records_of
from tests.core.test_verify_lies import report

Records = Sequence[LedgerRecord]
Events = tuple[LedgerEvent, ...]

NEVER_USED = "nothing that follows relied on it"
MAY_WAIT = (
    "a job may wait for ever: that somebody cancelled it, or that it could have been granted, is not in what follows"
)
SAID_ALREADY = "it says what is so already, and counts nothing"
APART = "the two have nothing to do with each other"
ELSEWHERE_MONEY = "what was billed is in the seals of closed periods, which `baton bill verify` recomputes"
IN_TIME = "what relies on it comes later still"

UNSEEN: dict[str, dict[str, str]] = {
    "left out": {
        "job.queued": f"of a job that still waits: {NEVER_USED}; I4 is for those who know what was submitted",
        "job.granted": f"the ledger's last word of a job: {MAY_WAIT}",
        "job.finished": f"of a job that was cancelled while it waited: {MAY_WAIT}",
        "attempt.running": "an attempt may end without having been seen running; a time limit relies on it, and finds it",
        "attempt.checkpointed": f"{NEVER_USED}: the job was not tried again, or had a later one by then",
        "attempt.progress": NEVER_USED,
        "gang.promised": NEVER_USED,
        "job.boost-ended": "an operator ended it and raised the job again",
        "node.silent": "the first: that a node is silent, and which leases have ended, may be told in one",
        "board.recut-withdrawn": "the node may have answered late instead",
        "quota.set": f"{NEVER_USED}: nobody reached the limit",
        "team.left": f"{NEVER_USED}: nodes keep files",
        "queues.applied": f"{NEVER_USED}: nobody reached a limit; who comes first is not told by a ledger",
        "prices.applied": ELSEWHERE_MONEY,
        "period.closed": f"the last one: {NEVER_USED}",
        "budget.holds-renewed": "a hold that ran out is found by a tick later: none came in that life",
        "budget.reached": f"a warning: {NEVER_USED}",
        "lease.granter": "the last one: leases themselves are not in the ledger",
        "plan.declined": NEVER_USED,
        "input.rejected": NEVER_USED,
        "segment.sealed": "the last one: where the ledger lies now is seen by whoever reads on",
        "device.returned": f"the last one, or before a new life of its node: {NEVER_USED}",
        "devices.reserved": "what the cycle keeps free is its own, and told for the accounts",
        "devices.fragmented": "what the cycle could not place is its own, and told for the accounts",
        "operator.acted": "a hole in a book: `baton audit verify` shows it, and its lines may still be told",
        "command.refused": NEVER_USED,
        "ledger.summed": "the last one, or one of two that are told",
    },
    "doubled": {
        "gang.promised": SAID_ALREADY,
        "devices.reserved": SAID_ALREADY,
        "devices.fragmented": SAID_ALREADY,
        "job.boosted": f"{SAID_ALREADY}, as long as the budget has another",
        "quota.set": SAID_ALREADY,
        "team.suspended": SAID_ALREADY,
        "plan.declined": SAID_ALREADY,
        "operator.acted": "a line may be told again, as it was",
        "command.refused": "a service that was killed tells it again",
        "ledger.summed": "history proposes it again; the first of a number counts",
    },
    "swapped": {
        "lease.granter": APART,
        "node.joined": APART,
        "node.left": f"{APART}: what is granted next is on other nodes",
        "attempt.stopping": f"{APART}: two jobs",
        "job.requeued": f"{APART}: a job, and what is not of it",
        "job.granted": f"{APART}: two jobs, other devices",
        "job.finished": f"{APART}: the end of a job, and what its node does next",
        "device.quarantined": f"{APART}: two devices",
        "gang.promised": f"{APART}: another gang, or an end that frees nothing yet",
        "devices.reserved": f"{APART}: two gangs",
        "budget.holds-renewed": f"{APART}: a warning",
        "budget.reached": APART,
        "board.recut": f"{APART}: what is told to be of no use",
        "clock.jumped": "it tells of its record's time, wherever it stands in it",
    },
    "later": {
        "node.joined": IN_TIME,
        "quota.set": IN_TIME,
        "queues.applied": IN_TIME,
        "prices.applied": IN_TIME,
        "period.closed": IN_TIME,
        "job.queued": IN_TIME,
        "job.granted": IN_TIME,
        "job.boosted": IN_TIME,
        "job.finished": "of a job that was cancelled while it waited: it waits a moment longer",
        "attempt.running": IN_TIME,
        "attempt.stopping": "of a suspension: the operator may have asked for it a moment later",
        "team.suspended": IN_TIME,
        "team.left": IN_TIME,
        "attempt.checkpointed": IN_TIME,
        "attempt.progress": IN_TIME,
        "gang.promised": IN_TIME,
        "plan.declined": SAID_ALREADY,
        "lease.granter": IN_TIME,
        "node.silent": IN_TIME,
        "node.heard": IN_TIME,
        "device.quarantined": IN_TIME,
        "node.cordoned": IN_TIME,
        "devices.reserved": IN_TIME,
        "devices.fragmented": IN_TIME,
        "device.returned": IN_TIME,
        "operator.acted": IN_TIME,
        "command.refused": IN_TIME,
        "ledger.summed": "it says up to which record it is",
    },
}
"""Change -> kind of event -> why some such changes cannot be found."""


def left_out(events: Events, at: int) -> Events:
    return events[:at] + events[at + 1 :]


def doubled(events: Events, at: int) -> Events:
    return (*events[: at + 1], *events[at:])


def swapped(events: Events, at: int) -> Events:
    return (*events[:at], events[at + 1], events[at], *events[at + 2 :]) if at + 1 < len(events) else events


def changed_ledgers(records: Records, change: str) -> Iterator[tuple[LedgerEvent, Records]]:
    """Each event, and the ledger in which it was changed."""
    within = {"left out": left_out, "doubled": doubled, "swapped": swapped}
    for n, record in enumerate(records):
        for at, event in enumerate(record.events):
            out = list(records)
            if change in within:
                out[n] = record.model_copy(update={"events": within[change](record.events, at)})
            elif n + 1 < len(records):
                out[n] = record.model_copy(update={"events": left_out(record.events, at)})
                out[n + 1] = records[n + 1].model_copy(update={"events": (*records[n + 1].events, event)})
            if out[n].events != record.events:
                yield event, out


@cache
def sweep(change: str) -> tuple[int, list[tuple[LedgerEvent, Records]]]:
    """How often a change of this kind is found, over all lives, and where it is not."""
    changed = [one for life in EVERY for one in changed_ledgers(records_of(life), change)]
    unseen = [(event, told) for event, told in changed if report(told).ok]
    return len(changed) - len(unseen), unseen


@pytest.mark.parametrize("change", UNSEEN)
def test_every_change_is_found_or_there_is_a_reason(change: str) -> None:
    seen, missed = sweep(change)
    unseen = Counter(event.kind for event, _ in missed)
    assert unseen.keys() == UNSEEN[change].keys(), f"{change}: {dict(unseen)} are not found, {seen} are"
    assert seen > len(missed)


def in_pieces(records: Records, *, marked: bool) -> list[LedgerRecord]:
    """Each record's events as a record of their own, as of decisions that are too large for one: the inbox's offset moves with
    the last. `marked`: all but the last say that there is more."""
    out: list[LedgerRecord] = []
    for record in records:
        before = out[-1].inbox_seq if out else 0
        for n, event in enumerate(record.events, 1):
            inbox_seq = record.inbox_seq if n == len(record.events) else before
            more = marked and n < len(record.events)
            out.append(record.model_copy(update={"events": (event,), "inbox_seq": inbox_seq, "more": more}))
        if not record.events:
            out.append(record)
    return out


@pytest.mark.parametrize("life", [life for life in LIVES if life != "summed"])  # a sum names records by their place
def test_a_decision_in_several_records_is_no_violation(life: str) -> None:
    found = report(in_pieces(records_of(life), marked=True)).violations
    assert [v for v in found if "rejects inbox message" not in v] == []  # a rejection ends its piece


def test_a_decision_that_fits_one_record_is_one_record() -> None:
    found = report(in_pieces(records_of("every end"), marked=False)).violations
    assert {v.split(" ")[0] for v in found if "limbo" in v or "does not leave" in v} == {"I3", "I5", "I8"}


def test_what_several_records_promise_is_kept_before_the_next_input() -> None:
    told = in_pieces(records_of("every end"), marked=True)
    at = next(n for n, record in enumerate(told) if record.events[-1].kind == "node.left")
    assert "the node does not leave" in str(report(told[:at] + told[at + 1 :]).violations)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_no_lie_ends_the_checker(chance: Random) -> None:
    """Events of several ledgers, shuffled, about each other's jobs and devices: it may find anything, and never raises."""
    records = [record for life in EVERY for record in records_of(life)]
    jobs = [event.job_id for record in records for event in record.events if isinstance(event, JobQueued)]
    told = []
    for record in chance.sample(records, 60):
        events = [event for other in chance.sample(records, 2) for event in other.events if chance.random() < 0.7]
        events = [
            event.model_copy(update={"job_id": chance.choice(jobs)}) if "job_id" in type(event).model_fields else event
            for event in events
        ]
        told.append(record.model_copy(update={"events": (*record.events, *events)}))
    report(told)


def refused(records: Records) -> str:
    """Why the fold that placement runs on stops at these records; empty: it takes them."""
    state = State()
    for record in records:
        try:
            fold.apply_record(state, record)
        except (ValueError, KeyError, AssertionError) as error:
            return repr(error)
    return ""


@pytest.mark.parametrize("change", UNSEEN)
def test_what_the_fold_refuses_the_checker_names(change: str) -> None:
    """They share no code. Whoever is stricter is right."""
    _, unseen = sweep(change)
    assert [f"{event.kind}: {why}" for event, told in unseen if (why := refused(told))] == []
