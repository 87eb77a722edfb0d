"""Usage events for external billing systems: one internal event, mapped to each system's format. Pure.

An event is the use of one row. `value` is in device-nanoseconds (thousandths of a device x microseconds), an integer as
text. Its id is derived from the row, so an event that is sent again is recognised: OpenMeter deduplicates by (source,
id), Lago by transaction_id, Stripe by identifier. Corrections are money without use, so they are no events.
"""

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from libs.core.billing.charges import Charge
from libs.core.billing.wall import HOUR_US
from libs.core.state.moments import text_of

METER: Final = "gpu_nanoseconds_total"
STRIPE_BACK_US: Final = 35 * 86_400_000_000
"""Stripe rejects older events."""


class UsageEvent(NamedTuple):
    """The internal event. `at_us`: start of its hour, wall time."""

    id: str
    source: str
    team: str
    value: int
    at_us: int
    about: Mapping[str, str]


class HttpMessage(NamedTuple):
    """An HTTP POST: path below the endpoint, content type, body."""

    path: str
    content_type: str
    body: bytes


def event_of(charge: Charge, pool: str) -> UsageEvent | None:
    """The event for a row of use. None for a correction, and for unpriced use, which is reported apart and may become
    an event later."""
    use, amount = charge.use, charge.amount
    if charge.correction or amount.quote is None or not amount.units:
        return None
    name = (
        f"{pool} {use.job_id}.{use.attempt} {use.node}/{use.device} {amount.hour} {amount.quote.sku} "
        f"{amount.unit_micros} {amount.tier} {charge.version}"
    )
    about = {
        "job": use.job_id, "attempt": str(use.attempt), "user": use.user, "class": use.priority_class,
        "device": use.device_kind, "sku": amount.quote.sku,
    }  # fmt: skip
    return UsageEvent(
        sha256(name.encode()).hexdigest()[:32], f"/baton/{pool}", use.team, amount.units, amount.hour * HOUR_US, about
    )


def openmeter(event: UsageEvent, customer: str) -> HttpMessage:
    """CloudEvents 1.0, structured; `type` selects the meter, `subject` is the customer."""
    body = {
        "specversion": "1.0", "id": event.id, "source": event.source, "type": METER, "subject": customer,
        "time": text_of(event.at_us), "datacontenttype": "application/json",
        "data": {"value": str(event.value), **event.about},
    }  # fmt: skip
    return HttpMessage("/api/v1/events", "application/cloudevents+json", _json(body))


def lago(event: UsageEvent, customer: str) -> HttpMessage:
    """Lago's event for a subscription."""
    body = {
        "event": {
            "transaction_id": event.id, "external_subscription_id": customer, "code": METER,
            "timestamp": event.at_us // 1_000_000, "properties": {"value": str(event.value), **event.about},
        }
    }  # fmt: skip
    return HttpMessage("/api/v1/events", "application/json", _json(body))


def stripe(event: UsageEvent, customer: str) -> HttpMessage:
    """Stripe's meter event, as a form."""
    form = {
        "event_name": METER, "payload[stripe_customer_id]": customer, "payload[value]": str(event.value),
        "identifier": event.id, "timestamp": str(event.at_us // 1_000_000),
    }  # fmt: skip
    return HttpMessage("/v1/billing/meter_events", "application/x-www-form-urlencoded", urlencode(form).encode())


def too_late(system: str, event: UsageEvent, now_us: int) -> bool:
    """Whether the system rejects events of that age. They are reported to people, never sent with another time."""
    return system == "stripe" and now_us - event.at_us > STRIPE_BACK_US


MAPPINGS: Final[Mapping[str, Callable[[UsageEvent, str], HttpMessage]]] = {
    "openmeter": openmeter,
    "lago": lago,
    "stripe": stripe,
}


def known_already(status: int, body: bytes) -> bool:
    """Whether the response says that the event exists: it was sent before, and the response was lost."""
    if status == 400:
        return b"identifier" in body and b"already" in body
    return status == 409 or (status == 422 and b"value_already_exist" in body)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
