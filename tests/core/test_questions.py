"""Questions under a backlog: what is counted or looked up says the same as a walk over all jobs did."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from libs.core.explain.dry_run import dry_run
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain, queue_view, waiting_jobs
from libs.core.projections.pool_status import StatusFigures
from libs.core.scheduling import cycle
from libs.core.scheduling.order import JobsAhead, in_order
from libs.core.scheduling.policy import Policy
from libs.core.state.job import Job
from libs.core.state.line import Line
from libs.core.state.model import State, running
from libs.core.state.shape import shape_of
from libs.core.state.waiting import enqueue
from schemas import inbox
from schemas.jobs import JobSpec, JobState
from schemas.pool_status import Quantiles
from schemas.resources import Resources
from schemas.subjects import OPERATOR
from tests.core.builders import World, job, node
from tests.core.crowds import Crowd, steps, uncapped
from tests.core.test_dry_run import inputs


def crowded(life: list[Any], lost: Iterable[int]) -> Crowd:
    """The crowd after its life; more jobs come at the end, so that some wait, and nodes are lost, so that jobs come back."""
    crowd = Crowd()
    more = ("batch", len(life), 3), *(("submit", which, size) for which, size in ((49, 4), (7, 3), (20, 2), (31, 4)))
    for step in (*life, *more, *(("lose", which, 0) for which in lost)):
        crowd.play(step)
    return crowd


def standing(name: str, submitted_us: int, queued_us: int) -> Job:
    return Job(
        name, "red", JobSpec(command=("x",)), "", 0, False, submitted_us=submitted_us, queued_us=queued_us,
        shape=shape_of(JobSpec(command=("x",))),
    )  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(life=steps, lost=st.sets(st.integers(0, 4), max_size=3), at_s=st.integers(0, 30))
def test_the_jobs_ahead_are_counted_as_a_walk_meets_them(life: list[Any], lost: set[int], at_s: int) -> None:
    crowd = crowded(life, sorted(lost))
    state, policy = crowd.state, crowd.world.decider.policy
    assume(state.queues)
    t_us = state.t_us + at_s * 1_000_000
    ahead, met = JobsAhead(state, t_us, policy), list(in_order(state, t_us, policy))
    for number, one in enumerate(met):
        assert sum(ahead.by_queue(one).values()) == number
        before = met[:number]
        assert sum(ahead.by_queue(one, "red").values()) == sum(other.team == "red" for other in before)
        assert ahead.held(one) == sum(other.id in state.holds for other in before)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(life=steps, lost=st.sets(st.integers(0, 4), max_size=3))
def test_the_reason_of_each_queue_is_the_one_that_a_whole_cycle_finds(life: list[Any], lost: set[int]) -> None:
    crowd = crowded(life, sorted(lost))
    state, policy = crowd.state, uncapped(crowd.world.decider.policy)
    assume(state.queues)
    whole = cycle.plan(state, state.t_us, policy)
    assume(not whole.grants)  # else the last cycle stopped at its bound
    reasons = Reasons(state, policy)
    assert {key: reasons.of(key) for key in state.queues} == whole.waiting
    listed = queue_view(state, reasons, 5000)
    assert len(listed) == waiting_jobs(state)
    for team in ("red", "blue", "green"):
        own = queue_view(state, reasons, 5000, seen_by=team)
        assert [one.position for one in own] in ([], [*range(1, len(own) + 1)]) or crowd.state.backing_off
        told = {"position": 0, "start": None}  # of the asker's own
        assert [one.model_copy(update=told) for one in own] == [
            one.model_copy(update=told) for one in listed if one.team == team
        ]
        assert len(own) == waiting_jobs(state, seen_by=team)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(life=steps, lost=st.sets(st.integers(0, 4), max_size=3))
def test_the_pool_at_a_glance_is_what_a_look_at_each_job_gives(life: list[Any], lost: set[int]) -> None:
    state = crowded(life, sorted(lost)).state
    glance, none = StatusFigures(state, "p", 1), Quantiles(count=0)
    for team in ("red", "blue", "green", ""):
        jobs = [one for one in state.jobs.values() if team in ("", one.team)]
        told = glance.of_team(team, none, none) if team else glance.of_all(none, none)
        ended = {} if team else state.finished_by_state
        assert told.jobs == dict(Counter(one.state.value for one in jobs) + Counter(ended))
        assert told.waiting_devices == sum(one.shape.devices for one in jobs if one.state is JobState.QUEUED)
        if team:
            assert told.grants == sum(one.attempts for one in jobs)
            assert told.preemptions == sum(one.preemptions for one in jobs)
    assert {one.id for one in running(state)} == {one.id for one in state.jobs.values() if one.current is not None}


@given(
    jobs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60),
    gone=st.sets(st.integers(0, 59)),
    asked=st.tuples(st.integers(0, 9), st.integers(0, 59), st.integers(0, 9)),
    length=st.integers(1, 4),
)
def test_a_line_finds_what_a_sorted_list_finds(
    jobs: list[tuple[int, int]], gone: set[int], asked: tuple[int, int, int], length: int
) -> None:
    line, plain = Line(length), []
    for number, (submitted_us, queued_us) in enumerate(jobs):
        one = standing(f"j{number:02}", submitted_us, queued_us)
        line.add(one)
        plain.append(one)
    for one in [plain[number] for number in gone if number < len(plain)]:
        line.remove(one)
        plain.remove(one)
        assert one not in line
    plain.sort(key=lambda one: (one.submitted_us, one.id))
    assert (list(line), len(line)) == ([one.id for one in plain], len(plain))
    assert all(one in line for one in plain)
    submitted_us, number, queued_us = asked
    place = (submitted_us, f"j{number:02}")
    older = [one for one in plain if (one.submitted_us, one.id) < place]
    assert line.before(*place) == len(older)
    later = [at for at, one in enumerate(plain) if at >= len(older) and one.queued_us > queued_us]
    assert line.queued_after(queued_us, *place) == (later[0] if later else len(plain))
    last = [one.id for one in older if one.queued_us > queued_us]
    assert line.last_queued_after(queued_us, *place) == (last[-1] if last else None)
    new = standing("new", submitted_us, queued_us)
    assert list(line.with_last(new)) == [
        one.id for one in sorted([*plain, new], key=lambda one: (one.submitted_us, one.id))
    ]
    assert list(line) == [one.id for one in plain], "the copy shares what it does not change"


class Looked(dict[str, Job]):
    """Jobs that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, job_id: str) -> Job:
        self.looks += 1
        return super().__getitem__(job_id)

    def get(self, job_id: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(job_id, default)

    def values(self) -> Any:
        self.looks += len(self)
        return super().values()


@pytest.mark.parametrize("seen_by", ["red", OPERATOR])
def test_no_question_looks_at_more_jobs_because_more_wait(seen_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of those that wait came back, some are gangs that are due: all of it is counted by queue."""
    met = 0
    walk = Line.__iter__

    def counted(line: Line) -> Iterator[str]:
        nonlocal met
        for job_id in walk(line):
            met += 1
            yield job_id

    monkeypatch.setattr(Line, "__iter__", counted)

    def looks(waiting: int) -> dict[str, int]:
        nonlocal met
        world = World(node("n0", 8))
        world.started(world.submit(job("runs", 8, team="blue", priority=100)))
        world.send(inbox.Tick(), after_us=100_000_000)
        state, policy = world.decider.state, Policy()
        state.jobs = Looked(state.jobs)
        for number in range(waiting):
            spec = JobSpec(command=("x",), resources=Resources(devices=1 + number % 3))
            queued_us = state.t_us if number % 50 == 7 else number
            one = Job(
                f"job-{number:032x}",
                ("red", "blue")[number % 2],
                spec,
                "",
                100,
                False,
                submitted_us=number,
                queued_us=queued_us,
                shape=shape_of(spec),
            )
            state.jobs[one.id] = one
            enqueue(state, one)
        last = {one.team: one for one in state.jobs.values() if one.state is JobState.QUEUED}["red"]
        asked: dict[str, Callable[[], object]] = {
            "status": lambda: StatusFigures(state, "p", 1),
            "explain": lambda: explain(state, last, Reasons(state, policy), seen_by=seen_by),
            "list": lambda: (queue_view(state, Reasons(state, policy), 20, seen_by=seen_by), waiting_jobs(state)),
            "plan": lambda: dry_run(state, last.spec, "red", state.t_us, inputs(), seen_by=seen_by),
            "plan of a class that preempts": lambda: dry_run(
                state, last.spec.model_copy(update={"priority_class": "production"}), "red", state.t_us, inputs()
            ),
        }
        found = {}
        for name, ask in asked.items():
            state.jobs.looks = met = 0
            ask()
            found[name] = state.jobs.looks + met
        return found

    assert looks(6000) == looks(600)


def test_the_jobs_ahead_are_counted_in_queues_of_every_kind() -> None:
    """Jobs that came back stand before gangs that are due, and devices are held for some: lives seldom lead there."""
    specs = [JobSpec(command=("x",), resources=Resources(devices=devices)) for devices in (1, 2, 3)]
    fleet = World(node("n0", 8)).decider.state.fleet
    for seed in range(400):
        chance = Random(seed)
        state = State(fleet=fleet, used={team: {"H100": chance.choice((0, 1000, 2000))} for team in ("red", "blue")})
        devices = [f"n0-gpu{number}" for number in range(8)]
        for number in chance.sample(range(100), chance.randrange(1, 14)):
            spec, team, submitted_us = chance.choice(specs), chance.choice(("red", "blue")), chance.randrange(6)
            priority, queued_us = chance.choice((0, 100)), chance.randrange(12)
            one = Job(
                f"j{number:02}", team, spec, "", priority, False, submitted_us=submitted_us, queued_us=queued_us,
                shape=shape_of(spec),
            )  # fmt: skip
            state.jobs[one.id] = one
            enqueue(state, one)
            if devices and chance.random() < 0.2:
                state.holds[one.id] = (devices.pop(),)
        t_us, policy = chance.randrange(4, 18), Policy(reserve_after_us=5)
        ahead, walked = JobsAhead(state, t_us, policy), list(in_order(state, t_us, policy))
        for number, one in enumerate(walked):
            assert ahead.count(one) == number, seed
            assert ahead.count(one, "red") == sum(other.team == "red" for other in walked[:number]), seed
            assert ahead.held(one) == sum(other.id in state.holds for other in walked[:number]), seed
