"""`baton up`: servers, services and agents on this machine, until Ctrl-C."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from libs.bus.cancel import cancel
from libs.cli.broker_keys import served
from libs.cli.exits import UsageFault
from libs.cli.launch import REAL, SIMULATED, LocalStack
from libs.cli.launch_options import MOST_REPLICAS, SERVICES, External, LaunchOptions
from libs.cli.operator_action import operator_action, tell
from libs.cli.output import Column, fields, hint, say, show
from libs.cli.stopping import when_asked_to_stop
from libs.cli.team_admin import answering
from libs.client.where import state_dir
from libs.core.admission.intake import SHIPPED
from libs.embedded.events import EventKind, ProcessEvent
from libs.embedded.records import ProcessRecord

_COLUMNS = [
    Column("PROCESS", lambda p: p.name),
    Column("STATE", lambda p: p.state),
    Column("PID", lambda p: p.pid, right=True),
    Column("PORT", lambda p: p.port, right=True),
    Column("LOG", lambda p: _relative(p.log)),
]


def command(
    *,
    teams: Annotated[str, typer.Option("--teams", help="The teams to serve, separated by commas.")] = "research",
    users: Annotated[
        str,
        typer.Option("--users", help="Users with a credential of their own, each as TEAM.USER, separated by commas."),
    ] = "",
    fleet: Annotated[
        Path | None, typer.Option("--fleet", help="YAML file of simulated nodes, see deploy/fleets/.")
    ] = None,
    real: Annotated[
        bool | None,
        typer.Option("--real/--no-real", help="Offer this machine's own devices; by default unless --fleet is given."),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", help="Prices while no price book is applied, see deploy/prices.yaml.")
    ] = None,
    quotas: Annotated[
        Path | None, typer.Option("--quotas", help="Teams' quotas, and what they may ask for, see deploy/teams.yaml.")
    ] = None,
    pool: Annotated[str, typer.Option("--pool", help="The pool's name.")] = "main",
    more: Annotated[
        list[str] | None,
        typer.Option("--more-pool", help="NAME=FLEET: a further pool of simulated nodes; may be repeated."),
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas", min=1, max=MOST_REPLICAS, help="Processes of each service; 2: one may die unnoticed."
        ),
    ] = 1,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="Port of NATS; a free one otherwise, for root below 1024."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--state-dir", help="Where data and logs are (BATON_STATE_DIR).")
    ] = None,
    external: Annotated[
        bool, typer.Option("--external", help="Use the servers of BATON_NATS_URL, BATON_REDIS_URL, BATON_MONGO_URL.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="With --external: use a broker that lets anybody in, without walls between teams."
        ),
    ] = False,
    servers_only: Annotated[bool, typer.Option("--servers-only", help="Start no services and no agents.")] = False,
    keep_jobs: Annotated[
        bool,
        typer.Option(
            "--keep-jobs", help="Stopping leaves this machine's jobs running; the next `baton up` goes on with them."
        ),
    ] = False,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Do not wait for the disk: faster, and a power failure may lose the last moments."),
    ] = False,
) -> None:
    """Run Baton here, restart what dies, and stop all of it with Ctrl-C. Data stays in the state directory."""
    names = [name.strip() for name in teams.split(",") if name.strip()]
    if not names:
        raise UsageFault("--teams is empty: name at least one team, e.g. --teams research,vision")
    if external and servers_only:
        raise UsageFault("--external and --servers-only exclude each other: nothing would be started")
    try:
        options = LaunchOptions(
            state_dir=folder or state_dir(),
            pool=pool,
            more_pools=dict(_pool(text) for text in more or []),
            teams=names,
            users=[name.strip() for name in users.split(",") if name.strip()],
            fleet=None if servers_only else fleet,
            real_node="auto" if not servers_only and (fleet is None if real is None else real) else "none",
            prices=prices,
            quotas=quotas,
            services=() if servers_only else SERVICES,
            replicas=replicas,
            external=_external() if external else None,
            nats_port=port,
            keep_jobs=keep_jobs,
            insecure=insecure or os.environ.get("BATON_INSECURE", "") in ("1", "true"),
            sync_always=not fast,
        )
        launch = LocalStack(options, report)
    except ValueError as e:
        raise UsageFault(str(e)) from None
    if options.insecure:
        where = os.environ.get("BATON_NATS_URL", "").rpartition("@")[2]
        with operator_action("up.insecure", where, "", folder=launch.state_dir, tells=False):
            hint("insecure: whoever reaches the broker may say anything in anybody's name")
    asyncio.run(_serve(launch))


async def _serve(launch: LocalStack) -> None:
    stop = asyncio.Event()
    when_asked_to_stop(stop.set)
    hint(f"starting in {_relative(str(launch.state_dir))} ...")
    if wait_s := launch.fenced_s():
        hint(f"restored from a backup: leases of before may last for another {wait_s:.0f} s, which are waited for")
    starting = asyncio.ensure_future(launch.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return
        starting.result()
        _introduce(launch)
        telling = asyncio.create_task(_tell_book(launch))
        async with answering(launch.nats_url, launch.keyring, launch.options.quotas):
            await stopping
        telling.cancel()
        hint("stopping ...")
    finally:
        await cancel(stopping, starting)
        await launch.stop()


async def _tell_book(launch: LocalStack) -> None:
    """Sends the ledger what was done while Baton did not run, e.g. a restore. No error of the book ends Baton."""
    try:
        await asyncio.to_thread(tell, launch.state_dir, launch.nats_url)
    except Exception as e:
        hint(f"the ledger was not told of the operator's book ({e}): `baton audit push` tries again")


def report(event: ProcessEvent) -> None:
    """A line for unexpected events: a process that died, and its return."""
    if said := _SAID.get(event.kind):
        pid = f" (pid {event.pid})" if event.kind is EventKind.RESTARTED and event.pid else ""
        hint(f"{event.name} {said}{pid}{f': {event.detail}' if event.detail else ''}")


_SAID = {
    EventKind.EXITED: "died, starting it again",
    EventKind.RESTARTED: "runs again",
    EventKind.RESTART_FAILED: "did not come back, trying again",
    EventKind.ILL: "does not do its work",
}


def _introduce(launch: LocalStack) -> None:
    order = ["nats", "valkey", "mongo", *SERVICES, SIMULATED, REAL]
    processes: list[ProcessRecord] = sorted(
        launch.processes().values(), key=lambda p: order.index(p.name) if p.name in order else len(order)
    )
    show(processes, _COLUMNS)
    say("")
    elsewhere = launch.options.state_dir != Path(".baton") and "BATON_STATE_DIR" not in os.environ
    prefix = f"BATON_STATE_DIR={_relative(str(launch.state_dir))} " if elsewhere else ""
    teams = served(launch.keyring, launch.options.teams)
    team = next((name for name in launch.options.teams if name in teams), "".join(teams[:1]))
    flag = f" --team {team}" if len(teams) > 1 else ""
    tier, *lacks = launch.walls() or [""]
    stays = "data and this machine's jobs stay" if launch.options.keep_jobs else "data stays"
    fields(
        [
            ("submit", f"{prefix}baton submit{flag} {_example(launch)}"),
            ("look", f"{prefix}baton get nodes"),
            ("teams", ", ".join(teams) or "none: `baton team add TEAM`"),
            (
                "a team may",
                f"what {quotas} says"
                if (quotas := launch.options.quotas)
                else f"{SHIPPED.text()}; a file for --quotas changes that",
            ),
            ("walls", tier),
            *(("walls lack", lack) for lack in lacks),
            ("credentials", f"{_relative(str(launch.keyring.creds))}/: one for each team"),
            ("stop", f"Ctrl-C here; {stays}, and the next `baton up` goes on from it"),
        ]
    )


def _example(launch: LocalStack) -> str:
    """A job that can run on what was just started."""
    if launch.options.real_node == "none" and launch.options.fleet is not None:
        return "--gpus 1 --simulate 30s"
    return f"--gpus {1 if Path('/dev/nvidiactl').exists() else 'CPU:1'} -- python3 -c 'print(42)'"


def _pool(text: str) -> tuple[str, Path]:
    name, given, fleet = text.partition("=")
    if not given:
        raise UsageFault(f"{text!r} names no fleet: write NAME=FLEET, e.g. west=deploy/fleets/zoo.yaml")
    return name, Path(fleet)


def _external() -> External:
    names = ("BATON_NATS_URL", "BATON_REDIS_URL", "BATON_MONGO_URL")
    if missing := [name for name in names if not os.environ.get(name)]:
        raise UsageFault(f"--external needs {', '.join(missing)}: set them to the servers' URLs")
    nats, redis, mongo = (os.environ[name] for name in names)
    return External(nats_url=nats, redis_url=redis, mongo_url=mongo)


def _relative(path: str) -> str:
    here = os.path.relpath(path)
    return here if len(here) < len(path) else path
