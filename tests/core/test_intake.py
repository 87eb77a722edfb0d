"""What a team may ask for: each limit by its name, with when to come again; nobody else is touched."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.core.admission import intake as intake_module
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.intake import (
    EVERYBODY,
    FULL_QUEUE_WAIT_S,
    IDLE_CANCELS,
    LEAST_WAIT_S,
    Bucket,
    Buckets,
    Intake,
    IntakeLimits,
)
from libs.core.admission.job_kinds import WITH_ROLES_AS
from schemas import ledger as led
from schemas.jobs import JobSpec, Network
from schemas.resources import Resources, Role
from tests.core.builders import World, job, node

S = 1_000_000


def test_a_team_without_limits_may_submit() -> None:
    intake = Intake({"other": IntakeLimits(open_jobs=1)})
    assert all(intake.submit("mine", 10**9, 10**9, n) is None for n in range(1_000))


def test_a_team_without_limits_has_those_of_everybody() -> None:
    intake = Intake({EVERYBODY: IntakeLimits(open_jobs=1), "free": IntakeLimits()})
    assert intake.submit("mine", 1, 0, 0) is None
    assert intake.submit("mine", 1, 1, 0) is not None
    assert intake.submit("free", 1, 10**9, 0) is None


def test_open_jobs_and_bytes_are_named_with_their_values() -> None:
    intake = Intake({"a": IntakeLimits(open_jobs=3, request_bytes=1_000)})
    assert intake.submit("a", 1_000, 2, 0) is None
    full = intake.submit("a", 1_000, 3, 0)
    assert full is not None
    assert "open_jobs" in full.limit
    assert "3 jobs" in full.limit
    assert full.wait_s is not None
    assert full.wait_s >= LEAST_WAIT_S
    large = intake.submit("a", 1_001, 0, 0)
    assert large is not None
    assert "request_bytes" in large.limit
    assert large.wait_s is None, "it never will do"


def test_a_burst_and_then_its_rate() -> None:
    intake = Intake({"a": IntakeLimits(submits_per_s=2, burst=5)})
    assert [intake.submit("a", 1, 0, 0) is None for _ in range(7)] == [True] * 5 + [False] * 2
    assert [intake.submit("a", 1, 0, 2 * S) is None for _ in range(6)] == [True] * 4 + [False] * 2
    assert intake.submit("b", 1, 0, 0) is None
    assert intake.submit("a", 1, 0, 0) is not None, "a clock that goes back gives nothing"


def test_bytes_have_a_rate_of_their_own_and_both_must_hold() -> None:
    intake = Intake({"a": IntakeLimits(submits_per_s=100, bytes_per_s=1_000, burst_bytes=5_000)})
    assert [intake.submit("a", 2_000, 0, 0) is None for _ in range(4)] == [True, True, False, False]
    over = intake.submit("a", 2_000, 0, 0)
    assert over is not None
    assert "bytes_per_s" in over.limit
    assert (over.value, over.wait_s) == ("2000 bytes", LEAST_WAIT_S)
    assert intake.submit("a", 900, 0, 0) is None, "what is refused takes nothing"
    assert intake.submit("a", 50_000, 0, 60 * S) is None, "larger than all at once: taken from a full bucket"
    assert intake.submit("a", 1_000, 0, 90 * S) is not None, "and paid back"
    assert intake.submit("a", 1_000, 0, 110 * S) is None


def test_two_processes_allow_what_one_does() -> None:
    """Each counts what it admits, and what the other one admitted when the ledger shows it."""
    world = World(node("a", 8))
    limits = {"ai": IntakeLimits(submits_per_s=0.01, burst=10), "big": IntakeLimits(bytes_per_s=1, burst_bytes=1_000)}
    first, second = Intake(limits), Intake(limits)
    for number in range(10):
        assert first.submit("ai", 100, 0, 0) is None
        first.admitted("ai", world.submit(job(f"k{number}", 8, team="ai")))
    large = job("large", 8, team="big")
    world.submit(large.model_copy(update={"spec": large.spec.model_copy(update={"command": ("x" * 2_000,)})}))
    queued = [e for r in world.records for e in r.events if isinstance(e, led.JobQueued)]
    for event in queued:
        first.queued(event)
        second.queued(event)
    at_us = queued[-1].submitted_us
    assert second.submit("ai", 100, 0, at_us) is not None, "the other process has used it up"
    assert second.submit("big", 100, 0, at_us) is not None
    later = at_us + 150 * S
    assert first.submit("ai", 100, 0, later) is None, "its own were counted once"
    assert second.submit("ai", 100, 0, later) is None


@given(st.lists(st.integers(-S, 3 * S), max_size=200), st.integers(1, 20), st.floats(0.1, 50))
def test_no_more_than_burst_and_rate_allow(steps: list[int], most: int, per_s: float) -> None:
    bucket, now, latest, taken = Bucket(most, 0), 0, 0, 0
    for step in steps:
        now = max(0, now + step)
        latest = max(latest, now)
        taken += not bucket.take(most, per_s, now)
        assert taken <= most + latest / S * per_s + 1e-6


def test_a_team_may_send_on_when_the_brokers_clock_was_set_back() -> None:
    """It had what a burst allows, and then nothing for the hour until the clock showed again what it had shown."""
    intake = Intake({"a": IntakeLimits(submits_per_s=1, burst=10)})
    set_back_us = 7200 * S
    assert all(intake.submit("a", 1, 0, 3 * 3600 * S) is None for _ in range(10))
    after = [intake.submit("a", 1, 0, 3 * 3600 * S - set_back_us + n * S) is None for n in range(60)]
    assert after == [False] + [True] * 59, "one a second"
    late = [intake.submit("a", 1, 0, 3600 * S + 59 * S - n * S) is None for n in range(1, 60)]
    assert not any(late), "what is delivered late lets no time pass"


def test_cancels_that_change_nothing_are_few_and_others_free() -> None:
    intake = Intake()
    unknown = [intake.cancel("a", f"job-{n}", False, 0) for n in range(IDLE_CANCELS + 50)]
    assert [over is None for over in unknown] == [True] * IDLE_CANCELS + [False] * 50
    assert all(intake.cancel("a", f"open-{n}", True, 0) is None for n in range(6_000)), "all of a team's jobs at once"
    again = intake.cancel("a", "open-0", True, 0)
    assert again is not None, "it was asked to end already"
    assert "asked to end" in again.limit
    assert intake.cancel("b", "job-0", False, 0) is None
    assert all(intake.cancel("b", f"open-{n}", True, 0) is None for n in range(6_000)), (
        "what one team asks, another may"
    )


def test_kinds_are_limited_and_what_is_open_already_is_not() -> None:
    intake = Intake({"a": IntakeLimits(open_kinds=2)})
    assert intake.kind("a", 3, {1}) is None
    assert intake.kind("a", 2, {1, 2}) is None, "no new one"
    over = intake.kind("a", 3, {1, 2})
    assert over is not None
    assert "2 kinds" in over.limit
    assert "open_kinds" in over.limit
    assert (over.value, over.wait_s) == ("2 kinds", FULL_QUEUE_WAIT_S)
    assert intake.kind("b", 3, {1, 2}) is None


def test_buckets_are_of_the_keys_that_were_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of nodes are many in a year."""
    monkeypatch.setattr(intake_module, "_BUCKETS", 2)
    buckets: Buckets[str] = Buckets()
    kept = buckets.of("a", 1, 0)
    buckets.of("b", 1, 0)
    assert buckets.of("a", 1, 0) is kept
    buckets.of("c", 1, 0)
    assert buckets.of("a", 1, 0) is kept
    assert len(buckets._of) == 2


