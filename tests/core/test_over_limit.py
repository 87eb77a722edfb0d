"""A node has ended what was over its time limit, and nobody had told it to: how that is booked."""

import pytest

from schemas import inbox, ledger
from schemas.clock import BootReading
from tests.core.builders import World, job, node

LIMIT_S = 10


@pytest.fixture
def world():
    return World(node("n0", 8), node("n1", 8))


def over(name: str) -> inbox.Released:
    return inbox.Released(
        job_id=name, attempt=1, exit_code=143, reason="rank 0 was ended by SIGTERM", own_exit=False, over_limit=True
    )


def kinds(events) -> list[str]:
    return [event.kind for event in events]


def test_it_is_the_end_that_placement_would_have_decided(world):
    """No tick told placement before: it was away, and this is the first that it reads."""
    slow = world.submit(job("slow", time_limit_s=LIMIT_S))
    world.started(slow)
    world.send(after_us=LIMIT_S * 1_000_000)
    events = world.observe(*world.nodes_of(slow), over(slow))
    assert kinds(events) == ["attempt.stopping", "devices.freed", "attempt.closed", "job.finished"]
    stopping, _, closed, finished = events
    assert (stopping.cause, stopping.reason) == ("time-limit", "it ran for its time limit of 10 s")
    assert (closed.outcome, closed.category) == ("time-limit", "time-limit")
    assert (finished.state, finished.exit_code) == ("failed", 143)
    world.check()


def test_after_the_tick_that_ends_it_the_report_is_the_end_of_any_stop(world):
    slow = world.submit(job("slow", time_limit_s=LIMIT_S))
    world.started(slow)
    where = world.nodes_of(slow)
    world.send(inbox.Tick(), after_us=LIMIT_S * 1_000_000)
    events = world.observe(*where, over(slow))
    assert kinds(events) == ["devices.freed", "attempt.closed", "job.finished"]
    world.check()


def test_while_ledger_time_is_behind_it_waits_for_the_tick_that_makes_it_good(world):
    """Where all stood still, a node may be heard before the first tick. Taken for a node that ended its part by itself, the
    job would run again."""
    slow = world.submit(job("slow", time_limit_s=LIMIT_S))
    world.started(slow)
    where = world.nodes_of(slow)
    assert world.observe(*where, over(slow)) == []
    assert world.state_of(slow) == "running"
    world.send(inbox.Tick(), after_us=LIMIT_S * 1_000_000)
    world.observe(*where, over(slow))
    assert world.state_of(slow) == "ended"
    world.check()


def test_a_claim_that_says_what_clocks_read_ends_what_is_over_as_a_tick_does(world):
    """After a pause of everything it is the first that does, and the ledger is judged by that. Seen: `ledger verify` said that
    a job of 20 s ran on over its limit, when `baton up --keep-jobs` came back after more."""
    slow = world.submit(job("slow", time_limit_s=LIMIT_S))
    world.started(slow)
    claim = inbox.GranterClaimed(epoch=1, holder="a", term_s=5, max_lease_s=300)
    assert kinds(world.send(claim, after_us=100_000_000)) == ["lease.granter"], "one of before says nothing"
    read = claim.model_copy(update={"epoch": 2, "readings": (BootReading(boot="b", at_us=1),)})
    assert kinds(world.send(read)) == ["lease.granter", "attempt.stopping"]
    world.check()


def test_all_parts_of_a_gang_are_stopped_by_the_first_that_was_over(world):
    gang = world.submit(job("gang", 16, time_limit_s=LIMIT_S))
    world.started(gang)
    first, second = world.nodes_of(gang)
    world.send(after_us=LIMIT_S * 1_000_000)
    assert kinds(world.observe(first, over(gang))) == ["attempt.stopping", "devices.freed"]
    assert world.state_of(gang) == "stopping"
    ended = world.observe(second, over(gang))
    assert kinds(ended) == ["devices.freed", "attempt.closed", "job.finished"]
    assert isinstance(ended[1], ledger.AttemptClosed)
    assert ended[1].outcome == "time-limit"
    world.check()


def test_a_gang_that_never_ran_as_a_whole_is_lost_by_it(world):
    """Its limit has not begun to count."""
    gang = world.submit(job("gang", 16, time_limit_s=LIMIT_S))
    first, second = world.nodes_of(gang)
    world.observe(first, inbox.Started(job_id=gang, attempt=1))
    world.send(inbox.Tick(), after_us=100_000_000)
    stopping, _ = sorted(world.observe(first, over(gang)), key=lambda event: event.kind)
    assert stopping.cause == "part-lost"
    world.observe(second, inbox.Released(job_id=gang, attempt=1, exit_code=143, own_exit=False))
    assert world.attempt(gang) == 2, "it runs again"
    world.check()


def test_a_job_without_a_limit_that_its_node_says_was_over_it_is_lost(world):
    endless = world.submit(job("endless"))
    world.started(endless)
    world.observe(*world.nodes_of(endless), over(endless))
    assert world.attempt(endless) == 2
    world.check()
