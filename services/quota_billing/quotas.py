"""Sends quotas to placement: the file's entries after the start, and operators' commands."""

import logging
from collections.abc import Callable, Collection
from typing import Any

from libs.bus.cursors import Cursors
from libs.bus.messages import Malformed, Outgoing, decode_bare, outgoing
from libs.bus.outbox import Outbox
from libs.bus.retry import retry_while_away
from libs.bus.settle import Received, Transient
from libs.core.accelerators.kinds import problem_with
from libs.core.billing.metering import Meter
from libs.core.state.limits import Limits
from libs.ledger.follower import Follower
from schemas import subjects
from schemas.billing import SetQuota
from schemas.inbox import QuotaChanged
from services.quota_billing.files import quota_changes

log = logging.getLogger("baton.billing")

_TYPE = "io.baton.quota.changed.v1"


def set_quota(pool: str, kinds: Callable[[], Collection[str] | None], received: Received) -> list[Outgoing]:
    """The event for an operator's command. Raises Malformed for another sender or a limit on an unknown kind of device,
    Transient while the kinds are unknown.

    `kinds`: kinds of device in the pool, besides those of the catalogue; None if not known yet.
    """
    envelope, command = decode_bare(SetQuota, received.subject, received.headers, received.payload)
    try:
        sender = subjects.read(subjects.POOL_COMMAND, received.subject)
    except ValueError as e:
        raise Malformed(str(e)) from None
    if sender["team"] != subjects.OPERATOR:
        raise Malformed(f"team {sender['team']!r} may not set quotas: only {subjects.OPERATOR!r} may")
    for key, limit_milli in command.by_type.items():
        if not problem_with(key):
            continue
        if (offered := kinds()) is None:
            raise Transient(f"whether the pool has {key} is not known before its ledger is read")
        if problem := problem_with(key, offered):
            raise Malformed(f"by_type.{key} = {limit_milli}: {problem}")
    limits = Limits.of(command.limit_milli, command.by_type)
    correlation = envelope.correlationid
    return [
        _changed(
            pool,
            command.team,
            limits,
            received.cause,
            correlation=correlation,
            user=sender["user"],
            reason=command.reason,
        )
    ]


async def apply_file(
    wanted: dict[str, Limits | None],
    follower: Follower[Meter],
    cursors: Cursors,
    outbox: Outbox,
    pool: str,
    policy: str = "",
) -> list[str]:
    """Sends new and changed entries of the file to placement, once the ledger is read. Returns the teams concerned.

    The application is stored with a number that makes its message ids unique. A crash before that repeats the same
    messages. Waits for a broker that is unreachable or full.
    """
    await follower.caught_up.wait()

    def away(error: Exception, failures: int) -> None:
        if not failures:
            log.warning("the quotas of the file are not applied yet: %r", error)

    return await retry_while_away(lambda: _apply(wanted, follower, cursors, outbox, pool, policy), away)


async def _apply(
    wanted: dict[str, Limits | None],
    follower: Follower[Meter],
    cursors: Cursors,
    outbox: Outbox,
    pool: str,
    policy: str,
) -> list[str]:
    name = f"quota_billing-teams-{pool}"
    remembered: dict[str, Any] = await cursors.load(name) or {}
    applied = {team: None if x is None else Limits.load(x) for team, x in remembered.get("limits", {}).items()}
    changes = quota_changes(wanted, applied, follower.projection.quotas)
    if changes or applied != wanted:
        number = int(remembered.get("number", 0)) + 1
        cause = f"teams:{pool}:{number}"
        dumped = {team: None if limits is None else limits.dump() for team, limits in wanted.items()}
        messages = [
            _changed(pool, team, limits, cause, key=f"{team}={dumped[team]}", policy=policy)
            for team, limits in changes.items()
        ]
        await outbox.publish_many(messages)
        await cursors.save(name, {"number": number, "limits": dumped})
        log.info("quotas of %d teams follow the file", len(changes))
    return list(changes)


def _changed(
    pool: str,
    team: str,
    limits: Limits | None,
    cause: str,
    *,
    key: str = "",
    correlation: str = "",
    user: str = "",
    reason: str = "",
    policy: str = "",
) -> Outgoing:
    stated = limits or Limits()
    return outgoing(
        QuotaChanged(
            team=team,
            limit_milli=stated.total_milli,
            by_type=dict(stated.by_type),
            user=user,
            cause=cause,
            reason=reason,
            policy=policy,
        ),
        subject=subjects.inbox("quota", "changed", pool),
        type=_TYPE,
        source=f"/baton/{pool}/quota_billing",
        cause=cause,
        key=key or team,
        correlation=correlation,
    )
