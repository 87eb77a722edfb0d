"""Keeps child processes running: starts them in order of need, restarts one that dies, stops them in reverse.

One task per process (`_tend`) is the only owner of its children; whoever wants it stopped cancels that task. So there
is no moment at which two parties start, kill or await the same process. When a process dies, those that depend on it
are left alone: it comes back on the same port, and their clients reconnect.
"""

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from libs.embedded.events import Backoff, EventKind, ProcessEvent, ServerState
from libs.embedded.forkserver import ForkServer, Spawned
from libs.embedded.process import Child, ProcessSpec, StartFailed, Unhealthy, cap_log, describe_exit, guarded, open_log
from libs.embedded.records import ProcessRecord, write_processes
from libs.ports.clock import until_turn
from libs.ports.processes import start_ticks

_log = logging.getLogger(__name__)
_EVENTS_KEPT = 1000
_LOG_CHECK_S = 10.0
_ILL_S = 5.0
"""So often a process is asked whether it is ill; twice in a row until it is started anew."""
_FORKS_LOG = "forkserver.log"


@dataclass(eq=False)
class _Supervised:
    """A supervised process. `started` is settled by its first readiness or its failure to get there."""

    spec: ProcessSpec
    started: "asyncio.Future[None]"
    task: "asyncio.Task[None] | None" = None
    child: Child | None = None
    state: ServerState = ServerState.WAITING
    restarts: int = 0


