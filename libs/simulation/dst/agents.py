"""The real agent on a simulated machine: its processes, its keeper and its disk are the machine's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from libs.bus.connect import connect
from libs.bus.outbox import Outbox
from libs.bus.streams import bind
from libs.core.scheduling.progress import SAMPLE_S, Gauge
from libs.ports.clock import boot_s as now
from libs.service.app import Tasks
from schemas import subjects
from schemas.inbox import CheckpointTaken, ProgressSeen, Released, SeenOfPart, Started
from schemas.jobs import Checkpoint
from schemas.nodes import DesiredPart
from schemas.resources import Inventory
from services.agent.agent import Agent
from services.agent.failures import why_not_started
from services.agent.keeper.table import StartRefused
from services.agent.launcher import OVER
from services.agent.lease import why_ended
from services.agent.node import EarlierLife, NodeCounts, NodeRunner
from services.agent.part_end import COULD_NOT_START
from services.agent.quarantine import KeptQuarantine
from services.agent.reports import Reports
from services.agent.secrets import NotWanted, SecretMissing, SecretSource, SecretsUnavailable
from services.agent.settings import AgentSettings

if TYPE_CHECKING:
    from libs.simulation.dst.machine import Machine, SimProcess
    from libs.simulation.dst.process import Process

TOLD_STEPS = "SIMULATED_STEPS"
"""A simulated job with this variable tells its progress, in so many steps of the same length."""
STOP_S = 0.15
"""SIGTERM to the end of a simulated process, at the most."""
CLEAR_S = 0.1
"""What a dead keeper has left is gone within so long, at the most."""
_SIGTERM = 128 + 15
_SIGKILL = 128 + 9


class SimState:
    """The incarnations on the machine's disk."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine

    def next_incarnations(
        self, nodes: Iterable[str], above: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, int]:
        machine = self._machine
        if machine.disk_full:
            raise OSError(28, "No space left on device")
        now_s = machine.kernel.wall_ns() // 1_000_000_000
        machine.incarnation = max(machine.incarnation + 1, above.get(machine.name, 0) + 1, now_s)
        return dict.fromkeys(nodes, machine.incarnation)

    def close(self) -> None:
        """Nothing is open."""


class SimKeeper:
    """The agent's side of the machine's keeper."""

    containment = "simulated"

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self.on_dying: Callable[[], None] = lambda: None
        self.on_loss: Callable[[], Any] | None = None
        self.on_over: Callable[[str, int], None] = lambda node, incarnation: None
        machine.keeper_lost = self._lost

    def _lost(self) -> None:
        self.on_dying()
        if self.on_loss is not None:
            self._machine.world.loop.create_task(self._say(self.on_loss, self._machine.agent))

    async def _say(self, on_loss: Callable[[], Any], agent: "Process | None") -> None:
        """Nobody awaits it on a real node either: what it raises is lost with the task."""
        try:
            await asyncio.sleep(self._machine.world.random.random() * CLEAR_S)
            await on_loss()
        except Exception as error:
            if agent is not None:
                self._machine.world.raised(agent, error)

    def connected(self) -> bool:
        return True

    def needed(self) -> bool:
        return True

    def knows(self, node: str) -> bool:
        return True

    def life(self, node: str, incarnation: int, until: float | None = 0.0) -> None:
        self._machine.begin(incarnation)

    def until(self, node: str, until: float | None) -> None:
        if until is not None:
            self._machine.world.truth.renewed(self._machine, until)
            life, agent = self._machine.life, self._machine.agent
            if not self._machine.until(until) and life is not None and agent is not None:
                agent.call_at(self._machine.world.loop.now, self.on_over, node, life.incarnation)

    def node_note(self, node: str, note: Mapping[str, Any]) -> None:
        if self._machine.life is not None:
            self._machine.life.note |= {k: dict(v) if isinstance(v, dict) else v for k, v in note.items()}

    async def ensure(self) -> None:
        """There is one."""

    async def close(self) -> None:
        self._machine.keeper_dies()


class SimLauncher:
    """Starts parts on the machine."""

    def __init__(self, machine: "Machine", secrets: SecretSource) -> None:
        self.machine, self._secrets = machine, secrets
        self.state = SimState(machine)
        self.keeper = SimKeeper(machine)

    def make(self, node: NodeRunner, part: DesiredPart, report: Callable[[SeenOfPart], None]) -> "SimPart":
        made = SimPart(self.machine, part, report)
        if part.spec.secrets:
            made.start_with(self._secrets, node)
        else:
            made.start()
        return made

    def adopt(
        self, node: NodeRunner, part: DesiredPart, row: Mapping[str, Any], report: Callable[[SeenOfPart], None]
    ) -> "SimPart":
        made = SimPart(self.machine, part, report)
        made.go_on(row["process"])
        return made

    def over(self, node: NodeRunner) -> None:
        self.keeper.node_note(node.name, OVER)

    def remember(self, node: NodeRunner) -> None:
        self.keeper.node_note(node.name, node.memory())

    async def look_at_busy(self, node: NodeRunner) -> None:
        node.quarantine.tell_again()

    def leave(self, node: NodeRunner) -> None:
        """Nothing is left to remove."""

    def rewatch(self, node: NodeRunner) -> None:
        self.keeper.life(node.name, node.incarnation)

    def keeper_ok(self) -> bool:
        return True


