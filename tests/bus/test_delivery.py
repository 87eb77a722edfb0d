"""What is read from the subject under which the broker wants a delivery acknowledged."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.bus.delivery import Delivery, delivery
from libs.bus.direct import SEQUENCE, STREAM, SUBJECT, TIME, received_of


class Direct:
    """As a direct read answers: the time is RFC 3339 in a header."""

    data = b""

    def __init__(self, ns: int) -> None:
        whole = datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        self.headers = {SUBJECT: "s", STREAM: "S", SEQUENCE: "1", TIME: f"{whole}.{ns % 10**9:09d}Z"}


@given(st.integers(0, 4 * 10**18))
def test_a_message_has_one_time_however_it_is_read(ns: int) -> None:
    """nats-py's `metadata.timestamp` is a float of seconds: a microsecond more or less for some."""
    told = delivery(f"$JS.ACK.REQUESTS.admission.1.7.5.{ns}.3")
    assert told == Delivery("REQUESTS", 1, 7, 5, ns // 1000, 3)
    assert received_of(Direct(ns)).time_us == told.time_us  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["", ".Xf9"])
def test_the_form_with_domain_and_account_says_the_same(end: str) -> None:
    assert delivery(f"$JS.ACK._.hash.INBOX-p.c.2.9.8.1700000000000000999.0{end}") == Delivery(
        "INBOX-p", 2, 9, 8, 1_700_000_000_000_000, 0
    )


@pytest.mark.parametrize("reply", ["", "_INBOX.x", "$JS.ACK.S.c.1.2.3.4", "$JS.ACK.S.c.1.2.x.4.5"])
def test_another_reply_subject_is_an_error(reply: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        delivery(reply)
