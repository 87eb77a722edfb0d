"""A team whose requests come to nothing is read slowly, by what they cost; nobody else is, and nothing is refused for it."""

from libs.core.admission.request_throttle import AT_ONCE, PER_S, REPEATED, RequestThrottle, weight

S = 1_000_000


def test_so_many_are_read_at_once_and_then_as_many_a_second_as_come_back() -> None:
    throttle = RequestThrottle()
    for _ in range(int(AT_ONCE) - 1):
        throttle.note("a", weight(300), 0)
        assert throttle.wait_s("a", 0) == 0
    throttle.note("a", weight(300), 0)
    assert throttle.wait_s("a", 0) > 0
    at_us, read = 0, 0
    while at_us < 100 * S:
        at_us += int(throttle.wait_s("a", at_us) * 1e6) + 1
        throttle.note("a", weight(300), at_us)
        read += 1
    assert abs(read - 100 * PER_S) <= 2


def test_nobody_else_is_read_slowly_and_the_allowance_comes_back() -> None:
    throttle = RequestThrottle()
    for _ in range(2 * int(AT_ONCE)):
        throttle.note("a", weight(300), 0)
    assert throttle.wait_s("a", 0) > 0
    assert throttle.wait_s("b", 0) == 0
    assert throttle.wait_s("a", int((AT_ONCE / PER_S + 1) * S)) == 0


def test_a_large_request_takes_more_and_a_repeat_less() -> None:
    assert weight(300) == 1
    assert weight(300, repeated=True) == REPEATED < 1
    assert weight(256 * 1024) == 5
    assert weight(256 * 1024, repeated=True) == 4 + REPEATED, "its bytes were stored and read all the same"
