"""Compare-and-append: the one publish that commits a decision, and what its answer means.

The expected sequence is the last one *read*, not the last valid one: otherwise one void record would block the stream for
ever. Only the exact expected answer is a commit. After any other answer, or none, it is open whether the record is in the
stream. The caller then folds the ledger again, and the log says.
"""

import logging
from enum import StrEnum

from nats.errors import ConnectionClosedError
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import APIError

from libs.bus.outbox import is_full
from libs.bus.retry import UNAVAILABLE
from schemas.envelope import MSG_ID

log = logging.getLogger("baton.ledger")

WRONG_LAST_SEQUENCE = 10071


class AppendOutcome(StrEnum):
    """What became of a decision. Only after COMMITTED and SKIPPED may the decider that made it be kept."""

    COMMITTED = "committed"
    SKIPPED = "skipped"  # no events: nothing was appended
    REFUSED = "refused"  # the stream is longer than we have read: somebody else wrote
    UNCLEAR = "unclear"  # no answer, or not the one expected: the record may be in the stream
    FULL = "full"  # there is no room for it: surely nothing was appended
    UNDECIDED = "undecided"  # nothing was sent: the decision itself failed


async def append(
    js: JetStreamContext, subject: str, payload: bytes, digest: str, position: int, timeout_s: float
) -> AppendOutcome:
    """Append `payload` at `position` + 1 or not at all, on the open segment's `subject`. Raises ConnectionClosedError when the
    client was closed."""
    headers = {MSG_ID: digest, Header.EXPECTED_LAST_SEQUENCE.value: str(position)}
    try:
        ack = await js.publish(subject, payload, timeout=timeout_s, headers=headers)
    except ConnectionClosedError:
        raise
    except APIError as error:
        if error.err_code == WRONG_LAST_SEQUENCE:
            return AppendOutcome.REFUSED
        log.error("%s: the broker refuses to append: %s", subject, error.description)
        return AppendOutcome.FULL if is_full(error) else AppendOutcome.UNCLEAR
    except UNAVAILABLE as error:
        log.warning("%s: no answer to the append after %d: %r", subject, position, error)
        return AppendOutcome.UNCLEAR
    if ack.duplicate or ack.seq != position + 1:
        log.error("%s: appended after %d, answered %s", subject, position, ack)
        return AppendOutcome.UNCLEAR
    return AppendOutcome.COMMITTED
