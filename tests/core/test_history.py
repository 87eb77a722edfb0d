"""What history keeps of a job, and what teams are told, follow from the ledger alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.core.billing.metering import Meter
from libs.core.projections import history
from libs.core.projections.history import Feed, JobStory, UnknownJob, advance, apply, job_events, tell
from libs.core.state import parts
from schemas import inbox
from schemas import ledger as led
from schemas.jobs import Checkpoint, JobEvent, JobState
from schemas.resources import Claim
from tests.core.builders import World, job, node
from tests.core.histories import drive, steps


def stories(world: World, *, until: int | None = None, start: dict[str, JobStory] | None = None) -> dict[str, JobStory]:
    out = dict(start or {})
    for seq, record in enumerate(world.records[:until], 1):
        for job_id, events in job_events(record).items():
            out[job_id] = advance(out.get(job_id), events, record.t_us, seq, record.pool)
    return out


def a_life() -> tuple[World, str]:
    """A gang that runs, checkpoints, loses a node, runs again from its checkpoint and succeeds."""
    world = World(node("a", 2), node("b", 2))
    target = world.submit(job("train", 4, submitted_us=7))
    world.started(target)
    world.checkpointed(target, 40)
    world.send(inbox.NodeLost(node="b", incarnation=1, silent_s=30))
    world.released(target, own_exit=False, exit_code=143, nodes=["a"])
    world.send(inbox.NodeRegistered(incarnation=2, inventory=node("b", 2), lease_s=10))
    world.started(target)
    world.released(target)
    world.check()
    return world, target


def test_a_document_tells_the_whole_life() -> None:
    world, target = a_life()
    document = stories(world)[target].document
    assert (document.state, document.submitted_us, document.devices) == (JobState.SUCCEEDED, 7, 4)
    assert document.finished_us == world.records[-1].t_us
    first, second = document.attempts
    assert (first.outcome, first.nodes, first.exit_code) == ("lost", ("a", "b"), 143)
    assert first.category == "node-lost"
    assert first.checkpoint is not None
    assert second.resume == first.checkpoint
    assert (second.outcome, second.exit_code, second.milli) == ("succeeded", 0, (1000,) * 4)
    assert second.granted_us <= (second.running_us or 0) <= (second.closed_us or 0)


def test_the_team_is_told_each_step_once_in_order() -> None:
    world, target = a_life()
    feed = Feed()
    told = [event for record in world.records for event in feed.apply(record, 1)]
    assert [event.what for event in told] == [
        "queued", "granted", "starting", "running", "checkpointed", "stopping", "requeued",
        "granted", "starting", "running", "succeeded",
    ]  # fmt: skip
    granted = [event for event in told if event.what == "granted"]
    assert [event.attempt for event in granted] == [1, 2]
    assert granted[1].nodes == ("a", "b")
    assert granted[1].checkpoint is not None
    assert granted[1].checkpoint.step == 40
    assert told[-1].state is JobState.SUCCEEDED
    assert {(event.team, event.name) for event in told} == {("research", "train")}
    assert tell(stories(world)[target]) == [plain(event) for event in told]
    assert [(event.pool, event.number) for event in told] == [("test", n + 1) for n in range(len(told))]


def plain(event: JobEvent) -> JobEvent:
    """Without its number, which a document does not know."""
    return event.model_copy(update={"pool": "", "number": 0, "previous_us": None})


def test_numbers_go_on_over_a_snapshot_of_a_release_that_kept_no_times() -> None:
    feed = Feed.load(list(parts.write({}, {"jobs": iter(()), "numbers": iter([("research", 3)])})))
    assert [(number, at) for number, at in feed._last.values()] == [(3, None)]
    assert Feed.load(feed.dump())._last == feed._last


def test_a_job_that_was_never_queued_is_not_guessed() -> None:
    event = led.JobFinished(job_id="job-" + "0" * 32, state=JobState.FAILED)
    with pytest.raises(UnknownJob, match="document is missing"):
        apply(None, event, 1, 1)
    world, target = a_life()
    late = led.AttemptClosed(job_id=target, attempt=9, outcome="lost")
    with pytest.raises(UnknownJob, match="attempt 9"):
        apply(stories(world)[target].document, late, 1, 999)


def test_a_job_that_is_preempted_for_ever_keeps_a_bounded_document() -> None:
    rounds = history.KEEP_ATTEMPTS + 30
    target, story = "job-" + "1" * 32, None
    queued = job("restless")
    events: list[led.LedgerEvent] = [
        led.JobQueued(
            job_id=target, team="red", spec=queued.spec, spec_hash="", client_key="k", priority=0, preempts=False,
            submitted_us=1,
        )
    ]  # fmt: skip
    claim = Claim(device="a-gpu0", node="a", milli=1000, memory_mib=0, epoch=1)
    for attempt in range(1, rounds + 1):
        events.append(led.JobGranted(job_id=target, attempt=attempt, claims=(claim,)))
        events.append(led.JobRequeued(job_id=target, reason="made way"))
    for seq, event in enumerate(events, 1):
        story = advance(story, [event], seq, seq)
    assert story is not None
    attempts = story.document.attempts
    assert len(attempts) == history.KEEP_ATTEMPTS
    assert attempts[-1].attempt == rounds
    assert sum(bool(a.devices) for a in attempts) == history.KEEP_DEVICES
    assert len(story.events) == history.KEEP_EVENTS
    assert [bool(e.devices) for e in tell(story) if e.what == "granted"][-1] is True


def test_what_a_job_says_of_its_checkpoints_does_not_make_its_document_grow_with_its_attempts() -> None:
    """Seen: 3 MB after a hundred attempts that failed at once, written anew for each change, and read for each look."""
    target, story, words = "job-" + "2" * 32, None, "\x01" * 2600
    claim = Claim(device="a-gpu0", node="a", milli=1000, memory_mib=0, epoch=1)
    queued = led.JobQueued(
        job_id=target, team="red", spec=job("talkative").spec, spec_hash="", client_key="k", priority=0, preempts=False,
        submitted_us=1,
    )  # fmt: skip
    events: list[led.LedgerEvent] = [queued]
    rounds = 101
    for n in range(1, rounds + 1):
        last = Checkpoint(step=n - 1, reference=words) if n > 1 else None
        events.append(led.JobGranted(job_id=target, attempt=n, claims=(claim,), resume=last))
        saved = Checkpoint(step=n, reference=words)
        events.append(led.AttemptCheckpointed(job_id=target, attempt=n, checkpoint=saved))
        events.append(led.JobRequeued(job_id=target, reason="failed", resume=saved))
    for seq, event in enumerate(events, 1):
        story = advance(story, [event], seq, seq)
    assert story is not None
    attempts = story.document.attempts
    saved_by = [a.checkpoint for a in attempts if a.checkpoint is not None]
    assert [c.step for c in saved_by] == list(range(1, rounds + 1)), "steps stay"
    assert [bool(c.reference) for c in saved_by].count(True) == history.KEEP_DEVICES
    assert attempts[-1].resume == Checkpoint(step=rounds - 1, reference=words)
    told = [event.checkpoint for event in story.events if event.checkpoint is not None]
    assert [bool(c.reference) for c in told] == [n >= len(told) - history.KEEP_REFERENCES for n in range(len(told))]
    size = len(story.document.model_dump_json()) + sum(len(event.model_dump_json()) for event in story.events)
    assert size < 1_200_000


def test_a_wide_gang_that_is_preempted_again_and_again_keeps_a_document_that_mongodb_takes() -> None:
    """Of 20 attempts of 30,000 devices it had 30 MB. MongoDB refuses 16, and history would have written no other job's."""
    target, story = "job-" + "1" * 32, None
    queued = led.JobQueued(
        job_id=target, team="red", spec=job("wide").spec, spec_hash="", client_key="k", priority=0, preempts=False,
        submitted_us=1,
    )  # fmt: skip
    widths = (30_000, 30_000, 9_000, 12_000, 9_000, 9_000, 30_000, 500, 500)
    kept = []
    for seq, width in enumerate((0, *widths), 1):
        claims = tuple(Claim(device=f"a-gpu{n}", node="a", milli=1000, memory_mib=0, epoch=1) for n in range(width))
        granted = led.JobGranted(job_id=target, attempt=seq - 1, claims=claims) if width else queued
        story = advance(story, [granted], seq, seq)
        kept.append([len(attempt.devices) for attempt in story.document.attempts])
    assert kept[1:] == [
        [30_000],
        [0, 30_000],
        [0, 0, 9_000],
        [0, 0, 0, 12_000],
        [0, 0, 0, 0, 9_000],
        [0, 0, 0, 0, 9_000, 9_000],
        [0, 0, 0, 0, 0, 0, 30_000],
        [0, 0, 0, 0, 0, 0, 0, 500],
        [0, 0, 0, 0, 0, 0, 0, 500, 500],
    ]


