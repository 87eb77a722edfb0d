"""One simulated world: a loop, a seed, a network, a broker, stores, machines and services; and what must never happen.

Everything that is left to chance is drawn from one generator, in the order in which the loop runs. So a seed is the whole
run: the hash over all messages, notes and stored records is the same each time.
"""

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from libs.bus.streams import streams
from libs.simulation.dst.archives import SimArchive
from libs.simulation.dst.broker import Disk, SimBrokerServer
from libs.simulation.dst.consumer import Consumer
from libs.simulation.dst.loop import VirtualLoop
from libs.simulation.dst.machine import Machine, Truth
from libs.simulation.dst.mongo import SimMongoServer
from libs.simulation.dst.net import SimNet
from libs.simulation.dst.process import Process
from libs.simulation.dst.redis import SimRedisServer
from libs.simulation.dst.secrecy import SimSecrets
from libs.simulation.dst.stream import StoredMessage, Stream
from services.agent.secrets import memory_folder

Make = Callable[[], Any]
"""Makes a service: something with `running()`, or with `lifespan` and `broker`."""

_MAX_NOTES = 100_000
_ARCHIVED = "ledger.archived"
"""Reached by who waits for archived records, each time it looks. No crash is drawn there: nothing is under way."""


@dataclass(eq=False, slots=True)
class ServiceSlot:
    """A service that a supervisor keeps alive on `machine`; `process` is its present life."""

    name: str
    machine: str
    make: Make
    process: Process | None = None
    lives: int = 0
    wanted: bool = True
    restart_s: tuple[float, float] = (0.2, 1.5)


@dataclass(slots=True)
class CrashPlan:
    """Which pass of a failpoint ends the process that makes it: name -> the pass, counted over all processes. `stalls`:
    which pass makes it stand still there: name -> (the pass, for how many seconds)."""

    at: dict[str, int] = field(default_factory=dict)
    stalls: dict[str, tuple[int, float]] = field(default_factory=dict)
    strikes: dict[str, tuple[int, Callable[[], None]]] = field(default_factory=dict)