class Supervisor:
    """Runs processes and writes `<state_dir>/processes.json` at each change. Use `async with`, or call `stop`.

    Must run on an event loop in a thread that outlives the processes: Linux kills them when that thread ends.
    """

    def __init__(
        self,
        state_dir: Path,
        on_event: Callable[[ProcessEvent], None] | None = None,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self.state_dir = state_dir
        self.events: deque[ProcessEvent] = deque(maxlen=_EVENTS_KEPT)  # the newest, for tests and for people
        self._on_event = on_event
        self._backoff = backoff or Backoff()
        self._entries: dict[str, _Supervised] = {}
        self._changed = asyncio.Event()  # set, and replaced by a new one, at each change of state
        self._log_keeper: asyncio.Task[None] | None = None
        self._unwritten = ""
        """Why the list of processes is not on the disk."""
        self._forkable: tuple[Sequence[str], Mapping[str, str]] | None = None
        self._forks: ForkServer | None = None
        self._forks_turn = asyncio.Lock()

    async def start(self, *specs: ProcessSpec) -> None:
        """Start processes, each as soon as those it depends on are ready, and return when all are ready.

        Raises:
            StartFailed: one did not become ready; all of this call are stopped again.
            ValueError: a name is in use, or `depends_on` names an unknown process or a circle.
        """
        entries = self._admit(specs)
        self._log_keeper = self._log_keeper or asyncio.create_task(self._keep_logs_small())
        for entry in entries:
            entry.task = asyncio.create_task(self._tend(entry), name=f"tend {entry.spec.name}")
        try:
            await asyncio.gather(*(entry.started for entry in entries))
        except BaseException:
            await self._stop(entries)
            for entry in entries:
                del self._entries[entry.spec.name]
            raise

    async def prepare(self, what: Sequence[str], env: Mapping[str, str], spawned: Spawned | None = None) -> None:
        """Start the process from which those with a `module` will be forked (see `Spawned.start`), or take over one that has
        been `spawned`; `env` is added to the caller's environment. Returns at once."""
        self._forkable = tuple(what), {**os.environ, **env}
        if spawned is not None:
            self._forks = ForkServer(spawned)
        await self._keep_forks()

    async def stop(self, *names: str) -> None:
        """Stop the named processes (default: all), dependents before what they depend on. Safe to repeat.

        Raises:
            KeyError: a name is unknown.
        """
        await self._stop([self._entry(name) for name in names] if names else list(self._entries.values()))
        if names:
            return
        if self._log_keeper is not None:
            self._log_keeper.cancel()
            self._log_keeper = None
        if self._forks is not None:
            await self._forks.stop()
            self._forks = None

    async def restart(self, name: str) -> None:
        """Stop one process and start it again with the same spec.

        Raises:
            KeyError: the name is unknown.
            StartFailed: it did not become ready again.
        """
        spec = self._entry(name).spec
        await self.stop(name)
        await self.start(spec)

    async def wait_ready(self, name: str, *, replaced_pid: int | None = None, timeout_s: float = 30.0) -> int:
        """Wait until a process is ready, and is not `replaced_pid` any more; returns its pid. For after a kill.

        Raises:
            KeyError: the name is unknown.
            ProcessLookupError: it is stopped for good.
            TimeoutError: it was not ready in time.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                entry = self._entry(name)
                if entry.state is ServerState.READY and entry.child is not None and entry.child.pid != replaced_pid:
                    return entry.child.pid
                if not entry.state.is_live:
                    raise ProcessLookupError(f"{name} is {entry.state} and will not become ready")
                await self._changed.wait()

    def processes(self) -> dict[str, ProcessRecord]:
        """The processes as they are now, by name."""
        return {name: _record(entry) for name, entry in self._entries.items()}

    def spec(self, name: str) -> ProcessSpec:
        """What a process is run with, e.g. to start it again after `stop`.

        Raises:
            KeyError: the name is unknown.
        """
        return self._entry(name).spec

    def pid(self, name: str) -> int:
        """The pid of a running process.

        Raises:
            KeyError: the name is unknown.
            ProcessLookupError: the process is down at the moment.
        """
        entry = self._entry(name)
        if entry.child is None:
            raise ProcessLookupError(f"{name} is {entry.state} and has no pid")
        return entry.child.pid

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---------------------------------------------------------------------------------------- the life of a process

    async def _tend(self, entry: _Supervised) -> None:
        """Run one process until it is stopped, fails to start, or ends for good."""
        final = ServerState.STOPPED
        failed: Exception | None = None
        try:
            for name in entry.spec.depends_on:
                await asyncio.shield(self._entries[name].started)
            final = await self._keep_running(entry)
        except Exception as failure:  # StartFailed, or a bug of ours: whoever waits must hear of it
            final, failed = ServerState.FAILED, failure
            if entry.started.done():
                _log.exception("no longer looking after %s", entry.spec.name)
        finally:
            try:
                await self._end(entry, final)
            finally:  # told when it has ended: whoever hears of it cancels this task, which would not wait for it then
                if failed is not None and not entry.started.done():
                    entry.started.set_exception(failed)

    async def _keep_running(self, entry: _Supervised) -> ServerState:
        loop, spec = asyncio.get_running_loop(), entry.spec
        pause: float | None = None
        while True:
            began = loop.time()
            try:
                await self._bring_up(entry)
                began = loop.time()
                self._tell(EventKind.EXITED, entry, await self._over(entry, entry.child) if entry.child else "")
            except StartFailed as failure:
                if not entry.started.done():
                    raise
                self._tell(EventKind.RESTART_FAILED, entry, str(failure))
                if entry.child:
                    await entry.child.stop()
            if entry.child:
                entry.child.kill_group()  # what it started must not hold the port or the data against its successor
            entry.child = None
            if not spec.restart:
                return ServerState.EXITED
            pause = self._backoff.next(pause, loop.time() - began)
            self._set(entry, ServerState.WAITING)
            await asyncio.sleep(pause)
            entry.restarts += 1

    async def _over(self, entry: _Supervised, child: Child) -> str:
        """Waits until the process has ended, by itself or because it was ill; what became of it."""
        ended, before = asyncio.ensure_future(child.wait()), None
        try:
            while not (await asyncio.wait({ended}, timeout=until_turn(_ILL_S) if entry.spec.ill else None))[0]:
                ill = await _look(entry.spec)
                if ill and before and ill.curable and before.curable:  # not in the midst of its recovery
                    await child.stop()
                    return f"was ended: {ill.why}"
                if ill and before is None:
                    self._tell(EventKind.ILL, entry, ill.why)
                before = ill
            return describe_exit(ended.result())
        finally:
            ended.cancel()

    async def _bring_up(self, entry: _Supervised) -> None:
        if entry.spec.module is not None:
            await self._keep_forks()
        entry.child = await Child.spawn(entry.spec, self._forks)
        self._set(entry, ServerState.STARTING)
        await entry.child.until_ready()
        self._set(entry, ServerState.READY)
        if entry.started.done():
            self._tell(EventKind.RESTARTED, entry)
        else:
            self._tell(EventKind.STARTED, entry)
            entry.started.set_result(None)

    async def _keep_forks(self) -> None:
        """A fork server that has died took with it what it forked; all of that comes here for a new one."""
        async with self._forks_turn:
            if self._forkable is None or (self._forks is not None and self._forks.alive):
                return
            what, environment = self._forkable
            try:
                with open_log(self.state_dir / "logs" / _FORKS_LOG) as log:
                    self._forks = ForkServer(Spawned.start(what, guarded(), environment, log))
            except OSError as error:
                _log.warning("no fork server, processes start by themselves: %s", error)

    async def _end(self, entry: _Supervised, final: ServerState) -> None:
        try:
            if entry.child is not None:
                await entry.child.stop()
                if final is ServerState.STOPPED:
                    self._tell(EventKind.STOPPED, entry)
        finally:
            entry.child = None
            self._set(entry, final)

    async def _stop(self, entries: Iterable[_Supervised]) -> None:
        """Cancel the tasks in waves: first those on which nobody left depends. Cancelled itself, it kills the rest."""
        left = {entry.spec.name: entry for entry in entries}
        while left:
            needed = {name for entry in left.values() for name in entry.spec.depends_on}
            wave = [left.pop(name) for name in list(left) if name not in needed] or [left.popitem()[1]]
            tasks = [entry.task for entry in wave if entry.task is not None]
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            except asyncio.CancelledError:
                for entry in left.values():
                    if entry.child is not None:
                        entry.child.kill_group()
                raise
            for entry in wave:
                if not entry.started.done():
                    entry.started.set_exception(_not_ready(entry.spec))
                    entry.started.exception()  # seen: nobody may be waiting for it
                if entry.state.is_live:  # its task was cancelled before its first step
                    self._set(entry, ServerState.STOPPED)

    # -------------------------------------------------------------------------------------------------- book-keeping

    def _admit(self, specs: Iterable[ProcessSpec]) -> list[_Supervised]:
        """Check the specs and enter them; all or nothing."""
        known = {name for name, entry in self._entries.items() if entry.state.is_live}
        batch = {spec.name: spec for spec in specs}
        if repeated := sorted(known & batch.keys()) or sorted({s.name for s in specs if batch[s.name] is not s}):
            raise ValueError(f"process names in use already: {', '.join(repeated)}")
        settled, undecided = set(known), dict(batch)
        while undecided:
            ready = [name for name, spec in undecided.items() if settled.issuperset(spec.depends_on)]
            if not ready:
                requests = "; ".join(f"{name} needs {', '.join(spec.depends_on)}" for name, spec in undecided.items())
                raise ValueError(f"depends_on names an unknown process or a circle: {requests}")
            settled.update(ready)
            for name in ready:
                del undecided[name]
        loop = asyncio.get_running_loop()
        entries = [_Supervised(spec, loop.create_future()) for spec in batch.values()]
        self._entries.update((entry.spec.name, entry) for entry in entries)
        return entries

    def _entry(self, name: str) -> _Supervised:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"no process {name!r} here; there are: {', '.join(self._entries) or 'none'}") from None

    def _set(self, entry: _Supervised, state: ServerState) -> None:
        entry.state = state
        self._changed.set()
        self._changed = asyncio.Event()
        try:
            write_processes(self.state_dir, self.processes().values())
            self._unwritten = ""
        except OSError as error:  # a full disk must not stop what still runs, and is told of once
            if self._unwritten != (why := str(error.strerror)):
                _log.warning("the list of processes in %s is not written, and is old now: %s", self.state_dir, why)
            self._unwritten = why

    def _tell(self, kind: EventKind, entry: _Supervised, detail: str = "") -> None:
        event = ProcessEvent(kind, entry.spec.name, entry.child.pid if entry.child else None, entry.restarts, detail)
        self.events.append(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:  # a listener's bug must not take a server down
                _log.exception("on_event failed for %s", event)

    async def _keep_logs_small(self) -> None:
        while True:
            await asyncio.sleep(_LOG_CHECK_S)
            for entry in self._entries.values():
                cap_log(entry.spec.log_path)
            cap_log(self.state_dir / "logs" / _FORKS_LOG)


async def _look(spec: ProcessSpec) -> Unhealthy | None:
    """What its check says of a process; None when it has none, or gets no answer."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_ILL_S):
            return await spec.ill() if spec.ill else None
    return None


def _not_ready(spec: ProcessSpec) -> StartFailed:
    return StartFailed(spec.name, "was stopped before it was ready", spec.log_path, "")


def _record(entry: _Supervised) -> ProcessRecord:
    pid = entry.child.pid if entry.child else None
    return ProcessRecord(
        name=entry.spec.name,
        state=entry.state,
        pid=pid,
        started_ticks=start_ticks(pid) if pid else None,
        restarts=entry.restarts,
        port=entry.spec.port,
        log=str(entry.spec.log_path),
    )
