"""`baton node declare-dead NODE --fenced-by TEXT`, `release NODE DEVICE --reason TEXT`, `cordon NODE --reason TEXT`,
`uncordon NODE`, `add NODE`, `rotate NODE`, `revoke NODE --reason TEXT`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from libs.cli.broker_keys import ring_of, tell_broker
from libs.cli.exits import UsageFault
from libs.cli.operator_action import MayReason, ReasonOption, operator_action
from libs.cli.options import KeysFolder, Output, Pool, Url, UserOption
from libs.cli.output import Format, done, hint
from libs.cli.pool_commands import say_to_pool
from libs.cli.session import run
from libs.client import Baton
from libs.client.errors import Failed, NotFound, Unreachable
from schemas.inbox import CordonNode, NodeDead, QuarantineLifted, UncordonNode
from schemas.subjects import OPERATOR, cordon_node, declare_dead, lift_quarantine, uncordon_node

app = typer.Typer(help="What an operator says of a node.", no_args_is_help=True, rich_markup_mode=None)

Agents = Annotated[
    str | None,
    typer.Argument(help="Whose; without it those of the agents that stand for all nodes of the pool.", metavar="NODE"),
]
OfPool = Annotated[str, typer.Option("--pool", envvar="BATON_POOL", help="The node's pool.")]


@app.callback()
def _group() -> None:
    pass


@app.command("declare-dead")
def dead(
    node: Annotated[str, typer.Argument(help="A node that `baton get nodes` shows as silent.", metavar="NODE")],
    fenced_by: Annotated[
        str, typer.Option("--fenced-by", help="How you made sure that nothing runs there: power off, BMC, pulled out.")
    ],
    life: Annotated[
        int | None,
        typer.Option("--incarnation", min=1, help="The life that you mean; else the one that is shown now."),
    ] = None,
    *,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Free what a silent node holds, work that is kept too. It is written into the ledger, with your name and your words.

    If it is not true, two attempts of one job may run at once. The node itself kills everything before it comes back. One life
    of the node is meant, and no other: if it has come back meanwhile, this is refused."""

    async def work(baton: Baton) -> dict[str, Any]:
        from libs.client.sending import valid

        who, meant = baton.place.user or "operator", life or await _life_of(baton, node)
        said = valid(NodeDead, node=node, incarnation=meant, fenced_by=fenced_by, user=who)
        pool = baton.place.pool
        seq = await say_to_pool(baton, pool, said, declare_dead(pool, who), f"{node}:{meant}")
        return _as_document(pool, node, "declared dead", seq, incarnation=meant)

    ended = run(work, OPERATOR, url, user=user, pool=pool)
    done(ended, [node], output)
    hint(
        f"life {ended['incarnation']} of {node} is over: its jobs wait or run elsewhere; the node kills everything before it "
        "comes back"
    )


def _as_document(pool: str, node: str, what: str, seq: int | None, **more: str | int) -> dict[str, Any]:
    """The form for programs: what was done to which node, and the ledger record."""
    return {"pool": pool, "node": node, **more, "done": what, "ledger_seq": seq}


async def _life_of(baton: Baton, node: str) -> int:
    """The node's present life, as operators see it. Raises NotFound, and Unreachable or Failed when nobody can say."""
    named = f"or name its life: --incarnation N. If N is another one, pool {baton.place.pool} says which it is"
    try:
        nodes = (await baton.nodes()).nodes
    except (Unreachable, Failed) as e:
        raise type(e)(f"nobody tells which life of {node} is meant", e.what, f"start telemetry, {named}") from e
    for view in nodes:
        if view.node == node:
            return view.incarnation
    raise NotFound(f"pool {baton.place.pool} shows no node {node!r}", fix=f"`baton get nodes` lists them; {named}")


