"""The lease, and simulated work, on a clock that the test turns."""

import pytest

from schemas.inbox import CheckpointTaken, Released, Started
from schemas.jobs import Checkpoint, CheckpointPolicy
from services.agent.keeper.table import RUNNING, Table
from services.agent.lease import Lease, early_s
from services.agent.timers import TimerPart, Timers
from tests.agent.build import part, simulated


def test_the_lease_counts_from_sending_not_from_the_answer():
    lease = Lease(10.0)
    assert lease.renew(sent=100.0, now=109.0)
    assert lease.valid(109.9)
    assert not lease.valid(110.0)


def test_before_the_first_renewal_nothing_may_start_and_nothing_has_ended():
    lease = Lease(10.0)
    assert not lease.valid(0)
    assert not lease.check(1e9)


def test_an_answer_that_is_older_than_the_lease_renews_nothing():
    lease = Lease(10.0)
    assert not lease.renew(sent=100.0, now=111.0)
    assert not lease.ended


def test_a_lease_that_has_ended_never_revives():
    lease = Lease(10.0)
    lease.renew(sent=0.0, now=0.1)
    assert not lease.renew(sent=9.0, now=10.5)
    assert lease.ended
    assert not lease.renew(sent=11.0, now=11.1)
    assert lease.remaining(11.2) == 0


def test_work_is_saved_after_two_thirds_of_silence():
    lease = Lease(9.0)
    lease.renew(sent=0.0, now=0.0)
    assert not lease.endangered(5.9)
    assert lease.endangered(6.1)


class Clock:
    """A loop whose time moves when told to."""

    def __init__(self) -> None:
        self.at = 0.0
        self.armed: list[tuple[float, object, list[bool]]] = []

    def time(self) -> float:
        return self.at

    def call_at(self, due, call):
        live = [True]
        self.armed.append((due, call, live))
        return type("Handle", (), {"cancel": lambda _: live.__setitem__(0, False)})()

    def run_to(self, end: float) -> None:
        while due := [entry for entry in self.armed if entry[2][0] and entry[0] <= end]:
            first = min(due, key=lambda entry: entry[0])
            self.armed.remove(first)
            self.at = max(self.at, first[0])
            first[1]()
        self.at = end


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timers(clock):
    return Timers(clock)


def start(timers, job, **fields):
    seen = []
    return TimerPart(part(job, **fields), timers, seen.append), seen


def test_a_simulated_part_runs_its_time_and_exits_with_its_code(clock, timers):
    _, seen = start(timers, simulated(5.0, exit_code=3))
    clock.run_to(4.9)
    assert [type(s) for s in seen] == [Started]
    clock.run_to(5.0)
    assert isinstance(seen[1], Released)
    assert (seen[1].exit_code, seen[1].own_exit) == (3, True)


def test_preempted_work_resumes_where_it_was(clock, timers):
    job = simulated(100.0, checkpoint=CheckpointPolicy(interval_s=1000))
    first, seen = start(timers, job)
    clock.run_to(30.0)
    first.save()
    assert seen[1].checkpoint.step == 30_000
    assert (seen[2].own_exit, seen[2].exit_code) == (False, 143)
    _, again = start(timers, job, resume=seen[1].checkpoint)
    clock.run_to(99.0)
    assert [type(s) for s in again] == [Started]
    clock.run_to(100.0)
    assert isinstance(again[1], Released)
    assert again[1].own_exit
    assert len(seen) == 3, "the first attempt's timer says nothing any more"


def test_work_without_a_policy_is_only_stopped(clock, timers):
    first, seen = start(timers, simulated(100.0))
    first.save()
    assert [type(s) for s in seen] == [Started, Released]


def test_checkpoints_are_taken_at_intervals_by_the_master_alone(clock, timers):
    job = simulated(10.0, checkpoint=CheckpointPolicy(interval_s=3))
    _, master = start(timers, job)
    _, other = start(timers, job, node_rank=1, nodes=("a", "n0"))
    clock.run_to(20.0)
    assert [s.checkpoint.step for s in master if isinstance(s, CheckpointTaken)] == [3000, 6000, 9000]
    assert [type(s) for s in other] == [Started, Released]


def test_a_job_that_saves_without_end_does_so_once_a_second(clock, timers):
    seen = []

    def hear(observation):
        seen.append(observation)
        assert len(seen) < 100, "it would go on for ever"

    TimerPart(part(simulated(3.5, checkpoint=CheckpointPolicy(interval_s=1e-300))), timers, hear)
    clock.run_to(4.0)
    assert [s.checkpoint.step for s in seen if isinstance(s, CheckpointTaken)] == [1000, 2000, 3000]


def test_thousands_of_timers_end_in_order_with_one_timer_of_the_loop(clock, timers):
    ended = []
    for i in reversed(range(5000)):
        timers.at(i / 100, lambda i=i: ended.append(i))
    assert sum(entry[2][0] for entry in clock.armed) == 1
    clock.run_to(60.0)
    assert ended == list(range(5000))
    assert len(timers) == 0


def test_a_part_that_resumes_beyond_its_end_finishes_at_once(clock, timers):
    _, seen = start(timers, simulated(1.0), resume=Checkpoint(step=5000, reference=""))
    clock.run_to(0.0)
    assert [type(s) for s in seen] == [Started, Released]


# ------------------------------------------------------------------------------------------- the keeper's deadlines


def test_a_parts_lease_is_its_classes_and_no_longer_than_its_nodes() -> None:
    assert early_s(30, 300) == 270
    assert early_s(300, 300) == early_s(900, 300) == 0
    assert early_s(0, 300) is None


def test_the_keeper_ends_each_attempt_at_its_own_deadline_and_what_is_kept_never() -> None:
    table = Table()
    table.begin("n", 1)
    table.until("n", 1, 100.0, 0.0)
    for name, early in (("short", 70.0), ("long", 0.0), ("kept", None)):
        table.enter(name, "n", 1, {}, "", now=1.0, early=early).state = RUNNING
    assert table.over(29.9) == []
    assert table.next_deadline(1.0) == 30.0
    assert [a.id for a in table.over(30.0)] == ["short"]
    table.until("n", 1, 130.0, 31.0)
    assert [a.id for a in table.over(31.0)] == ["short"], "a later renewal does not save what is over"
    assert [a.id for a in table.over(130.0)] == ["short", "long"]
    assert not table.unwanted(500.0)
    table.until("n", 1, 700.0, 500.0)
    assert [a.id for a in table.over(600.0)] == ["short", "long"], "the life goes on for what is kept alone"
    table.enter("new", "n", 1, {}, "", now=600.0).state = RUNNING
    assert "new" not in [a.id for a in table.over(600.0)]


def test_without_kept_work_a_lease_that_has_ended_never_revives() -> None:
    table = Table()
    table.begin("n", 1)
    table.until("n", 1, 100.0, 0.0)
    table.enter("one", "n", 1, {}, "", now=1.0).state = RUNNING
    table.until("n", 1, 200.0, 100.0)
    assert [a.id for a in table.over(101.0)] == ["one"]
    assert table.unwanted(101.0)
