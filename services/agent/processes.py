"""One part of an attempt as real processes: started, watched, saved, stopped, and reported gone when nothing is left."""

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from schemas.attempts import KnownByAgent
from schemas.inbox import CheckpointTaken, Observation, Released, Started
from schemas.nodes import DesiredPart
from services.agent import failures
from services.agent.acknowledge import Acknowledgement, BadAcknowledgement
from services.agent.logs import LogSink
from services.agent.reconcile import Phase
from services.agent.tree import PartCgroup

log = logging.getLogger("baton.agent")

POLL_S = 0.25
"""How often a job with a checkpoint policy is looked at for news while it runs."""
AFTER_FAILURE_S = 2.0
"""One process has failed: how long the others have to notice by themselves before they are stopped."""
AFTER_SAVE_S = 2.0
"""SIGTERM to SIGKILL once the work is saved: nothing is left to lose."""
COULD_NOT_START = 126
NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """How to start one process."""

    rank: int
    environment: Mapping[str, str]
    log: Path
    acknowledgement: Path


@dataclass(slots=True)
class RankProcess:
    """One running process. `code` is its exit code (128 + n for signal n) once it has ended."""

    rank: int
    process: subprocess.Popen[bytes]
    exit_fd: int
    sink: LogSink
    code: int | None = None


@dataclass(slots=True)
class AttemptLaunch:
    """All that a part needs besides its spec. `may_run` is asked again after each fork: the lease may have ended."""

    cgroup: PartCgroup
    workdir: Path
    commands: Sequence[ProcessCommand]
    log_limit: int
    may_run: Callable[[], bool]
    started_process: Callable[[int], None] = lambda pid: None
    ended_processes: Callable[[Sequence[int]], None] = lambda pids: None
    set_live: Callable[[int, bool], None] = lambda rank, live: None
    silent_devices: Callable[[], Sequence[str]] = lambda: ()
    """The part's devices that no longer answer. May block for some milliseconds."""


