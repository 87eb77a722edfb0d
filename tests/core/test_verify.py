"""The checker finds each kind of violation in a ledger that was tampered with, and none in one that was not."""

import tracemalloc
from random import Random

import pytest

from libs.core.projections.verify import Checker, ended_ids
from libs.core.projections.verify.ended_ids import EndedIds
from libs.core.state.ended import DAY_US, KEPT_US
from schemas import ledger as led
from schemas.attempts import Outcome
from schemas.ids import job_id
from schemas.inbox import QuotaChanged
from schemas.jobs import JobState
from tests.core.builders import World, job, node


@pytest.fixture
def history():
    """A pool's short life: a gang that runs and ends, and a single job that still runs."""
    w = World(node("n0"), node("n1"))
    w.send(QuotaChanged(team="research", limit_milli=17_000))
    gang = w.submit(job("gang", 8))
    w.started(gang)
    w.released(gang)
    w.submit(job("single", 1))
    return w.records


def report(records, voids=()):
    checker = Checker()
    for seq, record in enumerate(records, start=1):
        checker.step(seq, record, valid=seq not in voids)
    return checker.finish()


def tampered(records, change):
    """The records with `change(event)` applied: an event, a list of events, or None to drop it."""
    out = []
    for record in records:
        events = []
        for event in record.events:
            changed = change(event)
            events += changed if isinstance(changed, list) else [changed] if changed is not None else []
        out.append(record.model_copy(update={"events": tuple(events)}))
    return out


def test_an_honest_ledger_has_no_violation(history):
    found = report(history)
    assert found.ok
    assert (found.jobs, found.attempts, found.open_attempts, found.terminal) == (2, 2, 1, {"succeeded": 1})
    assert found.milli_us == sum(found.by_team.values()) > 0


def first(kind, change):
    """Applies `change` to the first event of a kind."""
    seen = []

    def once(event):
        if event.kind == kind and not seen:
            seen.append(event)
            return change(event)
        return event

    return once


CASES = {
    "I1: a device granted twice": ("job.granted", lambda e: [e, _again(e)], "I1"),
    "I2: a part of a gang": ("job.granted", lambda e: e.model_copy(update={"claims": e.claims[:5]}), "I2"),
    "I3: a second end": ("job.finished", lambda e: [e, e], "I3"),
    "I3: never queued": ("job.queued", lambda e: None, "I3"),
    "I3: ends as running": ("job.finished", lambda e: e.model_copy(update={"state": JobState.RUNNING}), "I3"),
    "I3: succeeds after an attempt that did not": (
        "attempt.closed",
        lambda e: e.model_copy(update={"outcome": Outcome.LOST}),
        "I3",
    ),
    "I5: closed as succeeded with a part that failed": (
        "devices.freed",
        lambda e: e.model_copy(update={"exit_code": 1}),
        "I5",
    ),
    "I5: freed twice": ("devices.freed", lambda e: [e, e], "I5"),
    "I5: closed while it holds devices": ("devices.freed", lambda e: None, "I5"),
    "I5: never closed": ("attempt.closed", lambda e: None, "I5"),
    "I7: beyond the quota": ("quota.set", lambda e: e.model_copy(update={"limit_milli": 4000}), "I7"),
    "I8: a node that never joined": ("node.joined", lambda e: None, "I8"),
    "I8: an older incarnation": ("node.joined", lambda e: [e, e], "I8"),
}


def _again(granted):
    return granted.model_copy(update={"attempt": granted.attempt + 1})


@pytest.mark.parametrize(("kind", "change", "invariant"), CASES.values(), ids=CASES)
def test_each_violation_is_found(history, kind, change, invariant):
    found = report(tampered(history, first(kind, change)))
    assert not found.ok
    assert any(v.startswith(invariant) for v in found.violations), found.violations


def test_a_broken_chain_is_found(history):
    broken = [*history[:2], history[2].model_copy(update={"prev_seq": 99}), *history[3:]]
    assert any(v.startswith("I10") for v in report(broken).violations)


def test_time_that_goes_back_is_found(history):
    back = [*history[:-1], history[-1].model_copy(update={"t_us": 1})]
    assert any(v.startswith("I10") for v in report(back).violations)


def test_a_void_record_counts_as_void_and_changes_nothing(history):
    forged = history[-1].model_copy(update={"events": (led.HoldReleased(job_id="job-" + "0" * 32),)})
    found = report([*history, forged], voids={len(history) + 1})
    assert found.ok
    assert found.void == 1


def _queued_again(history, after_us):
    """The first job that ended is queued once more, so much later."""
    ended = next(e.job_id for r in history for e in r.events if e.kind == "job.finished")
    queued = next(e for r in history for e in r.events if e.kind == "job.queued" and e.job_id == ended)
    records, last = list(history), history[-1]
    for later_us in range(DAY_US // 2, after_us + 1, DAY_US // 2):  # a pool that lives writes a record now and then
        events = (queued,) if later_us == after_us else ()
        changes = {"prev_seq": len(records), "t_us": last.t_us + later_us, "events": events}
        records.append(last.model_copy(update=changes))
    return records


def test_an_id_is_free_again_when_its_client_key_counts_no_more(history):
    soon = report(_queued_again(history, KEPT_US - DAY_US))
    assert [v.split(":")[0].split(" ")[0] for v in soon.violations] == ["I3"]
    assert report(_queued_again(history, KEPT_US + DAY_US)).ok


def test_the_checker_forgets_the_oldest_ids_at_its_bound(monkeypatch):
    monkeypatch.setattr(ended_ids, "_AT_ONCE", 10)
    monkeypatch.setattr(ended_ids, "_PARTS", 3)
    ids = EndedIds()
    for n in range(100):
        ids.add(job_id("t", str(n)), n)
    known = [n for n in range(100) if ids.has(job_id("t", str(n)), 100)]
    assert known == list(range(70, 100))


def test_an_id_is_known_for_the_days_that_its_key_counts_wherever_it_is_kept(monkeypatch):
    monkeypatch.setattr(ended_ids, "_AT_ONCE", 7)
    ids, ended, rng = EndedIds(), dict[int, int](), Random(9)
    t_us = 100 * DAY_US
    for n in range(150):
        t_us += rng.randrange(DAY_US // 4)
        ids.add(job_id("t", str(n)), t_us)
        ended[n] = t_us
        begins = (t_us - KEPT_US) // DAY_US
        for other in rng.sample(range(n + 1), min(n + 1, 30)):
            assert ids.has(job_id("t", str(other)), t_us) is (ended[other] // DAY_US > begins), other
        assert not ids.has(job_id("t", "never"), t_us)


def test_what_is_remembered_of_ended_jobs_takes_eight_bytes_each():
    ids, many = EndedIds(), 250_000
    tracemalloc.start()
    for n in range(many):
        ids.add(f"job-{n * 2**60 // many:032x}", 0)
    used, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 8 * 200_000 + 90 * 50_000
    assert peak < 8 * 200_000 + 200 * 100_000
