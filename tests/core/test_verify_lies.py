"""Lies about real ledgers: each is one that a checker which believes the ledger's own word would pass over."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from libs.core.projections.verify import Checker, Verification
from schemas import ledger as led
from schemas.attempts import Category, Cause, Evidence, Outcome
from schemas.clock import ClockMark
from schemas.ids import job_id
from schemas.jobs import Checkpoint, JobState, PromiseCause
from schemas.ledger import EVENT_KINDS, LedgerEvent, LedgerRecord
from schemas.resources import Level, Precision, Runtime
from tests.core.lives import EVERY, ON_A_CLOCK, ROLLED, SET_BACK, kinds_of, records_of

Records = Sequence[LedgerRecord]
Lie = Callable[[Records], Records]
S = 1_000_000
DAY_US = 86_400 * S
NOBODY = "job-" + "0" * 32


def report(records: Records) -> Verification:
    """The checker's word on records whose chain is made anew: whoever lies can hash, too."""
    checker, head = Checker(), 0
    for seq, record in enumerate(records, 1):
        checker.step(seq, record.model_copy(update={"prev_seq": head}), valid=True)
        head = seq
    return checker.finish()


@pytest.mark.parametrize("life", EVERY)
def test_a_life_as_it_was_has_no_violation(life: str) -> None:
    assert report(records_of(life)).violations == []


def test_the_lives_have_every_kind_of_event() -> None:
    assert set().union(*(kinds_of(records_of(life)) for life in EVERY)) == EVENT_KINDS.keys()


# ------------------------------------------------------------------------------------------------------ how one lies


def changed(kind: str, change: Callable[[Any], Any], nth: int = 0, *, of: str = "") -> Lie:
    """The `nth` event of a kind (about the job that is called so) is another, several, or is left out (None)."""

    def lie(records: Records) -> Records:
        out, seen = [], -1
        for record in records:
            events: list[LedgerEvent] = []
            for event in record.events:
                about = not of or getattr(event, "job_id", "") == job_id("research", of)
                seen += event.kind == kind and about
                if event.kind == kind and about and seen == nth:
                    told = change(event)
                    events += told if isinstance(told, list) else [told] if told is not None else []
                else:
                    events.append(event)
            out.append(record.model_copy(update={"events": tuple(events)}))
        assert seen >= nth, f"there are {seen + 1} events {kind}"
        return out

    return lie


def with_(**fields: Any) -> Callable[[Any], Any]:
    return lambda event: event.model_copy(update=fields)


def left_out(kind: str, nth: int = 0, *, of: str = "") -> Lie:
    return changed(kind, lambda event: None, nth, of=of)


def then(kind: str, more: Callable[[Any], Any], nth: int = 0, *, of: str = "") -> Lie:
    """After an event something else is said."""
    return changed(kind, lambda event: [event, more(event)], nth, of=of)


def before(kind: str, more: Callable[[Any], Any], nth: int = 0, *, of: str = "") -> Lie:
    return changed(kind, lambda event: [more(event), event], nth, of=of)


def claim(number: int, **fields: Any) -> Callable[[Any], Any]:
    """A grant with one claim changed."""

    def change(e: led.JobGranted) -> led.JobGranted:
        claims = list(e.claims)
        claims[number] = claims[number].model_copy(update=fields)
        return e.model_copy(update={"claims": tuple(claims)})

    return change


def each_claim(change: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Any]:
    return lambda e: e.model_copy(update={"claims": tuple(c.model_copy(update=change(c)) for c in e.claims)})


