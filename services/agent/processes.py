"""One part of an attempt as real processes: started, watched, saved, stopped, and reported gone when nothing is left."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.bus.cancel import cancel
from libs.core.scheduling.progress import SAMPLE_S
from libs.ports import sockdiag
from libs.service.tasks import essential
from schemas.attempts import Category, KnownOfPart
from schemas.inbox import Released, SeenOfPart, Started
from schemas.nodes import DesiredPart
from services.agent import failures
from services.agent.attempt_launch import AttemptLaunch
from services.agent.checkpoints import PartCheckpoints
from services.agent.keeper.find import NoKeeper
from services.agent.keeper.table import StartRefused
from services.agent.lease import why_ended
from services.agent.limits import mib
from services.agent.part_end import COULD_NOT_START, NO_SECRETS, how_ended, start_failure
from services.agent.progress import Progressing
from services.agent.quarantine import GRACE_S
from services.agent.reconcile import Phase
from services.agent.shared import QUICK_S, SharedUse
from services.agent.variables import progress_of, world_size

log = logging.getLogger("baton.agent")

POLL_S = 0.25
"""How often a job with a checkpoint policy is checked for news while it runs."""
AFTER_FAILURE_S = 2.0
"""Time for other processes to notice a failed one before they are stopped."""
AFTER_SAVE_S = 2.0
"""From SIGTERM to SIGKILL once the work is saved: nothing is left to lose."""
START_S = 60.0
"""How long the keeper may take to start the processes. Until they are known to run they have no time limit, and what they share
with others is not looked at."""
PORT_TRIES = 25
"""Tries for a gang's port before its attempt is given up."""