@dataclass(eq=False, slots=True)
class ProcessPart:
    """A part's life, in one task. `report` gets Started, CheckpointTaken and, last and exactly once, Released."""

    part: DesiredPart
    launch: AttemptLaunch
    report: Callable[[Observation], None]
    phase: Phase = Phase.RUNNING
    _ranks: list[RankProcess] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: int = 0
    _failed_rank: int = -1
    _oom_kills: int = 0
    _reason: str = ""
    _acknowledged: bool = False
    _ordered: bool = False
    _terminated: bool = False
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._live(), name=f"part {self.part.job_id}")

    def save(self) -> None:
        """Ask for a checkpoint and stop after it; without a checkpoint policy, stop."""
        self._advance(Phase.SAVING if self.part.spec.checkpoint else Phase.STOPPING)

    def stop(self) -> None:
        self._advance(Phase.STOPPING)

    def save_early(self) -> None:
        """Ask for a checkpoint and go on: the lease is in danger."""
        if self.phase is Phase.RUNNING:
            self._ask_to_save()

    async def kill(self) -> None:
        """Kills everything at once and returns when nothing is left. Reports nothing."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._vanish()

    def _advance(self, phase: Phase) -> None:
        if phase > self.phase:
            self.phase = phase
            self._wake.set()

    async def _live(self) -> None:
        try:
            self._spawn()
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            await self._could_not_start(e)
            return
        self.report(Started(job_id=self.part.job_id, attempt=self.part.attempt))
        acknowledgements = [Acknowledgement(command.acknowledgement) for command in self.launch.commands]
        await self._watch(acknowledgements)
        self._ordered = self.phase is not Phase.RUNNING and bool(self._alive())
        if self.phase is Phase.SAVING and self._alive():
            await self._save(acknowledgements)
        if self._alive():
            await self._terminate(AFTER_SAVE_S if self._acknowledged else self.part.spec.stop_grace_s)
        with suppress(BadAcknowledgement):
            self._look(acknowledgements)  # written with the last breath
        await self._vanish()
        await self._release()

    def _spawn(self) -> None:
        self.launch.cgroup.open()
        entrance = self.launch.cgroup.entrance()
        for command in self.launch.commands:
            read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
            try:
                process = subprocess.Popen(  # an argv list, never a shell
                    self.part.spec.command,
                    env=command.environment,
                    cwd=self.launch.workdir,
                    stdin=subprocess.DEVNULL,
                    stdout=write_fd,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=entrance,
                )
            except BaseException:
                os.close(read_fd)
                raise
            finally:
                os.close(write_fd)
            self._watch_rank(command, process, read_fd)
            if not self.launch.may_run():
                raise OSError("the node's lease ended while the job was being started")

    def _watch_rank(self, command: ProcessCommand, process: "subprocess.Popen[bytes]", read_fd: int) -> None:
        self.launch.cgroup.sessions.add(process.pid)
        self.launch.started_process(process.pid)
        self.launch.set_live(command.rank, True)
        exit_fd = os.pidfd_open(process.pid)
        rank = RankProcess(command.rank, process, exit_fd, LogSink(command.log, read_fd, self.launch.log_limit))
        self._ranks.append(rank)
        asyncio.get_running_loop().add_reader(exit_fd, self._ended, rank)

    def _ended(self, rank: RankProcess) -> None:
        code = rank.process.poll()
        if code is None:
            return
        asyncio.get_running_loop().remove_reader(rank.exit_fd)
        os.close(rank.exit_fd)
        rank.code = code if code >= 0 else 128 - code
        if rank.code and not self._failed:
            self._failed, self._failed_rank = rank.code, rank.rank
            how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            self._reason = f"rank {rank.rank} {how}"
        self._wake.set()

    def _alive(self) -> list[RankProcess]:
        return [rank for rank in self._ranks if rank.code is None]

    async def _watch(self, acknowledgements: list[Acknowledgement]) -> None:
        """Until all have ended, one has failed and the others had time to notice, or a request to save or stop came."""
        poll_s = POLL_S if self.part.spec.checkpoint else None
        deadline: float | None = None
        loop = asyncio.get_running_loop()
        while self._alive() and self.phase is Phase.RUNNING:
            if self._failed and deadline is None:
                deadline = loop.time() + AFTER_FAILURE_S
            if deadline is not None and loop.time() >= deadline:
                return
            await self._news(
                min((t for t in (poll_s, deadline and deadline - loop.time()) if t is not None), default=None)
            )
            self._look_safely(acknowledgements)

    async def _save(self, acknowledgements: list[Acknowledgement]) -> None:
        """Signals the processes and waits for an acknowledgement that is newer than the signal, or the grace's end."""
        policy = self.part.spec.checkpoint
        assert policy is not None, "saving needs a checkpoint policy"
        self._look_safely(acknowledgements)  # what was there before does not count
        self._acknowledged = False
        self._ask_to_save()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + policy.grace_s
        while self._alive() and not self._acknowledged and self.phase is Phase.SAVING and loop.time() < deadline:
            await self._news(min(POLL_S / 5, deadline - loop.time()))
            self._look_safely(acknowledgements)
        if not self._acknowledged and self._alive():
            self._reason = f"no checkpoint was acknowledged within its grace of {policy.grace_s:g} s"

    def _ask_to_save(self) -> None:
        """To the processes alone, not their groups: helpers that know no such signal would die of it."""
        if self.part.spec.checkpoint is not None:
            for rank in self._alive():
                with suppress(ProcessLookupError):
                    rank.process.send_signal(getattr(signal, self.part.spec.checkpoint.signal))

    async def _terminate(self, grace_s: float) -> None:
        self._terminated = True
        for rank in self._alive():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, signal.SIGTERM)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self._alive() and loop.time() < deadline:
            await self._news(deadline - loop.time())

    async def _news(self, timeout_s: float | None) -> None:
        """Waits for an exit or a request, `timeout_s` at the most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        self._wake.clear()

    def _look_safely(self, acknowledgements: list[Acknowledgement]) -> None:
        try:
            self._look(acknowledgements)
        except BadAcknowledgement as e:
            log.warning("attempt %d of %s: bad acknowledgement: %s", self.part.attempt, self.part.job_id, e)

    def _look(self, acknowledgements: list[Acknowledgement]) -> None:
        """Any rank may say that this node's share is saved; rank 0 alone speaks for the whole job."""
        if self.part.spec.checkpoint is None:
            return
        for command, acknowledgement in zip(self.launch.commands, acknowledgements, strict=True):
            if (checkpoint := acknowledgement.news()) is not None:
                self._acknowledged = True
                if command.rank == 0:
                    self.report(
                        CheckpointTaken(job_id=self.part.job_id, attempt=self.part.attempt, checkpoint=checkpoint)
                    )

    async def _vanish(self) -> None:
        """Kills what is left, daemons and all, until nothing is: however long, never freed by a timeout."""
        pause_s = 0.005
        while self.launch.cgroup.kill() or self._alive():
            await asyncio.sleep(pause_s)
            for rank in self._alive():
                self._ended(rank)
            pause_s = min(0.25, pause_s * 2)
        for rank in self._ranks:
            rank.sink.close()
            self.launch.set_live(rank.rank, False)
        self.launch.ended_processes([rank.process.pid for rank in self._ranks])
        self._oom_kills = self.launch.cgroup.oom_kills()
        self.launch.cgroup.close()

    async def _release(self) -> None:
        """It ended by itself when nobody asked; or when it was asked to save, saved nothing and exited with 0 before it
        was told to end: then its work was done. After SIGTERM, 0 means no more than that it went politely."""
        finished = not self._failed and not self._acknowledged and not self._terminated
        own_exit = not self._ordered or finished
        category = await asyncio.to_thread(self._why_failed) if self._failed and own_exit else None
        self.phase = Phase.ENDED
        self._report_released(self._failed, self._reason, own_exit, category)

    def _why_failed(self) -> KnownByAgent | None:
        log = next(command.log for command in self.launch.commands if command.rank == self._failed_rank)
        return failures.why_failed(self.launch.silent_devices(), self._oom_kills, log)

    async def _could_not_start(self, error: Exception) -> None:
        await self._vanish()
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        what = str(getattr(error, "filename", None) or self.part.spec.command[0])
        reason = f"could not start {what!r}: {getattr(error, 'strerror', None) or error}"
        if missing and what == str(self.launch.workdir):
            reason = f"could not start: working directory {what!r} does not exist on this node"
        own_exit = self.launch.may_run()
        self.phase = Phase.ENDED
        category = failures.why_not_started(error) if own_exit else None
        self._report_released(NOT_FOUND if missing else COULD_NOT_START, reason, own_exit, category)

    def _report_released(self, exit_code: int, reason: str, own_exit: bool, category: KnownByAgent | None) -> None:
        self.report(
            Released(
                job_id=self.part.job_id,
                attempt=self.part.attempt,
                exit_code=exit_code,
                reason=reason[:1024],
                own_exit=own_exit,
                category=category,
            )
        )
