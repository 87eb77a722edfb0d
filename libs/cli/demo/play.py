"""The demo from start to end: start everything, the load, the story, the end of all jobs, the report."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from libs.bus.cancel import cancel
from libs.cli.demo import checks, load
from libs.cli.demo.follow import DemoLedger, Stuck
from libs.cli.demo.load import ASSISTANT, RESEARCH, TEAMS, DemoJob
from libs.cli.demo.screen import Screen
from libs.cli.launch import REAL, ROOT, SIMULATED, LaunchOptions, LocalStack
from libs.cli.scratch_state import emptied
from libs.client import Baton, connect
from libs.client.errors import NotFound
from libs.embedded import EventKind
from libs.report import Report, Step, collect, write
from libs.report.facts import Facts, JobFacts
from schemas.ids import job_id
from schemas.subjects import OPERATOR

FLEET = ROOT / "deploy" / "fleets" / "demo-16x8-h100.yaml"
TEAMS_FILE = Path(__file__).parent / "teams.yaml"
TITLE = "One demo run: 128 simulated H100, three teams, one preemption"
DEVICES = 129
"""The fleet's, and this machine's processors."""
_PERIOD_S = 0.25
_SLOW_S = 120.0
_LOG_S = 15.0


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results and their files."""

    report: Report
    as_json: Path
    as_html: Path
    took_s: float
    restarted: tuple[str, ...]
    """Processes that ended unexpectedly; the supervisor restarted them."""


