"""The agent's wiring: the only place that builds its clients."""

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from faststream.asgi import AsgiFastStream
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from libs.bus.broker import make_broker
from libs.bus.outbox import Outbox
from libs.bus.queries import serve
from libs.ports import clock
from libs.ports.clock import boot_s as now
from libs.service.app import Tasks, make_asgi
from libs.service.connection import at_the_bus
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.queries import LogPiece, NodeLogQuery
from services.agent import tree
from services.agent.agent import Agent
from services.agent.gangports import local_ports, most_each
from services.agent.jobwalls import JobWalls, asked
from services.agent.keeper import find
from services.agent.keeper.client import KeeperClient
from services.agent.keeper.zygote import missing
from services.agent.launcher import Launcher, kept_id
from services.agent.logs import LogStore
from services.agent.metrics import AgentMetrics
from services.agent.node import NodeCounts, NodeRunner
from services.agent.nodes import Hosted, hosted
from services.agent.owners import Owners
from services.agent.quarantine import QuarantineFile
from services.agent.reports import Reports, check_registration
from services.agent.reserved import reserve
from services.agent.secrets import SecretFolders, SecretSource
from services.agent.settings import AgentSettings
from services.agent.state import AgentState, folder_in, group_name
from services.agent.takeover import Predecessor, look, sweep
from services.agent.timers import Timers
from services.agent.view import view_of

log = logging.getLogger("baton.agent")

_OF_DISK = 10
"""Output of ended attempts may use a tenth of the disk."""
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PreparedHost:
    """What an agent starts with: its state, where cgroups may be created, and an earlier agent's work that continues."""

    state: AgentState
    group_base: Path | None
    found: list[Hosted]
    before: Predecessor | None


def prepare(settings: AgentSettings, found: list[Hosted]) -> PreparedHost:
    """Finds an earlier agent's keeper, or kills what is left of earlier lives. Blocks until one of both is done.

    Raises StateInUse when another agent has the state directory, NotEmpty when something does not die.
    """
    state_dir = settings.state_path()
    state = AgentState(state_dir)
    group_base = tree.cgroup_base() if settings.cgroups else None
    names = [one.inventory.node for one in found]
    roots = [tree.marker_root(name, state_dir) for name in names]
    return PreparedHost(state, group_base, found, look(state, names, roots, group_base))


async def build(settings: AgentSettings, nats: Client, host: PreparedHost, counts: NodeCounts) -> Agent:
    """An agent whose nodes have begun or continue a life. Raises NoKeeper."""
    names = [one.inventory.node for one in host.found]
    reports = Reports(
        Outbox(nats.jetstream(), batches=True, asks=False).publish_many,
        pool=settings.pool,
        source=f"/baton/{settings.pool}/agent",
        max_payload=nats.max_payload,
    )
    launcher = _launcher(settings, nats, host, frozenset(names))
    quarantine = QuarantineFile(host.state.path / "quarantine.json", clock.boot_id())
    nodes = [
        NodeRunner(
            inventory=one.inventory,
            layer=one.layer,
            lease_s=settings.lease_s,
            limit_grace_s=settings.limit_grace_s,
            now=now,
            make_part=launcher.make,
            adopt_part=launcher.adopt,
            report=reports.add,
            counts=counts,
            remember=launcher.remember,
            kept_quarantine=quarantine.of(one.inventory.node),
            labelled=launcher.walls.labelled,
        )
        for one in host.found
    ]
    agent = Agent(settings, nats, nodes, launcher, reports)
    going_on = await _adopt(host.before, launcher, agent.nodes)
    lives = host.before.lives if host.before is not None else {}
    adopted = [kept_id(node, part) for node, life in lives.items() for part, _ in life.parts]
    await asyncio.to_thread(launcher.secret_folders.sweep, adopted)
    if not all(one.inventory.simulated for one in host.found):
        await launcher.keeper.ensure()  # before a life begins, since the registration names the walls
    agent.begin([node for node in nodes if node.name not in going_on])
    if launcher.keeper.needed():
        log.info("processes of jobs are held together by: %s", launcher.keeper.containment)
        if reason := launcher.not_served(""):
            log.warning("%s", reason)
    elif why := missing():
        log.warning("only simulated work runs here: %s", why)
    return agent


async def _adopt(before: Predecessor | None, launcher: Launcher, nodes: Mapping[str, NodeRunner]) -> set[str]:
    """Continues the lives held by an earlier agent's keeper. Everything else that it holds is gone on return."""
    if before is None:
        return set()
    await launcher.keeper.attach(before.keeper)
    for node, life in before.lives.items():
        launcher.keeper.adopted(node, life.incarnation, life.until)
        nodes[node].adopt(life)
        log.info("node %s goes on in life %d with %d attempts", node, life.incarnation, len(life.parts))
    for id in before.others:
        await launcher.keeper.attempt(id).kill()
    return set(before.lives)


def _remove_left(bases: Iterable[Path | None], roots: Sequence[str]) -> None:
    """Removes cgroups that a killed keeper left."""
    for base in filter(None, bases):
        for root in roots:
            for left in base.glob(f"{group_name(root)}-*"):
                with suppress(OSError):  # an attempt still runs in it
                    left.rmdir()