class SimPart:
    """A part of an attempt: it resumes from its checkpoint, saves as its policy says, ends by itself or when asked."""

    def __init__(self, machine: "Machine", part: DesiredPart, report: Callable[[SeenOfPart], None]) -> None:
        self._machine, self._part, self._report = machine, part, report
        self._done_ms = part.resume.step if part.resume else 0
        self._interval_s = part.spec.checkpoint.interval_s if part.spec.checkpoint and part.node_rank == 0 else 0.0
        self._over = False
        self._unwanted = False
        self._fetching: asyncio.Task[None] | None = None
        self._process: SimProcess | None = None
        """None: its start was told to a keeper that had died. Nothing of it has run, and the agent is about to hear of that."""

    @property
    def _alive(self) -> bool:
        return self._process is not None and self._process.alive

    def start(self) -> None:
        if self._machine.life is None:
            return
        if not self._machine.may_start(self._part):
            refused = "the node's lease ended while the job was being started"
            asyncio.get_running_loop().call_soon(self._could_not_start, StartRefused(refused), False)
            return
        simulation = self._part.spec.simulation
        assert simulation is not None
        runs_s = max(0.01, simulation.duration_s - self._done_ms / 1000)
        self._process = self._machine.start(self._part, runs_s, simulation.exit_code, self._ended)
        self._report(Started(job_id=self._part.job_id, attempt=self._part.attempt))
        self._save_later()
        if self._part.node_rank == 0 and (steps := self._part.spec.env.get(TOLD_STEPS, "")):
            self._tell(Gauge(), int(steps), simulation.duration_s)

    def _tell(self, gauge: Gauge, steps: int, duration_s: float) -> None:
        """What a program would write into its progress file, as the agent looks at it."""
        if not self._alive or self._over:
            return
        assert self._process is not None
        now_s = self._machine.world.loop.now
        step = min(steps, int(steps * (self._done_ms / 1000 + now_s - self._process.began) / duration_s))
        if gauge.wants(now_s):
            gauge.note(now_s, {"step": step, "steps": steps})
        if (told := gauge.news(now_s)) is not None:
            self._report(ProgressSeen(job_id=self._part.job_id, attempt=self._part.attempt, progress=told))
        self._machine.world.loop.call_later(SAMPLE_S, self._tell, gauge, steps, duration_s)

    def start_with(self, source: SecretSource, node: NodeRunner) -> None:
        """Once it has its secrets, as `services.agent.processes` does."""
        self._fetching = asyncio.get_running_loop().create_task(self._fetch(source, node))

    async def _fetch(self, source: SecretSource, node: NodeRunner) -> None:
        part, world = self._part, self._machine.world
        asked_at = world.loop.now
        try:
            values = await source.of(part, node.name, node.view.ledger_seq, lambda: not self._unwanted)
            for use in part.spec.secrets:
                world.secrets.given(part.team, use.secret, values[use.secret], asked_at)
        except (SecretMissing, SecretsUnavailable, NotWanted, ValueError) as error:
            self._could_not_start(error, node.lease.valid(node.now()))
            return
        self.start()
        if self._unwanted:
            self._stop()

    def _could_not_start(self, error: Exception, own_exit: bool) -> None:
        self._over = True
        category = why_not_started(error) if own_exit else None
        self._report(
            Released(
                job_id=self._part.job_id, attempt=self._part.attempt, exit_code=COULD_NOT_START, reason=str(error)[:1024],
                own_exit=own_exit, category=category,
            )
        )  # fmt: skip

    def go_on(self, process: "SimProcess") -> None:
        """An earlier agent has started it."""
        self._process = process
        process.told = self._ended
        self._report(Started(job_id=self._part.job_id, attempt=self._part.attempt))
        if process.code is not None:
            self._machine.world.loop.call_soon(self._ended, process.code)
        self._save_later()

    def _save_later(self) -> None:
        if self._interval_s:
            self._machine.world.loop.call_later(self._interval_s, self._interval)

    def save(self) -> None:
        if self._interval_s and self._alive:
            self._checkpoint()
        self._stop()

    def stop(self) -> None:
        self._stop()

    def save_early(self) -> None:
        if self._interval_s and self._alive:
            self._checkpoint()

    def ends_by(self, at: float) -> None:
        if self._process is not None:
            self._machine.ends_by(self._process, at)

    def heard(self) -> None:
        self._machine.forget((self._part.job_id, self._part.attempt))

    async def kill(self) -> None:
        """Ends without a report, and returns when nothing is left."""
        await self._give_up()
        self._over = True
        if self._process is not None and self._process.alive:
            await asyncio.sleep(self._machine.world.random.random() * STOP_S)
            self._machine.kill([self._process])

    async def leave(self) -> None:
        """It runs on, for the next agent."""
        await self._give_up()
        self._over = True

    async def _give_up(self) -> None:
        """Its secrets are not waited for any more."""
        if self._fetching is not None:
            self._fetching.cancel()
            with suppress(asyncio.CancelledError):
                await self._fetching

    def _stop(self) -> None:
        self._unwanted = True
        if self._process is None:
            return
        self._process.asked = True
        world, kernel = self._machine.world, self._machine.kernel
        kernel.call_at(world.loop.now + world.random.random() * STOP_S, self._machine.end, self._process, _SIGTERM)

    def _checkpoint(self) -> None:
        assert self._process is not None
        step = self._done_ms + round((self._machine.world.loop.now - self._process.began) * 1000)
        reference = f"simulated:{self._part.job_id}:{step}"
        self._report(
            CheckpointTaken(
                job_id=self._part.job_id,
                attempt=self._part.attempt,
                checkpoint=Checkpoint(step=step, reference=reference),
            )
        )

    def _interval(self) -> None:
        if self._alive and not self._over:
            self._checkpoint()
            self._save_later()

    def _ended(self, exit_code: int) -> None:
        if self._over:
            return
        self._over = True
        assert self._process is not None
        lease_ended = self._process.doomed and exit_code == _SIGKILL
        overtime = self._process.overtime and exit_code == _SIGKILL
        own = not (lease_ended or overtime) and (not self._process.asked or exit_code not in (_SIGTERM, _SIGKILL))
        reason = why_ended(self._machine.name) if lease_ended else f"ended with {exit_code}" if exit_code else ""
        self._report(
            Released(
                job_id=self._part.job_id, attempt=self._part.attempt, exit_code=exit_code, reason=reason, own_exit=own
            )
        )


