"""One part of an attempt as real processes: started, watched, saved, stopped, and reported gone when nothing is left."""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.bus.cancel import cancel
from libs.core.scheduling.progress import SAMPLE_S
from libs.service.tasks import essential
from schemas.attempts import Category, KnownOfPart
from schemas.inbox import CheckpointTaken, Released, SeenOfPart, Started
from schemas.jobs import Checkpoint
from schemas.nodes import DesiredPart
from services.agent import failures, sockdiag
from services.agent.acknowledge import Acknowledgement, BadAcknowledgement
from services.agent.keeper.client import KeptAttempt
from services.agent.keeper.find import NoKeeper
from services.agent.keeper.table import StartRefused
from services.agent.lease import why_ended
from services.agent.limits import Watched, mib
from services.agent.progress import Progressing
from services.agent.quarantine import GRACE_S, Since
from services.agent.reconcile import Phase
from services.agent.secrets import NOTHING, Delivered, NotWanted, SecretMissing, SecretsUnavailable
from services.agent.shared import QUICK_S, SharedUse
from services.agent.variables import progress_of, world_size

log = logging.getLogger("baton.agent")

CHECKPOINT_LEAST_S = 10.0
"""Between two checkpoints of a running attempt that are told: the newest counts, and each is a record for ever. Once it was
asked to save, or has ended, they are told at once."""
POLL_S = 0.25
"""How often a job with a checkpoint policy is looked at for news while it runs."""
AFTER_FAILURE_S = 2.0
"""One process has failed: how long the others have to notice by themselves before they are stopped."""
AFTER_SAVE_S = 2.0
"""SIGTERM to SIGKILL once the work is saved: nothing is left to lose."""
PORT_TRIES = 25
"""So often a gang's port is tried before its attempt is given up."""
_NO_SECRETS = (SecretMissing, SecretsUnavailable, NotWanted)
COULD_NOT_START = 126
NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """How to start one process."""

    rank: int
    environment: Mapping[str, str]
    log: str
    acknowledgement: Path


async def no_devices(grace_s: float) -> None:
    """There is nothing to look at."""


async def no_secrets(wanted: Callable[[], bool]) -> Delivered:
    """The job names none."""
    return NOTHING


@dataclass(slots=True)
class AttemptLaunch:
    """All that a part needs besides its spec. `kept` is its handle in the keeper; `may_run` says whether the lease holds.

    `adopted`: the keeper has it already, from an earlier agent, which left this note of what it asked of the job.
    """

    kept: KeptAttempt
    node: str
    incarnation: int
    workdir: Path
    commands: Sequence[ProcessCommand]
    log_limit: int
    early_s: float | None
    """How long before its node's lease that of the part ends, s; None: no lease ends it."""
    may_run: Callable[[], bool]
    group: str = ""
    """A cgroup of its own, to be made; "": none."""
    adopted: Mapping[str, Any] | None = None
    behind: Callable[[], dict[str, Any] | None] = lambda: None
    """Makes its folders its team's, and describes the walls around it, if there are any. Raises OSError or NotServed."""
    watched: Watched | None = None
    """What it may take of the machine, and what it has taken."""
    shared: SharedUse | None = None
    """What it has of what all processes of the machine share."""
    set_live: Callable[[int, bool], None] = lambda rank, live: None
    not_served: Callable[[], str] = lambda: ""
    """Why this team's processes are not run here, once the keeper has said how it holds them; or ""."""
    settle: Callable[[float], Awaitable[None]] = no_devices
    """Looks at the part's devices, and returns when they are free, or in quarantine after so many seconds."""
    since: Since = field(default_factory=Since.now)
    """When it began."""
    deliver_secrets: Callable[[Callable[[], bool]], Awaitable[Delivered]] = no_secrets
    """Before the start: gets what the job names, as long as the part is wanted, and writes its files."""
    remove_secrets: Callable[[], None] = lambda: None
    """When nothing of it runs any more."""
    secrets_folder: Path | None = None
    """What the shim removes at the end, too."""
    silent_devices: Callable[[], Sequence[str]] = lambda: ()
    """The part's devices that no longer answer. May block for some milliseconds."""


