"""What Baton writes and reads is CloudEvents 1.0, by the judgement of the `cloudevents` package."""

import json

import pytest
from cloudevents.core.bindings.common import decode_header_value, encode_header_value
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from libs.bus.messages import Malformed, decode, outgoing
from schemas.envelope import Envelope, read
from schemas.inbox import QuotaChanged

TYPE = "io.baton.quota.changed.v1"
AWKWARD = ["plain", "with space", 'quo"te', "per%cent", "Zürich €", "日本", "a/b:c?d=e&f", "tab\there", "\U0001f680"]


def sent(**more: str):
    model = QuotaChanged(team="research", limit_milli=8000)
    more = {"cause": "INBOX-main:17"} | more
    return outgoing(model, subject="baton.in.quota.v1.changed.main", type=TYPE, source="/baton/main/x", **more)


def oracle(attributes: dict[str, str], data: dict | None = None) -> CloudEvent:
    """The package's own validation: it raises when an attribute is not allowed."""
    return CloudEvent(attributes, data)


def test_what_we_write_is_a_valid_event() -> None:
    message = sent(correlation="job-1", key="research")
    attributes = {
        name[3:]: decode_header_value(name[3:], value)
        for name, value in message.headers.items()
        if name.startswith("ce-")
    }
    event = oracle(attributes, json.loads(message.payload))
    assert event.get_type() == TYPE
    assert event.get_source() == "/baton/main/x"
    assert event.get_id() == message.headers["Nats-Msg-Id"]
    assert event.get_extension("causationid") == "INBOX-main:17"
    assert event.get_extension("correlationid") == "job-1"
    assert event.get_data() == QuotaChanged(team="research", limit_milli=8000).model_dump()
    assert event.get_data()["limit_milli"] == 8000


@pytest.mark.parametrize("value", AWKWARD)
def test_header_values_are_encoded_as_the_binding_says(value: str) -> None:
    headers = Envelope(id="1", type=TYPE, source="/x", subject=value).headers()
    assert headers["ce-subject"].isascii()
    assert decode_header_value("subject", headers["ce-subject"]) == value
    envelope, _ = read({**headers, "ce-subject": encode_header_value(value)}, b"{}")
    assert envelope.subject == value


def test_a_structured_event_of_another_library_is_read() -> None:
    event = oracle(
        {
            "specversion": "1.0",
            "id": "42",
            "type": TYPE,
            "source": "/somebody",
            "subject": "Zürich",
            "correlationid": "c-1",
            "flavour": "own extension",
        },
        {"team": "research", "limit_milli": None},
    )
    payload = JSONFormat().write(event)
    headers = {"content-type": "application/cloudevents+json; charset=UTF-8"}
    envelope, value = decode(QuotaChanged, headers, payload, expected_type=TYPE)
    assert value == QuotaChanged(team="research", limit_milli=None)
    assert (envelope.id, envelope.source, envelope.subject) == ("42", "/somebody", "Zürich")
    assert envelope.correlationid == "c-1"
    assert envelope.extensions == {"flavour": "own extension", "datacontenttype": "application/json"} or (
        envelope.extensions == {"flavour": "own extension"}
    )


def test_the_same_cause_gives_the_same_id_and_another_key_another() -> None:
    assert sent().headers == sent().headers
    assert sent().headers["ce-id"] != sent(key="other").headers["ce-id"]
    assert sent().headers["ce-id"] != sent(cause="INBOX-main:18").headers["ce-id"]


@pytest.mark.parametrize("missing", ["ce-id", "ce-type", "ce-source", "ce-specversion"])
def test_a_missing_attribute_is_named(missing: str) -> None:
    message = sent()
    headers = {k: v for k, v in message.headers.items() if k != missing}
    with pytest.raises(Malformed) as refused:
        decode(QuotaChanged, headers, message.payload, expected_type=TYPE)
    (reason,) = refused.value.reasons
    assert missing[3:] in reason.problem
    assert missing in reason.fix


def test_header_names_have_no_case() -> None:
    message = sent()
    shouted = {k.upper(): v for k, v in message.headers.items()}
    envelope, _ = decode(QuotaChanged, shouted, message.payload, expected_type=TYPE)
    assert envelope.id == message.headers["ce-id"]