def spec(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A job that asked for something else than it was granted."""
    return lambda e: e.model_copy(update={"spec": change(e.spec)})


def asked(**fields: Any) -> Callable[[Any], Any]:
    return spec(lambda s: s.model_copy(update={"resources": s.resources.model_copy(update=fields)}))


def record(nth: int, **change: Callable[[Any], Any]) -> Lie:
    """A record's own field is another."""

    def lie(records: Records) -> Records:
        one = records[nth]
        told = one.model_copy(update={name: new(getattr(one, name)) for name, new in change.items()})
        return [*records[: nth % len(records)], told, *records[nth % len(records) + 1 :]]

    return lie


def later(nth: int, us: int) -> Lie:
    """From a record on all is so much later."""

    def lie(records: Records) -> Records:
        return [r.model_copy(update={"t_us": r.t_us + us * (n >= nth)}) for n, r in enumerate(records)]

    return lie


def nothing_for(us: int, nth: int) -> Lie:
    """After a record there is one that says nothing, so much later."""

    def lie(records: Records) -> Records:
        quiet = records[nth].model_copy(update={"t_us": records[nth].t_us + us, "events": ()})
        return [*records[: nth + 1], quiet, *records[nth + 1 :]]

    return lie


def both(first: Lie, second: Lie) -> Lie:
    return lambda records: second(first(records))


def formats(change: Callable[[int | None], int | None]) -> Lie:
    """Every record declares another format."""
    return lambda records: [r.model_copy(update={"format": change(r.format)}) for r in records]


def clock_later(nth: int, us: int, *names: str) -> Lie:
    """From a record on the record's time, and of its mark what `names` says, is so much later."""

    def lie(records: Records) -> Records:
        out = [*records[:nth]]
        for r in records[nth:]:
            mark = r.clock.model_copy(update={name: getattr(r.clock, name) + us for name in names if name != "record"})
            out.append(r.model_copy(update={"t_us": r.t_us + us * ("record" in names), "clock": mark}))
        return out

    return lie


def moved(kind: str, records_on: int, nth: int = 0, *, of: str = "") -> Lie:
    """An event comes in a later record."""

    def lie(records: Records) -> Records:
        found: list[Any] = []
        without = changed(kind, lambda event: found.append(event), nth, of=of)(records)
        at = next(n for n, r in enumerate(records) if any(e is found[0] for e in r.events)) + records_on
        return [r.model_copy(update={"events": (*r.events, found[0])}) if n == at else r for n, r in enumerate(without)]

    return lie


def running(job: str, attempt: int = 1) -> Any:
    return led.AttemptRunning(job_id=job, attempt=attempt)


def requeued(e: Any) -> Any:
    return led.JobRequeued(job_id=e.job_id, reason="no reason")


def held(job: str, *devices: str) -> Any:
    return led.DevicesHeld(job_id=job, devices=devices)


URGENT, LOW2 = job_id("research", "urgent"), job_id("research", "low2")
END, PRE, CUT, OWN, MUM, LOST = "every end", "preempted", "boards", "particular", "silent", "lost again"
USED = "quarantined"
OUT = "out of use"


def _waiting(change: Callable[[int], int]) -> Callable[[led.JobRequeued], led.JobRequeued]:
    """Until another moment than it must."""
    return lambda e: e.model_copy(update={"not_before_us": change(e.not_before_us or 0)})


def _later(e: led.JobRequeued) -> led.JobRequeued:
    return e.model_copy(update={"not_before_us": (e.not_before_us or DAY_US) + 2 * DAY_US})


def _fails(e: led.JobRequeued) -> led.JobFinished:
    return led.JobFinished(job_id=e.job_id, state=JobState.FAILED, reason=e.reason)


def _again(e: led.JobFinished) -> led.JobRequeued:
    return led.JobRequeued(job_id=e.job_id, reason=e.reason, losses=9)


AUDITED = "audited"
PROGRESSING = "progressing"
EXCHANGED = "exchanged"


def acted(**update: Any) -> Callable[[Any], Any]:
    return lambda e: e.model_copy(update={"action": e.action.model_copy(update=update)})


BUDGETED = "budgeted"


def with_hold(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A hold of which fields are changed."""
    return lambda e: e.model_copy(
        update={"hold": e.hold.model_copy(update={name: to(getattr(e.hold, name)) for name, to in changes.items()})}
    )


def budgets(nth: int = 0, **fields: Any) -> Callable[[Any], Any]:
    """The `nth` budget says something else."""

    def change(e: Any) -> Any:
        every = [b.model_copy(update=fields) if n == nth else b for n, b in enumerate(e.budgets.budgets)]
        return e.model_copy(update={"budgets": e.budgets.model_copy(update={"budgets": tuple(every)})})

    return change


def goes_on(records: Records) -> Records:
    """Each record says that its decision goes on in the next one."""
    return [record.model_copy(update={"more": True}) for record in records]


def on_ticks(records: Records) -> Records:
    """Each record is decided by a tick."""
    return [
        record.model_copy(update={"clock": ClockMark(t_us=record.t_us, wall_us=record.t_us, readings=())})
        for record in records
    ]


LIES: dict[str, tuple[str, Lie, str]] = {
    # ------------------------------------------------------------------------------------------- offsets and time (I10)
    "the inbox's offset goes back": (END, record(20, inbox_seq=lambda n: n - 3), "I10"),
    "the inbox's offset goes back to nothing": (END, record(-1, inbox_seq=lambda n: 0), "I10"),
    "time goes back": (END, record(12, t_us=lambda t: t - 5_000), "I10"),
    "time jumps by 30 days": (END, later(12, 30 * DAY_US), "I10"),
    "time jumps by 30 days while nothing runs": (END, later(2, 30 * DAY_US), "I10"),
    "time jumps by two days while something runs": (PRE, later(9, 2 * DAY_US), "I10"),
    "time jumps by 30 days and its mark stays": (ON_A_CLOCK, clock_later(12, 30 * DAY_US, "record"), "I10"),
    "time jumps by 30 days with its mark": (ON_A_CLOCK, clock_later(12, 30 * DAY_US, "record", "t_us", "wall_us"), "I10"),
    "the mark goes back": (ON_A_CLOCK, clock_later(12, -5_000, "t_us"), "I10"),
    "time jumps by an hour in its mark": (ON_A_CLOCK, clock_later(12, 3_600_000_000, "record", "t_us"), "I10"),
    "time follows a wall clock that was set": (
        ON_A_CLOCK, clock_later(SET_BACK, 3_600_000_000, "record", "t_us"), "I10"
    ),
    "ticks are no longer told, and six hours are hidden": (
        ON_A_CLOCK, both(clock_later(12, 6 * 3600 * S, "record"), lambda records: [
            r.model_copy(update={"clock": None}) if n >= 12 else r for n, r in enumerate(records)]), "I10"
    ),
    "a record shows no wall clock": (ON_A_CLOCK, record(12, wall_us=lambda us: None), "I10"),
    "a jump of the wall clock is not told": (ON_A_CLOCK, left_out("clock.jumped"), "I10"),
    "a jump is told that was none": (ON_A_CLOCK, moved("clock.jumped", 1), "I10"),
    "a gap without any clock is not told": (ON_A_CLOCK, left_out("clock.jumped", 1), "I10"),
    "an estimate is told as measured": (ON_A_CLOCK, changed("clock.jumped", with_(estimated=False), 1), "I10"),
    "a measured jump is told as an estimate": (ON_A_CLOCK, changed("clock.jumped", with_(estimated=True)), "I10"),
    "an estimated jump took longer": (ON_A_CLOCK, changed("clock.jumped", with_(elapsed_us=1), 1), "I10"),
    "a jump took longer than time went on": (ON_A_CLOCK, changed("clock.jumped", with_(elapsed_us=10**9)), "I10"),
    "an input is rejected that was decided before": (END, changed("input.rejected", with_(inbox_seq=1)), "I10"),
    "an input is rejected that is not decided yet": (END, changed("input.rejected", with_(inbox_seq=999)), "I10"),
    "an input is rejected twice": (END, then("input.rejected", lambda e: e), "I10"),
    "a format goes back": (ON_A_CLOCK, record(9, format=lambda n: 1), "I10"),
    "a format is no longer declared": (ON_A_CLOCK, record(9, format=lambda n: None), "I10"),
    "a jump is not told, in a record that says that older readers live": (
        ON_A_CLOCK, both(record(SET_BACK, format=lambda n: None), left_out("clock.jumped")), "I10"
    ),
    "a jump is not told, and nothing of a later format ever was": (
        ON_A_CLOCK, both(left_out("clock.jumped"), left_out("lease.granter")), "I10"
    ),
    "a record tells what its format cannot say": (MUM, formats(lambda n: 1), "I10"),
    "a record shows another wall clock": (ON_A_CLOCK, record(9, wall_us=lambda us: us + 3600 * S), "I10"),
    "a record shows a wall clock that was set too early": (
        ON_A_CLOCK, record(SET_BACK - 2, wall_us=lambda us: us + 3600 * S), "I10"
    ),
    "a seal is left out": (ROLLED, left_out("segment.sealed"), "I10"),
    "a segment is sealed twice": (ROLLED, then("segment.sealed", lambda e: e), "I10"),
    "a segment is sealed that is not open": (ROLLED, changed("segment.sealed", with_(first_seq=3)), "I10"),
    "a segment goes on elsewhere": (ROLLED, changed("segment.sealed", with_(next="SEGMENT-test-" + "0" * 20)), "I10"),
    "a seal says more": (ROLLED, then("segment.sealed", lambda e: running(NOBODY)), "I10"),
    # ----------------------------------------------------------------------------------------------- lives of jobs (I3)
    "a job that never was runs": (END, then("job.queued", lambda e: running(NOBODY)), "I3"),
    "a waiting job runs": (END, then("job.queued", lambda e: running(e.job_id), of="waits"), "I3"),
    "a waiting job is freed": (
        END,
        then("job.queued", lambda e: led.DevicesFreed(job_id=e.job_id, attempt=1, node="n0", devices=("n0-gpu0",),
                                                       evidence="released"), of="waits"),
        "I3",
    ),
    "a waiting job is closed": (
        END, then("job.queued", lambda e: led.AttemptClosed(job_id=e.job_id, attempt=1, outcome="lost"), of="waits"), "I3"
    ),
    "a waiting job succeeds": (
        END, then("job.queued", lambda e: led.JobFinished(job_id=e.job_id, state=JobState.SUCCEEDED), of="waits"), "I3"
    ),
    "a waiting job fails": (END, changed("job.finished", with_(state=JobState.FAILED), of="unwanted"), "I3"),
    "a waiting job is queued again": (END, then("job.queued", requeued, of="waits"), "I3"),
    "a job is queued again while its attempt is open": (END, then("attempt.running", requeued), "I5"),
    "a job is queued again before its attempt is closed": (END, before("attempt.closed", requeued), "I5"),
    "a job is queued again after its end": (END, then("job.finished", requeued), "I3"),
    "a job is in limbo after its close": (END, left_out("job.requeued"), "I3"),
    "a job does not end after its close": (END, left_out("job.finished", of="failing"), "I3"),
    "a job is in limbo, and every decision goes on": (END, both(left_out("job.requeued"), goes_on), "I3"),
    "a part ended with its node, which never leaves, and every decision goes on": (
        END, both(left_out("node.left", 1), goes_on), "I8"
    ),
    "a job's end comes late": (END, moved("job.finished", 1, of="failing"), "I3"),
    "a job is queued again late": (END, moved("job.requeued", 1), "I3"),
    "a job ends while it runs": (
        END, then("attempt.running", lambda e: led.JobFinished(job_id=e.job_id, state="succeeded")), "I5"
    ),
    "a job ends twice": (END, then("job.finished", lambda e: e), "I3"),
    "a job is queued twice": (END, then("job.queued", lambda e: e), "I3"),
    "a job has the id of another": (END, changed("job.queued", with_(client_key="another")), "I3"),
    "a job has the id of another team's": (END, changed("job.queued", with_(team="other")), "I3"),
    "a submit is lost": (END, left_out("job.queued"), "I3"),
    "a job runs after its end": (END, then("job.finished", lambda e: running(e.job_id, 2), of="failing"), "I3"),
    "a job is granted after its end": (
        END, then("job.finished", lambda e: led.HoldReleased(job_id=e.job_id), of="failing"), "I3"
    ),
    # --------------------------------------------------------------------------------------------------- attempts (I5)
    "an attempt that never was runs": (END, changed("attempt.running", with_(attempt=2)), "I5"),
    "an attempt runs twice": (END, then("attempt.running", lambda e: e), "I5"),
    "an attempt starts where it has no part": (END, changed("attempt.starting", with_(node="n9")), "I5"),
    "an attempt starts twice at one place": (END, then("attempt.starting", lambda e: e), "I5"),
    "an attempt runs, and a part was not seen": (END, left_out("attempt.starting"), "I5"),
    "an attempt that runs starts": (
        END, then("attempt.running", lambda e: led.AttemptStarting(job_id=e.job_id, attempt=e.attempt, node="n0")), "I5"
    ),
    "an attempt has a number too high": (END, changed("job.granted", with_(attempt=2)), "I5"),
    "an attempt has an old number": (END, changed("job.granted", with_(attempt=1), 1, of="gang"), "I5"),
    "two attempts are open": (END, then("job.granted", lambda e: e.model_copy(update={"attempt": 2})), "I5"),
    "a grant is kept quiet": (END, left_out("job.granted"), "I3"),
    "a part is freed twice": (END, then("devices.freed", lambda e: e), "I5"),
    "a part is not freed": (END, left_out("devices.freed", of="failing"), "I5"),
    "a part frees another device": (END, changed("devices.freed", with_(devices=("n0-gpu7",)), of="half0"), "I5"),
    "a part frees one device of many": (END, changed("devices.freed", lambda e: with_(devices=e.devices[:1])(e)), "I5"),
    "a part frees a device twice": (END, changed("devices.freed", lambda e: with_(devices=e.devices * 2)(e)), "I5"),
    "a part is freed on another node": (END, changed("devices.freed", with_(node="n2"), of="half0"), "I5"),
    "an earlier attempt frees devices": (END, changed("devices.freed", with_(attempt=1), 1, of="failing"), "I5"),
    "an attempt is closed and holds devices": (PRE, before("devices.freed", lambda e: led.AttemptClosed(
        job_id=e.job_id, attempt=e.attempt, outcome="preempted")), "I5"),
    "an attempt is never closed": (END, left_out("attempt.closed"), "I5"),
    "an attempt is closed late": (END, moved("attempt.closed", 1, of="failing"), "I5"),
    "an attempt is closed twice": (END, then("attempt.closed", lambda e: e), "I"),
    "a node that fell silent tells an exit code": (END, changed("devices.freed", with_(exit_code=0)), "I5"),
    # --------------------------------------------------------------------------------------------- outcomes (I5 and I3)
    **{
        f"a job that failed was {outcome.value}": (END, changed("attempt.closed", with_(outcome=outcome), of="failing"), "I5")
        for outcome in Outcome if outcome is not Outcome.FAILED
    },
    **{
        f"a job that succeeded was {outcome.value}": (
            END, changed("attempt.closed", with_(outcome=outcome), 1, of="gang"), "I5"
        )
        for outcome in Outcome if outcome is not Outcome.SUCCEEDED
    },
    "a job that gave way was lost": (PRE, changed("attempt.closed", with_(outcome=Outcome.LOST)), "I5"),
    "a drained job was lost": (END, changed("attempt.closed", with_(outcome=Outcome.LOST), 1, of="half0"), "I5"),
    "a lost job failed": (END, changed("attempt.closed", with_(outcome=Outcome.FAILED)), "I5"),
    "a cancelled job succeeded": (
        END, changed("attempt.closed", with_(outcome=Outcome.SUCCEEDED), of="unwanted-too"), "I5"
    ),
    "a kind of end is left out": (END, changed("attempt.closed", with_(category=None), of="failing"), "I5"),
    "a failure is of another kind": (
        END, changed("attempt.closed", with_(category=Category.OUT_OF_MEMORY), of="failing"), "I5"
    ),
    "a loss is of another kind": (END, changed("attempt.closed", with_(category=Category.HARDWARE), of="gang"), "I5"),
    "a refusal hides what the agent knew": (
        END, changed("devices.freed", with_(category=Category.INPUT_MISSING), of="refused"), "I5"
    ),
    "a kind of end that is not the outcome's": (
        END, changed("attempt.closed", with_(category=Category.HARDWARE), of="failing"), "I5"
    ),
    "an exit code is hidden": (END, changed("devices.freed", with_(exit_code=0), of="failing"), "I5"),
    "an end by itself is hidden": (END, changed("devices.freed", with_(own_exit=False), of="failing"), "I5"),
    "a failure is the hardware's, says the agent": (
        END, changed("devices.freed", with_(category=Category.HARDWARE), of="failing"), "I5"
    ),
    "a job that succeeded failed": (END, changed("job.finished", with_(state=JobState.FAILED), of="half0"), "I3"),
    "a job that failed succeeded": (END, changed("job.finished", with_(state=JobState.SUCCEEDED), of="failing"), "I3"),
    "a job over its time was cancelled": (END, changed("job.finished", with_(state=JobState.CANCELLED), of="slow"), "I3"),
    "a job ends as running": (END, changed("job.finished", with_(state=JobState.RUNNING), of="half0"), "I3"),
    "a job ends with another exit code": (END, changed("job.finished", with_(exit_code=0), of="failing"), "I3"),
    "a job ends, and its exit code is left out": (END, changed("job.finished", with_(exit_code=None), of="failing"), "I3"),
    "a job that never ran has an exit code": (END, changed("job.finished", with_(exit_code=0), of="unwanted"), "I3"),
    "a job runs on over its limit, and no tick was ever told": (
        LOST, changed("job.queued", spec(lambda s: s.model_copy(update={"time_limit_s": 600})), of="lucky"), "I5"
    ),
    "a job runs on over its limit in a ledger of before": (
        LOST, both(formats(lambda n: None), both(
            changed("job.queued", spec(lambda s: s.model_copy(update={"time_limit_s": 600})), of="lucky"),
            lambda records: [r.model_copy(update={"t_us": 6 * r.t_us}) for r in records])), "I5"
    ),
    "a job runs on over its limit": (
        ON_A_CLOCK, changed("job.queued", spec(lambda s: s.model_copy(update={"time_limit_s": 1})), of="gang"), "I5"
    ),
    "a job ends before its attempts are used up": (
        END, changed("job.requeued", lambda e: led.JobFinished(job_id=e.job_id, state="failed"), of="failing"), "I3"
    ),
    "a job ends because it gave way": (
        PRE, changed("job.requeued", lambda e: led.JobFinished(job_id=e.job_id, state="failed")), "I3"
    ),
    "a job is tried again beyond its budget": (END, changed("job.finished", requeued, of="failing"), "I3"),
    "a cancelled job is tried again": (END, changed("job.finished", requeued, of="unwanted-too"), "I3"),
    "a job is stopped for its time too early": (
        END, changed("job.queued", spec(lambda s: s.model_copy(update={"time_limit_s": 60})), of="slow"), "I5"
    ),
    "a job without a limit is over its time": (
        END, changed("job.queued", spec(lambda s: s.model_copy(update={"time_limit_s": 0})), of="slow"), "I5"
    ),
    "a job is stopped for a part that did not fail": (
        END, changed("attempt.stopping", with_(cause=Cause.PART_FAILED), of="slow"), "I5"
    ),
    "a job is stopped for a node that did not leave": (
        END, changed("attempt.stopping", with_(cause=Cause.NODE_LEFT), of="slow"), "I5"
    ),
    "nobody stopped a job that was cancelled": (END, left_out("attempt.stopping", of="unwanted-too"), "I5"),
    # -------------------------------------------------------------------------------------------- told for auditors (I13)
    "a line of a book becomes another": (AUDITED, changed("operator.acted", acted(reason="none"), 3), "I13"),
    "a line of a book is changed and told once": (AUDITED, changed("operator.acted", acted(target="red"), 0), "I13"),
    "a line of a book follows another one": (AUDITED, changed("operator.acted", acted(prev_hash="ab" * 32), 2), "I13"),
    "a book begins with a second line": (AUDITED, changed("operator.acted", acted(number=2), 0), "I13"),
    "refusals are counted and have no digest": (
        AUDITED, changed("command.refused", lambda e: e.model_copy(
            update={"command": e.command.model_copy(update={"more_digest": ""})}), 1), "I13"
    ),
    # ------------------------------------------------------------------------------------------------- checkpoints (I12)
    "a checkpoint goes back": (
        END, changed("attempt.checkpointed", with_(checkpoint=Checkpoint(step=1, reference="s3://x")), 1), "I12"
    ),
    "a checkpoint goes back in a later attempt": (
        END, changed("attempt.checkpointed", with_(checkpoint=Checkpoint(step=1, reference="s3://x")), 2), "I12"
    ),
    "one gives way within its class, and its queue's order has no such": (
        EXCHANGED, changed("queues.applied", lambda e: e.model_copy(
            update={"queues": tuple(q.model_copy(update={"order": "fifo"}) for q in e.queues)})), "I11"
    ),
    "one gives way to another team of its class": (
        EXCHANGED, changed("attempt.preempting", with_(beneficiary=job_id("blue", "waits"))), "I11"
    ),
    "a promised start moves to a later time for no cause": (
        "promised", then("gang.promised", lambda e: e.model_copy(update={"promise": e.promise.model_copy(
            update={"start_us": e.promise.start_us + 1})})), "I18"
    ),
    "a promised start moves for a fault that was none": (
        "promised", then("gang.promised", lambda e: e.model_copy(update={"promise": e.promise.model_copy(
            update={"start_us": e.promise.start_us + 1, "cause": PromiseCause.DRAIN})})), "I18"
    ),
    "a first promise names a cause": (
        "promised", changed("gang.promised", lambda e: e.model_copy(update={"promise": e.promise.model_copy(
            update={"cause": PromiseCause.FAULT})})), "I18"
    ),
    "a gang that its own team kept waiting is told to have waited for others": (
        "put off", changed("job.granted", with_(own_delay_us=None), 3), "I18"
    ),
    "... or to have waited for a shorter time": (
        "put off", changed("job.granted", lambda e: e.model_copy(update={"own_delay_us": e.own_delay_us + 1}), 3), "I18"
    ),
    "a gang that another team kept waiting is told to have waited for its own": (
        "put off", changed("job.granted", with_(own_delay_us=719_902_400), 4), "I18"
    ),
    "a promise counts on none of its team's jobs, and one was to run on": (
        "put off", changed("gang.promised", with_(stays=()), 1), "I18"
    ),
    "a promise is told that does not say who of its team runs on": (
        "put off", changed("gang.promised", with_(stays=None)), "I18"
    ),
    "another team's job is to run on beyond a promised start": (
        "put off", changed("gang.promised", with_(stays=(job_id("blue", "stays"),))), "I18"
    ),
    # ------------------------------------------------------------------------------------------------------ money (I17)
    "a period is closed before it is over": (
        "priced", changed("period.closed", lambda e: e.model_copy(
            update={"period": e.period.model_copy(update={"to_us": e.period.to_us + DAY_US * 9_000})})), "I17"
    ),
    # ---------------------------------------------------------------------------------------------------- budgets (I19)
    "a grant takes no hold": (BUDGETED, changed("job.granted", with_(hold=None)), "I19"),
    "a grant takes a hold that is too short": (BUDGETED, changed("job.granted", with_hold(until_us=lambda t: t - 1)), "I19"),
    "a device counts less than it does": (BUDGETED, changed("job.granted", with_hold(units=lambda u: {"H100": 6999})), "I19"),
    "a device is held at another price": (BUDGETED, changed("job.granted", with_hold(prices=lambda p: {"H100": 1})), "I19"),
    "a device is held at no price": (BUDGETED, changed("job.granted", with_hold(prices=lambda p: {})), "I19"),
    "a grant is beyond what is available": (BUDGETED, changed("budgets.applied", budgets(hard=7_999_999)), "I19"),
    "a grant is beyond the money that there is": (BUDGETED, changed("budgets.applied", budgets(1, hard=15_000_000)), "I19"),
    "a renewal is for longer than one": (
        BUDGETED, changed("budget.holds-renewed", with_hold(until_us=lambda t: t + 1)), "I19"
    ),
    "a renewal is for less than is covered": (
        BUDGETED, changed("budget.holds-renewed", with_hold(until_us=lambda t: t - 1)), "I19"
    ),
    "a hold is renewed before it has run out": (
        BUDGETED, then("budget.holds-renewed", lambda e: e), "I19"
    ),
    "a hold of nobody is renewed": (BUDGETED, changed("budget.holds-renewed", with_(jobs=(NOBODY,))), "I19"),
    "a hold runs out where no tick was ever told": (BUDGETED, nothing_for(2 * 3600 * S, 16), "I19"),
    "a hold runs out and nobody does anything": (
        BUDGETED, lambda records: on_ticks(nothing_for(2 * 3600 * S, 16)(records)), "I19"
    ),
    "one is stopped for a budget that has more": (
        BUDGETED, changed("budgets.applied", budgets(hard=900_000_000, soft=None)), "I19"
    ),
    "a budget is topped up that there is not": (
        BUDGETED, changed("budget.topped-up", with_(budget="team:vision:gpu-hours:day")), "I19"
    ),
    "a top-up is kept quiet": (BUDGETED, left_out("budget.topped-up"), "I19"),
    "a day begins at noon": (
        BUDGETED, changed("budget.period-began", lambda e: e.model_copy(
            update={"from_us": e.from_us + DAY_US // 2, "to_us": e.to_us + DAY_US // 2})), "I19"
    ),
    "a day begins twice": (BUDGETED, then("budget.period-began", lambda e: e), "I19"),
    "a period does not begin": (BUDGETED, left_out("budget.period-began"), "I19"),
    "a warning says more than was spent": (
        BUDGETED, changed("budget.reached", lambda e: e.model_copy(update={"spent": e.spent + 1})), "I19"
    ),
    "a warning is told to others": (BUDGETED, changed("budget.reached", with_(teams=("vision",))), "I19"),
    "budgets go back to an older version": (BUDGETED, then("budgets.applied", lambda e: e), "I19"),
    "progress is told after it was doubted": (PROGRESSING, then("attempt.progress", lambda e: e, 2), "I15"),
    "progress goes back": (
        PROGRESSING, changed("attempt.progress", lambda e: e.model_copy(
            update={"progress": e.progress.model_copy(update={"step": 9})}), 1), "I15"
    ),
    "the steps in all become fewer": (
        PROGRESSING, changed("attempt.progress", lambda e: e.model_copy(
            update={"progress": e.progress.model_copy(update={"steps": 899})}), 1), "I15"
    ),
    "progress goes beyond its end": (
        PROGRESSING, changed("attempt.progress", lambda e: e.model_copy(
            update={"progress": e.progress.model_copy(update={"step": 901})}), 0), "I15"
    ),
    "progress is known and doubted": (
        PROGRESSING, changed("attempt.progress", lambda e: e.model_copy(
            update={"progress": e.progress.model_copy(update={"doubt": None})}), 2), "I15"
    ),
    "progress is told twice": (PROGRESSING, then("attempt.progress", lambda e: e), "I15"),
    "a checkpoint is told twice": (END, then("attempt.checkpointed", lambda e: e), "I12"),
    "a job is queued again without its checkpoint": (END, changed("job.requeued", with_(resume=None), of="gang"), "I12"),
    "a job goes on from nothing": (END, changed("job.granted", with_(resume=None), 1, of="gang"), "I12"),
    "a job goes on from an older checkpoint": (
        END, changed("job.granted", with_(resume=Checkpoint(step=3, reference="s3://ckpt/3")), 1, of="gang"), "I12"
    ),
    "a job goes on from another's checkpoint": (
        END, changed("job.granted", with_(resume=Checkpoint(step=7, reference="s3://other")), 1, of="gang"), "I12"
    ),
    "a checkpoint is kept quiet": (END, left_out("attempt.checkpointed", 1), "I12"),
    "a new job goes on from somewhere": (
        END, changed("job.granted", with_(resume=Checkpoint(step=7, reference="s3://x")), of="half0"), "I12"
    ),
    # -------------------------------------------------------------------------------------------- devices and epochs (I1)
    "an epoch stands still": (END, changed("job.granted", each_claim(lambda c: {"epoch": 1}), 1, of="gang"), "I1"),
    "an epoch goes back": (PRE, changed("job.granted", each_claim(lambda c: {"epoch": 1}), of="urgent"), "I1"),
    "a device is granted to two": (END, changed("job.granted", claim(0, device="n0-gpu0", node="n0"), of="half0"), "I1"),
    "a share is granted beyond a device": (
        END, changed("job.granted", claim(0, milli=700, epoch=99), of="half1"), "I1"
    ),
    "memory is granted beyond a device": (END, changed("job.granted", claim(0, memory_mib=80_000), of="half1"), "I1"),
    "an unknown device is granted": (END, changed("job.granted", claim(0, device="n0-gpu99"), of="half0"), "I8"),
    "a device is granted as another node's": (END, changed("job.granted", claim(0, node="n0"), of="half0"), "I8"),
    "a device of a node that left is granted": (
        END, moved("node.left", -1), "I8"
    ),
    "a node has fewer devices than are granted": (
        END, changed("node.joined", lambda e: with_(inventory=e.inventory.model_copy(
            update={"devices": e.inventory.devices[:3]}))(e)), "I8"
    ),
    "a node has less memory": (
        PRE, changed("node.joined", lambda e: with_(inventory=e.inventory.model_copy(update={"devices": tuple(
            d.model_copy(update={"memory_mib": 40_000}) for d in e.inventory.devices)}))(e)), "I"
    ),
    "two nodes have one device": (
        END, changed("node.joined", lambda e: with_(inventory=e.inventory.model_copy(update={"devices": (
            *e.inventory.devices, e.inventory.devices[0].model_copy(update={"id": "n0-gpu0"}))}))(e), 1), "I8"
    ),
    # ----------------------------------------------------------------------------------------------- as asked for (I2)
    "memory is granted not as asked": (END, changed("job.granted", claim(0, memory_mib=99), of="half1"), "I2"),
    "less memory than a whole device is granted": (END, changed("job.granted", claim(3, memory_mib=10), of="gang"), "I2"),
    "memory of a share is its part": (END, changed("job.granted", claim(0, memory_mib=1), of="half0"), "I2"),
    "another share is granted": (END, changed("job.granted", claim(0, milli=399), of="half0"), "I2"),
    "a whole device is granted for a share": (
        END, changed("job.granted", claim(0, milli=1000, device="n2-gpu7", node="n2"), of="half0"), "I2"
    ),
    "a gang gets a device less": (END, changed("job.granted", lambda e: with_(claims=e.claims[1:])(e), of="gang"), "I2"),
    "a gang gets a device twice": (
        END, changed("job.granted", lambda e: with_(claims=(*e.claims[1:], e.claims[1]))(e), of="gang"), "I2"
    ),
    "another model is granted": (END, changed("job.queued", asked(types=("A100",))), "I2"),
    "processors are granted to whom did not name them": (OWN, changed("job.queued", asked(types=()), of="processors"), "I2"),
    "processors are not granted": (OWN, changed("job.granted", claim(0, cpu_milli=0), of="elastic"), "I2"),
    "host memory is not granted": (OWN, changed("job.granted", claim(0, host_memory_mib=0), of="elastic"), "I2"),
    "processors are granted to whom did not ask": (OWN, changed("job.granted", claim(0, cpu_milli=9), of="cuda"), "I2"),
    "a part of a machine is not taken with its processors": (
        OWN, changed("job.granted", claim(0, cpu_milli=0), of="processors"), "I2"
    ),
    "a role gets no device": (OWN, changed("job.granted", each_claim(lambda c: {"role": "worker"}), of="nested"), "I2"),
    "a role that is not there": (OWN, changed("job.granted", claim(0, role="ghost"), of="nested"), "I2"),
    "a role where none was asked for": (OWN, changed("job.granted", claim(0, role="ghost"), of="cuda"), "I2"),
    "a role is asked to have more": (
        OWN, changed("job.queued", lambda e: asked(roles=tuple(r.model_copy(update={"devices": 1}) for r in
                                                               e.spec.resources.roles))(e), of="nested"), "I2"
    ),
    "another runtime": (OWN, changed("job.queued", asked(runtime=Runtime.ROCM), of="cuda"), "I2"),
    "another number format": (OWN, changed("job.queued", asked(precision=Precision.FP4), of="cuda"), "I2"),
    "a label that the node has not": (OWN, changed("job.queued", asked(labels={"zone": "blue"}), of="elastic"), "I2"),
    "a slice that was not asked for": (CUT, changed("job.queued", asked(mig_profile=""), of="small"), "I2"),
    "another slice": (CUT, changed("job.queued", asked(mig_profile="1g.10gb"), of="big"), "I2"),
    "peers are together": (OWN, changed("job.queued", lambda e: asked(
        spread=e.spec.resources.spread.model_copy(update={"level": Level.POOL}))(e), of="spread-b"), "I2"),
    "a gang is too far apart": (OWN, changed("job.granted", claim(0, device="m3-gpu3", node="m3"), of="nested"), "I2"),
    "a timer on a machine": (OWN, lambda records: [r.model_copy(update={"events": tuple(
        with_(inventory=e.inventory.model_copy(update={"simulated": False}))(e) if e.kind == "node.joined" else e
        for e in r.events)}) for r in records], "I2"),
    "a gang is told to be nearer than it is": (END, changed("job.granted", lambda e: with_(
        span=e.span.model_copy(update={"level": "node"}))(e), of="gang"), "I2"),
    "a gang is told to be on an island that there is not": (END, changed("job.granted", lambda e: with_(
        span=e.span.model_copy(update={"level": "nvlink"}))(e), of="gang"), "I2"),
    # -------------------------------------------------------------------------------------- processors and power (I1)
    "a node has fewer processors": (OWN, changed("node.joined", lambda e: with_(
        inventory=e.inventory.model_copy(update={"cpus": 1}))(e)), "I1"),
    "a rack has less power": (OWN, changed("node.joined", lambda e: with_(
        inventory=e.inventory.model_copy(update={"rack_power_w": 700}))(e)), "I1"),
    # ------------------------------------------------------------------------------------- holds and preemption (I11)
    "a job of the same class gives way": (PRE, changed("job.queued", with_(priority=100)), "I11"),
    "a job of a higher class gives way": (PRE, changed("job.queued", with_(priority=900)), "I11"),
    "a class that may not preempt does": (PRE, changed("job.queued", with_(preempts=False), of="urgent"), "I11"),
    "a job gives way to one that never was": (PRE, changed("attempt.preempting", with_(beneficiary=NOBODY)), "I11"),
    "a job gives way to itself": (PRE, changed("attempt.preempting", lambda e: with_(beneficiary=e.job_id)(e)), "I11"),
    "a job gives way to one that waits and may not": (PRE, changed("attempt.preempting", with_(beneficiary=LOW2)), "I11"),
    "a waiting job gives way": (PRE, changed("attempt.preempting", with_(job_id=LOW2)), "I3"),
    "a job gives way twice": (PRE, then("attempt.preempting", lambda e: e), "I5"),
    "a job gives way, and nothing is held": (PRE, left_out("devices.held"), "I11"),
    "nobody gives way for what is held": (PRE, left_out("attempt.preempting"), "I11"),
    "devices held for one are granted to another": (
        PRE, changed("devices.held", lambda e: [e, *_taken(e)]), "I11"
    ),
    "devices are held for two": (PRE, then("devices.held", lambda e: held(LOW2, *e.devices)), "I11"),
    "devices are held twice": (PRE, then("devices.held", lambda e: e), "I11"),
    "a device is held that does not become free": (
        PRE, changed("devices.held", lambda e: with_(devices=tuple(_other(d) for d in e.devices))(e)), "I11"
    ),
    "an unknown device is held": (PRE, changed("devices.held", with_(devices=("ghost",))), "I11"),
    "what is held is of another plan": (PRE, changed("devices.held", with_(plan_id="another")), "I11"),
    "others give way by another plan": (PRE, changed("attempt.preempting", with_(plan_id="another")), "I11"),
    "less is held than is needed": (PRE, changed("devices.held", lambda e: with_(devices=e.devices[1:])(e)), "I11"),
    "a hold outlives its grant": (PRE, left_out("hold.released"), "I11"),
    "a hold outlives its job": (PRE, left_out("hold.released", 1), "I11"),
    "a hold is released for nothing": (PRE, left_out("job.finished", of="urgent2"), "I11"),
    "a hold is released that is none": (PRE, before("job.granted", lambda e: led.HoldReleased(job_id=e.job_id)), "I11"),
    # ------------------------------------------------------------------------------------------------ quarantine (I8)
    "a device in quarantine is granted": (USED, left_out("device.returned"), "I8"),
    "a device is returned that is in no quarantine": (USED, left_out("device.quarantined"), "I8"),
    "a device is returned by another node": (USED, changed("device.returned", with_(node="n1")), "I8"),
    "a device is returned twice": (USED, then("device.returned", lambda e: e), "I8"),
    "a device is returned from another quarantine": (USED, changed("device.returned", with_(since_us=1)), "I8"),
    "a device is put in quarantine twice": (USED, then("device.quarantined", lambda e: e), "I8"),
    "a device of another node is put in quarantine": (USED, changed("device.quarantined", with_(node="n1")), "I8"),
    "a device is put in quarantine in another life": (USED, changed("device.quarantined", with_(incarnation=7)), "I8"),
    # ----------------------------------------------------------------------------------------- out of use (I8), reserved (I11)
    "a node out of use is granted": (OUT, left_out("node.uncordoned"), "I8"),
    "a node is taken out of use twice": (OUT, then("node.cordoned", lambda e: e), "I8"),
    "a node is put into use that was": (OUT, left_out("node.cordoned"), "I8"),
    "a node is taken out of use that never joined": (OUT, changed("node.cordoned", with_(node="n9")), "I8"),
    "a job that runs has devices reserved": (
        OUT, changed("devices.reserved", with_(gang=job_id("blue", "small0"))), "I11"
    ),
    "an unknown device is reserved": (OUT, changed("devices.reserved", with_(devices=("ghost",))), "I11"),
    "a device is reserved twice": (OUT, changed("devices.reserved", lambda e: with_(devices=e.devices * 2)(e)), "I11"),
    # ---------------------------------------------------------------------------------------------------- losses (I3)
    "a job runs again before its time": (LOST, changed("job.requeued", _later, 3), "I3"),
    "a job is lost more often than it is told": (LOST, changed("job.requeued", with_(losses=1), 4), "I3"),
    "a good run counts for nothing": (LOST, changed("job.requeued", with_(losses=2), 0, of="lucky"), "I3"),
    "a job ends before it was lost too often": (LOST, changed("job.requeued", _fails, 5, of="unlucky"), "I3"),
    "a job outlives too many losses": (LOST, changed("job.finished", _again, of="unlucky"), "I3"),
    "a job is submitted in a time to come": (END, changed("job.queued", with_(submitted_us=10**12)), "I3"),
    "a job that runs is told to be unknown": (
        END, changed("input.rejected", lambda e: with_(request=e.request.model_copy(
            update={"job_id": job_id("research", "half0")}))(e)), "I3"
    ),
    "a job waits a second less": (LOST, changed("job.requeued", _waiting(lambda us: us - S), 3), "I3"),
    "a job waits a second more": (LOST, changed("job.requeued", _waiting(lambda us: us + S), 3), "I3"),
    "a job waits as after one loss fewer": (LOST, changed("job.requeued", _waiting(lambda us: us - 5 * S), 3), "I3"),
    "a job that was lost again does not wait": (
        LOST, changed("job.requeued", with_(not_before_us=None), 5, of="unlucky"), "I3"
    ),
    "a job waits no longer than ever": (LOST, changed("job.requeued", with_(not_before_us=2**60), 9), "I3"),
    "a job waits after its first loss": (LOST, changed("job.requeued", _later), "I3"),
    "losses are not told": (LOST, changed("job.requeued", with_(losses=0, not_before_us=None), 4), "I3"),
    "losses begin anew": (LOST, changed("job.requeued", with_(losses=1, not_before_us=None), 5, of="unlucky"), "I3"),
    "a job that failed again does not wait": (LOST, changed("job.requeued", with_(not_before_us=None), 1, of="clumsy"), "I3"),
    "a job that failed again waits a second less": (
        LOST, changed("job.requeued", _waiting(lambda us: us - S), 1, of="clumsy"), "I3"
    ),
    "a job that failed twice waits as after the third": (
        LOST, changed("job.requeued", _waiting(lambda us: us + 5 * S), 1, of="clumsy"), "I3"
    ),
    "failures are not told": (LOST, changed("job.requeued", with_(failures=0, not_before_us=None), 1, of="clumsy"), "I3"),
    "a failure is told of a job that was lost": (LOST, changed("job.requeued", with_(failures=1), 0, of="unlucky"), "I3"),
    "a job waits for nothing": (END, changed("job.requeued", _later, of="failing"), "I3"),
    # ------------------------------------------------------------------------------------------ nodes and leases (I8)
    "a lease ended and the node did not leave": (END, left_out("node.left"), "I8"),
    "a node left in good order and did not": (END, left_out("node.left", 1), "I8"),
    "a lease ended, and the node leaves later": (END, moved("node.left", 1), "I8"),
    "a new life that did not begin": (END, left_out("node.joined", 4), "I8"),
    "a lease ended where the agent saw the end": (
        END, changed("devices.freed", with_(evidence=Evidence.LEASE_ENDED, own_exit=False, exit_code=None), 2, of="half0"), "I8"
    ),
    "a node leaves with what it holds": (END, left_out("devices.freed"), "I8"),
    "a node leaves that never joined": (END, changed("node.left", with_(node="ghost")), "I8"),
    "a node leaves in another life": (END, changed("node.left", with_(incarnation=7)), "I8"),
    "a node leaves twice": (END, then("node.left", lambda e: e), "I8"),
    "a node joins in an old life": (END, changed("node.joined", with_(incarnation=1), 3), "I8"),
    "a node offers a device twice": (END, changed("node.joined", lambda e: with_(inventory=e.inventory.model_copy(
        update={"devices": (*e.inventory.devices, e.inventory.devices[0])}))(e)), "I8"),
    "a node joins twice": (END, then("node.joined", lambda e: e), "I8"),
    "a lease ends before it is over": (MUM, changed("job.queued", with_(lease_s=60)), "I8"),
    "silence ends what is kept": (MUM, changed("job.queued", with_(lease_s=0)), "I8"),
    "a kept job ends, and nobody declared its node dead": (MUM, left_out("node.declared-dead"), "I8"),
    "a node is declared dead and does not leave": (MUM, left_out("node.left"), "I8"),
    "another node is declared dead": (MUM, changed("node.declared-dead", with_(node="n9")), "I8"),
    "a node is silent in another life": (MUM, changed("node.silent", with_(incarnation=7)), "I8"),
    "a node is heard again in another life": (MUM, changed("node.heard", with_(incarnation=7)), "I8"),
    "a node is heard again that was not silent": (MUM, then("node.heard", lambda e: e), "I8"),
    "a silent node is granted": (MUM, left_out("node.heard"), "I8"),
    "a lease ends of a node that is heard": (MUM, both(left_out("node.silent"), left_out("node.silent", 1)), "I8"),
    "a lease ends, and only shorter ones are told to have ended": (
        MUM, changed("node.silent", with_(ended_lease_s=5), 2), "I8"
    ),
    "a lease is told to have ended that is longer than the silence": (
        MUM, changed("node.silent", with_(ended_lease_s=100), 2), "I8"
    ),
    "a lease is told to have ended, and its part goes on": (
        MUM, both(changed("job.queued", with_(lease_s=9)), changed("node.silent", with_(silent_s=9, ended_lease_s=9))), "I8"
    ),
    "a node is told to keep work that is not kept": (MUM, changed("node.silent", with_(kept=True)), "I8"),
    "a silence is told twice": (MUM, then("node.silent", lambda e: e, 2), "I8"),
    "a silence ends fewer leases than before": (
        MUM, then("node.silent", with_(ended_lease_s=5), 2), "I8"
    ),
    "a silence began before who grants leases could know of it": (MUM, both(
        changed("lease.granter", with_(epoch=3), 1), both(changed("lease.granter", lambda e: [e, with_(epoch=2)(e)]),
        changed("node.silent", with_(silent_s=20)))), "I8"),
    "a successor tells a silence that its predecessor may have ended": (MUM, then(
        "lease.granter", lambda e: led.NodeSilence(node="n1", incarnation=1, silent_s=6), 1), "I8"),
    "a successor does not wait for its predecessor's term": (MUM, both(
        changed("lease.granter", with_(epoch=3), 1), changed(
            "lease.granter", lambda e: [with_(term_s=60)(e), with_(epoch=2)(e)])), "I8"),
    "a node is lost within the term of the granter before": (
        ON_A_CLOCK, changed("lease.granter", lambda e: [with_(term_s=15)(e), with_(epoch=2)(e)]), "I8"
    ),
    "the right to grant leases is given twice": (MUM, then("lease.granter", lambda e: e), "I8"),
    "the right to grant leases goes back": (MUM, changed("lease.granter", with_(epoch=1), 1), "I8"),
    "an epoch of leases is left out": (MUM, left_out("lease.granter"), "I8"),
    # ------------------------------------------------------------------------------------------------- limits (I7)
    "a limit is lower than what is granted": (END, changed("quota.set", with_(limit_milli=3000)), "I7"),
    "a limit of a type is lower": (END, changed("quota.set", with_(by_type={"H100": 2000})), "I7"),
    "a team has left that may submit": ("left", left_out("team.suspended"), "I7"),
    "a team has left whose job runs": (
        "left", then("team.suspended", lambda e: led.TeamLeft(team=e.team, reason="its contract has ended")), "I7"
    ),
    "a team has left twice": ("left", then("team.left", lambda e: e), "I7"),
    # ------------------------------------------------------------------------------------------------- boards (I8)
    "an instance goes that is held": (CUT, changed("board.recut", lambda e: with_(recut=e.recut.model_copy(
        update={"destroy": (*e.recut.destroy, "b0-1g.10gb-6")}))(e)), "I8"),
    "an instance goes that never was": (CUT, changed("board.recut", lambda e: with_(recut=e.recut.model_copy(
        update={"destroy": ("ghost",)}))(e)), "I8"),
    "an instance goes that is granted": (
        CUT, then("board.recut", lambda e: led.JobGranted(job_id=job_id("research", "big"), attempt=1, claims=(
            {"device": e.recut.destroy[0], "node": "n1", "milli": 1000, "memory_mib": 9, "epoch": 9},))), "I8"
    ),
    "a board is cut that nobody asked for": (CUT, left_out("board.recut"), "I8"),
    "a board is asked for twice": (CUT, then("board.recut", lambda e: e), "I8"),
    "a board answers another number": (CUT, changed("board.cut", with_(number=7)), "I8"),
    "a board answers twice": (CUT, then("board.cut", lambda e: e), "I8"),
    "a board is cut in another life": (CUT, changed("board.cut", with_(incarnation=7)), "I8"),
    "a board is asked for in another life": (CUT, changed("board.recut", with_(incarnation=7)), "I8"),
    "a board's number goes back": (CUT, changed("board.recut", lambda e: with_(
        recut=e.recut.model_copy(update={"number": 1}))(e), 1), "I8"),
    "a cut is withdrawn that was not asked for": (CUT, changed("board.recut-withdrawn", with_(number=9)), "I8"),
    "a cut is withdrawn twice": (CUT, then("board.recut-withdrawn", lambda e: e), "I8"),
    "a cut loses what is held": (CUT, changed("board.cut", lambda e: with_(inventory=e.inventory.model_copy(
        update={"devices": tuple(d for d in e.inventory.devices if d.mig_start != 6)}))(e)), "I8"),
}  # fmt: skip


SAID = led.PlanDeclined(plan_id="p", beneficiary=NOBODY, reason="victim-gone")


def begun(nth: int, **also: Any) -> list[LedgerRecord]:
    """Records of decisions that go on, each of another writer, after the first record of a life."""
    first = records_of(END)[0]
    about = {"more": True, "events": (SAID,)} | also
    return [first.model_copy(update={"t_us": first.t_us + n, "writer": f"w{n}"} | about) for n in range(1, nth + 1)]


def test_no_decision_begins_for_ever() -> None:
    first, (*some, last) = records_of(END)[0], begun(10)
    assert report([first, *some]).ok, "so often in a row a writer may die"
    assert found_in([first, *some, last]) == ["I10"]
    assert found_in([first, *begun(99)]) == ["I10"]
    again = [r.model_copy(update={"inbox_seq": r.inbox_seq + n}) for n, r in enumerate(begun(99))]
    assert report([first, *again]).ok, "each decides one input, and dies at the next"
    assert report([first, *some[:-1], *(some[-1],) * 300]).ok, "one decision may take any number of records"


def found_in(records: Records) -> list[str]:
    return [v.partition(" ")[0] for v in report(records).violations]


def test_a_decision_that_is_not_at_its_end_is_told_and_its_last_words_are_not_judged() -> None:
    """A writer may die there, or be on its way."""
    truth = records_of(END)
    at = next(n for n, r in enumerate(truth) if any(e.kind == "node.left" for e in r.events))
    left, open_ = truth[at], truth[at].model_copy(update={"more": True, "inbox_seq": truth[at - 1].inbox_seq})
    parts = open_.model_copy(update={"events": tuple(e for e in left.events if e.kind != "node.left")})
    for told, unfinished in (([*truth[:at], parts], at + 1), ([*truth[:at], open_, open_], at + 1), (truth, 0)):
        found = report(told)
        assert (found.unfinished, found.ok) == (unfinished, told[-1] is not open_), found.violations
    assert "the node does not leave" in str(report([*truth[:at], parts.model_copy(update={"more": False})]).violations)


@pytest.mark.parametrize("life", EVERY)
def test_a_ledger_may_end_in_the_midst_of_any_decision(life: str) -> None:
    *before, last = (r for r in records_of(life) if r.events)
    found = report([*before, last.model_copy(update={"more": True})])
    assert found.unfinished == len(before) + 1
    assert len(found.violations) == len(report([*before, last]).violations)


def test_what_follows_a_decision_that_is_not_at_its_end_is_of_it_or_decides_its_input_again() -> None:
    first, (cut,) = records_of(END)[0], begun(1)
    after = {"more": False, "t_us": cut.t_us + 5}
    on, other = cut.model_copy(update={"more": False}), cut.model_copy(update=after | {"writer": "other"})
    later, again = cut.model_copy(update=after), other.model_copy(update={"inbox_seq": cut.inbox_seq + 1})
    assert [report([first, cut, then]).ok for then in (on, again, other.model_copy(update={"more": True}))] == [
        True
    ] * 3
    for stranger in (other, later):
        (violation,) = report([first, cut, stranger]).violations
        assert "I10 at seq 3: is not of the decision that record 2 begins" in violation
    assert found_in([first, cut.model_copy(update={"events": ()}), on]) == ["I10"]


def _taken(e: led.DevicesHeld) -> list[Any]:
    """Somebody else is granted what is held."""
    claims = tuple(
        {"device": d, "node": d.split("-")[0], "milli": 1000, "memory_mib": 81920, "epoch": 9} for d in e.devices
    )
    return [led.JobGranted(job_id=LOW2, attempt=1, claims=claims[:2])]


def _other(device: str) -> str:
    node, _, rest = device.partition("-")
    return f"{'n1' if node == 'n0' else 'n0'}-{rest}"


@pytest.mark.parametrize("name", LIES)
def test_each_lie_is_found(name: str) -> None:
    life, lie, invariant = LIES[name]
    truth = records_of(life)
    told = lie(truth)
    assert [r.events for r in told] != [r.events for r in truth] or [*told] != [*truth], "it is the truth"
    found = report(told)
    assert any(v.startswith(f"{invariant}") for v in found.violations), found.violations