@dataclass(eq=False, slots=True)
class ProcessPart:
    """A part's life, in one task. `report` gets Started, CheckpointTaken, ProgressSeen and, last and exactly once, Released.

    The processes are the keeper's. A part that is adopted begins where the agent before it was: the keeper has the exit
    codes, and a note of what was asked of it.
    """

    part: DesiredPart
    launch: AttemptLaunch
    report: Callable[[SeenOfPart], None]
    phase: Phase = Phase.RUNNING
    _codes: dict[int, int] = field(default_factory=dict)
    """Rank -> exit code (128 + n for signal n), of those that have ended."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: int = 0
    _failed_rank: int = -1
    _overtime: bool = False
    """The keeper killed the first that failed, as its time limit was long over."""
    _lease_ended: bool = False
    """The keeper killed the first that failed, as its lease had ended."""
    _reason: str = ""
    _acknowledged: bool = False
    _ordered: bool = False
    _terminated: bool = False
    _port_held: bool = False
    """Others held the port at which its processes meet: when it was to begin, or as it failed."""
    _exceeded: tuple[str, KnownOfPart] | None = None
    _acknowledgements: list[Acknowledgement] = field(default_factory=list)
    _rests_until: float = 0.0
    """Of the loop's clock: no acknowledgement is looked at before, while it runs and nobody asked for one."""
    _last_word: Checkpoint | None = None
    """What it acknowledged and nobody was told: it is told with its end, unless a newer one is told before."""
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.launch.adopted is not None:
            self.phase = Phase(self.launch.adopted.get("phase", Phase.RUNNING))
            self._terminated = bool(self.launch.adopted.get("terminated"))
        self.launch.kept.changed = self._news_of_processes
        self._news_of_processes()
        self._task = essential(asyncio.create_task(self._live(), name=f"part {self.part.job_id}"))

    def save(self) -> None:
        """Ask for a checkpoint and stop after it; without a checkpoint policy, stop."""
        self._advance(Phase.SAVING if self.part.spec.checkpoint else Phase.STOPPING)

    def stop(self) -> None:
        self._advance(Phase.STOPPING)

    def save_early(self) -> None:
        """Ask for a checkpoint and go on: the lease is in danger."""
        if self.phase is Phase.RUNNING:
            self._look_safely(self._keep)  # what was there before is no answer
            self._rests_until = 0.0
            self._ask_to_save()

    async def kill(self) -> None:
        """Kills everything at once and returns when nothing is left. Reports no more than its last word."""
        await self._cancel()
        await self._vanish()
        self._look_safely(self._keep)
        self._say_last_word()
        await self.launch.settle(0.0)

    async def look_at_limits(self) -> bool:
        """An attempt that has taken more than it may is ended at once: it had its chance to stop. Returns whether it was
        looked at."""
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

    def waits_for_long_look_since(self) -> float | None:
        """None: a look at it takes no time worth speaking of."""
        return self.launch.watched.waits_since if self.launch.watched is not None else None

    def shared_use(self) -> SharedUse | None:
        """To be looked at; None: nothing of it runs."""
        if (shared := self.launch.shared) is None or not self._alive():
            return None
        shared.shim = self.launch.kept.shim
        return shared

    def exceed(self, reason: str) -> None:
        """It has taken more of that than it may, and is ended as by `look_at_limits`."""
        self._exceeded = self._exceeded or (reason, Category.USER_ERROR)
        self._wake.set()

    def ends_by(self, at: float) -> None:
        """The keeper kills it then, whoever lives."""
        self.launch.kept.ends_by(at)

    def heard(self) -> None:
        """Its end is known: the keeper need not tell it again."""
        self.launch.kept.forget()

    async def leave(self) -> None:
        """Lets go of it: it runs on in the keeper, for the next agent."""
        await self._cancel()

    async def _cancel(self) -> None:
        if self._task is not None:
            await cancel(self._task)  # it may be asking for secrets

    def _advance(self, phase: Phase) -> None:
        if phase > self.phase:
            self.phase = phase
            self._wake.set()

    async def _live(self) -> None:
        try:
            await self._run()
        except Exception as e:
            log.exception("attempt %d of %s cannot go on", self.part.attempt, self.part.job_id)
            await self._vanish()
            await self.launch.settle(GRACE_S)
            self.phase = Phase.ENDED
            self._report_released(COULD_NOT_START, f"its agent could not go on with it: {e!r}", False, None)

    async def _run(self) -> None:
        try:
            await self._begin()
        except (OSError, ValueError, NoKeeper, failures.NotServed, *_NO_SECRETS) as e:
            await self._could_not_start(e)
            return
        self.report(Started(job_id=self.part.job_id, attempt=self.part.attempt))
        self._acknowledgements = self._files()
        await self._watch()
        if self._exceeded is not None and self._alive():
            await self._end_for(*self._exceeded)
            return
        self._ordered = self.phase is not Phase.RUNNING and (bool(self._alive()) or self.launch.adopted is not None)
        if self.phase is Phase.SAVING and self._alive():
            await self._save()
        if self._alive():
            await self._terminate(AFTER_SAVE_S if self._acknowledged else self.part.spec.stop_grace_s)
        self._look_safely(self._keep)  # written with the last breath
        await self._vanish()
        await self.launch.settle(GRACE_S)
        await self._release()

    async def _end_for(self, reason: str, category: KnownOfPart) -> None:
        self._look_safely(self._keep)
        await self._vanish()
        await self.launch.settle(GRACE_S)
        self.phase = Phase.ENDED
        self._report_released(128 + signal.SIGKILL, reason, True, category)

    def _files(self) -> list[Acknowledgement]:
        """One for each rank. After an adoption, those that were there when the job was asked to save are not new."""
        seen = (self.launch.adopted or {}).get("seen") or [None] * len(self.launch.commands)
        return [
            Acknowledgement(command.acknowledgement, None if old is None else tuple(old))
            for command, old in zip(self.launch.commands, seen, strict=True)
        ]

    async def _begin(self) -> None:
        """Raises OSError, ValueError, NoKeeper or NotServed when it could not be started."""
        kept = self.launch.kept
        if self.launch.adopted is not None:
            await kept.started()
        else:
            await kept.keeper.ensure()
            if reason := self.launch.not_served():
                raise failures.NotServed(reason)
            await self._own_port()
            delivered = await self.launch.deliver_secrets(lambda: self.phase is Phase.RUNNING)
            await kept.keeper.start(kept, self._start_message(delivered))
        for command in self.launch.commands:
            self.launch.set_live(command.rank, True)
        if self.launch.adopted is None and not self.launch.may_run():
            raise StartRefused("the node's lease ended while the job was being started")

    async def _own_port(self) -> None:
        """Waits a while where others hold the port at which a gang meets: who holds many of them is being ended. Raises
        NotServed: another attempt has another port."""
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

    def _start_message(self, delivered: Delivered) -> dict[str, object]:
        """What the keeper is told. It keeps `about` and passes the environments, secrets among them, on to the shim."""
        launch = self.launch
        return {
            "node": launch.node,
            "incarnation": launch.incarnation,
            "about": {"part": self.part.model_dump_json(), "since": launch.since.ticks},
            "early": launch.early_s,
            "command": list(self.part.spec.command),  # an argv list, never a shell
            "workdir": str(launch.workdir),
            "group": launch.group,
            **({} if launch.watched is None else launch.watched.limits.told()),
            "log_limit": launch.log_limit,
            "remove": str(launch.secrets_folder or ""),
            "walls": launch.behind(),
            "ranks": [
                {
                    "rank": command.rank,
                    "environment": {**command.environment, **delivered.environment},
                    "log": command.log,
                }
                for command in launch.commands
            ],
        }

    def _news_of_processes(self) -> None:
        kept = self.launch.kept
        for rank, code in kept.codes.items():
            self._ended(rank, code)
        if kept.gone:  # what held them was killed, and they with it
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
            how = f"ended with exit code {code}" if code > 0 else f"was ended by {_signal_name(-code)}"
            self._reason = f"rank {rank} {how}"

    def _alive(self) -> list[int]:
        return [command.rank for command in self.launch.commands if command.rank not in self._codes]

    async def _watch(self) -> None:
        """Until all have ended, one has failed and the others had time to notice, or a request to save or stop came."""
        progressing = self._progressing()
        poll_s = POLL_S if self.part.spec.checkpoint else SAMPLE_S if progressing else None
        deadline: float | None = None
        loop = asyncio.get_running_loop()
        while self._alive() and self.phase is Phase.RUNNING and self._exceeded is None:
            if self._failed and deadline is None:
                deadline = loop.time() + AFTER_FAILURE_S
            if deadline is not None and loop.time() >= deadline:
                return
            await self._news(
                min((t for t in (poll_s, deadline and deadline - loop.time()) if t is not None), default=None)
            )
            if loop.time() >= self._rests_until:
                self._look_safely(self._tell)
            if progressing is not None and (told := progressing.news(loop.time())) is not None:
                self.report(told)

    def _progressing(self) -> Progressing | None:
        """Of the part that rank 0 is in: it speaks for the whole job."""
        of = next((command.acknowledgement for command in self.launch.commands if command.rank == 0), None)
        return Progressing.of(self.part, Path(progress_of(str(of)))) if of is not None else None

    async def _save(self) -> None:
        """Signals the processes and waits for an acknowledgement that is newer than the signal, or the grace's end."""
        policy = self.part.spec.checkpoint
        assert policy is not None, "saving needs a checkpoint policy"
        self._look_safely(self._keep)
        asked_before = self.launch.adopted is not None and "seen" in self.launch.adopted
        if not (asked_before and self._acknowledged):
            self._acknowledged = False  # what was there before does not count
            self.launch.kept.note(phase=int(self.phase), seen=[one.seen for one in self._acknowledgements])
            self._ask_to_save()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + policy.grace_s
        while self._alive() and not self._acknowledged and self.phase is Phase.SAVING and loop.time() < deadline:
            await self._news(min(POLL_S / 5, deadline - loop.time()))
            self._look_safely(self._tell)
        if not self._acknowledged and self._alive():
            self._reason = f"no checkpoint was acknowledged within its grace of {policy.grace_s:g} s"

    def _ask_to_save(self) -> None:
        """To the processes alone, not their groups: helpers that know no such signal would die of it."""
        if self.part.spec.checkpoint is not None and (alive := self._alive()):
            self.launch.kept.signal(getattr(signal, self.part.spec.checkpoint.signal), alive, group=False)

    async def _terminate(self, grace_s: float) -> None:
        self._terminated = True
        self.launch.kept.note(phase=int(self.phase), terminated=True)
        self.launch.kept.signal(signal.SIGTERM, self._alive(), group=True)
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

    def _look_safely(self, heard: Callable[[Checkpoint], None]) -> None:
        try:
            self._look(heard)
        except BadAcknowledgement as e:
            self._rests_until = asyncio.get_running_loop().time() + CHECKPOINT_LEAST_S
            log.warning("attempt %d of %s: bad acknowledgement: %s", self.part.attempt, self.part.job_id, e)

    def _look(self, heard: Callable[[Checkpoint], None]) -> None:
        """Any rank may say that this node's share is saved; rank 0 alone speaks for the whole job."""
        if self.part.spec.checkpoint is None:
            return
        for command, acknowledgement in zip(self.launch.commands, self._acknowledgements, strict=False):
            if (checkpoint := acknowledgement.news()) is not None:
                self._acknowledged = True
                if command.rank == 0:
                    heard(checkpoint)

    def _tell(self, checkpoint: Checkpoint) -> None:
        self._rests_until = asyncio.get_running_loop().time() + CHECKPOINT_LEAST_S
        self._last_word = None
        self.report(CheckpointTaken(job_id=self.part.job_id, attempt=self.part.attempt, checkpoint=checkpoint))

    def _keep(self, checkpoint: Checkpoint) -> None:
        self._last_word = checkpoint

    def _say_last_word(self) -> None:
        """To be called right before the end is reported: what is told with it counts however soon it comes after another."""
        if self._last_word is not None:
            self._tell(self._last_word)

    async def _vanish(self) -> None:
        """Kills what is left, daemons and all, until nothing is: however long, never freed by a timeout."""
        await self.launch.kept.kill()
        self.launch.remove_secrets()
        for command in self.launch.commands:
            self.launch.set_live(command.rank, False)

    async def _release(self) -> None:
        """It ended by itself when nobody asked; or when it was asked to save, saved nothing and exited with 0 before it
        was told to end: then its work was done. After SIGTERM, 0 means no more than that it went politely. Whom the keeper
        killed at the end of its lease did not end by itself, though a renewal may have come since."""
        finished = not self._failed and not self._acknowledged and not self._terminated
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
        """And whether only its output says so, which it may write as it likes."""
        log = Path(next(command.log for command in self.launch.commands if command.rank == self._failed_rank))
        silent = self.launch.silent_devices()
        category = failures.why_failed(silent, self.launch.kept.oom_kills, log)
        return category, category is Category.HARDWARE and not silent

    def _others_at_its_port(self) -> str:
        return self.launch.shared.ports.was_in_the_way(time.monotonic()) if self.launch.shared is not None else ""

    async def _could_not_start(self, error: Exception) -> None:
        await self._vanish()
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        what = str(getattr(error, "filename", None) or self.part.spec.command[0])
        reason = f"could not start {what!r}: {getattr(error, 'strerror', None) or error}"
        if isinstance(error, _NO_SECRETS):
            reason = f"could not start: {error}"
        if what == str(self.launch.workdir):
            reason = f"could not start: working directory {what!r} {_no_folder(error)}"
        own_exit = self.launch.may_run() and not isinstance(error, StartRefused)
        self.phase = Phase.ENDED
        category = failures.why_not_started(error) if own_exit else None
        self._report_released(NOT_FOUND if missing else COULD_NOT_START, reason, own_exit, category)

    def _report_released(
        self, exit_code: int, reason: str, own_exit: bool, category: KnownOfPart | None, *, unproven: bool = False
    ) -> None:
        self._say_last_word()
        self.report(
            Released(
                job_id=self.part.job_id,
                attempt=self.part.attempt,
                exit_code=exit_code,
                reason=reason[:1024],
                own_exit=own_exit,
                category=Category.USER_ERROR if category is Category.DISK_LIMIT else category,  # as 0.1.0 takes it
                over="disk" if category is Category.DISK_LIMIT else None,
                unproven=unproven,
                port_held=self._port_held,
            )
        )


def _no_folder(error: Exception) -> str:
    """Why processes cannot begin in a folder."""
    if isinstance(error, FileNotFoundError):
        return "does not exist on this node, or jobs are not shown it"
    if isinstance(error, NotADirectoryError):
        return "is no folder"
    return f"cannot be entered by the job: {getattr(error, 'strerror', None) or error}"


def _signal_name(number: int) -> str:
    """Most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
