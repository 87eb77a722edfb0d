"""Makes a restored ledger safe to continue: it lacks everything decided after its backup.

A job that waits in it may be running on a node; a device that is free in it may be in use; epochs of devices, numbers
of attempts and sequences will be reused. All of that is bounded by a *life* of a node: an agent that begins a new one
has killed everything before, and starts with an empty view. So the first new inputs end each life that appears in the
ledger, or in an input that waits behind it. And nothing is decided before every lease that the old instance may have
granted has surely ended, with its work. By then an agent that cannot reach the new instance runs nothing either.

Kept work (its class says `lease: keep`) does not end in silence, so an operator must say how the nodes were fenced.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from pydantic import ValidationError

from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import Outbox
from libs.cli.exits import UsageFault
from libs.core.projections.node_health import Terms
from libs.ledger.chain import LedgerStopped
from libs.ledger.inputs import read_input
from libs.ledger.lease_terms import LeaseTerms
from libs.ledger.tail import Tail
from libs.ledger.verify import verify
from libs.ports.variables import wrong_variables
from schemas import ledger as led
from schemas import subjects
from schemas.catalog import TYPE_OF
from schemas.inbox import NodeDead, NodeLost, NodeRegistered

_PAGE, _WAIT_S = 512, 2.0


class NotFenced(LedgerStopped):
    """Kept work may still run. The text says where."""


@dataclass(frozen=True, slots=True)
class Fence:
    """When the old instance surely stopped, s since 1970; and how it was ensured that no node runs anything, "" if it
    was not."""

    gone_s: float
    fenced_by: str = ""


class LivesToEnd:
    """Feed it every valid record: collects live lives of nodes, kept work, and the longest leases."""

    def __init__(self) -> None:
        self.up: dict[str, int] = {}
        self.kept: dict[str, set[str]] = {}
        """Node -> its jobs that do not end in silence."""
        self.max_lease_s = 0.0
        self.inbox_seq = 0
        self.t_us = 0
        self._keeps: set[str] = set()

    def apply(self, record: led.LedgerRecord) -> None:
        self.inbox_seq, self.t_us = record.inbox_seq, record.t_us
        for event in record.events:
            match event:
                case led.NodeJoined():
                    self.up[event.inventory.node] = event.incarnation
                case led.NodeLeft():
                    self.up.pop(event.node, None)
                case led.GranterNamed():
                    self.max_lease_s = max(self.max_lease_s, event.max_lease_s)
                case led.JobQueued() if not event.lease_s:
                    self._keeps.add(event.job_id)
                case led.JobGranted() if event.job_id in self._keeps:
                    for claim in event.claims:
                        self.kept.setdefault(claim.node, set()).add(event.job_id)
                case led.DevicesFreed() if event.job_id in self._keeps:
                    self.kept.get(event.node, set()).discard(event.job_id)
                case led.JobFinished():
                    self._keeps.discard(event.job_id)


async def verified(
    nats: Client, pool: str, archive: Path | None = None, lives: LivesToEnd | None = None
) -> dict[str, Any]:
    """The head of the pool's ledger, if chain and checker find no violation. Raises LedgerStopped."""
    found = lives or LivesToEnd()
    report = await verify(nats.jetstream(), pool, archive, also=found.apply)
    if not report.ok:
        raise LedgerStopped(f"the ledger of pool {pool} is not right: {'; '.join(report.violations[:5])}")
    return {
        "records": report.records,
        "seq": report.head_seq,
        "hash": report.head_hash,
        "t_us": found.t_us,
        "milli_us": report.milli_us,
        "by_team": report.by_team,
    }


def lease_terms() -> Terms:
    """The terms of leases, from the service's environment variables. Raises UsageFault."""
    try:
        return LeaseTerms().terms()
    except ValidationError as error:
        raise UsageFault(wrong_variables(LeaseTerms, error)) from None


async def fence(nats: Client, pool: str, how: Fence, archive: Path | None = None) -> dict[str, Any]:
    """Verifies the ledger, and ends every life in it. Adds to the result of `verified`: `nodes`, their number, and
    `not_before_s`, the earliest time to continue. Raises NotFenced when kept work may run and nobody says that it does
    not."""
    found = LivesToEnd()
    head = await verified(nats, pool, archive, found)
    kept = sorted(node for node, jobs in found.kept.items() if jobs)
    if kept and not how.fenced_by:
        raise NotFenced(
            f"work that no silence ends may still run on {', '.join(kept[:10])}: switch these nodes off, or stop their agents, "
            "and say how with --fenced-by"
        )
    lives = {(node, incarnation) for node, incarnation in found.up.items()}
    lives |= await _registered_since(nats, pool, found.inbox_seq)
    silent_s = max(0.0, time.time() - how.gone_s)
    said: list[Outgoing] = []
    for node, incarnation in sorted(lives):
        gone = NodeLost(node=node, incarnation=incarnation, silent_s=silent_s)
        said.append(_input(gone, subjects.node_inbox("lost", pool, node), f"{node}/{incarnation}"))
    for node in kept:
        dead = NodeDead(node=node, fenced_by=f"restored from a backup: {how.fenced_by}"[:1024])
        said.append(_input(dead, subjects.declare_dead(pool, "restore"), f"{node}/dead"))
    await Outbox(nats.jetstream()).publish_many(said)
    terms = lease_terms()
    longest_s = found.max_lease_s or terms.max_lease_s  # from the ledger, if it names the granter of leases
    not_before_s = 0.0 if how.fenced_by else how.gone_s + terms.patience(longest_s)
    return {**head, "nodes": len({node for node, _ in lives}), "not_before_s": not_before_s}


def _input(model: NodeLost | NodeDead, subject: str, about: str) -> Outgoing:
    return outgoing(
        model,
        subject=subject,
        type=TYPE_OF[type(model)],
        source="/baton/restore",
        cause=f"restore/{about}/{time.time_ns()}",
    )


async def _registered_since(nats: Client, pool: str, inbox_seq: int) -> set[tuple[str, int]]:
    """The lives begun by inputs that the ledger has not decided, as LivesToEnd."""
    js, found = nats.jetstream(), set[tuple[str, int]]()
    state = (await js.stream_info(subjects.inbox_stream(pool))).state
    tail = Tail(js, subjects.inbox_stream(pool), max(inbox_seq, state.first_seq - 1), may_expire=True)
    try:
        while tail.position < state.last_seq:
            for stored in await tail.messages(_PAGE, _WAIT_S):
                message = read_input(stored, pool).message
                if isinstance(message, NodeRegistered):
                    found.add((message.inventory.node, message.incarnation))
    finally:
        await tail.close()
    return found
