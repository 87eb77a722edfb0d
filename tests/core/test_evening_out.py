"""What is lent beyond guarantees is evened out where a half-life is said: who has less of it, for its weight, gets it from who
has more, and nothing goes to and fro. The planner, the ledger's writer and the checker agree."""

import heapq
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain
from libs.core.projections.verify import Checker
from libs.core.scheduling import preemption
from schemas import inbox, ledger
from schemas.queues import PreemptionLimits, Queue
from tests.core.builders import World, job, node
from tests.core.test_reclaim import carried_out, planned, queue

S = 1_000_000
HOUR_S = 3600


def pool(*queues: Queue, nodes: int = 2, half_life_s: int | None = HOUR_S, **more: Any) -> World:
    w = World(*(node(f"n{i}") for i in range(nodes)))  # eight devices each
    w.send(inbox.ApplyQueues(version=1, queues=queues, half_life_s=half_life_s, reason="begin", user="olga", **more))
    return w


def runs(w: World, name: str, devices: int, team: str, priority: int = 0) -> str:
    started = w.submit(job(name, devices, team=team, priority=priority))
    assert w.state_of(started) == "granted"
    w.started(started)
    return started


def pass_by(w: World, seconds: int = HOUR_S // 20) -> None:
    """So long a job runs at least before it goes."""
    w.send(after_us=seconds * S)


def settle(w: World) -> int:
    """Carries out what is planned until nothing is planned, starts or ends any more. How many times something was planned."""
    planned_times = 0
    for _ in range(200):
        made = carried_out(w)
        moving = [one for one in w.decider.state.jobs.values() if one.state.value in ("preempting", "granted")]
        for one in moving:
            if one.state.value == "preempting":
                w.released(one.id, exit_code=143, own_exit=False)
            else:
                w.started(one.id)
        if not made and not moving:
            return planned_times
        planned_times += bool(made)
        pass_by(w)
    raise AssertionError("it goes on for ever")


def held(w: World) -> dict[str, int]:
    return {team: sum(kinds.values()) // 1000 for team, kinds in w.decider.state.used.items()}


def test_who_comes_later_gets_its_half_of_what_another_fills() -> None:
    w = pool(queue("early"), queue("late"))
    for number in range(16):
        runs(w, f"days{number}", 1, "early")
    pass_by(w)
    for number in range(16):
        w.submit(job(f"mine{number}", 1, team="late"))
    plans = carried_out(w)
    assert len(plans) == 8
    assert {plan.reason for plan in plans} == {
        "fair share: queue late holds less than its share of what nobody is guaranteed"
    }
    settle(w)
    assert held(w) == {"early": 8, "late": 8}
    assert planned(w) == []


def test_a_job_runs_a_twentieth_of_the_half_life_before_it_goes() -> None:
    w = pool(queue("early"), queue("late"), nodes=1)
    for number in range(8):
        runs(w, f"days{number}", 1, "early")
    w.submit(job("mine", 2, team="late"))
    assert planned(w) == []
    pass_by(w, HOUR_S // 20 + 1)
    (plan,) = carried_out(w)
    assert len(plan.victims) == 2


def test_without_a_half_life_only_guarantees_are_taken_back() -> None:
    w = pool(queue("early"), queue("late"), half_life_s=None)
    for number in range(16):
        runs(w, f"days{number}", 1, "early")
    w.submit(job("mine", 2, team="late"))
    pass_by(w)
    assert planned(w) == []


def test_weights_classes_and_guarantees_count() -> None:
    """Of 16 early is guaranteed 4; of the 12 others late gets three of four. A job of a higher class stays."""
    w = pool(queue("early", "", 4), queue("late", weight_milli=3000), queue("none", weight_milli=0))
    for number in range(15):
        runs(w, f"days{number}", 1, "early")
    runs(w, "urgent", 1, "early", priority=200)
    pass_by(w)
    for number in range(16):
        w.submit(job(f"mine{number}", 1, team="late"))
        w.submit(job(f"no{number}", 1, team="none"))
    settle(w)
    assert held(w) == {"early": 7, "late": 9}
    assert any(one.spec.name == "urgent" and one.current for one in w.decider.state.jobs.values())


def test_a_gang_goes_only_if_its_queue_still_has_as_much_as_who_gets_it() -> None:
    w = pool(queue("early"), queue("late"), nodes=1)
    runs(w, "gang", 8, "early")
    pass_by(w)
    w.submit(job("mine", 1, team="late"))
    assert planned(w) == [], "early would have nothing: it differs by its largest gang"


@pytest.mark.parametrize(("half_life_s", "grace_s"), [(HOUR_S, 900), (None, 900), (HOUR_S, 0)])
def test_the_file_may_say_after_how_long_shares_are_evened_out(half_life_s: int | None, grace_s: int) -> None:
    limits = PreemptionLimits(share_grace_s=grace_s)
    w = pool(queue("early"), queue("late"), nodes=1, half_life_s=half_life_s, preemption=limits)
    for number in range(8):
        runs(w, f"days{number}", 1, "early")
    mine = w.submit(job("mine", 2, team="late"))
    if grace_s:
        assert planned(w) == []
        told = explain(w.decider.state, w.decider.state.jobs[mine], Reasons(w.decider.state))
        assert "900 s (preemption.share_grace)" in told.text
        pass_by(w, grace_s + 1)
    (plan,) = carried_out(w)
    assert len(plan.victims) == 2
    w.check()


def test_an_operator_may_have_history_and_leave_running_work_alone() -> None:
    never = PreemptionLimits(share_grace_s="never")
    w = pool(queue("early"), queue("late"), nodes=1, preemption=never)
    for number in range(8):
        runs(w, f"days{number}", 1, "early")
    w.submit(job("mine", 2, team="late"))
    pass_by(w, 10 * HOUR_S)
    assert planned(w) == []
    w.check()


@pytest.mark.parametrize("lie", ["never", "too soon", "sooner than is said", "no half-life", "too much", "weight"])
def test_the_checker_finds_what_is_not_evened_out(lie: str) -> None:
    w = pool(queue("early"), queue("late"))
    for number in range(4):
        runs(w, f"days{number}", 4, "early")
    pass_by(w, HOUR_S // 20 + 1)
    w.submit(job("mine", 8, team="late"))
    (plan,) = carried_out(w)
    assert len(plan.victims) == 2
    checker = Checker()
    for seq, record in enumerate(w.records, 1):
        checker.step(seq, record.model_copy(update={"events": tuple(map(_changes(lie), record.events))}), valid=True)
    found = [found for found in checker.finish().violations if found.startswith("I11")]
    assert found, lie


def _changes(lie: str) -> Any:
    def change(event: Any) -> Any:
        if isinstance(event, ledger.QueuesApplied):
            if lie == "never":
                return event.model_copy(update={"preemption": PreemptionLimits(share_grace_s="never")})
            if lie == "sooner than is said":
                return event.model_copy(update={"preemption": PreemptionLimits(share_grace_s=182)})
            if lie == "too soon":
                return event.model_copy(update={"half_life_s": 2 * HOUR_S})
            if lie == "no half-life":
                return event.model_copy(update={"half_life_s": None})
            if lie == "too much":
                return event.model_copy(update={"queues": (queue("early", "", 9), queue("late"))})
            return event.model_copy(update={"queues": (queue("early", weight_milli=2000), queue("late"))})
        return event

    return change


sizes = st.sampled_from([1, 1, 2, 4])
demands = st.lists(st.tuples(st.sampled_from(["x0", "x1", "y0", "y1"]), sizes), min_size=4, max_size=20)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    demands,
    demands,
)
@example(  # a cycle between its two plans grants the device that the first one no longer keeps for its gang
    [0, 1, 0, 1, 0, 1],
    [0, 0, 0, 0],
    [("x0", 1), ("x0", 1), ("x0", 4), ("x0", 4), ("x0", 4), ("x0", 1), ("y0", 4)],
    [("x0", 1), ("x0", 1), ("x0", 1), ("x1", 2)],
)
@example(  # what is planned only once the jobs that were granted last have started
    [1, 0, 0, 1, 0, 1],
    [0, 0, 0, 1],
    [*[("x0", 1)] * 4, ("x0", 2), ("y0", 1), ("y0", 1), ("y0", 2), ("y0", 2)],
    [("x0", devices) for devices in (1, 1, 2, 2, 1, 1, 1)],
)
def test_there_is_no_reclaim_loop(
    weights: list[int], guaranteed: list[int], first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    """Random trees in which everybody asks: after some time nothing moves, and who was guaranteed something has it."""
    names = (("x", ""), ("y", ""), ("x0", "x"), ("x1", "x"), ("y0", "y"), ("y1", "y"))
    of = {"x0": guaranteed[0], "x1": guaranteed[1], "y0": guaranteed[2], "y1": guaranteed[3]}
    of |= {"x": of["x0"] + of["x1"], "y": of["y0"] + of["y1"]}
    queues = [
        queue(name, above, of[name], weight_milli=1000 * weight)
        for (name, above), weight in zip(names, weights, strict=True)
    ]
    w = pool(*queues)
    for number, (team, devices) in enumerate(first):
        w.submit(job(f"a{number}", devices, team=team))
    settle(w)
    pass_by(w)
    for number, (team, devices) in enumerate(second):
        w.submit(job(f"b{number}", devices, team=team))
    settle(w)
    assert preemption.plans(w.decider.state, w.now_us, len(w.records)) == []
    assert w.checker.finish().violations == []


class LongJobs:
    """A pool in which `early` fills everything with jobs that run for days before `late` comes. Those who give way take half a
    minute to save; jobs begin anew."""

    def __init__(self, width: int, late: tuple[int, int], half_life_s: int | None) -> None:
        """`late`: devices and seconds of each of its jobs."""
        self.w = pool(queue("early"), queue("late"), half_life_s=half_life_s)
        self.sizes = {"early": (width, 3 * 24 * HOUR_S), "late": late}
        self.ends: list[tuple[int, str, int]] = []
        self.seen: set[tuple[str, int]] = set()
        self.number = 0
        self.held: list[tuple[int, dict[str, int]]] = []

    def run(self, teams: tuple[str, ...], seconds: int) -> None:
        until_us = self.w.now_us + seconds * S
        while self.w.now_us < until_us:
            self._fill(teams)
            for plan in planned(self.w):
                self.w.send(plan)
            self._note()
            at_us, ended, attempt = heapq.heappop(self.ends) if self.ends else (until_us, "", 0)
            step_us = min(at_us, until_us, self.w.now_us + 60 * S)
            self.w.send(after_us=max(1, step_us - self.w.now_us))
            self._note()
            one = self.w.decider.state.jobs.get(ended)
            if step_us < at_us:
                heapq.heappush(self.ends, (at_us, ended, attempt))
            elif one is not None and one.current is not None and one.current.number == attempt:
                leaves = one.state.value == "preempting"
                self.w.released(ended, exit_code=143 if leaves else 0, own_exit=not leaves)

    def _fill(self, teams: tuple[str, ...]) -> None:
        for team in teams:
            devices, _ = self.sizes[team]
            waits = sum(len(line) for key, line in self.w.decider.state.queues.items() if key.team == team)
            for _ in range(16 // devices + 1 - waits):
                self.number += 1
                self.w.submit(job(f"{team}{self.number}", devices, team=team, submitted_us=self.w.now_us + 1))

    def _note(self) -> None:
        for one in list(self.w.decider.state.jobs.values()):
            if one.current is None:
                continue
            if one.state.value == "granted":
                self.w.started(one.id)
                heapq.heappush(self.ends, (self.w.now_us + self.sizes[one.team][1] * S, one.id, one.current.number))
            elif one.state.value == "preempting" and (one.id, one.current.number) not in self.seen:
                self.seen.add((one.id, one.current.number))
                heapq.heappush(self.ends, (self.w.now_us + 30 * S, one.id, one.current.number))
        self.held.append((self.w.now_us, held(self.w)))

    def widest_us(self, since_us: int) -> float:
        """The largest difference between the means of what both held, over all windows of an hour that begin since then."""
        times = [at_us for at_us, _ in self.held]
        most = 0.0
        for start in [at_us for at_us in times if since_us <= at_us <= times[-1] - HOUR_S * S]:
            total = 0
            for (at_us, has), (next_us, _) in zip(self.held, self.held[1:], strict=False):
                inside = min(next_us, start + HOUR_S * S) - max(at_us, start)
                total += max(0, inside) * (has.get("early", 0) - has.get("late", 0))
            most = max(most, abs(total) / (HOUR_S * S))
        return most


@pytest.mark.parametrize(("width", "late"), [(1, (1, 1200)), (2, (4, 3000)), (4, (1, 900))])
def test_shares_are_even_over_a_half_life_although_one_teams_jobs_run_for_days(
    width: int, late: tuple[int, int]
) -> None:
    shop = LongJobs(width, late, HOUR_S)
    shop.run(("early",), 2 * HOUR_S)
    since_us = shop.w.now_us
    shop.run(("early", "late"), 3 * HOUR_S)
    assert shop.widest_us(since_us) <= max(0.05 * 16, width, late[0])
    assert shop.w.checker.finish().violations == []


def test_without_a_half_life_who_came_first_keeps_all() -> None:
    shop = LongJobs(1, (1, 1200), None)
    shop.run(("early",), HOUR_S)
    since_us = shop.w.now_us
    shop.run(("early", "late"), 2 * HOUR_S)
    assert shop.widest_us(since_us) == 16
