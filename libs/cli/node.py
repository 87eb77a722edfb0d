"""`baton node declare-dead NODE --fenced-by TEXT`."""

import os
from typing import Annotated

import typer

from libs.cli.options import Pool, Url, UserOption
from libs.cli.output import hint, say
from libs.cli.session import run
from libs.client import Baton
from schemas.inbox import NodeDead
from schemas.subjects import OPERATOR, declare_dead

app = typer.Typer(help="What an operator says of a node.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("declare-dead")
def dead(
    node: Annotated[str, typer.Argument(help="A node that `baton get nodes` shows as silent.")],
    fenced_by: Annotated[
        str, typer.Option("--fenced-by", help="How you made sure that nothing runs there: power off, BMC, pulled out.")
    ],
    life: Annotated[
        int | None, typer.Option("--incarnation", min=1, help="Only this life of the node; else the present one.")
    ] = None,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
) -> None:
    """Free what a silent node holds, work that is kept too. It is written into the ledger, with your name and your words.

    If it is not true, two attempts of one job may run at once. The node itself kills everything before it comes back."""

    async def work(baton: Baton) -> None:
        from libs.bus.messages import outgoing

        who = baton.place.user or "operator"
        item = outgoing(
            NodeDead(node=node, incarnation=life, fenced_by=fenced_by, user=who),
            subject=declare_dead(baton.place.pool, who),
            type="io.baton.operator.node-dead.v1",
            source="/baton/cli",
            cause=f"{node}:{life}:{os.urandom(8).hex()}",
        )
        await baton.nats.jetstream().publish(item.subject, item.payload, headers=item.headers)

    run(work, OPERATOR, url, user=user, pool=pool)
    say(node)
    hint(
        "it is decided in a moment: `baton get nodes` then shows it as lost; `baton dead list` says why it was refused"
    )
