"""Starts a desired part: a timer for simulations, processes for everything else."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.adapters.devices import NoDevices
from schemas.ids import team_uid
from schemas.inbox import Released, SeenOfPart
from schemas.jobs import Network
from schemas.nodes import DesiredPart
from services.agent import tree
from services.agent.attempt_launch import AttemptLaunch, ProcessCommand, no_secrets
from services.agent.failures import why_not_prepared
from services.agent.gangports import PortsHad
from services.agent.jobwalls import JobWalls
from services.agent.keeper import contain, proc
from services.agent.keeper.client import KeeperClient
from services.agent.lease import early_s
from services.agent.left_groups import GroupsOfOurs, kept_agents, remove_left_groups
from services.agent.limits import AttemptLimits, Watched, limits_of
from services.agent.logs import LogStore, make_folder
from services.agent.node import NodeRunner
from services.agent.owners import Owners
from services.agent.part_end import COULD_NOT_START
from services.agent.processes import ProcessPart
from services.agent.quarantine import Since, still_busy
from services.agent.running_part import RunningPart
from services.agent.secrets import Delivered, SecretFolders, SecretSource
from services.agent.shared import SharedUse
from services.agent.state import AgentState, group_name
from services.agent.timers import TimerPart, Timers
from services.agent.variables import BadEnvironment, Paths, addresses_of, master_port, slots, variables

log = logging.getLogger("baton.agent")

SEARCH_PATH = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
"""Search path for jobs' commands: Baton's own interpreter first, so that `python` has what the examples need."""

TIMED: dict[str, Any] = {"timed": True}
OVER: dict[str, Any] = {"over": True}
"""Marks a life of a node with simulated work, which another agent cannot continue."""


@dataclass(frozen=True, slots=True)
class _LifeNames:
    """What names begin with for all attempts in one life of a node: markers, and cgroups. "": there are none."""

    incarnation: int
    marker: str
    group: Path | None
    holding: str
    memory: str
    processes: str
    cpu: str
    memory_stem: str
    cpu_stem: str
    limited: bool
    """Of version 2: what limits attempts lies in the group that holds them."""


@dataclass(eq=False, slots=True)
class Launcher:
    """What all parts of this agent share. `group_base` is where cgroups may be created, or None."""

    state: AgentState
    state_dir: Path
    workdir: Path
    checkpoints: Path
    owners: Owners
    logs: LogStore
    keeper: KeeperClient
    timers: Timers
    group_base: Path | None
    log_limit: int
    address_template: str
    local_nodes: frozenset[str]
    secrets: SecretSource
    secret_folders: SecretFolders
    walls: JobWalls
    memory_base: Path | None = None
    """Where memory cgroups may be created, or None: then memory is polled."""
    process_base: Path | None = None
    """The same for processes."""
    cpu_base: Path | None = None
    """Where cgroups for processor shares may be created, or None: then there are no shares."""
    job_disk: int = 0
    """The most bytes in the folders of one attempt."""
    job_sockets: int = 0
    """The most open sockets of one attempt on the host's network; 0: unlimited."""
    job_gang_ports: int = 0
    """The most gang ports that an attempt may have had; 0: unlimited."""
    shares_checkpoints: bool = True
    """Other agents may run attempts with the same checkpoint folders."""
    trusted_team: str = ""
    """The only team served where nothing holds a job's processes together, or separates teams."""
    begins: Callable[[str], None] = lambda job_id: None
    """Called before the folders of an attempt of this job are created."""
    timed: dict[str, int] = field(default_factory=dict)
    """Node -> incarnation in which a timer was started; that life ends with this agent."""
    _limited: set[Path] = field(default_factory=set)
    """Version 2: groups of lives whose attempts can be limited."""
    _names: dict[str, _LifeNames] = field(default_factory=dict)
    """Node -> names of its present life."""

    def make(self, node: NodeRunner, part: DesiredPart, report: Callable[[SeenOfPart], None]) -> RunningPart:
        if part.spec.simulation is not None:
            self._timed(node)
            return TimerPart(part, self.timers, report)
        self.watch(node)
        return self._run(node, part, report)

    def adopt(
        self, node: NodeRunner, part: DesiredPart, row: Mapping[str, Any], report: Callable[[SeenOfPart], None]
    ) -> RunningPart:
        """Continues an attempt of an earlier agent: `row` is the keeper's."""
        return self._run(node, part, report, row)

    def _run(
        self,
        node: NodeRunner,
        part: DesiredPart,
        report: Callable[[SeenOfPart], None],
        row: Mapping[str, Any] | None = None,
    ) -> RunningPart:
        try:
            launch = self._launch(node, part, row)
        except (BadEnvironment, NoDevices, OSError) as e:
            report(_could_not_start(part, e))
            return _NeverStarted()
        made = ProcessPart(part, launch, report)
        made.start()
        return made

    def watch(self, node: NodeRunner) -> None:
        """Registers this life of the node, with its lease, with the keeper; once."""
        if not self.keeper.knows(node.name):
            self.keeper.life(node.name, node.incarnation, node.lease.deadline or 0.0)
            if self.timed.get(node.name) == node.incarnation:
                self.keeper.node_note(node.name, TIMED)

    def _timed(self, node: NodeRunner) -> None:
        if self.timed.get(node.name) != node.incarnation:
            self.timed[node.name] = node.incarnation
            if self.keeper.knows(node.name):
                self.keeper.node_note(node.name, TIMED)

    def over(self, node: NodeRunner) -> None:
        """All work of this life is about to be ended: no agent goes on with it, also where this one ends half-way. To that one
        what was killed would have ended by itself."""
        if self.keeper.knows(node.name):
            self.keeper.node_note(node.name, OVER)

    def may_stay(self, node: NodeRunner) -> bool:
        """Whether the keeper can hold all work of this life without an agent."""
        return (
            self.keeper.connected() and self.keeper.knows(node.name) and self.timed.get(node.name) != node.incarnation
        )

    def remember(self, node: NodeRunner) -> None:
        """Stores the node's memory before anything is started or refused: the next agent must know which grants are
        old."""
        if self.keeper.knows(node.name):
            self.keeper.node_note(node.name, node.memory())

    def keeper_ok(self) -> bool:
        return self.keeper.connected() or not self.keeper.needed()

    def not_served(self, team: str) -> str:
        """Why this team's processes cannot run here, or "". Processes that cannot be held together may outlive their
        release."""
        if team and team == self.trusted_team:
            return ""
        if self.keeper.containment != contain.NONE:
            return self.walls.not_served(team, self.trusted_team)
        return (
            f"nothing on this machine holds the processes of a job together (namespaces, cgroups, subreaper), so it serves "
            f"{f'team {self.trusted_team!r} alone' if self.trusted_team else 'no team'}: BATON_AGENT_TRUSTED_TEAM"
        )

    def ours(self) -> list[int]:
        """This agent and the keeper: every process below them belongs to a live attempt."""
        return [os.getpid(), *([self.keeper.pid] if self.keeper.pid else [])]

    async def look_at_busy(self, node: NodeRunner) -> None:
        """Ends the quarantine of devices that are free now, and reports the rest at intervals."""
        for device, busy in list(node.quarantine.devices.items()):
            if not await still_busy(node.layer, [device], busy.since, self.ours(), 0.0):
                node.quarantine.free([device])
        node.quarantine.tell_again()

    def leave(self, node: NodeRunner) -> None:
        """This life of the node is over, and nothing of it is left. Removes its empty cgroup."""
        if (group := self._group(node)) is not None:
            self._limited.discard(group)
            proc.remove_group(str(group))
            with suppress(OSError):
                group.parent.rmdir()

    def remove_left_groups(self) -> None:
        """Removes cgroups that killed keepers left anywhere on this machine. Blocks."""
        bases = {base for base in (self.group_base, self.memory_base, self.process_base, self.cpu_base) if base}
        ours = GroupsOfOurs(tree.agent_of(self.state_dir), bases)
        if bases and (left := remove_left_groups(tree.tops(), ours, kept_agents)):
            log.info("%d empty cgroups of keepers that were killed are removed", left)

    def rewatch(self, node: NodeRunner) -> None:
        """Registers the next life of a node with the keeper, so that the old deadline does not apply."""
        if self.keeper.knows(node.name):
            self.keeper.life(node.name, node.incarnation)

    def _group(self, node: NodeRunner) -> Path | None:
        root = tree.marker_root(node.name, self.state_dir)
        return None if self.group_base is None else self.group_base / group_name(root) / str(node.incarnation)

    def _names_of(self, node: NodeRunner) -> _LifeNames:
        names = self._names.get(node.name)
        if names is None or names.incarnation != node.incarnation:
            names = self._names[node.name] = self._names_in(node)
        return names

    def _names_in(self, node: NodeRunner) -> _LifeNames:
        marker, group, held = tree.marker_root(node.name, self.state_dir), self._group(node), self.group_base
        root = group_name(marker)

        def of(base: Path | None) -> str:
            if base is None:
                return ""
            return f"{group}/" if base == held and group is not None else f"{base}/{root}-"

        def stem(base: Path | None) -> str:
            return f"{base}/{root}" if base not in (None, held) else ""

        return _LifeNames(
            incarnation=node.incarnation,
            marker=f"{marker}/{node.incarnation}/",
            group=group,
            holding="" if group is None else f"{group}/",
            memory=of(self.memory_base),
            processes=of(self.process_base),
            cpu=of(self.cpu_base) if self.cpu_base == held else "",
            memory_stem=stem(self.memory_base),
            cpu_stem=stem(self.cpu_base),
            limited=group is not None and held in (self.memory_base, self.process_base, self.cpu_base),
        )

    def _limits(self, names: _LifeNames, part: DesiredPart) -> AttemptLimits:
        own = f"{part.job_id}.{part.attempt}"
        return limits_of(
            part,
            self.job_disk,
            memory_group=names.memory and names.memory + own,
            memory_stem=names.memory_stem,
            process_group=names.processes and names.processes + own,
            cpu_group=names.cpu and names.cpu + own,
            cpu_stem=names.cpu_stem,
        )

    def _shared(self, part: DesiredPart) -> SharedUse:
        """The part's use of common resources: files, and ports on the host's network."""
        if part.network is not Network.HOST:
            return SharedUse(PortsHad(team_uid(part.team)), own_network=True)
        meets = master_port(part.job_id, part.attempt) if part.node_rank == 0 else 0
        return SharedUse(PortsHad(team_uid(part.team), self.job_gang_ports, meets), self.job_sockets)

    def _launch(self, node: NodeRunner, part: DesiredPart, row: Mapping[str, Any] | None) -> AttemptLaunch:
        """Raises BadEnvironment, NoDevices or OSError, before anything is started."""
        kept = self.keeper.attempt(kept_id(node.name, part))
        if row is not None:
            kept.adopt(row)
        self.begins(part.job_id)
        begin = self.logs.begin if row is None else self.logs.adopt
        own, fresh, acknowledgement = begin(part.job_id, part.attempt, part.team)
        home, saves = own[0], self.checkpoints / part.job_id
        made = make_folder(str(saves))
        if row is None:
            self.owners.on_start(part.job_id, part.team, node.view.ledger_seq, saved=not made)
            if self.shares_checkpoints:
                made |= make_folder(str(saves))
        if made:
            fresh.append(saves)
        own.append(saves)
        workdir = self.workdir / part.spec.workdir if part.spec.workdir else home
        paths = Paths(str(home), str(workdir), str(saves), acknowledgement)
        names = self._names_of(node)
        marker = f"{names.marker}{part.job_id}.{part.attempt}"
        addresses = addresses_of(part, self.local_nodes, self.address_template)
        id, named = kept_id(node.name, part), bool(part.spec.secrets)
        secrets = self.secret_folders.folder(id) if named else None
        commands = [
            ProcessCommand(
                rank=slot.rank,
                environment=variables(
                    part,
                    slot,
                    device=node.layer.environment(slot.devices),
                    paths=paths,
                    search_path=SEARCH_PATH,
                    addresses=addresses,
                    marker=marker,
                    secrets=secrets,
                ),
                log=self.logs.log_name(part.job_id, part.attempt, slot.rank),
                acknowledgement=Path(paths.acknowledgement.format(rank=slot.rank)),
            )
            for slot in slots(part)
        ]
        if names.limited and names.group is not None and names.group not in self._limited:
            tree.make_limited(names.group, names.group.parents[1])
            self._limited.add(names.group)
        shown = [] if secrets is None else [secrets]
        limits = self._limits(names, part)

        def set_live(rank: int, live: bool) -> None:
            self.logs.set_live(part.job_id, part.attempt, rank, live)

        since = Since.now() if row is None else Since(int(row["about"].get("since", 0)))
        devices = sorted({rank.device for rank in part.ranks})

        async def settle(grace_s: float) -> None:
            if node.accelerators(devices):
                node.quarantine.add(await still_busy(node.layer, devices, since, self.ours(), grace_s))

        async def deliver_secrets(wanted: Callable[[], bool]) -> Delivered:
            values = await self.secrets.of(part, node.name, node.view.ledger_seq, wanted)
            return await asyncio.to_thread(self.secret_folders.deliver, id, part, values)

        def remove_secrets() -> None:
            if named:
                self.secret_folders.remove(id)

        def silent_devices() -> list[str]:
            """A lost device is missing from the readings; if the driver itself fails, all are missing."""
            answering: set[str] = set()
            with suppress(NoDevices, OSError, ValueError):
                answering = {sample.device for sample in node.layer.sample({})}
            return [rank.device for rank in part.ranks if rank.device not in answering]

        return AttemptLaunch(
            kept=kept,
            node=node.name,
            incarnation=node.incarnation,
            group=names.holding and f"{names.holding}{part.job_id}.{part.attempt}",
            adopted=None if row is None else row["note"],
            workdir=workdir,
            commands=commands,
            log_limit=self.log_limit,
            early_s=early_s(part.lease_s, node.lease_s),
            may_run=lambda: node.lease.valid(node.now()),
            walls=lambda: self.walls.around(
                part.team,
                own,
                node.layer.files(devices),
                limits.memory,
                part.network is Network.HOST,
                part.spec.limits,
                readable=shown,
                fresh=fresh,
                has_memory=part.spec.resources.host_memory_mib > 0,
            ),
            watched=Watched(limits, own),
            shared=self._shared(part),
            set_live=set_live,
            not_served=lambda: self.not_served(part.team) or self.walls.no_walls_for(part.network),
            settle=settle,
            since=since,
            silent_devices=silent_devices,
            secrets_folder=secrets,
            deliver_secrets=deliver_secrets if named else no_secrets,
            remove_secrets=remove_secrets,
        )


def kept_id(node: str, part: DesiredPart) -> str:
    """The keeper's name for this part. A gang may have several on one agent's nodes."""
    return f"{node}/{part.job_id}.{part.attempt}"


class _NeverStarted:
    """A part that could not start; its end is already reported."""

    def save(self) -> None: ...
    def stop(self) -> None: ...
    def save_early(self) -> None: ...
    def heard(self) -> None: ...
    async def check_limits(self) -> bool:
        return False

    def slow_check_due(self) -> None: ...
    def shared_use(self) -> None: ...
    def exceed(self, reason: str) -> None: ...
    def ends_by(self, at: float) -> None: ...
    async def kill(self) -> None: ...
    async def leave(self) -> None: ...


def _could_not_start(part: DesiredPart, error: Exception) -> Released:
    """Reports an exit of its own, since nothing was asked of it. The category says whose fault it is."""
    return Released(
        job_id=part.job_id,
        attempt=part.attempt,
        exit_code=COULD_NOT_START,
        reason=str(error)[:1024],
        own_exit=True,
        category=why_not_prepared(error),
    )
