"""Turns a desired part into a running one: a timer for simulations, processes for everything else."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from libs.adapters.devices import NoDevices
from schemas.inbox import Observation, Released
from schemas.nodes import DesiredPart
from services.agent import tree
from services.agent.failures import why_not_prepared
from services.agent.guarding import Guard
from services.agent.logs import LogStore
from services.agent.node import NodeRunner, RunningPart
from services.agent.processes import COULD_NOT_START, AttemptLaunch, ProcessCommand, ProcessPart
from services.agent.state import AgentState, group_name
from services.agent.timers import TimerPart, Timers
from services.agent.variables import BadEnvironment, Paths, addresses_of, slots, variables

SEARCH_PATH = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
"""Where a job's command is looked for: Baton's own interpreter first, so that `python` has what the examples need."""


@dataclass(eq=False, slots=True)
class Launcher:
    """What all parts of this agent share. `group_base` is where cgroups may be made, or None."""

    state: AgentState
    state_dir: Path
    workdir: Path
    checkpoints: Path
    logs: LogStore
    guard: Guard
    timers: Timers
    group_base: Path | None
    log_limit: int
    address_template: str
    local_nodes: frozenset[str]

    def make(self, node: NodeRunner, part: DesiredPart, report: Callable[[Observation], None]) -> RunningPart:
        if part.spec.simulation is not None:
            return TimerPart(part, self.timers, report)
        self.watch(node)
        try:
            launch = self._launch(node, part)
        except (BadEnvironment, NoDevices, OSError) as e:
            report(_could_not_start(part, e))
            return _Nothing()
        made = ProcessPart(part, launch, report)
        made.start()
        return made

    def watch(self, node: NodeRunner) -> None:
        """Tells the guard of this life of the node, once, with the lease that it has; replaces a guard that died."""
        self.guard.ensure()
        if not self.guard.watches(node.name):
            self.guard.watch(node.name, self.marker(node), self._group(node))
            if node.lease.deadline is not None:
                self.guard.until({node.name: node.lease.deadline})

    def guard_ok(self) -> bool:
        return self.guard.alive() or not self.guard.needed()

    def leave(self, node: NodeRunner) -> None:
        """This life of the node is over and nothing of it is left: its empty cgroup goes too."""
        if (group := self._group(node)) is not None:
            tree.remove_group(group)

    def rewatch(self, node: NodeRunner) -> None:
        """A watched node has begun a new life: the guard must not judge it by the old one's deadline."""
        if self.guard.watches(node.name):
            self.guard.watch(node.name, self.marker(node), self._group(node))

    def marker(self, node: NodeRunner) -> str:
        return f"{tree.marker_root(node.name, self.state_dir)}/{node.incarnation}"

    def _group(self, node: NodeRunner) -> Path | None:
        root = tree.marker_root(node.name, self.state_dir)
        return None if self.group_base is None else self.group_base / group_name(root) / str(node.incarnation)

    def _launch(self, node: NodeRunner, part: DesiredPart) -> AttemptLaunch:
        """Raises BadEnvironment, NoDevices or OSError, before anything is started."""
        attempt = self.logs.begin(part.job_id, part.attempt, part.team)
        home, saves = attempt / "home", self.checkpoints / part.job_id
        for folder in (home, saves, attempt / "acknowledge"):
            folder.mkdir(parents=True, exist_ok=True)
        workdir = self.workdir / part.spec.workdir if part.spec.workdir else home
        paths = Paths(str(home), str(workdir), str(saves), str(attempt / "acknowledge" / "rank-{rank}.json"))
        marker = f"{self.marker(node)}/{part.job_id}.{part.attempt}"
        addresses = addresses_of(part, self.local_nodes, self.address_template)
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
                ),
                log=self.logs.log(part.job_id, part.attempt, slot.rank),
                acknowledgement=Path(paths.acknowledgement.format(rank=slot.rank)),
            )
            for slot in slots(part)
        ]
        group = self._group(node)

        def set_live(rank: int, live: bool) -> None:
            self.logs.set_live(part.job_id, part.attempt, rank, live)

        def silent_devices() -> list[str]:
            """A device that is lost is missing from the readings; when the driver itself fails, all of them are."""
            answering: set[str] = set()
            with suppress(NoDevices, OSError):
                answering = {sample.device for sample in node.layer.sample({})}
            return [rank.device for rank in part.ranks if rank.device not in answering]

        return AttemptLaunch(
            cgroup=tree.PartCgroup(marker, None if group is None else group / f"{part.job_id}.{part.attempt}"),
            workdir=workdir,
            commands=commands,
            log_limit=self.log_limit,
            may_run=lambda: node.lease.valid(node.now()),
            started_process=self.state.remember,
            ended_processes=self.state.forget,
            set_live=set_live,
            silent_devices=silent_devices,
        )


class _Nothing:
    """The part that never was: its end is reported already."""

    def save(self) -> None: ...
    def stop(self) -> None: ...
    def save_early(self) -> None: ...
    async def kill(self) -> None: ...


def _could_not_start(part: DesiredPart, error: Exception) -> Released:
    """An own exit: nothing was asked of it. The category says whose fault it is."""
    return Released(
        job_id=part.job_id,
        attempt=part.attempt,
        exit_code=COULD_NOT_START,
        reason=str(error)[:1024],
        own_exit=True,
        category=why_not_prepared(error),
    )


def prune(folders: Sequence[Path]) -> None:
    """Removes folders of old attempts; those of other owners that resist stay. Blocks: call it in a thread."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.parent.rmdir()
        except OSError:
            continue  # another attempt is still there
