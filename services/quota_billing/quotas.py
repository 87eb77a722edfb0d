"""Tells placement what teams may hold: the file's entries after the start, an operator's commands as they come."""

import logging
from typing import Any

from libs.bus.cursors import Cursors
from libs.bus.messages import Malformed, Outgoing, decode_bare, outgoing
from libs.bus.outbox import Outbox
from libs.bus.settle import Received
from libs.core.billing.metering import Meter
from libs.ledger.follower import Follower
from schemas import subjects
from schemas.billing import SetQuota
from schemas.inbox import QuotaChanged
from services.quota_billing.files import quota_changes

log = logging.getLogger("baton.billing")

_TYPE = "io.baton.quota.changed.v1"


def set_quota(pool: str, received: Received) -> list[Outgoing]:
    """What follows from an operator's command. Raises Malformed for any other sender."""
    envelope, command = decode_bare(SetQuota, received.subject, received.headers, received.payload)
    sender = subjects.key_of(received.subject)
    if sender != subjects.OPERATOR:
        raise Malformed(f"team {sender!r} may not set quotas: only {subjects.OPERATOR!r} may")
    return [_changed(pool, command.team, command.limit_milli, received.cause, correlation=envelope.correlationid)]


async def apply_file(
    wanted: dict[str, int | None], follower: Follower[Meter], cursors: Cursors, outbox: Outbox, pool: str
) -> list[str]:
    """Tells placement the file's new and changed entries, once the ledger is read. The teams that it was told of.

    What was applied is remembered with a number that makes each application's message ids its own; a crash before it
    is remembered repeats the same messages.
    """
    await follower.caught_up.wait()
    name = f"quota_billing-teams-{pool}"
    remembered: dict[str, Any] = await cursors.load(name) or {}
    applied: dict[str, int | None] = remembered.get("teams", {})
    changes = quota_changes(wanted, applied, follower.projection.quotas)
    if changes or applied != wanted:
        number = int(remembered.get("number", 0)) + 1
        cause = f"teams:{pool}:{number}"
        await outbox.publish_many([_changed(pool, t, limit, cause, f"{t}={limit}") for t, limit in changes.items()])
        await cursors.save(name, {"number": number, "teams": wanted})
        log.info("quotas of %d teams follow the file", len(changes))
    return list(changes)


def _changed(
    pool: str, team: str, limit_milli: int | None, cause: str, key: str = "", correlation: str = ""
) -> Outgoing:  # fmt: skip
    return outgoing(
        QuotaChanged(team=team, limit_milli=limit_milli),
        subject=subjects.inbox("quota", "changed", pool),
        type=_TYPE,
        source=f"/baton/{pool}/quota_billing",
        cause=cause,
        key=key or team,
        correlation=correlation,
    )
