"""Simulated nodes: their processes, their keeper and their disk. What runs here is the truth that nobody's state is asked for.

A part's processes are held by the keeper, not by the agent: they run on when it is frozen or killed, and the next agent may
go on with them. The keeper kills them when the lease ends, and its own end is theirs. Each start is looked at: two attempts
of one job never run at once, and no device is given out beyond its whole.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from libs.adapters.devices.simulated import SimulatedLayer
from schemas.nodes import DesiredPart
from schemas.resources import WHOLE_MILLI, Inventory
from services.agent.takeover import is_over

if TYPE_CHECKING:
    from libs.simulation.dst.loop import SimHandle
    from libs.simulation.dst.process import Process
    from libs.simulation.dst.world import World

KILL_BOUND_S = 0.5
"""Within so long after its deadline a keeper has killed what it holds: what the granter of leases is told of it."""
_SLACK_S = 0.001

Key = tuple[str, int]
"""(job id, attempt)."""


@dataclass(eq=False, slots=True)
class SimProcess:
    """The processes of one part, and the keeper's row of them: `code` is how they ended, until the agent forgets it."""

    key: Key
    node: str
    part: DesiredPart
    milli: dict[str, int]
    began: float
    life: int
    told: Callable[[int], None]
    kept: bool = False
    """No lease ends it."""
    doomed: bool = False
    """Its lease has ended. A later deadline of the node does not change that."""
    ends_by: float | None = None
    """Its time limit is long over then, on the machine's clock."""
    overtime: bool = False
    """The keeper has ended it for that."""
    timer: "SimHandle | None" = None
    code: int | None = None
    asked: bool = False
    """The agent has asked it to end."""

    @property
    def alive(self) -> bool:
        return self.code is None

    def row(self) -> dict[str, Any]:
        """What the keeper shows of it to the next agent."""
        return {"process": self, "doomed": self.doomed, "ends_by": self.ends_by}


