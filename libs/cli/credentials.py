"""`baton credentials`: accounts and credentials for a NATS server that Baton did not start."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from libs.bus.creds import speaker
from libs.cli.broker_keys import ring_of, staying, tell_broker
from libs.cli.exits import UsageFault
from libs.cli.operator_action import MayReason, operator_action
from libs.cli.options import KeysFolder, Output, Url
from libs.cli.output import Format, done, hint
from libs.client.where import state_dir
from libs.walls import broker_claims, roles
from libs.walls.accounts import CORE, PROVISION, SERVICES
from libs.walls.keyring import Keyring
from libs.walls.names import check_numbers, check_teams, check_users
from libs.walls.wire import Wire
from schemas.subjects import OPERATOR

_OWN = (OPERATOR, *roles.SERVICES, PROVISION, SERVICES)
"""Holders of credentials in the core account, without agents."""


def command(
    *,
    teams: Annotated[str, typer.Option("--teams", help="Teams, separated by commas.", show_default=False)] = "",
    users: Annotated[str, typer.Option("--users", help="Users, each as TEAM.USER, separated by commas.")] = "",
    nodes: Annotated[str, typer.Option("--nodes", help="Nodes, each as POOL/NODE, separated by commas.")] = "",
    pools: Annotated[str, typer.Option("--pools", help="Pools that get one for agents of all their nodes.")] = "",
    accounts: Annotated[
        str, typer.Option("--accounts", help="The folder where the server keeps accounts that it is told of later.")
    ] = "/data/accounts",
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts",
            help="Names and addresses that clients call the server by: it gets a certificate, and speaks TLS only."
            " By default those of its certificate, if it has one.",
        ),
    ] = "",
    certificates: Annotated[
        str, typer.Option("--certificates", help="The folder where the server finds its certificate.")
    ] = "/etc/nats/accounts",
    rotate: Annotated[
        str,
        typer.Option(
            "--rotate",
            help="Of these (operator, or services by name) a new credential; the old one is void. Does nothing else.",
        ),
    ] = "",
    renew: Annotated[bool, typer.Option("--renew", help="A new certificate, also when the old one is good.")] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="Write it into this file, which the server may read, and print nothing."),
    ] = None,
    reason: MayReason = "",
    folder: KeysFolder = None,
    url: Url = None,
    output: Output = Format.TABLE,
) -> None:
    """Print what makes a nats.conf believe in these accounts, and write a credential for each into the state directory.

    Keys are made once and kept: what was handed out stays good. `baton team` adds, rotates and revokes at run time.
    """
    if rotate:
        return _rotated(_listed(rotate), reason, folder, url, output)
    if not teams:
        raise UsageFault("name the teams: --teams research,vision; or with --rotate whose credentials are to be new")
    named, ring = _listed(teams), Keyring(folder or state_dir())
    target = " ".join(filter(None, (teams, users, nodes, pools)))
    try:
        with operator_action("credentials.make", target, reason, folder=ring.folder, tells=False):
            made = _make_credentials(ring, named, _listed(users), _listed(pools), _listed(nodes))
    except ValueError as e:
        raise UsageFault(str(e)) from None
    # NATS reads JSON like its own format.
    config = broker_claims.trust(ring).config(accounts)
    wire = Wire(ring)
    if named_hosts := _listed(hosts) or wire.names:  # a server with TLS keeps it
        config["tls"], ends = _encrypted(wire, named_hosts, certificates, write, renew)
        hint(
            f"the server's certificate is good until {ends:%Y-%m-%d}; run this again before, and let the server reload"
        )
    text = "\n".join(f"{key}: {json.dumps(value, indent=2)}" for key, value in config.items())
    if write is not None:
        write.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the server's own key is there, too
        write.write_text(text + "\n")
    document = {"credentials": [_as_document(path) for path in made], "config": config, "written": write and str(write)}
    done({**document, "done": "made"}, [text] if write is None else [], output, names=[speaker(path) for path in made])
    hint(f"{len(made)} credentials are in {ring.creds}; {ring.folder / 'keys.json'} can make any: keep it to yourself")


def _rotated(names: list[str], reason: str, folder: Path | None, url: str | None, output: Format) -> None:
    """Rotates the operator's credential, or services'. Users of the old ones are cut off. Prints where the new ones
    are."""
    if unknown := sorted(set(names) - set(_OWN)):
        known = ", ".join(_OWN)
        raise UsageFault(
            f"--rotate {unknown[0]}: is none of {known}; for a team `baton team rotate`, for a node `baton node rotate`"
        )
    ring = ring_of(folder)
    with operator_action("credentials.rotate", " ".join(names), reason, folder=ring.folder, url=url):
        made = [ring.rotate_own(name) for name in names]
        pushed = tell_broker(ring, [CORE], folder, url)
    value = {"credentials": [_as_document(path) for path in made], "done": "rotated", "broker_told": pushed}
    done(value, [str(path) for path in made], output, names=names)


def _as_document(path: Path) -> dict[str, str]:
    """A credential's path, never its content: a command's output may end up in a log."""
    return {"credential": speaker(path), "file": str(path)}


def _make_credentials(
    ring: Keyring, teams: list[str], users: list[str], pools: list[str], nodes: list[str]
) -> list[Path]:
    """Makes a credential for each. Raises ValueError for an invalid name."""
    check_teams(teams)
    check_numbers(teams)
    check_users(users, teams)
    made = [ring.operator(), *(ring.service(name) for name in (*roles.SERVICES, PROVISION))]
    made += [ring.team(name) for name in staying(ring, (*teams, *users))]
    made += [ring.nodes(pool) for pool in pools]
    return made + [ring.node(*_node(text)) for text in nodes]


def _encrypted(
    wire: Wire, hosts: list[str], folder: str, write: Path | None, renew: bool
) -> tuple[dict[str, str], datetime]:
    try:
        ends = wire.make(hosts, renew=renew)
    except ValueError as e:
        raise UsageFault(str(e)) from None
    if write is None:
        hint(f"the server needs {wire.certificate} and {wire.key} as {folder}/")
    else:
        wire.give(write.parent, folder)
    return wire.config(folder), ends


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _node(text: str) -> tuple[str, str]:
    pool, slash, node = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} names no pool: write a node as POOL/NODE, e.g. main/gpu-rack1-07")
    return pool, node