@app.command("release")
def release(
    node: Annotated[str, typer.Argument(help="The node of the device.", metavar="NODE")],
    device: Annotated[
        str, typer.Argument(help="A device that `baton get devices -o wide` shows as in quarantine.", metavar="DEVICE")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why it may be used although something else uses it.")],
    since: Annotated[
        int | None,
        typer.Option(
            "--since-us", min=1, help="When the quarantine that you mean began; else the one that is shown now."
        ),
    ] = None,
    *,
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """End the quarantine of a device that something else than a job still uses. It ends by itself when the device is free.

    It is written into the ledger, with your name and your words. What uses the device now goes on using it. One quarantine is
    meant, and no other: if it has ended and another has begun meanwhile, this is refused."""

    async def work(baton: Baton) -> dict[str, Any]:
        from libs.client.sending import valid

        who, meant = baton.place.user or "operator", since or await _quarantine_of(baton, node, device)
        said = valid(QuarantineLifted, node=node, device=device, since_us=meant, reason=reason, user=who)
        pool = baton.place.pool
        seq = await say_to_pool(baton, pool, said, lift_quarantine(pool, who), device)
        return _as_document(pool, node, "released", seq, device=device, since_us=meant)

    done(run(work, OPERATOR, url, user=user, pool=pool), [device], output)
    hint("the device may be granted again, whatever uses it")


async def _quarantine_of(baton: Baton, node: str, device: str) -> int:
    """The device's present quarantine, by its start (us). Raises as `_life_of`."""
    named = f"or name it: --since-us N. If N is another one, pool {baton.place.pool} says which it is"
    try:
        devices = (await baton.devices(node)).devices
    except (Unreachable, Failed) as e:
        raise type(e)(f"nobody tells which quarantine of {device} is meant", e.what, f"start telemetry, {named}") from e
    for view in devices:
        if (view.node, view.device) == (node, device) and view.quarantine:
            return view.quarantine_since_us
    raise NotFound(
        f"device {device} of node {node} is not in quarantine",
        fix=f"`baton get devices -o wide` shows which are; {named}",
    )


@app.command("add")
def add(
    node: Annotated[
        str, typer.Argument(help="How its agent calls it: the host's name, or BATON_AGENT_NODE.", metavar="NODE")
    ],
    reason: MayReason = "",
    *,
    pool: OfPool = "main",
    folder: KeysFolder = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Make credentials for the agent of a new node, or of one that was revoked. May be repeated.

    Prints the folder that the agent needs. The broker knows it at once, without a reload."""
    ring = ring_of(folder)
    try:
        with operator_action("node.add", _named(pool, node), reason, folder=ring.folder, url=url):
            path = ring.node(pool, node)
            pushed = tell_broker(ring, ring.node_accounts(pool, node), folder, url)
    except ValueError as e:
        raise UsageFault(str(e)) from None
    _print_credentials("added", pool, node, path.parent, output, pushed=pushed)


@app.command("rotate")
def rotate(
    node: Agents = None,
    reason: MayReason = "",
    *,
    pool: OfPool = "main",
    folder: KeysFolder = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Make new credentials for a node's agent in the place of the old ones; whoever still uses those is cut off.

    Prints the folder that the agent needs. Its jobs run on meanwhile, as long as their leases do."""
    ring = ring_of(folder)
    with operator_action("node.rotate", _named(pool, node), reason, folder=ring.folder, url=url):
        pushed = tell_broker(ring, ring.rotate_node(pool, node or ""), folder, url)
    made = ring.creds / "nodes" / (f"{pool}.{node}" if node else pool)
    _print_credentials("rotated", pool, node, made, output, pushed=pushed)


@app.command("revoke")
def revoke(
    reason: ReasonOption,
    node: Agents = None,
    *,
    pool: OfPool = "main",
    folder: KeysFolder = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Cut a node's agent off, for good: of a machine that was taken over, or is gone. Its work ends with its leases.

    `baton node add` lets the node in again."""
    ring = ring_of(folder)
    with operator_action("node.revoke", _named(pool, node), reason, folder=ring.folder, url=url, needs_reason=True):
        pushed = tell_broker(ring, ring.revoke_node(pool, node or ""), folder, url)
    _print_credentials("revoked", pool, node, None, output, pushed=pushed)


def _print_credentials(
    what: str, pool: str, node: str | None, folder: Path | None, output: Format, *, pushed: bool
) -> None:
    """Paths of credentials, never their content: a command's output may end up in a log."""
    value = {"pool": pool, "node": node, "folder": folder and str(folder), "done": what, "broker_told": pushed}
    named = _named(pool, node)
    done(value, [str(folder or named)], output, names=[named])


def _named(pool: str, node: str | None) -> str:
    return f"{pool}/{node or '*'}"


@app.command("cordon")
def cordon(
    node: Annotated[str, typer.Argument(help="A node that `baton get nodes` shows.", metavar="NODE")],
    reason: Annotated[str, typer.Option("--reason", help="What is done there, and until when.")],
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Take a node out of use: nothing new is granted there, what runs goes on to its end.

    It holds until `baton node uncordon`, also when the node is switched off and comes back. Its free time is in the account
    `maintenance` and nobody pays it. It is written into the ledger, with your name and your words."""

    async def work(baton: Baton) -> dict[str, Any]:
        from libs.client.sending import valid

        who = baton.place.user or "operator"
        said = valid(CordonNode, node=node, reason=reason, user=who)
        pool = baton.place.pool
        return _as_document(pool, node, "cordoned", await say_to_pool(baton, pool, said, cordon_node(pool, who), node))

    done(run(work, OPERATOR, url, user=user, pool=pool), [node], output)
    hint("nothing new is granted there; `baton get jobs -o wide` shows what runs there still")


@app.command("uncordon")
def uncordon(
    node: Annotated[str, typer.Argument(help="A node that `baton get nodes` shows as in maintenance.", metavar="NODE")],
    reason: Annotated[str, typer.Option("--reason", help="What was done there.")] = "",
    pool: Pool = None,
    user: UserOption = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Put a node into use again. It is written into the ledger, with your name and your words."""

    async def work(baton: Baton) -> dict[str, Any]:
        from libs.client.sending import valid

        who = baton.place.user or "operator"
        said = valid(UncordonNode, node=node, reason=reason, user=who)
        pool = baton.place.pool
        return _as_document(
            pool, node, "uncordoned", await say_to_pool(baton, pool, said, uncordon_node(pool, who), node)
        )

    done(run(work, OPERATOR, url, user=user, pool=pool), [node], output)
    hint("its devices may be granted again")