@dataclass(slots=True)
class Life:
    """What the keeper knows of a node's present life. `until` on the machine's clock; 0: no lease yet."""

    incarnation: int
    until: float = 0.0
    goes_on: bool = False
    """Its lease has ended while it had work that is kept: with the next deadline it goes on."""
    note: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Machine:
    """One node's hardware. `incarnation` is what its disk remembers."""

    world: "World"
    name: str
    kernel: "Process"
    table: dict[Key, SimProcess] = field(default_factory=dict)
    life: Life | None = None
    incarnation: int = 0
    boots: int = 0
    agent: "Process | None" = None
    keeper_lost: "Callable[[], None] | None" = None
    keeper_frozen_until: float = 0.0
    lease_s: float = 0.0
    """What its agent asks for."""
    beat_at: float = 0.0
    """When the agent began to send its last heartbeat, on the machine's clock."""
    disk_full: bool = False
    off_until: float = 0.0
    """Nobody switches it on before."""
    node: Any = None
    """The agent's, `services.agent.node.NodeRunner`."""
    strangers: dict[str, Any] = field(default_factory=dict)
    """Devices that something else than an attempt uses, as its agent has seen it."""
    had_strangers: bool = False
    _layer: SimulatedLayer | None = None

    def layer(self, inventory: Inventory) -> SimulatedLayer:
        """The devices of a machine that came with `inventory`: boards stay as they were partitioned last."""
        if self._layer is None:
            names = count(1)
            self._layer = SimulatedLayer(inventory.devices, inventory.boards, lambda: f"{self.name}-{next(names)}")
        return self._layer

    def found(self, inventory: Inventory) -> Inventory:
        """What an agent finds at its start."""
        layer = self.layer(inventory)
        return inventory.model_copy(update={"devices": layer.discover(), "boards": layer.boards()})

    @property
    def running(self) -> dict[Key, SimProcess]:
        return {key: process for key, process in self.table.items() if process.alive}

    def may_start(self, part: DesiredPart) -> bool:
        """Whether the keeper would let a part run that it is told of now. A dead one says nothing."""
        return self.life is None or self.kernel.boot_s() < self.life.until - self.early_s(part)

    def early_s(self, part: DesiredPart) -> float:
        """How long before its node's lease that of the part ends, s."""
        return max(0.0, self.lease_s - part.lease_s) if part.lease_s else 0.0

    def start(self, part: DesiredPart, runs_s: float, exit_code: int, told: Callable[[int], None]) -> SimProcess:
        """Starts a part's processes; they end by themselves after `runs_s`."""
        milli: dict[str, int] = {}
        for rank in part.ranks:
            milli[rank.device] = milli.get(rank.device, 0) + rank.milli
        key = (part.job_id, part.attempt)
        life = self.life.incarnation if self.life is not None else 0
        process = SimProcess(key, self.name, part, milli, self.world.loop.now, life, told, kept=not part.lease_s)
        self.world.truth.starts(process, self.world.machines.values())
        self.table[key] = process
        process.timer = self.kernel.call_at(self.world.loop.now + runs_s, self.end, process, exit_code)
        if self.life is not None and self.early_s(part):
            self._watch(self.life, self.early_s(part))
        return process

    def end(self, process: SimProcess, code: int) -> None:
        """The processes of a part are gone; the keeper keeps how, and tells its agent."""
        if not process.alive:
            return
        self.world.truth.overran(self, process)
        process.code = code
        if process.timer is not None:
            process.timer.cancel()
        self.world.truth.ends(process)
        agent = self.agent
        if agent is not None and agent.alive:
            agent.call_at(self.world.loop.now, process.told, code)

    def kill(self, processes: Iterable[SimProcess]) -> None:
        for process in list(processes):
            self.end(process, 128 + 9)

    def forget(self, key: Key) -> None:
        """Placement has heard of this end."""
        if key in self.table and not self.table[key].alive:
            del self.table[key]

    def power_off(self) -> None:
        """Everything on the machine ends."""
        self.boots += 1
        self.keeper_lost = None
        if self.agent is not None:
            self.agent.die("the machine is switched off")
        self.keeper_dies()

    # ---------------------------------------------------------------------------------------------------------- keeper

    def begin(self, incarnation: int) -> None:
        """The agent tells the keeper of a new life: what it held of an earlier one is gone."""
        self.kill(self.running.values())
        self.table.clear()
        self.life = Life(incarnation)

    def until(self, deadline: float) -> bool:
        """Until when the life's work may run. After its lease's end a life goes on only if it has work that is kept. Returns
        whether it does."""
        if self.life is None:
            return True
        self._doom(self.life)
        goes_on = not self.over() or self.life.goes_on
        if goes_on:
            self.life.until, self.life.goes_on = deadline, False
            for early_s in sorted({0.0, *(self.early_s(process.part) for process in self.running.values())}):
                self._watch(self.life, early_s)
        return goes_on

    def ends_by(self, process: SimProcess, at: float) -> None:
        """The agent tells the keeper when the part's time is over at the latest."""
        process.ends_by = at
        self._watch_limit(process)

    def _watch_limit(self, process: SimProcess) -> None:
        assert process.ends_by is not None
        left_s = max(0.0, process.ends_by - self.kernel.boot_s()) / self.world.rate_of(self.name)
        at = max(self.world.loop.now + left_s + 0.001, self.keeper_frozen_until)
        self.kernel.call_at(at, self._look_at_limit, process)

    def _look_at_limit(self, process: SimProcess) -> None:
        if self.table.get(process.key) is not process or not process.alive:
            return
        if (
            process.ends_by is None
            or self.kernel.boot_s() < process.ends_by
            or self.world.loop.now < self.keeper_frozen_until
        ):
            self._watch_limit(process)
            return
        process.overtime = True
        self.kill([process])

    def _watch(self, life: Life, early_s: float = 0.0) -> None:
        """Looks when those leases end that end so long before the node's."""
        left = life.until - early_s - self.kernel.boot_s()
        at = self.world.loop.now + max(0.0, left) / self.world.rate_of(self.name) + 0.001
        self.kernel.call_at(max(at, self.keeper_frozen_until), self._look, life, early_s)

    def _look(self, life: Life, early_s: float) -> None:
        if self.life is not life:
            return
        if self.world.loop.now < self.keeper_frozen_until:
            self._watch(life, early_s)
            return
        self._doom(life)
        self.kill([p for p in self.running.values() if p.doomed])

    def _doom(self, life: Life) -> None:
        now = self.kernel.boot_s()
        life.goes_on = life.goes_on or (self.over() and any(process.kept for process in self.table.values()))
        for p in self.running.values():
            p.doomed = p.doomed or (life.until > 0.0 and not p.kept and now >= life.until - self.early_s(p.part))

    def over(self) -> bool:
        """Whether the life had a lease that has ended."""
        return self.life is not None and 0.0 < self.life.until <= self.kernel.boot_s()

    def keeps(self) -> bool:
        """Whether something runs that no lease ends."""
        return any(process.kept for process in self.running.values())

    def keeper_dies(self) -> None:
        """What it holds ends with it, and the agent hears of the keeper alone."""
        for process in self.running.values():
            process.told = _nothing
            self.end(process, 128 + 9)
        self.table.clear()
        self.life = None
        lost, agent = self.keeper_lost, self.agent
        if lost is not None and agent is not None and agent.alive:
            agent.call_at(self.world.loop.now, lost)

    def may_go_on(self) -> bool:
        """Whether the next agent may go on with the life that the keeper holds."""
        life = self.life
        if life is None or life.incarnation != self.incarnation or not life.until or is_over(life.note):
            return False
        return not self.over() or self.keeps()

    def devices(self) -> dict[str, int]:
        """Thousandths in use of each device."""
        out: dict[str, int] = {}
        for process in self.running.values():
            for device, milli in process.milli.items():
                out[device] = out.get(device, 0) + milli
        return out


