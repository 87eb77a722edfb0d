"""Client keys: how long they count, what happens at the bound, and that every fold of a ledger agrees on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.bus.table import streams
from libs.core.scheduling.decider import Decider
from libs.core.state import ended
from libs.core.state.cut import Cuts
from libs.core.state.ended import DAY_US, KEPT_US, EndedJobs
from schemas import inbox
from schemas.ids import job_id
from schemas.subjects import REQUESTS
from tests.core.builders import World, job, node

NOW = 20_000 * DAY_US
HOUR_US = DAY_US // 24


def key(n: int) -> str:
    return job_id("research", str(n))


def ran(world: World, name: str, **fields) -> str:
    """A job from its submit to its end."""
    id_ = world.submit(job(name, submitted_us=world.now_us, **fields))
    world.released(id_)
    return id_


def at_work() -> World:
    """A pool whose clock shows a real time."""
    world = World()
    world.now_us = NOW
    world.send(inbox.NodeRegistered(incarnation=1, inventory=node("n1"), lease_s=10))
    return world


# ------------------------------------------------------------------------------------------------- what the pool says


def test_a_key_counts_longer_than_requests_are_kept():
    requests = next(config for config in streams(["p"]) if config.name == REQUESTS)
    assert requests.max_age
    assert requests.max_age * 1_000_000 < KEPT_US


def test_a_repeated_request_is_the_same_job_for_days_after_its_end():
    world = at_work()
    ran(world, "a")
    for _ in range(6):
        assert world.send(job("a", submitted_us=world.now_us), after_us=DAY_US) == []
    world.check()


def test_another_body_under_a_taken_key_is_refused():
    world = at_work()
    id_ = ran(world, "a")
    other = job("a", submitted_us=world.now_us).model_copy(update={"spec_hash": "another"})
    (event,) = world.send(other)
    assert event.kind == "input.rejected"
    assert id_ in event.reason


def test_after_the_window_a_key_is_free_and_names_a_new_job():
    world = at_work()
    id_ = ran(world, "a")
    world.send(after_us=KEPT_US + DAY_US)
    assert [e.kind for e in world.send(job("a", submitted_us=world.now_us))] == ["job.queued", "job.granted"]
    assert id_ in world.decider.state.jobs
    world.check()


def test_a_request_that_is_older_than_the_window_never_enters():
    """Else a copy of a request could run again as soon as its job is forgotten."""
    world = at_work()
    stored_us = world.now_us
    ran(world, "a")
    world.send(after_us=KEPT_US + DAY_US)
    (event,) = world.send(job("a", submitted_us=stored_us))
    assert event.kind == "input.rejected"
    assert "192.0 hours ago" in event.reason
    assert "168.0 hours" in event.reason
    world.check()


def test_a_cancel_of_an_ended_job_is_answered_within_the_window_and_beyond():
    world = at_work()
    id_ = ran(world, "a")
    cancel = inbox.CancelRequested(job_id=id_, team="research", reason="too late")
    assert world.send(cancel) == []
    (event,) = world.send(cancel, after_us=KEPT_US + DAY_US)
    assert event.kind == "input.rejected"
    assert event.reason == f"no job {id_} waits or runs, and none of that id ended in the last 7 days"


def test_what_is_remembered_survives_a_snapshot():
    world = at_work()
    for n in range(2000):
        world.decider.state.finished.add(key(n), "h", NOW + n * HOUR_US)
    again = Decider.load(list(world.decider.dump())).state.finished
    now = NOW + 2000 * HOUR_US
    assert again.oldest_us(now) == world.decider.state.finished.oldest_us(now)
    assert [again.knows(key(n), now) for n in range(2000)] == [
        world.decider.state.finished.knows(key(n), now) for n in range(2000)
    ]
    assert list(again.dump()) == list(world.decider.state.finished.dump())


# ------------------------------------------------------------------------------------------------------- the structure


def test_at_its_bound_the_window_shrinks_and_older_requests_are_refused(monkeypatch):
    monkeypatch.setattr(ended, "_FIRST_SLOTS", 16)
    monkeypatch.setattr(ended, "_TABLE_SLOTS", 64)
    jobs = EndedJobs(max_slots=256)
    for n in range(2000):
        jobs.add(key(n), "h", NOW + n)
    now = NOW + 2000
    assert sum(t.slots for t in jobs.tables) <= 256
    assert len(jobs) <= 192
    known = [n for n in range(2000) if jobs.knows(key(n), now)]
    assert known == list(range(2000 - len(known), 2000)), "the newest are known without a gap"
    assert len(known) > 120
    assert jobs.oldest_us(now) == NOW + known[0], "what may be forgotten is refused, what is known is not"
    assert jobs.window_us(now) == now - NOW - known[0] < KEPT_US


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, DAY_US)), max_size=120))
def test_it_answers_as_a_dict_would(history):
    """Every id that ended within the window is known with its body; none is forgotten that would not be refused."""
    jobs, truth, now = EndedJobs(), {}, NOW
    for n, step in history:
        now += step
        if jobs.knows(key(n), now):
            continue
        jobs.add(key(n), f"body {n}", now)
        truth[n] = now
        for m, at in truth.items():
            if at >= now - KEPT_US:
                assert jobs.same(key(m), f"body {m}", now) is True
                assert jobs.same(key(m), "another", now) is False
            elif not jobs.knows(key(m), now):
                assert at < jobs.oldest_us(now)
    copy = jobs.copy()
    jobs.add(key(99), "h", now)
    assert key(99) not in copy
    assert list(EndedJobs.load(copy.dump()).dump()) == list(copy.dump())


def test_a_year_of_jobs_takes_no_more_room_than_the_window(monkeypatch):
    monkeypatch.setattr(ended, "_FIRST_SLOTS", 16)
    jobs, most = EndedJobs(), 0
    for n in range(365 * 24):
        jobs.add(key(n), "h", NOW + n * HOUR_US)
        most = max(most, sum(table.slots for table in jobs.tables))
    assert most <= 9 * (16 + 64)
    assert len(jobs) <= 9 * 24


@pytest.mark.parametrize("stop", [0, 1, 7, 10])
def test_a_cut_shows_the_table_as_it_was(stop):
    """Rows change, go and come while the parts are being made."""
    table = {str(n): [n] for n in range(10)}
    cuts: Cuts[list[int]] = Cuts()
    cut = cuts.take(table, lambda name, row: f"{name}={row[0]}".encode(), b"\n".join)
    assert cuts
    taken = []
    for n in range(10):
        if n == stop:
            for changed in ("0", "5", "9"):
                cuts.before_change(changed)
                table[changed][0] = -1
            cuts.before_change("6")
            del table["6"]
            cuts.before_change("new")
            table["new"] = [1]
        taken.append(cut._take(str(n)).decode())
    assert taken == [f"{n}={n}" for n in range(10)]
    del cut
    assert not cuts, "nobody holds it any more"


def test_a_snapshot_is_of_the_moment_it_was_asked_for():
    world = World(node("n1"))
    ids = [world.submit(job(f"j{n}", 1)) for n in range(12)]
    expected = list(world.decider.dump())
    parts = world.decider.dump()
    early = [next(parts)]
    for id_ in ids[:3]:
        world.started(id_)
        world.released(id_)
    world.submit(job("late"))
    assert early + list(parts) == expected
    assert list(world.decider.dump()) != expected
    world.check()


def test_parts_are_small():
    world = World(*(node(f"n{n}") for n in range(200)))
    for n in range(1000):
        world.decider.state.finished.add(key(n), "h", n)
    sizes = [len(part) for part in world.decider.dump()]
    assert len(sizes) > 4
    assert max(sizes) < 1_000_000
