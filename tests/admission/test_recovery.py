"""When the overload benchmark says that others are served as before again."""

from benchmarks.overload import recovery_s

QUICK, SLOW = 10.0, 90.0


def waits(*slow: float, until: int = 20) -> list[tuple[float, float]]:
    """A hundred requests a second, from ten seconds before the burst's end; those at the times `slow` wait long."""
    return [(n / 100, SLOW if n / 100 in slow else QUICK) for n in range(-1000, until * 100)]


def test_who_never_waited_long_is_served_at_once() -> None:
    assert recovery_s(waits(), 50.0) == 0.0
    assert recovery_s(waits(-3.0, -2.0, -1.0), 50.0) == 0.0, "that was while the burst sent"


def test_a_single_slow_request_of_a_hundred_is_no_crowd_s() -> None:
    assert recovery_s(waits(7.0), 50.0) == 0.0
    assert recovery_s(waits(*(7.0 + n / 100 for n in range(6))), 50.0) == 10.0


def test_what_is_still_slow_at_the_end_has_not_recovered() -> None:
    assert recovery_s(waits(*(17.0 + n / 100 for n in range(6))), 50.0) is None
