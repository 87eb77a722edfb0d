"""CloudEvents on NATS: whatever is written can be read, and whatever cannot be read says why."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.envelope import Envelope, EnvelopeError, read

words = st.text(min_size=1, max_size=30)
maybe = st.text(max_size=30)
names = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(
    lambda n: n not in {"specversion", "data", "traceparent", *Envelope.__slots__}
)
extensions = st.dictionaries(names, maybe, max_size=3)
tracestring = st.just("") | st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", fullmatch=True)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | maybe,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(maybe, inner, max_size=3),
    max_leaves=8,
)
envelopes = st.builds(
    Envelope,
    id=words,
    type=words,
    source=words,
    subject=maybe,
    time=maybe,
    correlationid=maybe,
    causationid=maybe,
    traceparent=tracestring,
    extensions=extensions,
)


@given(envelopes, st.binary(max_size=50))
def test_binary_mode_round_trips(envelope: Envelope, payload: bytes) -> None:
    assert read(envelope.headers(), payload) == (envelope, payload)


@given(envelopes)
def test_headers_are_printable_ascii_and_cannot_forge_another(envelope: Envelope) -> None:
    for name, value in envelope.headers().items():
        assert re.fullmatch(r"[A-Za-z0-9-]+", name)
        assert all(0x21 <= ord(c) <= 0x7E and c != '"' for c in value)


@given(envelopes)
def test_header_names_may_be_in_any_case(envelope: Envelope) -> None:
    loud = {name.upper(): value for name, value in envelope.headers().items()}
    assert read(loud, b"{}")[0] == envelope


@given(envelopes, json_values.filter(lambda v: v is not None))
def test_structured_mode_says_the_same_as_binary_mode(envelope: Envelope, data: Any) -> None:
    event = {"specversion": "1.0", "data": data, **envelope.extensions}
    event |= {k: v for k in Envelope.__slots__ if isinstance(v := getattr(envelope, k), str) and v}
    got, payload = read({"content-type": "application/CloudEvents+json; charset=utf-8"}, json.dumps(event).encode())
    assert got == envelope
    assert json.loads(payload) == data


@given(st.dictionaries(maybe, maybe, max_size=4), st.binary(max_size=60))
def test_any_message_is_read_or_refused_with_a_text(headers: dict[str, str], payload: bytes) -> None:
    for content_type in ("application/json", "application/cloudevents+json"):
        text = refusal({**headers, "Content-Type": content_type}, payload)
        assert not text or re.search(r"\b(send|use|put|add|encode) ", text)


def refusal(headers: dict[str, str], payload: bytes) -> str:
    try:
        read(headers, payload)
    except EnvelopeError as refused:
        return str(refused)
    return ""


def test_attributes_of_the_json_format_may_be_numbers_and_booleans() -> None:
    event = {"specversion": "1.0", "id": 7, "type": "t", "source": "s", "sequence": 3, "dry": True, "data": {}}
    got, _ = read({"Content-Type": "application/cloudevents+json"}, json.dumps(event).encode())
    assert (got.id, got.extensions) == ("7", {"sequence": "3", "dry": "true"})


def test_data_in_base64_is_decoded() -> None:
    event = {name: value for name, value in WHOLE.items() if name != "data"} | {"data_base64": "eyJhIjogMX0="}
    envelope, payload = read(STRUCTURED, json.dumps(event).encode())
    assert (envelope, payload) == (Envelope("1", "t", "s"), b'{"a": 1}')


def test_the_trace_is_found_in_cloudevents_own_place_too() -> None:
    headers = Envelope("1", "t", "s").headers() | {"ce-traceparent": "00-a"}
    assert read(headers, b"")[0] == Envelope("1", "t", "s", traceparent="00-a")
    assert read(headers | {"traceparent": "00-b"}, b"")[0].traceparent == "00-b"


STRUCTURED = {"Content-Type": "application/cloudevents+json"}
WHOLE = {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "data": {}}


@pytest.mark.parametrize(
    ("headers", "payload", "text"),
    [
        (None, b"{}", "'specversion' is missing; send header ce-specversion: 1.0"),
        ({"ce-specversion": "0.3"}, b"{}", "'specversion' is '0.3'"),
        ({"ce-specversion": "1.0", "ce-type": "t", "ce-source": "s"}, b"{}", "'id' is missing; send header ce-id"),
        ({"ce-specversion": "1.0", "ce-id": "1", "ce-type": "t"}, b"{}", "'source' is missing"),
        (STRUCTURED, b"\xff", "the payload is not JSON"),
        (STRUCTURED, b"[" * 100_000, "nested too deeply"),
        (STRUCTURED, b"[]", "send one event per message"),
        (STRUCTURED, b"{}", "member 'data' is missing"),
        (STRUCTURED, json.dumps(WHOLE | {"id": ""}).encode(), "'id' is missing"),
        (STRUCTURED, json.dumps(WHOLE | {"type": ""}).encode(), "'type' is missing; add the member \"type\""),
        (STRUCTURED, b'{"data": {}}', "'specversion' is missing; add the member \"specversion\": 1.0"),
        (STRUCTURED, json.dumps(WHOLE | {"data_base64": "e30="}).encode(), "send one of them"),
        (STRUCTURED, json.dumps(WHOLE | {"data": None, "data_base64": "e3"}).encode(), "is not Base64; encode"),
        (STRUCTURED, json.dumps(WHOLE | {"data": None, "data_base64": 7}).encode(), "is not Base64; encode"),
        (
            STRUCTURED,
            json.dumps(WHOLE | {"a\r\nBaton-Status: ok": "x"}).encode(),
            "is no attribute name; use a-z and 0-9",
        ),
    ],
)
def test_what_cannot_be_read_names_the_fault_and_the_fix(headers: Any, payload: bytes, text: str) -> None:
    with pytest.raises(EnvelopeError) as refused:
        read(headers, payload)
    assert text in str(refused.value)
