"""`baton top`: the pool's present state, refreshed: queues, running jobs with progress, who is next."""

import asyncio
import sys
from typing import Annotated, NamedTuple

import typer

from libs.cli import units
from libs.cli.bars import bar, progress
from libs.cli.get import QUEUES, WAITING, indented
from libs.cli.options import Output, Pool, Team, Url
from libs.cli.output import Column, Format, clean, document, say, show
from libs.cli.session import run, short
from libs.client import Baton
from libs.client.asking import ask
from schemas.jobs import JobState
from schemas.pool_status import PoolStatus
from schemas.queries import JobDocument
from schemas.queue_status import QueuedJob, QueuesQuery, QueuesReply

_SHOWN = 15
_ACTIVE = tuple(state for state in JobState if not state.terminal and state is not JobState.QUEUED)
_CLEAR = "\x1b[H\x1b[2J"

_RUNNING = [
    Column("JOB", lambda j: short(j.job_id)),
    Column("NAME", lambda j: j.name),
    Column("TEAM", lambda j: j.team),
    Column("CLASS", lambda j: j.priority_class),
    Column("STATE", lambda j: j.state.value),
    Column("DEVICES", lambda j: j.devices, right=True),
    Column("NODES", lambda j: j.attempts[-1].nodes if j.attempts else ""),
    Column("RUNS", lambda j: units.age(j.attempts[-1].running_us) if j.attempts else ""),
    Column("PROGRESS", progress),
]


def command(
    every: Annotated[float, typer.Option("--every", min=0.5, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One look, and an end; so it is in a pipe.")] = False,
    *,
    pool: Pool = None,
    team: Team = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """A live view: what is held, how it is shared, what runs and how far it is, what waits and when it starts."""
    live = sys.stdout.isatty() and not once and output in (Format.TABLE, Format.WIDE)

    async def look(baton: Baton) -> None:
        while True:
            seen = await _look(baton)
            if output in (Format.JSON, Format.YAML):
                document(seen._asdict(), output)
            else:
                draw(seen, output, live)
            if not live:
                return
            await asyncio.sleep(every)

    run(look, team, url, pool=pool)


class TopView(NamedTuple):
    """One refresh."""

    status: PoolStatus
    queues: QueuesReply
    running: list[JobDocument]
    waiting: list[QueuedJob]


async def _look(baton: Baton) -> TopView:
    shares: QueuesReply = await ask(baton.nats, "queues.list", baton.place, QueuesQuery())
    active = list(await baton.list(_ACTIVE, limit=_SHOWN))
    return TopView(await baton.status(), shares, active, list((await baton.queue(_SHOWN)).jobs))


def draw(seen: TopView, output: Format = Format.TABLE, live: bool = False) -> None:
    """For people; `live`: overwrites the previous output."""
    status = seen.status
    if live:
        sys.stdout.write(_CLEAR)
    held, there = status.accelerators_used_milli, status.accelerators_milli
    counts = ", ".join(f"{count} {state}" for state, count in sorted(status.jobs.items()) if count and state in _OPEN)
    of = f"{bar(held / there if there else 0.0, 20)} {units.devices(held)} of {units.devices(there)} accelerators held"
    say(clean(f"pool {status.pool}: {of}, {status.nodes_up} nodes up; {counts or 'no jobs'}"))
    for title, rows, columns in (
        ("queues", indented(seen.queues.shares), QUEUES),
        ("running", seen.running, _RUNNING),
        ("waiting", seen.waiting, WAITING),
    ):  # fmt: skip
        if rows:
            say(f"\n{title}")
            show(rows, columns, output)


_OPEN = frozenset(state.value for state in JobState if not state.terminal)