@dataclass(eq=False, slots=True)
class ProcessPart:
    """A part's life, in one task. `report` gets Started, CheckpointTaken, ProgressSeen and, last and exactly once,
    Released.

    The processes are the keeper's. An adopted part continues where the earlier agent was: the keeper has the exit
    codes, and a note of the requests to the job.
    """

    part: DesiredPart
    launch: AttemptLaunch
    report: Callable[[SeenOfPart], None]
    phase: Phase = Phase.RUNNING
    _codes: dict[int, int] = field(default_factory=dict)
    """Rank -> exit code (128 + n for signal n) of processes that have ended."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: int = 0
    _failed_rank: int = -1
    _overtime: bool = False
    """The keeper killed the first that failed, because its time limit had long passed."""
    _lease_ended: bool = False
    """The keeper killed the first that failed, because its lease had ended."""
    _reason: str = ""
    _ordered: bool = False
    _terminated: bool = False
    _port_held: bool = False
    """Others held the port where its processes meet, at its start or when it failed."""
    _exceeded: tuple[str, KnownOfPart] | None = None
    _task: asyncio.Task[None] | None = None
    _checkpoints: PartCheckpoints = field(init=False)

    def __post_init__(self) -> None:
        self._checkpoints = PartCheckpoints(self.part, self.launch, self.report)

    def start(self) -> None:
        if self.launch.adopted is not None:
            self.phase = Phase(self.launch.adopted.get("phase", Phase.RUNNING))
            self._terminated = bool(self.launch.adopted.get("terminated"))
        self.launch.kept.changed = self._news_of_processes
        self._news_of_processes()
        self._task = essential(asyncio.create_task(self._run_safely(), name=f"part {self.part.job_id}"))

    def save(self) -> None:
        """Asks for a checkpoint and stops after it; without a checkpoint policy, stops."""
        self._raise_phase(Phase.SAVING if self.part.spec.checkpoint else Phase.STOPPING)

    def stop(self) -> None:
        self._raise_phase(Phase.STOPPING)

    def save_early(self) -> None:
        """Asks for a checkpoint and continues: the lease is in danger."""
        if self.phase is Phase.RUNNING:
            self._checkpoints.keep_news()  # an earlier checkpoint is no answer
            self._checkpoints.rests_until = 0.0
            self._ask_to_save()

    async def kill(self) -> None:
        """Kills everything at once and returns when nothing is left. Reports nothing but the last checkpoint."""
        await self._cancel()
        await self._kill_all()
        self._checkpoints.keep_news()
        self._checkpoints.report_last()
        await self.launch.settle(0.0)

    async def check_limits(self) -> bool:
        """Ends an attempt over its limits at once: it had its chance to stop. Returns whether it was measured."""
        watched = self.launch.watched
        if (
            watched is None
            or self._exceeded is not None
            or not self._alive()
            or not await watched.look(self.launch.kept.shim)
        ):
            return False
        if watched.exceeded is not None:
            self._exceeded = self._exceeded or watched.exceeded
            self._wake.set()
        return True

    def slow_check_due(self) -> float | None:
        """None: measuring takes negligible time."""
        return self.launch.watched.slow_check_due if self.launch.watched is not None else None

    def shared_use(self) -> SharedUse | None:
        """Its use of common resources; None: nothing of it runs."""
        if (shared := self.launch.shared) is None or not self._alive():
            return None
        shared.shim = self.launch.kept.shim
        return shared

    def exceed(self, reason: str) -> None:
        """Ends it for exceeding its share of common resources, as `check_limits` does."""
        self._exceeded = self._exceeded or (reason, Category.USER_ERROR)
        self._wake.set()

    def ends_by(self, at: float) -> None:
        """The keeper kills it at that time, even without an agent."""
        self.launch.kept.ends_by(at)

    def heard(self) -> None:
        """Placement knows its end, so the keeper need not keep it."""
        self.launch.kept.forget()

    async def leave(self) -> None:
        """Lets go of it: it runs on in the keeper, for the next agent."""
        await self._cancel()

    async def _cancel(self) -> None:
        if self._task is not None:
            await cancel(self._task)  # it may be waiting for secrets

    def _raise_phase(self, phase: Phase) -> None:
        if phase > self.phase:
            self.phase = phase
            self._wake.set()

    async def _run_safely(self) -> None:
        try:
            await self._run()
        except Exception as e:
            log.exception("attempt %d of %s cannot go on", self.part.attempt, self.part.job_id)
            await self._kill_all()
            await self.launch.settle(GRACE_S)
            self.phase = Phase.ENDED
            self._report_released(COULD_NOT_START, f"its agent could not go on with it: {e!r}", False, None)

    async def _run(self) -> None:
        try:
            await self._begin()
        except (OSError, ValueError, NoKeeper, failures.NotServed, *NO_SECRETS) as e:
            await self._could_not_start(e)
            return
        self.report(Started(job_id=self.part.job_id, attempt=self.part.attempt))
        self._checkpoints.begin()
        await self._watch()
        if self._exceeded is not None and self._alive():
            await self._end_for(*self._exceeded)
            return
        self._ordered = self.phase is not Phase.RUNNING and (bool(self._alive()) or self.launch.adopted is not None)
        if self.phase is Phase.SAVING and self._alive():
            await self._save()
        if self._alive():
            await self._terminate(AFTER_SAVE_S if self._checkpoints.acknowledged else self.part.spec.stop_grace_s)
        self._checkpoints.keep_news()  # a checkpoint written just before the end
        await self._kill_all()
        await self.launch.settle(GRACE_S)
        await self._release()

    async def _end_for(self, reason: str, category: KnownOfPart) -> None:
        self._checkpoints.keep_news()
        await self._kill_all()
        await self.launch.settle(GRACE_S)
        self.phase = Phase.ENDED
        self._report_released(128 + signal.SIGKILL, reason, True, category)

    async def _begin(self) -> None:
        """Raises OSError, ValueError, NoKeeper or NotServed when it could not be started."""
        kept = self.launch.kept
        if self.launch.adopted is not None:
            await self._until_started(kept.started())
        else:
            await kept.keeper.ensure()
            if reason := self.launch.not_served():
                raise failures.NotServed(reason)
            await self._own_port()
            delivered = await self.launch.deliver_secrets(lambda: self.phase is Phase.RUNNING)
            await self._until_started(kept.keeper.start(kept, self.launch.start_message(self.part, delivered)))
        for command in self.launch.commands:
            self.launch.set_live(command.rank, True)
        if self.launch.adopted is None and not self.launch.may_run():
            raise StartRefused("the node's lease ended while the job was being started")

    async def _until_started(self, start: Coroutine[Any, Any, None]) -> None:
        """A start that takes too long is given up, and sooner if the part is to stop. Raises what `start` does, StartRefused or
        NotServed: the caller kills what there is of it."""
        loop = asyncio.get_running_loop()
        starting, deadline = loop.create_task(start), loop.time() + START_S
        starting.add_done_callback(lambda _: self._wake.set())
        try:
            while self.phase is Phase.RUNNING and not starting.done() and loop.time() < deadline:
                await self._wait_for_news(deadline - loop.time())
            stops = self.phase is not Phase.RUNNING
            left_s = min(deadline - loop.time(), self.part.spec.stop_grace_s if stops else 0.0)
            await asyncio.wait([starting], timeout=max(0.0, left_s))
            if starting.done():
                return await starting
        finally:
            starting.cancel()
        if stops:
            raise StartRefused("it was to stop, and its processes had not begun")
        raise failures.NotServed(f"its processes had not begun after {START_S:g} s")

    async def _own_port(self) -> None:
        """Waits while others hold the gang's port, since whoever holds many of them is being ended. Raises NotServed
        after the last try: another attempt has another port."""
        meets = self.launch.shared.ports.meets if self.launch.shared is not None and world_size(self.part) > 1 else 0
        for _ in range(PORT_TRIES):
            if not meets or self.phase is not Phase.RUNNING or sockdiag.is_free(meets):
                return
            sockdiag.end_what_is_left(meets)
            if sockdiag.is_free(meets):
                return
            self._port_held = True
            await asyncio.sleep(QUICK_S)
        raise failures.NotServed(
            f"port {meets} of its node, at which its processes meet (MASTER_PORT), is held by others"
        )

    def _news_of_processes(self) -> None:
        kept = self.launch.kept
        for rank, code in kept.codes.items():
            self._ended(rank, code)
        if kept.gone:  # its shim was killed, and the processes with it
            for command in self.launch.commands:
                self._ended(command.rank, -signal.SIGKILL)
        self._wake.set()

    def _ended(self, rank: int, code: int) -> None:
        if rank in self._codes:
            return
        self._codes[rank] = code if code >= 0 else 128 - code
        if code and not self._failed:
            self._failed, self._failed_rank = self._codes[rank], rank
            self._lease_ended = self.launch.kept.doomed
            self._overtime = self.launch.kept.overtime
            self._reason = f"rank {rank} {how_ended(code)}"

    def _alive(self) -> list[int]:
        return [command.rank for command in self.launch.commands if command.rank not in self._codes]

    async def _watch(self) -> None:
        """Waits until all have ended, one has failed and the others had time to notice, or a request to save or stop
        came."""
        progressing = self._progressing()
        poll_s = POLL_S if self.part.spec.checkpoint else SAMPLE_S if progressing else None
        deadline: float | None = None
        loop = asyncio.get_running_loop()
        while self._alive() and self.phase is Phase.RUNNING and self._exceeded is None:
            if self._failed and deadline is None:
                deadline = loop.time() + AFTER_FAILURE_S
            if deadline is not None and loop.time() >= deadline:
                return
            await self._wait_for_news(
                min((t for t in (poll_s, deadline and deadline - loop.time()) if t is not None), default=None)
            )
            if loop.time() >= self._checkpoints.rests_until:
                self._checkpoints.report_news()
            if progressing is not None and (progress := progressing.news(loop.time())) is not None:
                self.report(progress)

    def _progressing(self) -> Progressing | None:
        """Only for the part with rank 0, which reports for the whole job."""
        of = next((command.acknowledgement for command in self.launch.commands if command.rank == 0), None)
        return Progressing.of(self.part, Path(progress_of(str(of)))) if of is not None else None

    async def _save(self) -> None:
        """Signals the processes, and waits for an acknowledgement newer than the signal, or for the end of the grace."""
        policy = self.part.spec.checkpoint
        assert policy is not None, "saving needs a checkpoint policy"
        self._checkpoints.keep_news()
        asked_before = self.launch.adopted is not None and "seen" in self.launch.adopted
        if not (asked_before and self._checkpoints.acknowledged):
            self.launch.kept.note(phase=int(self.phase), seen=self._checkpoints.asked())
            self._ask_to_save()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + policy.grace_s
        while (
            self._alive()
            and not self._checkpoints.acknowledged
            and self.phase is Phase.SAVING
            and loop.time() < deadline
        ):
            await self._wait_for_news(min(POLL_S / 5, deadline - loop.time()))
            self._checkpoints.report_news()
        if not self._checkpoints.acknowledged and self._alive():
            self._reason = f"no checkpoint was acknowledged within its grace of {policy.grace_s:g} s"

    def _ask_to_save(self) -> None:
        """Signals the processes alone, not their groups: helper processes without a handler would die of it."""
        if self.part.spec.checkpoint is not None and (alive := self._alive()):
            self.launch.kept.signal(getattr(signal, self.part.spec.checkpoint.signal), alive, group=False)

    async def _terminate(self, grace_s: float) -> None:
        self._terminated = True
        self.launch.kept.note(phase=int(self.phase), terminated=True)
        self.launch.kept.signal(signal.SIGTERM, self._alive(), group=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self._alive() and loop.time() < deadline:
            await self._wait_for_news(deadline - loop.time())

    async def _wait_for_news(self, timeout_s: float | None) -> None:
        """Waits at most `timeout_s` for an exit or a request."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        self._wake.clear()

    async def _kill_all(self) -> None:
        """Kills what is left, daemons included, until nothing is: however long, never freed by a timeout."""
        await self.launch.kept.kill()
        self.launch.remove_secrets()
        for command in self.launch.commands:
            self.launch.set_live(command.rank, False)

    async def _release(self) -> None:
        """Reports the end. It is the part's own if nobody asked for it; or if it was asked to save, saved nothing and
        exited with 0 before SIGTERM, since then its work was done. After SIGTERM, 0 only means a clean exit. A kill by
        the keeper at the end of the lease is not the part's own, even if a renewal came since."""
        finished = not self._failed and not self._checkpoints.acknowledged and not self._terminated
        own_exit = (not self._ordered or finished) and not self._lease_ended and not self._overtime
        if self._lease_ended:
            self._reason = why_ended(self.launch.node)
        elif self._overtime:
            self._reason = "its time limit was over, and its agent away"
        category, unproven = None, False
        if self._failed and own_exit:
            category, unproven = await asyncio.to_thread(self._why_failed)
            if category is None and (others := await asyncio.to_thread(self._others_at_its_port)):
                category, self._reason, unproven, self._port_held = (
                    Category.HARDWARE,
                    f"{self._reason}: {others}",
                    True,
                    True,
                )
        if self._failed and self.launch.kept.oom_kills and self.launch.watched is not None:
            self._reason += f": the kernel ended it, its memory is limited to {mib(self.launch.watched.limits.memory)}"
        self.phase = Phase.ENDED
        self._report_released(self._failed, self._reason, own_exit, category, unproven=unproven)

    def _why_failed(self) -> tuple[KnownOfPart | None, bool]:
        """The category, and whether its only evidence is output, which a job may write at will."""
        log = Path(next(command.log for command in self.launch.commands if command.rank == self._failed_rank))
        silent = self.launch.silent_devices()
        category = failures.why_failed(silent, self.launch.kept.oom_kills, log)
        return category, category is Category.HARDWARE and not silent

    def _others_at_its_port(self) -> str:
        return self.launch.shared.ports.was_in_the_way(time.monotonic()) if self.launch.shared is not None else ""

    async def _could_not_start(self, error: Exception) -> None:
        await self._kill_all()
        exit_code, reason = start_failure(error, self.part.spec.command[0], self.launch.workdir)
        own_exit = self.launch.may_run() and not isinstance(error, StartRefused)
        self.phase = Phase.ENDED
        category = failures.why_not_started(error) if own_exit else None
        self._report_released(exit_code, reason, own_exit, category)

    def _report_released(
        self, exit_code: int, reason: str, own_exit: bool, category: KnownOfPart | None, *, unproven: bool = False
    ) -> None:
        self._checkpoints.report_last()
        self.report(
            Released(
                job_id=self.part.job_id,
                attempt=self.part.attempt,
                exit_code=exit_code,
                reason=reason[:1024],
                own_exit=own_exit,
                category=Category.USER_ERROR if category is Category.DISK_LIMIT else category,  # as in 0.1.0
                over="disk" if category is Category.DISK_LIMIT else None,
                unproven=unproven,
                port_held=self._port_held,
            )
        )