@dataclass(eq=False)
class Demo:
    """One run. `scale` shortens the two waves of short jobs, for tests."""

    state_dir: Path
    out: Path
    screen: Screen
    scale: float = 1.0
    steps: list[Step] = field(default_factory=list)
    _clients: dict[str, Baton] = field(default_factory=dict)
    _submitted: int = 0
    _follower: DemoLedger | None = None
    _beside: list[asyncio.Task[list[str]]] = field(default_factory=list)

    async def play(self) -> DemoResult:
        """Raises Stuck when something does not happen in time, and what `LocalStack` and the client raise."""
        began = time.monotonic()
        emptied(self.state_dir, "demo")
        self.screen.phase("start NATS, Valkey, the document store, nine services, two agents")
        async with self._launched() as launch, self._connected(launch) as follower:
            self.screen.facts = lambda: follower.facts
            self._follower = follower
            self.screen.phase(f"this machine's node has walls around jobs: {'; '.join(launch.walls())}")
            async with _cancelled_at_end(self._beside):
                await self._story()
            self.screen.phase("read the whole ledger again: verify, bill, report")
            story = await collect(self._clients[OPERATOR])
            restarted = sorted({e.name for e in launch.supervisor.events if e.kind is EventKind.EXITED})
            self._check(checks.verified(story.audit))
            self._check(checks.billed(story.audit, story.bill))
            self._check(checks.accounted(story.audit))
            numbers, as_json, as_html = write(story, self.out, title=TITLE, steps=self.steps)
            self.screen.phase("stop everything")
        return DemoResult(numbers, as_json, as_html, time.monotonic() - began, tuple(restarted))

    # -------------------------------------------------------------------------------------------------------- the story

    async def _story(self) -> None:
        await self._until(lambda f: len(f.seats) == DEVICES, f"{DEVICES} devices in the pool", SIMULATED, REAL)
        screen, check = self.screen, self._check
        screen.phase("a training gang of 16 starts; three teams send short jobs of many shapes")
        gang_id = await self._submit(load.training())
        await self._until(lambda f: _running(f, gang_id), "the training gang runs", "placement", SIMULATED)
        check(checks.placed(self._facts, self._job(gang_id)))
        cpu = self._submit_beside(load.cpu_jobs())
        short = await self._submit_all(self._wave(1))
        await self._until(lambda f: _ended(f, short), "the first wave of short jobs ends", "placement", SIMULATED)

        screen.phase("replicas fill the rest of the fleet; then a serving job needs 8 devices at once")
        replicas = await self._submit_all(load.fillers())
        await self._until(lambda f: all(_running(f, r) for r in replicas), "the replicas run", "placement", SIMULATED)
        saves = len(self._job(gang_id).last.checkpoints)
        await self._until(
            lambda f: len(f.jobs[gang_id].last.checkpoints) > saves or f.jobs[gang_id].finished_us > 0,
            "the gang saves by itself",
            SIMULATED,
            "placement",
        )
        if self._job(gang_id).finished_us:
            raise Stuck("the training ended before the fleet was full: this machine is too busy just now; run it again")
        serving_id = await self._submit(load.serving())
        await self._until(lambda f: _granted(f, serving_id), "the serving job is granted", "preemption", "placement")
        check(checks.full(self._facts, self._job(serving_id)))
        check(checks.in_time(self._facts, self._job(serving_id)))
        await self._until(lambda f: bool(f.jobs[gang_id].attempts[0].closed_us), "the gang has yielded", SIMULATED)
        check(checks.yielded(self._facts, self._job(gang_id), self._job(serving_id)))

        screen.phase(
            "the serving job ends, the gang resumes from its checkpoint; the replicas go, more short jobs come"
        )
        await self._until(lambda f: len(f.jobs[gang_id].attempts) > 1, "the gang is granted again", "placement")
        await asyncio.gather(*(self._clients[ASSISTANT].cancel(r, "the rush is over") for r in replicas))
        await self._until(lambda f: _running(f, gang_id), "the gang runs again", SIMULATED)
        coming = self._submit_beside(self._wave(2))
        check(checks.resumed(self._facts, self._job(gang_id), await self._log(gang_id, 2, checks.has_begun)))
        check(checks.lost_little(self._job(gang_id), await self._log(gang_id, 1)))

        everything = [gang_id, serving_id, *short, *replicas, *await cpu, *await coming]
        await self._until(lambda f: _ended(f, everything), "every job ends", "placement", SIMULATED, REAL)
        check(checks.trained(self._facts, self._job(gang_id), await self._log(gang_id, 2, checks.is_done)))
        check(checks.all_ended(self._facts, self._submitted, replicas))

    def _wave(self, number: int) -> Iterable[DemoJob]:
        jobs = round(load.WAVES[number - 1] * self.scale)
        return load.wave(number, jobs, over_s=max(1.0, jobs / 11))

    # ------------------------------------------------------------------------------------------------------------- parts

    @contextlib.asynccontextmanager
    async def _launched(self) -> AsyncIterator[LocalStack]:
        options = LaunchOptions(
            state_dir=self.state_dir,
            pool=os.environ.get("BATON_POOL") or "main",
            teams=TEAMS,
            fleet=FLEET,
            real_node="cpu",
            quotas=TEAMS_FILE,
            log_level="WARNING",
        )
        async with LocalStack(options) as launch:
            yield launch

    @contextlib.asynccontextmanager
    async def _connected(self, launch: LocalStack) -> AsyncIterator[DemoLedger]:
        pool = launch.options.pool  # explicit, because BATON_POOL refers to another Baton
        async with contextlib.AsyncExitStack() as stack:
            for team in TEAMS:
                self._clients[team] = await stack.enter_async_context(
                    await connect(launch.address(team), team, pool=pool)
                )
            operator = await stack.enter_async_context(await connect(launch.address(OPERATOR), OPERATOR, pool=pool))
            self._clients[OPERATOR] = operator
            yield await stack.enter_async_context(DemoLedger(operator, self.state_dir / "logs"))

    @property
    def _facts(self) -> Facts:
        assert self._follower is not None
        return self._follower.facts

    def _job(self, wanted: str) -> JobFacts:
        return self._facts.jobs[wanted]

    def _check(self, step: Step) -> None:
        self.steps.append(step)
        self.screen.check(step)

    async def _until(self, seen: Callable[[Facts], bool], what: str, *blame: str) -> None:
        assert self._follower is not None
        await self._follower.until(seen, what, within_s=_SLOW_S, blame=blame)

    async def _submit(self, ask: DemoJob) -> str:
        """Submits one job and waits for admission's answer."""
        self._submitted += 1
        return (await self._clients[ask.team].submit(ask.spec, ask.spec.name)).job_id

    def _submit_beside(self, asks: Iterable[DemoJob]) -> "asyncio.Task[list[str]]":
        """Runs `_submit_all` concurrently with the story, at most until the story ends."""
        self._beside.append(asyncio.create_task(self._submit_all(asks), name="submit beside the story"))
        return self._beside[-1]

    async def _submit_all(self, asks: Iterable[DemoJob]) -> list[str]:
        """Submits each job at its time, in batches of a quarter of a second. Returns their ids."""
        waiting = sorted(asks, key=lambda ask: ask.after_s)
        loop = asyncio.get_running_loop()
        began, ids = loop.time(), []
        while waiting:
            now_s = loop.time() - began
            due = [ask for ask in waiting if ask.after_s <= now_s]
            waiting = waiting[len(due) :]
            for team in TEAMS:
                own = [(ask.spec.name, ask.spec) for ask in due if ask.team == team]
                if own:
                    await self._clients[team].submit_many(own)
                    ids += [job_id(team, name) for name, _ in own]
            self._submitted += len(due)
            await asyncio.sleep(_PERIOD_S)
        return ids

    async def _log(self, wanted: str, attempt: int, enough: Callable[[str], bool] = bool) -> str:
        """Output of rank 0 of an attempt of the gang, as soon as it is `enough`, or after a while anyway."""
        deadline = time.monotonic() + _LOG_S
        while True:
            text = ""
            with contextlib.suppress(NotFound):  # it is just starting
                text = "".join([piece.text async for piece in self._clients[RESEARCH].logs(wanted, attempt=attempt)])
            if enough(text) or time.monotonic() > deadline:
                return text
            await asyncio.sleep(_PERIOD_S)


@contextlib.asynccontextmanager
async def _cancelled_at_end(tasks: Sequence["asyncio.Task[list[str]]"]) -> AsyncIterator[None]:
    """No task outlives the block, however it ends; an error of the block itself takes precedence."""
    try:
        yield
    finally:
        await cancel(*tasks)


def _granted(facts: Facts, job: str) -> bool:
    return job in facts.jobs and bool(facts.jobs[job].attempts)


def _running(facts: Facts, job: str) -> bool:
    return _granted(facts, job) and facts.jobs[job].last.running_us > 0


def _ended(facts: Facts, jobs: Sequence[str]) -> bool:
    return all(job in facts.jobs and facts.jobs[job].finished_us for job in jobs)