@settings(max_examples=25, deadline=None)
@given(steps, st.data())
def test_documents_survive_a_restart_anywhere_with_any_repeat(trace: list, data: st.DataObject) -> None:
    world = drive(trace)
    whole = stories(world)
    stored_at = data.draw(st.integers(0, len(world.records)))  # how far documents were written
    stored = stories(world, until=stored_at)
    assert stories(world, start=stored) == whole  # the checkpoint was lost, everything is read again


@settings(max_examples=25, deadline=None)
@given(steps, st.data())
def test_documents_agree_with_what_placement_knows(trace: list, data: st.DataObject) -> None:
    world = drive(trace)
    state = world.decider.state
    documents = {job_id: story.document for job_id, story in stories(world).items()}
    assert {j for j, d in documents.items() if not d.state.terminal} == set(state.jobs)
    for job_id, known in state.jobs.items():
        assert documents[job_id].state is known.state
        assert len(documents[job_id].attempts) == known.attempts
        assert documents[job_id].preemptions == known.preemptions
        if known.current is not None:
            assert documents[job_id].attempts[-1].devices == tuple(c.device for c in known.current.claims)


@settings(max_examples=25, deadline=None)
@given(steps, st.data())
def test_the_feed_goes_on_from_a_snapshot_and_agrees_with_the_documents(trace: list, data: st.DataObject) -> None:
    world = drive(trace)
    cut = data.draw(st.integers(0, len(world.records)))
    feed, told = Feed(), []
    for number, record in enumerate(world.records):
        if number == cut:
            feed = Feed.load(feed.dump())
        told += feed.apply(record, 1)
    for job_id, story in stories(world).items():
        assert tell(story) == [plain(event) for event in told if event.job_id == job_id]
    for team in {event.team for event in told}:
        numbers = [event.number for event in told if event.team == team]
        assert numbers == list(range(1, len(numbers) + 1)), "without a gap, over a snapshot too"
    ends = [event.job_id for event in told if event.state.terminal]
    assert len(ends) == len(set(ends))


@settings(max_examples=25, deadline=None)
@given(steps)
def test_the_meter_agrees_with_the_checker_on_real_histories(trace: list) -> None:
    world = drive(trace)
    meter = Meter()
    for seq, record in enumerate(world.records, 1):
        meter.apply(record, seq)
    report = world.checker.finish()
    by_team: dict[str, int] = {}
    for row in meter.usage():
        by_team[row.team] = by_team.get(row.team, 0) + row.milli_us
    assert by_team == {team: units for team, units in report.by_team.items() if units}
    state = world.decider.state
    assert meter.quotas == state.quotas
    assert {t: dict(u.used) for t, u in meter.open_claims.teams(meter.quotas).items() if u.used} == state.used
    assert len(meter.open_claims.segments()) == sum(
        len(j.current.claims) for j in state.jobs.values() if j.current
    ) - sum(len(p.claims) for j in state.jobs.values() if j.current for p in j.current.parts.values() if p.freed)
