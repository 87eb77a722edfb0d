"""`baton get pools`: the pools, and whether each is in use."""

import asyncio
from dataclasses import asdict, dataclass
from enum import StrEnum

from libs.cli import units
from libs.cli.options import NoHeader, Output, Url
from libs.cli.output import Column, Format, show
from libs.cli.pools import pools_of
from libs.cli.session import run
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import Failed, Unreachable
from schemas.jobs import JobState
from schemas.pool_status import PoolStatus, PoolStatusQuery
from schemas.subjects import OPERATOR


class PoolState(StrEnum):
    """A pool's state, as an operator sees it."""

    UP = "up"
    SILENT = "silent"
    """Its queries service does not answer, or cannot; whether others run is unknown."""
    CLOSED = "closed"
    """See `libs.cli.pools`."""


@dataclass(frozen=True, slots=True)
class _Pool:
    pool: str
    state: PoolState
    nodes: int | None = None
    accelerators_used_milli: int | None = None
    accelerators_milli: int | None = None
    waiting: int | None = None
    running: int | None = None
    ledger_seq: int | None = None


_COLUMNS = [
    Column("POOL", lambda one: one.pool),
    Column("STATE", lambda one: one.state.value),
    Column("NODES", lambda one: one.nodes, right=True),
    Column("USED", lambda one: _devices(one.accelerators_used_milli), right=True),
    Column("TOTAL", lambda one: _devices(one.accelerators_milli), right=True),
    Column("WAITING", lambda one: one.waiting, right=True),
    Column("RUNNING", lambda one: one.running, right=True),
    Column("LEDGER", lambda one: one.ledger_seq, right=True),
]


def command(url: Url = None, output: Output = Format.TABLE, no_header: NoHeader = False) -> None:
    """Every pool: nodes that are up, accelerators, jobs (operators).

    A closed pool is one to which admission sends no jobs, and whose services do not run."""
    found = run(_found, OPERATOR, url)
    whole = [asdict(one) for one in found]
    show(found, _COLUMNS, output, name=lambda one: one.pool, header=not no_header, whole=whole)


async def _found(baton: Baton) -> list[_Pool]:
    pools = await pools_of(baton)
    answers = await asyncio.gather(*(_asked(baton, pool) for pool in pools.in_use))
    return sorted([*answers, *(_Pool(pool, PoolState.CLOSED) for pool in pools.closed)], key=lambda one: one.pool)


async def _asked(baton: Baton, pool: str) -> _Pool:
    try:
        status: PoolStatus = await ask(baton.nats, "pool.status", baton.place, PoolStatusQuery(), pool=pool)
    except (Unreachable, Failed):
        return _Pool(pool, PoolState.SILENT)
    waiting = status.jobs.get(JobState.QUEUED, 0)
    ended = sum(count for state, count in status.jobs.items() if JobState(state).terminal)
    return _Pool(
        pool, PoolState.UP, status.nodes_up, status.accelerators_used_milli, status.accelerators_milli, waiting,
        sum(status.jobs.values()) - waiting - ended, status.ledger_seq,
    )  # fmt: skip


def _devices(milli: int | None) -> str | None:
    return None if milli is None else units.devices(milli)
