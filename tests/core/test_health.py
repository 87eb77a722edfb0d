"""A silent node is given up only when its own clock must have stopped it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.core.projections.node_health import LastRenewal, Terms, Watch, overdue

TERMS = Terms(max_lease_s=30, kill_bound_s=5, rho=0.01, margin_s=2)
PATIENCE = (10 + 5) * 1.02 + 2  # of a lease of 10 s


def lost(watch: Watch, now: float) -> list[tuple[str, int]]:
    return [(m.node, m.incarnation) for m in watch.overdue(now)]


def test_the_formula_of_p4() -> None:
    assert TERMS.patience(10) == pytest.approx(PATIENCE)
    seen, up = {"a": LastRenewal(1, 100.0, 10.0)}, {"a": (1, 50.0)}
    assert overdue(99.999 + PATIENCE, seen, up, 0, TERMS) == []
    (message,) = overdue(100.001 + PATIENCE, seen, up, 0, TERMS)
    assert (message.node, message.incarnation) == ("a", 1)
    assert message.silent_s == pytest.approx(PATIENCE, abs=0.01)


def test_a_node_that_was_never_heard_counts_from_our_start_with_the_longest_lease() -> None:
    watch = Watch(1000.0, TERMS)
    watch.joined("a", 3, 1000.0)
    assert lost(watch, 1000 + TERMS.patience(30) - 0.001) == []
    assert lost(watch, 1000.001 + TERMS.patience(30)) == [("a", 3)]


def test_a_node_that_joins_later_counts_from_then() -> None:
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, 500.0)
    assert lost(watch, 500 + TERMS.patience(30) - 0.001) == []


def test_renewals_keep_it_up() -> None:
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, 0.0)
    for second in range(0, 200, 5):
        assert watch.heard([("a", 1)], 10, float(second)) == ("a",)
        assert lost(watch, second + 5.0) == []
    assert watch.age("a", 200.0) == 5.0


def test_the_longest_lease_of_a_life_counts() -> None:
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, 0.0)
    watch.heard([("a", 1)], 30, 0.0)
    watch.heard([("a", 1)], 1, 0.1)
    assert lost(watch, TERMS.patience(30)) == []


def test_a_life_that_was_given_up_is_never_renewed_again() -> None:
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, 0.0)
    watch.heard([("a", 1)], 10, 0.0)
    assert lost(watch, 100.0) == [("a", 1)]
    assert watch.heard([("a", 1)], 10, 100.0) == ()
    assert lost(watch, 101.0) == [("a", 1)]  # said again until the ledger shows it
    watch.left("a", 1)
    assert lost(watch, 102.0) == []
    assert watch.heard([("a", 1), ("a", 2)], 10, 103.0) == ("a",)
    watch.joined("a", 2, 103.5)
    assert lost(watch, 104.0) == []


def test_an_earlier_life_is_not_renewed_once_the_next_is_known() -> None:
    watch = Watch(0.0, TERMS)
    watch.joined("a", 2, 0.0)
    assert watch.heard([("a", 1)], 10, 1.0) == ()
    assert watch.heard([("a", 3)], 10, 1.0) == ("a",)
    watch.joined("a", 3, 1.5)
    assert watch.heard([("a", 2)], 10, 2.0) == ()


def test_a_life_that_ended_before_it_was_registered_does_not_keep_out_the_one_that_was() -> None:
    """The broker was away as life 9 began; then the machine came back with an old disk and clock (seed 2413)."""
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, 0.0)
    assert watch.heard([("a", 9)], 10, 1.0) == ("a",)
    assert watch.heard([("a", 2)], 10, 2.0) == ()  # neither is registered: the later one counts
    watch.left("a", 1)
    watch.joined("a", 2, 3.0)
    assert watch.heard([("a", 2)], 10, 4.0) == ("a",)
    assert watch.is_heard("a", 2, 5.0, 2.0)


def test_a_lease_longer_than_what_we_wait_for_is_not_granted() -> None:
    watch = Watch(0.0, TERMS)
    assert watch.heard([("a", 1)], 31, 0.0) == ()
    assert watch.last_seen == {}


def test_after_a_deaf_time_everybody_is_waited_for_anew() -> None:
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, 0.0)
    watch.heard([("a", 1)], 10, 0.0)
    watch.deaf_until(1000.0)
    assert lost(watch, 1000 + PATIENCE - 0.001) == []
    assert lost(watch, 1000.001 + PATIENCE) == [("a", 1)]


@given(
    renewals=st.lists(st.floats(0.1, 9), min_size=1, max_size=20),
    way=st.floats(0, 5),
    drift=st.floats(-0.01, 0.01),
    joined=st.floats(0, 1),
)
def test_never_given_up_while_it_may_still_work(renewals: list[float], way: float, drift: float, joined: float) -> None:
    """An agent with a drifting clock that sends renewals, each received `way` later; then it falls silent."""
    watch = Watch(0.0, TERMS)
    watch.joined("a", 1, joined)
    sent = 0.0
    for gap in renewals:
        sent += gap
        watch.heard([("a", 1)], 10, sent + way)
    stopped_by = sent + (10 + 5) * (1 + drift)  # lease and kill bound on its own clock
    assert lost(watch, stopped_by) == []
