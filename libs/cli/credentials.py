"""`baton credentials`: users and permissions for a NATS server that Baton did not start."""

import json
from pathlib import Path
from typing import Annotated

import typer

from libs.cli.exits import UsageFault
from libs.cli.output import hint, say
from libs.cli.users import nats_users
from libs.client.where import state_dir
from libs.embedded.servers import user_entry


def command(
    teams: Annotated[str, typer.Option("--teams", help="Teams, separated by commas.")],
    users: Annotated[str, typer.Option("--users", help="Users, each as TEAM.USER, separated by commas.")] = "",
    nodes: Annotated[str, typer.Option("--nodes", help="Nodes, each as POOL/NODE, separated by commas.")] = "",
    pools: Annotated[str, typer.Option("--pools", help="Pools that get one for agents of all their nodes.")] = "",
    folder: Annotated[
        Path | None, typer.Option("--state-dir", help="Where the passwords are kept (BATON_STATE_DIR).")
    ] = None,
) -> None:
    """Print an `authorization` block for nats.conf: services, the operator, and each of these with its own subjects only.

    Passwords are made once and kept in the state directory: the same command prints the same block.
    """
    here = folder or state_dir()
    try:
        known = nats_users(
            here, _listed(teams), _listed(users), _listed(pools), [_node(text) for text in _listed(nodes)]
        )
    except ValueError as e:
        raise UsageFault(str(e)) from None
    # NATS reads JSON as it reads its own form.
    say("authorization: " + json.dumps({"users": [user_entry(user) for user in known]}, indent=2))
    hint("it holds passwords: write it into a file that only the server reads, and include it in nats.conf")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _node(text: str) -> tuple[str, str]:
    pool, slash, node = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} names no pool: write a node as POOL/NODE, e.g. main/gpu-rack1-07")
    return pool, node
