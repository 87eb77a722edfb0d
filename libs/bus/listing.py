"""What a broker has, page by page: all of it or an error.

In a cluster one server answers for all: it asks who leads each stream, and after four seconds it lists those that it has heard
of, and names the others as `missing`. nats-py reads the list alone. Whoever takes that for all there is believes a stream gone
that has no leader just now.
"""

import json
from typing import Any

from nats.errors import Error as NatsError
from nats.js import JetStreamContext

_PAGE_S = 5.0


class NotAllListed(NatsError):
    """The broker does not list all that it has: it refuses to, or does not know the state of some of it just now."""


async def streams(js: JetStreamContext, subject: str = "") -> list[dict[str, Any]]:
    """What the broker says of each stream, or of those whose subjects `subject` meets. Raises nats errors."""
    return await _listed(js, "STREAM.LIST", "streams", {"subject": subject} if subject else {})


async def consumers(js: JetStreamContext, stream: str) -> list[dict[str, Any]]:
    """What the broker says of each consumer of a stream. Raises nats errors."""
    return await _listed(js, f"CONSUMER.LIST.{stream}", "consumers", {})


async def _listed(js: JetStreamContext, question: str, what: str, asked: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        request = json.dumps({**asked, "offset": len(found)}).encode()
        reply = await js._nc.request(f"{js._prefix}.{question}", request, timeout=_PAGE_S)
        answer: dict[str, Any] = json.loads(reply.data)
        if "error" in answer:
            raise NotAllListed(f"the broker does not list its {what}: {answer['error']}")
        if unheard := [*(answer.get("missing") or ()), *(answer.get("offline") or ())]:
            raise NotAllListed(
                f"the broker knows nothing of {len(unheard)} of its {what} just now, {unheard[0]} among them"
            )
        page = answer.get(what) or []
        found += page
        if not page or len(found) >= answer["total"]:
            return found
