"""`baton provision`: streams, consumers and buckets on a NATS server."""

import asyncio
import os
from typing import Annotated

import typer

from libs.cli.operator_action import MayReason, operator_action
from libs.cli.options import Output, Url
from libs.cli.output import Format, done
from libs.cli.session import run
from libs.cli.stopping import when_asked_to_stop
from libs.client import Baton
from schemas.subjects import OPERATOR


def command(
    pool: Annotated[list[str] | None, typer.Option("--pool", help="May be repeated (BATON_POOLS, BATON_POOL).")] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=5, help="Copies of each stream in a cluster.")] = 1,
    scale: Annotated[float, typer.Option("--scale", min=0.001, help="Multiplies the storage limits.")] = 1.0,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Stay, and keep room for small requests while the stream of requests fills up."),
    ] = False,
    reason: MayReason = "",
    *,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Create what is missing and check what is there. May be run any time; exits with 5 when something differs."""
    from libs.bus.cancel import cancel
    from libs.bus.connect import refuse_anybody, refuse_shared
    from libs.bus.request_size_limit import RequestSizeLimit
    from libs.bus.streams import provision

    async def work(baton: Baton) -> None:
        listed = [name.strip() for name in os.environ.get("BATON_POOLS", "").split(",") if name.strip()]
        pools = pool or listed or [baton.place.pool]
        if not baton.place.address.plain:
            refuse_anybody(baton.nats, baton.place.address.url)
            refuse_shared(baton.place.address)
        await provision(baton.nats.jetstream(), pools, replicas=replicas, scale=scale)
        documents = [{"pool": name, "done": "provisioned"} for name in pools]
        done(documents, [f"{name}\tready" for name in pools], output, names=pools)

    async def stay(baton: Baton) -> None:
        stop = asyncio.Event()
        when_asked_to_stop(stop.set)  # a container's first process that says nothing of SIGTERM is not ended by it
        limit = asyncio.create_task(RequestSizeLimit(baton.nats.jetstream()).run())
        asked = asyncio.create_task(stop.wait())
        await asyncio.wait((limit, asked), return_when=asyncio.FIRST_COMPLETED)
        await cancel(asked)
        if limit.done():
            limit.result()
        await cancel(limit)

    with operator_action("provision", ",".join(pool or []), reason, url=url, tells_failure=False):
        run(work, OPERATOR, url)
    if follow:
        run(stay, OPERATOR, url)