class SimAgent(Agent):
    """Its machine knows when it sends heartbeats."""

    async def _heartbeat(self, node: NodeRunner, timeout_s: float) -> str:
        self.launcher.machine.beat_at = now()  # type: ignore[attr-defined]
        return await super()._heartbeat(node, timeout_s)


class AgentService:
    """Runs the agent on `machine`, as `services.agent.app` does on a real one."""

    def __init__(self, settings: AgentSettings, machine: "Machine", inventory: Inventory) -> None:
        self._settings, self._machine, self._inventory = settings, machine, inventory

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        settings, machine = self._settings, self._machine
        machine.lease_s = settings.lease_s
        inventory = machine.found(self._inventory)
        tasks = Tasks()
        before = machine.may_go_on()
        machine.keeper_lost = None  # an earlier agent's
        if not before:
            machine.keeper_dies()
        replies = subjects.node_reply_prefix(settings.pool, inventory.node)
        nats = await connect(settings.nats_url, name=f"agent-{inventory.node}", inbox_prefix=replies, die_on_close=True)
        js = nats.jetstream()
        await bind(js, [settings.pool])
        agent = _built(settings, nats, machine, inventory, before and machine.may_go_on())
        await agent.subscribe()
        async with tasks.until_stopped():
            tasks.start("reports", agent.reports.run())
            tasks.start("heartbeats", agent.run_heartbeats())
            tasks.start("leases", agent.run_watch_leases())
            tasks.start("desired state", agent.run_ask())
            tasks.start("quarantine", agent.run_quarantine())
            yield


def _built(settings: AgentSettings, nats: Any, machine: "Machine", inventory: Inventory, before: bool) -> Agent:
    outbox = Outbox(nats.jetstream(), batches=True, asks=False)
    reports = Reports(outbox.publish_many, pool=settings.pool, source=f"/baton/{settings.pool}/agent")
    launcher: Any = SimLauncher(machine, SecretSource(nats, settings.pool, settings.secrets_wait_s))

    def report(of: str, incarnation: int, seen: Any) -> None:
        if isinstance(seen, Released) and seen.over_limit:
            machine.world.sometimes("a node ended what was over its time limit")
        reports.add(of, incarnation, seen)

    node = NodeRunner(
        inventory=inventory,
        layer=machine.layer(inventory),
        lease_s=settings.lease_s,
        limit_grace_s=settings.limit_grace_s,
        now=now,
        make_part=launcher.make,
        adopt_part=launcher.adopt,
        report=report,
        counts=NodeCounts(),
        remember=launcher.remember,
        kept_quarantine=KeptQuarantine(dict(machine.strangers), machine.had_strangers),
    )
    machine.node = node
    agent = SimAgent(settings, nats, [node], launcher, reports)
    if before and machine.life is not None:
        life = machine.life
        parts = [(process.part, process.row()) for process in machine.table.values()]
        node.adopt(EarlierLife(life.incarnation, life.until, life.note, parts))
        if machine.over():
            machine.world.sometimes("an agent went on with work that outlived its node's lease")
        machine.world.sometimes("an agent went on with an earlier one's work" if parts else "an agent went on")
    else:
        machine.world.truth.begun_anew(machine)
        node.begin(launcher.state.next_incarnations([node.name])[node.name])
        launcher.rewatch(node)
    return agent