def _nothing(_: int) -> None:
    pass


class Truth:
    """The observer: sees every start and end on every machine, and says what must never be."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.ended: dict[tuple[str, int, str], int] = {}
        """(job, attempt, node) -> how its processes ended there."""
        self.ran: dict[Key, set[str]] = {}

    def starts(self, process: SimProcess, machines: Iterable[Machine]) -> None:
        job, attempt = process.key
        for machine in machines:
            for other in machine.running.values():
                if other.key[0] == job and other.key[1] != attempt:
                    self._world.violated(
                        "P2",
                        f"attempt {attempt} of {job} starts on {process.node} while {other.key[1]} runs on {machine.name}",
                    )
                if other.key == process.key and machine.name == process.node:
                    self._world.violated("P5", f"attempt {attempt} of {job} starts twice on {process.node}")
        machine = self._world.machines[process.node]
        if process.key in self.ran and process.node in self.ran[process.key]:
            self._world.violated("P5", f"attempt {attempt} of {job} starts again on {process.node}")
        self.ran.setdefault(process.key, set()).add(process.node)
        used = machine.devices()
        for device, milli in process.milli.items():
            if used.get(device, 0) + milli > WHOLE_MILLI:
                self._world.violated(
                    "P1", f"device {device} is held by more than its whole: {job} starts on {used[device]}"
                )
            if device in machine.strangers:
                self._world.violated("P7", f"{job}.{attempt} starts on {device}, which something else uses")
        self._world.note(f"{process.node} runs {job[:8]}.{attempt}")

        life, now = machine.life, machine.kernel.boot_s()
        if life is None or now > life.until - machine.early_s(process.part) + _SLACK_S:
            self._world.violated("P3", f"{job}.{attempt} starts on {process.node} and has no lease")

    def overran(self, machine: Machine, process: SimProcess) -> None:
        """Work that is not kept is gone when its node's lease has ended, and the time to kill it. Unless keeper and agent were
        frozen at once: that is the residue that is documented. Work that is kept is not ended by a lease."""
        life = machine.life
        frozen = self._world.loop.now < machine.keeper_frozen_until + KILL_BOUND_S
        if (
            process.ends_by is not None
            and (late_s := machine.kernel.boot_s() - process.ends_by) > KILL_BOUND_S
            and not frozen
        ):
            self._world.violated(
                "P8", f"{process.key} on {machine.name} ends {late_s:.1f} s after all that its time limit allows"
            )
        if process.doomed and not process.part.lease_s:
            self._world.violated("P3", f"{process.key} on {machine.name} is kept, and ends with a lease")
        if life is None or not process.part.lease_s or frozen:
            return
        over_s = machine.kernel.boot_s() - life.until + machine.early_s(process.part)
        if over_s > KILL_BOUND_S:
            self._world.violated("P3", f"{process.key} on {machine.name} ends {over_s:.1f} s after its lease")

    def freed(self, job: str, attempt: int, node: str, evidence: str) -> None:
        """The ledger says that nothing of a part is left. Unless keeper and agent were frozen at once, see above."""
        machine = self._world.machines[node]
        process = machine.table.get((job, attempt))
        if process is not None and process.alive and self._world.loop.now >= machine.keeper_frozen_until + KILL_BOUND_S:
            self._world.violated("P4", f"{job}.{attempt} is freed on {node} ({evidence}), and runs there")

    def renewed(self, machine: Machine, until: float) -> None:
        """A lease counts from when its renewal was sent."""
        if until > machine.beat_at + machine.lease_s + _SLACK_S:
            late_s = until - machine.beat_at - machine.lease_s
            self._world.violated("P4", f"the lease of {machine.name} ends {late_s:.1f} s later than what was granted")

    def begun_anew(self, machine: Machine) -> None:
        """An agent has come back while the lease of its node holds, and begins a life instead of going on with the last."""
        if machine.running and machine.may_go_on():
            self._world.violated("P6", f"the agent of {machine.name} ends what it could have gone on with")

    def ends(self, process: SimProcess) -> None:
        assert process.code is not None
        self.ended[*process.key, process.node] = process.code
        self._world.note(f"{process.node} ended {process.key[0][:8]}.{process.key[1]}")
