"""When a node ends what nobody has stopped at its time limit, on a clock that the test turns."""

from types import SimpleNamespace

import pytest

from schemas.inbox import Released, Started
from schemas.jobs import CheckpointPolicy
from schemas.nodes import Action
from services.agent.node import NodeCounts, NodeRunner
from services.agent.overtime import KEEPER_S, Overtime
from services.agent.timers import TimerPart, Timers
from tests.agent.build import but, inventory, part, simulated, state
from tests.agent.test_lease_and_timers import Clock

LIMIT_S, GRACE_S, LEASE_S, LONG_S = 1000.0, 30.0, 100.0, 1e6
ALLOWED_S = 1002.0 + GRACE_S
"""Two clocks differ in rate by two thousandths at the most."""


def limited(nodes: tuple[str, ...] = ("n0",), **fields):
    return part(simulated(1e6, time_limit_s=LIMIT_S, **fields), nodes=nodes, lease_s=LONG_S)


def key(wanted) -> tuple[str, int]:
    return wanted.job_id, wanted.attempt


@pytest.fixture
def overtime():
    return Overtime(GRACE_S, LEASE_S)


def test_a_part_is_stopped_once_when_its_limit_the_clocks_error_and_the_grace_are_over(overtime):
    wanted = limited()
    overtime.add(wanted)
    assert overtime.keeper_until(key(wanted)) is None, "it has not begun"
    assert overtime.began(key(wanted), 5.0)
    assert not overtime.began(key(wanted), 50.0), "its start is reported again"
    assert overtime.to_stop(5.0 + ALLOWED_S - 0.1) == []
    assert not overtime.over(key(wanted), 5.0 + ALLOWED_S - 0.1)
    assert overtime.to_stop(5.0 + ALLOWED_S) == [key(wanted)]
    assert overtime.to_stop(5.0 + ALLOWED_S) == []
    assert overtime.over(key(wanted), 5.0 + ALLOWED_S)
    overtime.forget(key(wanted))
    assert not overtime.over(key(wanted), 1e9)


def test_a_part_without_a_limit_is_never_stopped(overtime):
    wanted = part()
    overtime.add(wanted)
    assert not overtime.began(key(wanted), 5.0)
    assert overtime.to_stop(1e9) == []


def test_a_gang_counts_from_when_all_of_it_runs(overtime):
    wanted = limited(("n0", "n1"))
    overtime.add(wanted)
    overtime.began(key(wanted), 0.0)
    assert overtime.all_run(key(wanted), 20.0)
    assert not overtime.all_run(key(wanted), 30.0), "told again"
    assert overtime.to_stop(20.0 + ALLOWED_S - 0.1) == []
    assert overtime.to_stop(20.0 + ALLOWED_S) == [key(wanted)]


def test_a_gang_that_is_told_nothing_counts_from_a_lease_after_its_start(overtime):
    """By then its other parts have begun, or their nodes are lost."""
    wanted = limited(("n0", "n1"))
    overtime.add(wanted)
    overtime.began(key(wanted), 0.0)
    assert overtime.to_stop(LEASE_S + ALLOWED_S - 0.1) == []
    assert overtime.to_stop(LEASE_S + ALLOWED_S) == [key(wanted)]


def test_the_keeper_lets_it_save_and_stop_first_and_the_next_agent_ends_it_when_the_first_would_have(overtime):
    wanted = limited(stop_grace_s=7, checkpoint=CheckpointPolicy(grace_s=40))
    overtime.add(wanted)
    overtime.began(key(wanted), 0.0)
    until = overtime.keeper_until(key(wanted))
    assert until == ALLOWED_S + 40 + 7 + KEEPER_S
    following = Overtime(GRACE_S, LEASE_S)
    following.went_on(wanted, until)
    assert not following.began(key(wanted), 500.0), "it began before this agent did"
    assert following.to_stop(ALLOWED_S - 0.1) == []
    assert following.to_stop(ALLOWED_S) == [key(wanted)]


# ------------------------------------------------------------------------------------------------- of a node


@pytest.fixture
def node():
    """A node of timers whose clock is the test's: `seen` is what it reports."""
    clock, seen = Clock(), []
    timers = Timers(clock)
    runner = NodeRunner(
        inventory=inventory(devices=1), layer=None, lease_s=LONG_S, now=clock.time, limit_grace_s=GRACE_S,
        make_part=lambda node, part, report: TimerPart(part, timers, report), adopt_part=None,
        report=lambda node, incarnation, what: seen.append(what), counts=NodeCounts(),
    )  # fmt: skip
    runner.begin(1)
    runner.renewed(0.0)

    def at(seconds: float) -> None:
        clock.run_to(seconds)
        runner.end_overtime()

    return SimpleNamespace(
        runner=runner, at=at, ends=lambda: [one for one in seen if isinstance(one, Released)], seen=seen
    )


def test_a_node_stops_what_is_over_its_limit_and_says_so(node):
    wanted = limited()
    node.runner.follow(state(wanted))
    assert isinstance(node.seen[-1], Started)
    node.at(ALLOWED_S - 1)
    assert node.ends() == []
    node.at(ALLOWED_S)
    (end,) = node.ends()
    assert (end.over_limit, end.own_exit, end.exit_code) == (True, False, 143)
    node.runner.follow(state(wanted, seq=2))
    assert len(node.ends()) == 1, "it is known, and not started again"


def test_a_stop_by_placement_and_an_end_of_its_own_are_no_ends_by_the_node(node):
    wanted = limited()
    node.runner.follow(state(wanted))
    node.at(LIMIT_S)
    node.runner.follow(state(but(wanted, Action.STOP), seq=2))
    node.at(ALLOWED_S + 1)
    (end,) = node.ends()
    assert not end.over_limit


def test_a_job_that_ends_by_itself_is_not_said_to_be_over_its_limit(node):
    wanted = part(simulated(ALLOWED_S + 5, time_limit_s=LIMIT_S, exit_code=3), lease_s=LONG_S)
    node.runner.follow(state(wanted))
    node.at(ALLOWED_S + 10)
    (end,) = node.ends()
    assert (end.over_limit, end.own_exit) == (False, True)
