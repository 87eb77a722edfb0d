"""A refused command as a record for the audit: its fields, and the message to the pool's inbox."""

from contextlib import suppress
from typing import Literal

from pydantic import ValidationError

from libs.bus.dead import Received
from libs.bus.messages import Outgoing, outgoing, type_of_subject
from schemas import subjects
from schemas.audit import RefusedCommand
from schemas.ids import content_hash
from schemas.inbox import RefusalTold

_REASON = 512


def refused_command(
    received: Received, pattern: str, *, service: Literal["admission", "quota_billing"], reason: str, policy: str
) -> RefusedCommand | None:
    """The command that came on a subject like `pattern`; None when that names no team: it is left to the dead letters."""
    with suppress(ValueError, ValidationError):
        keys = subjects.read(pattern, received.subject)
        return RefusedCommand(
            service=service,
            what=keys["what"],
            team=keys["team"],
            user=keys["user"],
            cause=received.cause,
            stored_us=received.time_us,
            digest=content_hash(received.payload),
            reason=reason[:_REASON],
            policy=policy,
        )
    return None


def refusal_told(line: RefusedCommand, pool: str, entity: str) -> Outgoing:
    """The line for the inbox of `pool`. `entity`: what the command was about, `job` or `quota`."""
    subject = subjects.inbox(entity, "refused", pool)
    return outgoing(
        RefusalTold(command=line),
        subject=subject,
        type=type_of_subject(subject),
        source=f"/baton/{pool}/{line.service}",
        cause=line.cause,
    )