def _launcher(settings: AgentSettings, nats: Client, host: PreparedHost, names: frozenset[str]) -> Launcher:
    state_dir = settings.state_path()
    workdir = settings.workdir or state_dir / "jobs"
    workdir.mkdir(parents=True, exist_ok=True)
    roots = [tree.marker_root(name, state_dir) for name in names]

    memory_base, process_base, cpu_base = (
        tree.limit_base(controller, host.group_base) if settings.cgroups else None
        for controller in ("memory", "pids", "cpu")
    )
    bases = memory_base, process_base, cpu_base
    _remove_left(bases, roots)

    async def clear() -> None:
        await asyncio.to_thread(sweep, host.state, roots, host.group_base)
        await asyncio.to_thread(_remove_left, bases, roots)

    disk = shutil.disk_usage(workdir).total
    workdir, checkpoints = workdir.resolve(), (settings.checkpoints or state_dir / "checkpoints").resolve()
    own = [state_dir, workdir, checkpoints, *([settings.nats_creds.parent] if settings.nats_creds else [])]
    view = view_of(own, settings)
    keeper = KeeperClient(
        host.state.path,
        settings.containment,
        str(host.group_base or ""),
        clear,
        asked(settings.walls, view, ahead=[()]),
        settings.quick_cgroups,
    )
    teams = host.state.path / "teams.json"
    several, port = settings.teams_without_walls, settings.http_port
    around = JobWalls(keeper, view, teams, several, shares_cpu=cpu_base is not None, http_port=port)
    keeper.on_found = around.announce
    return Launcher(
        state=host.state,
        state_dir=state_dir,
        workdir=workdir,
        checkpoints=checkpoints,
        owners=Owners(checkpoints, settings.pool, shared=settings.checkpoints is not None),
        logs=LogStore(workdir, settings.keep_attempts, disk // _OF_DISK),
        keeper=keeper,
        walls=around,
        timers=Timers(),
        group_base=host.group_base,
        log_limit=settings.log_limit_mib * _MIB,
        address_template=settings.address_template,
        local_nodes=names,
        secrets=SecretSource(nats, settings.pool, settings.secrets_wait_s),
        secret_folders=SecretFolders(state_dir, settings.secrets),
        shares_checkpoints=settings.checkpoints is not None,
        trusted_team=settings.trusted_team,
        memory_base=memory_base,
        process_base=process_base,
        cpu_base=cpu_base,
        job_disk=settings.job_disk_mib * _MIB or disk // 2,
        job_sockets=settings.job_sockets or len(local_ports()) // 2,
        job_gang_ports=settings.job_gang_ports or most_each(),
    )


def make_app(settings: AgentSettings) -> AsgiFastStream:
    """The ASGI application. Raises what `hosted` and `reserve` raise, and NoKeeper: an invalid fleet file stops the start,
    and so does a machine that cannot start processes. (An earlier agent's keeper still can: its program is open.)"""
    registry = CollectorRegistry()
    broker = make_broker(settings.log_bus, "agent")
    metrics = AgentMetrics(registry)
    tasks = Tasks()
    found = hosted(settings)
    for one in found:
        check_registration(one.inventory, settings.lease_s)
    real = not all(one.inventory.simulated for one in found)
    if real and (why := missing()) and find.running(folder_in(settings.state_path())) is None:
        raise find.NoKeeper(why)
    if settings.reserved_cpus is not None:
        group = tree.limit_base("cpu", tree.cgroup_base()) if settings.cgroups else None
        reserve(settings.reserved_cpus, group, cgroups=settings.cgroups)
    os.umask(0o027)  # files of jobs are not readable by every user of the machine

    names = [one.inventory.node for one in found]

    def read_log(query: NodeLogQuery, node: str) -> LogPiece | None:
        agent = metrics.agent
        return agent.read_log(query, query.team) if agent is not None and node in agent.nodes else None

    # With several nodes, listens to all of the pool's questions, since there may be thousands of nodes.
    alone = names[0] if len(names) == 1 else None
    serve(broker, BY_TYPE["io.baton.log.piece.query.v1"], read_log, pool=settings.pool, node=alone)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        host = await asyncio.to_thread(prepare, settings, found)
        first = found[0].inventory.node
        replies = subjects.node_reply_prefix(settings.pool, first)
        async with at_the_bus(settings, f"agent-{first}", inbox_prefix=replies) as nats:
            agent = metrics.agent = await build(settings, nats, host, metrics.counts)
            await agent.subscribe()
            async with tasks.until_stopped():
                tasks.start("reports", agent.reports.run())
                tasks.start("heartbeats", agent.run_heartbeats())
                tasks.start("leases", agent.run_watch_leases())
                tasks.start("desired state", agent.run_ask())
                tasks.start("samples", agent.run_samples())
                tasks.start("quarantine", agent.run_quarantine())
                tasks.start("limits", agent.run_limits())
                tasks.start("shared", agent.run_shared())
                tasks.start("prune", agent.run_prune())
                tasks.start("files of teams that left", agent.run_left())
                yield
                await agent.drain(settings.drain_s)
            await agent.close()

    def ready() -> dict[str, str]:
        return _ready(metrics.agent)

    return make_asgi(broker, name="agent", settings=settings, lifespan=lifespan, registry=registry, ready=ready)


def _ready(agent: Agent | None) -> dict[str, str]:
    if agent is None:
        return {"nodes": "not begun yet"}
    at = now()
    unknown = [node.name for node in agent.nodes.values() if not node.known]
    lapsed = [node.name for node in agent.nodes.values() if not node.lease.valid(at)]
    return {
        "nodes": f"{len(unknown)} not known to placement yet, e.g. {unknown[0]}" if unknown else "ok",
        "leases": f"{len(lapsed)} without a lease, e.g. {lapsed[0]}: is the service leases running?"
        if lapsed
        else "ok",
        "keeper": "ok" if agent.launcher.keeper_ok() else "the keeper does not answer",
    }