class World:
    """`violations` are what must never be; `trouble` what services said that a person should look at."""

    def __init__(self, seed: int, *, keep_notes: bool = False, to_first: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.hidden = random.Random(f"hidden-{seed}")
        """Of keys, nonces and values."""
        self.names = random.Random(f"names-{seed}")
        """Of what processes call their own."""
        self.secrets = SimSecrets(self)
        self._folder: Path | None = None
        self.archive: SimArchive | None = None
        """Where operators archive the ledger."""
        self.loop = VirtualLoop()
        self.violations: list[str] = []
        self.failpoints: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.plan = CrashPlan()
        self.faults_on = False
        self.notes: list[str] = []
        self._keep_notes = keep_notes
        self._to_first = to_first
        self._hash = blake2b(digest_size=16)
        self.offsets: dict[str, float] = {}
        self.rates: dict[str, float] = {}
        self.net = SimNet(self)
        self.disk = Disk()
        self.redis = SimRedisServer(self)
        self.mongo = SimMongoServer(self)
        self.machines: dict[str, Machine] = {}
        self.truth = Truth(self)
        self.on_record: Callable[[], None] = lambda: None
        """Called when something is stored in the ledger."""
        self.services: dict[str, ServiceSlot] = {}
        self._outside = copy_context()
        """Of nobody's process: what a dying one asks for is done here."""

    @property
    def folder(self) -> Path:
        """Files that outlive processes: of vault, and of the archive. In memory where the machine has such a place."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="baton-dst-", dir=memory_folder()))
        return self._folder

    # ------------------------------------------------------------------------------------------------------ the record

    def note(self, text: str) -> None:
        """Something happened: part of the trace."""
        self._hash.update(f"{self.loop.now:.6f} {text}\n".encode())
        if self._keep_notes and len(self.notes) < _MAX_NOTES:
            self.notes.append(f"{self.loop.now:10.4f}  {text}")

    def trace(self, who: str, subject: str, payload: bytes) -> None:
        """A message was sent."""
        self._hash.update(f"{self.loop.now:.6f} {who} {subject} ".encode())
        self._hash.update(payload)
        self.secrets.passes(who, subject, payload)

    def stored(self, stream: str, kept: StoredMessage) -> None:
        ledger = stream.startswith(("LEDGER", "SEGMENT"))
        if self._keep_notes and (ledger or stream == "DEAD"):
            self.notes.append(
                f"{self.loop.now:10.4f}  {stream} {kept.seq}: {kept.data.decode(errors='replace')[:6000]}"
            )
        if ledger:
            self.on_record()

    def deleting(self, stream: Stream) -> None:
        """A stream is about to be deleted."""
        if self.archive is not None:
            self.archive.deleting(stream)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def violated(self, what: str, text: str) -> None:
        self.note(f"VIOLATION {what}: {text}")
        self.violations.append(f"{what}: {text}")
        self.loop.halted = self._to_first

    def raised(self, process: Process, error: BaseException) -> None:
        """A handler raised where nobody catches: the client or FastStream logs it and goes on. Of a process that has just died
        it is what was under way."""
        if not process.alive:
            return
        self.violated("bug", f"{process.name}: a handler raised {type(error).__name__}: {str(error)[:300]}")

    def reached(self, process: Process, failpoint: str) -> bool:
        """Whether the process dies here."""
        self.failpoints[failpoint] += 1
        if failpoint == _ARCHIVED and not self._restored():
            self.violated("archived", f"{process.name} needs what was archived, and nothing that it had saved was lost")
        if self.faults_on and self.plan.at.get(failpoint) == self.failpoints[failpoint]:
            self.crashes[failpoint] += 1
            return True
        number, begin = self.plan.strikes.get(failpoint, (0, lambda: None))
        if self.faults_on and number == self.failpoints[failpoint]:
            self.sometimes("a fault began at a failpoint")
            self._outside.copy().run(begin)
        number, stall_s = self.plan.stalls.get(failpoint, (0, 0.0))
        if self.faults_on and number == self.failpoints[failpoint]:
            self._stall(process, stall_s)
        return False

    def _stall(self, process: Process, stall_s: float) -> None:
        """It stands still where it is, as by SIGSTOP. Not an agent whose keeper does: that residue is documented."""
        machine = self.machines.get(process.machine)
        if process.frozen or (machine is not None and self.loop.now < machine.keeper_frozen_until):
            return
        process.freeze()
        self.sometimes("a process stood still at a failpoint")
        self.loop.call_at(self.loop.now + stall_s, process.thaw, context=self._outside)

    def sometimes(self, what: str) -> None:
        """A dangerous state was reached: over many seeds each must be, or the simulation proves little."""
        self.seen[what] += 1

    # ---------------------------------------------------------------------------------------------------------- clocks

    def offset_of(self, machine: str) -> float:
        return self.offsets.get(machine, 0.0)

    def rate_of(self, machine: str) -> float:
        return self.rates.get(machine, 1.0)

    # ---------------------------------------------------------------------------------------------------------- broker

    def start_broker(self) -> None:
        process = Process(self, "broker", "broker")
        self.net.broker_process = process
        self.net.broker = process.context.run(SimBrokerServer, self, process, self.disk)

    def kill_broker(self) -> None:
        process = self.net.broker_process
        if process is not None and process.alive:
            process.die("killed")
            for link in list(self.net.links.values()):
                link.reset()

    def provision(self, pools: list[str], scale: float = 0.001) -> None:
        """What `baton provision` does."""
        self.start_broker()
        for body, durables in _tables(tuple(pools), scale):
            stream = self.disk.add(dict(body))
            for name, config in durables:
                self.disk.consumers[stream.name][name] = Consumer(self.net.broker, stream, name, config)

    # -------------------------------------------------------------------------------------------------------- services

    def add(self, name: str, machine: str, make: Make, *, after_s: float = 0.0) -> ServiceSlot:
        """A supervisor keeps `name` alive, `after_s` from now on."""
        slot = self.services[name] = ServiceSlot(name, machine, make)
        if after_s:
            self.loop.call_at(self.loop.now + after_s, self._start, slot, context=self._outside)
        else:
            self._start(slot)
        return slot

    def _start(self, slot: ServiceSlot) -> None:
        if not slot.wanted or (slot.process is not None and slot.process.alive):
            return
        slot.lives += 1
        process = slot.process = Process(self, f"{slot.name}#{slot.lives}", slot.machine)
        process.on_end = lambda ended, why, error: self._ended(slot, ended, why, error)
        machine = self.machines.get(slot.machine)
        if machine is not None:
            machine.agent = process
        self.note(f"{process.name} starts")
        process.start(self._live(slot, process), name=process.name)

    async def _live(self, slot: ServiceSlot, process: Process) -> None:
        try:
            service = slot.make()
            running: AbstractAsyncContextManager[None] = service.running()
            async with running:
                await asyncio.Event().wait()
        except Exception as error:
            process.die("it could not start or go on", error)

    def _ended(self, slot: ServiceSlot, process: Process, why: str, error: BaseException | None) -> None:
        if isinstance(error, BaseException) and self._archived(error):
            self.note(f"{process.name} needs what is archived")
        elif error is not None and not self._excused(error):
            import traceback

            where = "".join(traceback.format_exception(error)[-3:])
            self.violated(
                "ended", f"{process.name} ended by itself: {why}: {error!r}\n{where if self._keep_notes else ''}"
            )
        if slot.wanted:
            at = self.loop.now + self.random.uniform(*slot.restart_s)
            self.loop.call_at(at, self._start, slot, context=self._outside)

    def _archived(self, error: BaseException) -> bool:
        """Whether a reader needs records that were archived, because what it had saved is lost: an operator restores them."""
        if isinstance(error, BaseExceptionGroup):
            return all(self._archived(one) for one in error.exceptions)
        return "they were archived" in f"{error} {error.__cause__}" and self._restored()

    def _restored(self) -> bool:
        """Whether an operator puts back what was archived: a store has lost what readers had saved there."""
        held = self.archive
        if held is None or not held.state_lost or not held.deleted:
            return False
        held.wanted = True
        self.sometimes("a reader needed what was archived")
        return True

    def _excused(self, error: BaseException) -> bool:
        """A service may end where it cannot reach the broker at its start, an agent where its disk is full: without a new
        number it must not begin a life."""
        if isinstance(error, BaseExceptionGroup):
            return all(self._excused(one) for one in error.exceptions)
        return type(error).__name__ in ("BusUnavailable", "StreamsMissing") or (
            isinstance(error, OSError) and error.errno == 28
        )

    def resume(self, name: str) -> None:
        """Somebody keeps this service alive again."""
        self.services[name].wanted = True
        self._start(self.services[name])

    def retire(self, name: str) -> None:
        """Nobody keeps this service alive any more."""
        self.services[name].wanted = False

    def stop(self, name: str) -> None:
        slot = self.services[name]
        slot.wanted = False
        if slot.process is not None:
            slot.process.die("stopped")

    def close(self) -> None:
        """Ends everything, so that nothing of it is left in memory."""
        for slot in self.services.values():
            slot.wanted = False
            if slot.process is not None:
                slot.process.on_end = None
                slot.process.die("the end")
        for machine in self.machines.values():
            machine.kernel.die("the end")
        if self.net.broker_process is not None:
            self.net.broker_process.die("the end")
        self.loop.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


_made: dict[tuple[tuple[str, ...], float], Any] = {}


def _tables(pools: tuple[str, ...], scale: float) -> Any:
    """Streams, each with its durable consumers, as the API writes them: made once, because it costs milliseconds."""
    key = (pools, scale)
    if key not in _made:
        from libs.bus.streams import consumer_config, durables

        wanted = durables(pools)
        _made[key] = [
            (
                config.as_dict(),
                [(d.name, consumer_config(d).as_dict()) for d in wanted if d.stream == config.name],
            )
            for config in streams(pools, scale=scale)
        ]
    return _made[key]