def test_a_kind_is_the_same_number_in_each_process() -> None:
    """It lies in snapshots."""
    asks = (
        "from libs.core.admission.fleet_shape import FleetShape\n"
        "from schemas.jobs import JobSpec, Network\n"
        "from schemas.resources import Resources\n"
        "asked = Resources(types=('H100', 'A100'), labels={'disk': 'ssd', 'rack': '7'})\n"
        "spec = JobSpec(command=('x',), resources=asked)\n"
        "print(FleetShape().kind_of('a', 'u', spec, network=Network.HOST, priority=1, preempts=False))\n"
    )

    def told(seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.run([sys.executable, "-c", asks], env=env, capture_output=True, text=True, check=True).stdout

    assert told("1") == told("2")


def test_a_kind_with_roles_counts_as_many() -> None:
    """To see that such a gang does not fit placement packs it."""
    fleet = FleetShape()
    roles = (Role(name="a", count=2), Role(name="b", count=2))
    specs = [JobSpec(command=("x",), resources=Resources(roles=some)) for some in ((), roles)]
    plain, nested = (fleet.kind_of("a", "u", s, network=Network.HOST, priority=0, preempts=False) for s in specs)
    intake = Intake({"a": IntakeLimits(open_kinds=WITH_ROLES_AS + 1)})
    assert intake.kind("a", 7, (plain, 5, 6)) is None
    assert intake.kind("a", 7, (nested,)) is None
    over = intake.kind("a", 7, (nested, plain))
    assert over is not None
    assert (over.value, "counts as 16" in over.limit) == ("17 kinds", True)
    assert intake.kind("a", nested, (nested, plain)) is None, "it is open already"


def test_what_open_jobs_ask_for_has_room_for_so_many_bytes() -> None:
    intake = Intake({"a": IntakeLimits(open_bytes=1_000)})
    assert intake.submit("a", 900, 7, 0, open_bytes=999) is None
    full = intake.submit("a", 1, 7, 0, open_bytes=1_000)
    assert full is not None
    assert ("open_bytes" in full.limit, full.value, full.wait_s is not None) == (True, "1000 bytes", True)


def test_bytes_of_open_jobs_are_counted_from_the_ledger_and_kept_in_snapshots() -> None:
    """A hundred thousand jobs that wait, of 64 KB each, were six gigabytes in each process that follows the ledger."""
    world, shape = World(node("a", 8)), FleetShape()
    large = job("large", 8)
    large = large.model_copy(update={"spec": large.spec.model_copy(update={"env": {"DATA": "x" * 4000}})})
    first, second = world.submit(large), world.submit(job("small", 8))

    def size() -> int:
        done = shape.inbox_seq
        for seq, record in enumerate(world.records, 1):
            if record.inbox_seq > done:
                shape.apply(record, seq)
        assert FleetShape.load(shape.dump()).open_bytes("research") == shape.open_bytes("research")
        return shape.open_bytes("research")

    both = size()
    assert 5000 < both < 6000
    world.started(first)
    world.released(first)
    assert 0 < size() < both - 4000
    world.started(second)
    world.released(second)
    assert size() == 0


def test_open_kinds_are_counted_from_the_ledger_and_kept_in_snapshots() -> None:
    world = World(node("a", 8))
    first = world.submit(job("k0", 8))
    for key, devices, priority in (("k1", 8, 5), ("k2", 4, 5), ("k3", 4, 5), ("k4", 4, 9)):
        world.submit(job(key, devices, priority=priority))
    shape = FleetShape()

    def kinds() -> int:
        done = shape.inbox_seq
        for seq, record in enumerate(world.records, 1):
            if record.inbox_seq > done:
                shape.apply(record, seq)
        loaded = FleetShape.load(shape.dump())
        assert set(loaded.open_kinds("research")) == set(shape.open_kinds("research"))
        return len(shape.open_kinds("research"))

    assert kinds() == 4, "by what they ask for, and by class"
    world.started(first)
    world.released(first)
    assert kinds() == 3, "the last job of its kind has ended"


def test_open_jobs_are_counted_from_the_ledger_and_kept_in_snapshots() -> None:
    world = World(node("a", 8))
    jobs = [world.submit(job(f"k{number}", 8, team="ai" if number else "other")) for number in range(4)]
    world.started(jobs[0])
    world.released(jobs[0])
    shape = FleetShape()
    for seq, record in enumerate(world.records, 1):
        shape.apply(record, seq)
    queued = [e for r in world.records for e in r.events if isinstance(e, led.JobQueued)]
    ended = {e.job_id for r in world.records for e in r.events if isinstance(e, led.JobFinished)}
    wanted = {team: sum(e.team == team and e.job_id not in ended for e in queued) for team in ("ai", "other")}
    for each in (shape, FleetShape.load(shape.dump())):
        assert {team: each.open_jobs(team) for team in wanted} == wanted
        assert all(each.owner(e.job_id) == (None if e.job_id in ended else e.team) for e in queued)
