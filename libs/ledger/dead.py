"""Copies of inputs that cannot be applied go to the dead letters, where a person can see, mend and replay them."""

import logging

from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext

from libs.bus.retry import UNAVAILABLE
from libs.bus.settle import Received, dead_letter
from libs.ledger.tail import Stored

log = logging.getLogger("baton.ledger")

ORIGIN = "placement"


async def bury(
    js: JetStreamContext, stream: str, message: Stored, reason: str, stack: str = "", sender: str = ""
) -> None:
    """Publish the copy, as one of `sender` (a team; by default who speaks on the subject). Its id is derived from the message,
    so that deciding again does not bury it twice.

    When the dead letters cannot take it (full, not there), the failure is logged and the decision goes on: the inbox
    still has the message, and the ledger its rejection. One bad message must not hold up the pool.
    """
    received = Received(
        stream=stream,
        subject=message.subject,
        headers=message.headers,
        payload=message.payload,
        stream_seq=message.seq,
        time_us=message.time_us,
        deliveries=1,
    )
    copy = dead_letter(ORIGIN, received, reason, stack, sender)
    try:
        await js.publish(copy.subject, copy.payload, headers=copy.headers, timeout=2.0)
    except ConnectionClosedError:
        raise
    except UNAVAILABLE as error:
        log.error("message %d of %s could not be copied to the dead letters: %r", message.seq, stream, error)
