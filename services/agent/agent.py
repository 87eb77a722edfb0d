"""The agent: all its nodes, and its loops.

    heartbeats      renews the leases
    watch_leases    ends the lives of nodes whose lease has expired
    ask             gets the desired state (`services.agent.asking`), and repeats reports that were not confirmed
    samples         measures the devices

Each loop is a task of its own.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from nats.aio.client import Client
from nats.errors import Error as NatsError
from pydantic import ValidationError

from libs.bus.ids import sent_headers
from libs.bus.messages import outgoing
from libs.ports import clock
from libs.ports.clock import boot_s as now
from libs.ports.host import failpoint
from libs.service.bootclock import reading
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.inbox import NodeLost
from schemas.nodes import DesiredState, Heartbeat, LeaseGranted, NodeSampled
from schemas.queries import LogPiece, LogQuery
from services.agent.asking import Asker
from services.agent.departed_teams import DepartedTeamFiles
from services.agent.keeper.find import NoKeeper
from services.agent.kept_groups import KeptGroups
from services.agent.launcher import Launcher
from services.agent.node import NodeRunner
from services.agent.pruning import make_room, prune, remove_unsaved
from services.agent.reconcile import Phase
from services.agent.reports import Reports
from services.agent.running_part import RunningPart
from services.agent.settings import AgentSettings, OnStop
from services.agent.shared import QUICK_S, SharedLook

log = logging.getLogger("baton.agent")

WATCH_S = 0.1
_IDLE_WATCH_S = 0.5
"""The interval for a node without work: what is started meanwhile outlives its lease by at most this."""
_BARE_S = 0.5
_FIRST_BARE_S = 0.1
_PRUNE_S = 60.0
_MISSES = 12
"""The most doublings of the pause."""
_DISK_S = 1.0
_TELL_S = 5.0
"""At the end, until it is acknowledged that its nodes leave."""
_HEARTBEAT = BY_TYPE["io.baton.node.heartbeat.v1"]
_SAMPLE = BY_TYPE["io.baton.node.sample.v1"]


class Agent:
    """`nodes` have begun their lives; `run_*` are endless tasks; `drain` and `close` end the agent."""

    def __init__(
        self, settings: AgentSettings, nats: Client, nodes: Iterable[NodeRunner], launcher: Launcher, reports: Reports
    ) -> None:
        self.settings, self.launcher, self.reports = settings, launcher, reports
        self.nodes = {node.name: node for node in nodes}
        self.asker = Asker(nats, settings.pool, self.nodes, ask_s=settings.ask_s, new_lives=self.new_lives)
        self._nats = nats
        self._pool = settings.pool
        self._source = f"/baton/{settings.pool}/agent"
        self._draining = False
        self._left_running: set[str] = set()
        """Nodes whose work continues after this agent."""
        self._between_lives: set[str] = set()
        """Nodes between two lives: the last is being ended, the next has not begun."""
        self._without_incarnation: set[str] = set()
        """Those whose next incarnation cannot be written to disk yet."""
        self._without_life: list[NodeRunner] = []
        """Nodes without a life since this agent started, for the same reason."""
        self._ended_by_keeper: set[tuple[str, int]] = set()
        """Lives that the keeper has ended because nothing in them was kept when their lease ended."""
        self._beats = 0
        self.left = DepartedTeamFiles(nats, settings.pool, next(iter(self.nodes)), launcher, self._runs)
        for node in self.nodes.values():
            node.may_start = lambda: not self._draining
            node.start_blocked = self.left.removes
        launcher.begins = self.left.begins
        launcher.keeper.on_dying = self.keeper_dies
        launcher.keeper.on_loss = self.keeper_lost
        launcher.keeper.on_over = lambda node, incarnation: self._ended_by_keeper.add((node, incarnation))

    async def subscribe(self) -> None:
        """Subscribes to what placement pushes after each commit."""
        await self.asker.subscribe()

    def follow(self, desired: DesiredState) -> None:
        self.asker.follow(desired)

    def begin(self, nodes: Sequence[NodeRunner]) -> None:
        """Begins the first lives of nodes that continue no earlier life. Nodes whose incarnation cannot be written to
        disk wait without delaying others."""
        try:
            fresh = self.launcher.state.next_incarnations([node.name for node in nodes])
        except OSError as e:
            log.error("no life can begin on %s until this is mended: %s", ", ".join(node.name for node in nodes), e)
            for node in nodes:
                node.wait()
            self._without_life = list(nodes)
            self._between_lives.update(node.name for node in nodes)
            self._without_incarnation.update(node.name for node in nodes)
            return
        self._first_lives(nodes, fresh)

    async def _begin_waiting(self) -> None:
        names = [node.name for node in self._without_life]
        self._first_lives(self._without_life, await self._incarnations(names, {}))
        self._without_life = []
        self._between_lives.difference_update(names)

    def _first_lives(self, nodes: Sequence[NodeRunner], fresh: Mapping[str, int]) -> None:
        for node in nodes:
            node.begin(fresh[node.name])
            if not node.inventory.simulated:
                self.launcher.watch(node)  # also without work: the next agent continues this life

    def _with_life(self) -> list[NodeRunner]:
        """All nodes except those without a life yet."""
        return [node for node in self.nodes.values() if node not in self._without_life]

    # ------------------------------------------------------------------------------------------------- leases

    async def run_heartbeats(self) -> None:
        """Renews all nodes concurrently, each on its own subject, so that no silent node delays another."""
        while True:
            every_s = self._renewed_every_s()
            began = now() + clock.until_turn(every_s) - every_s  # this cycle's turn
            self._beats += 1
            problems = await asyncio.gather(*(self._heartbeat(node, every_s) for node in self.nodes.values()))
            if failed := [problem for problem in problems if problem]:
                log.warning("the leases of %d nodes were not renewed: %s", len(failed), failed[0])
            while (left_s := self._renewed_every_s() - (now() - began)) > 0:  # noqa: ASYNC110 - shorter with a part's start
                await asyncio.sleep(min(left_s, clock.until_turn(_BARE_S)))

    def _renewed_every_s(self) -> float:
        """At least three times in the shortest lease here, so that one lost answer ends no work. A node without a lease
        cannot start anything, so it asks more often; most often at first, since the granter may be starting, too."""
        nodes = self.nodes.values()
        usual_s = min(self.settings.heartbeat_s, min(node.shortest_lease_s() for node in nodes) / 3)
        bare_s = min(usual_s, _BARE_S, _FIRST_BARE_S * (1 + self._beats))
        return bare_s if any(node.lease.deadline is None for node in nodes) else usual_s

    async def _heartbeat(self, node: NodeRunner, timeout_s: float) -> str:
        """Renews one lease, or returns the reason for the failure. The lease counts from `sent`, taken before the
        message is built."""
        if node.name in self._without_incarnation:  # nothing can run here; report it to whoever waits
            return f"{node.name} has no life"
        sent, incarnation = now(), node.incarnation
        message = outgoing(
            Heartbeat(nodes=((node.name, incarnation),), lease_s=self.settings.lease_s, reading=reading()),
            subject=subjects.heartbeat(self._pool, node.name),
            type=_HEARTBEAT.type,
            source=self._source,
            cause=f"{node.name}/{incarnation}/heartbeat/{self._beats}",
        )
        try:
            reply = await self._nats.request(message.subject, message.payload, timeout_s, headers=message.headers)
            granted = LeaseGranted.model_validate_json(reply.data)
        except (NatsError, TimeoutError, ValidationError) as e:
            return str(e)[:300] or type(e).__name__
        had_one = node.lease.valid(sent)
        # An answer to an earlier life's heartbeat renews nothing.
        if node.name in granted.nodes and node.incarnation == incarnation and node.renewed(sent):
            self.launcher.keeper.until(node.name, node.lease.deadline)
            if not had_one:  # grants made meanwhile wait for the lease
                self.asker.ask_soon(node)
        return ""

    async def run_watch_leases(self) -> None:
        """A node that waits for its next life does not delay checks of the others."""
        async with asyncio.TaskGroup() as lives:
            if self._without_life:
                lives.create_task(self._begin_waiting())
            while True:
                every_s = WATCH_S if any(node.parts for node in self.nodes.values()) else _IDLE_WATCH_S
                await asyncio.sleep(clock.until_turn(every_s))
                if over := self._check_leases(now()):
                    lives.create_task(self.new_lives(over, "the lease has ended"))

    def _check_leases(self, at: float) -> list[NodeRunner]:
        """Ends what a lease no longer covers; returns the nodes whose life is over."""
        living = [node for node in self.nodes.values() if node.name not in self._between_lives]
        refused = [node for node in living if (node.name, node.incarnation) in self._ended_by_keeper]
        self._ended_by_keeper.clear()
        ended = [node for node in living if node.lease.check(at) and node not in refused]
        over = [node for node in ended if not node.keeps()] + refused
        over += [node for node in living if node.outlived() and node not in over]
        for node in ended:
            if node.keeps():
                log.warning("%s: its lease has ended; what is kept goes on, everything else ends", node.name)
                node.lapse()
        for node in living:
            if node in over:
                continue
            if node not in ended:
                node.end_leases()
            node.end_overtime()
            if node.lease.endangered(at):
                node.save_early()
        return over

    async def new_lives(self, nodes: Sequence[NodeRunner], reason: str, above: Mapping[str, int] | None = None) -> None:
        """Ends all work of these nodes and begins their next lives, in this order. `above`: node -> an incarnation
        known to the pool, which the new one must exceed. Nodes already between two lives are skipped."""
        nodes = [node for node in nodes if node.name not in self._between_lives]
        self._between_lives.update(node.name for node in nodes)
        try:
            await self._new_lives(nodes, reason, above or {})
        finally:
            self._between_lives.difference_update(node.name for node in nodes)

    async def _new_lives(self, nodes: Sequence[NodeRunner], reason: str, above: Mapping[str, int]) -> None:
        if not nodes:
            return
        names = ", ".join(node.name for node in nodes[:10])
        log.warning(
            "ending the work of %d nodes (%s%s): %s", len(nodes), names, ", ..." if len(nodes) > 10 else "", reason
        )
        for node in nodes:
            self.launcher.over(node)
        await asyncio.gather(*(node.die() for node in nodes))
        failpoint("agent.killed-all")
        fresh = await self._incarnations([node.name for node in nodes], above)
        for node in nodes:
            self.launcher.leave(node)
            node.begin(fresh[node.name])
            self.launcher.rewatch(node)

    async def _incarnations(self, names: Sequence[str], above: Mapping[str, int]) -> dict[str, int]:
        """Retries until the disk takes the incarnations. Two lives with one number would be confused."""
        try:
            while True:
                try:
                    return self.launcher.state.next_incarnations(names, above)
                except OSError as e:
                    log.error("no life can begin on %s until this is mended: %s", ", ".join(names), e)
                    self._without_incarnation.update(names)
                    await asyncio.sleep(_DISK_S)
        finally:
            self._without_incarnation.difference_update(names)

    def keeper_dies(self) -> None:
        """The keeper is about to die with all it holds. None of that counts as an exit of its own."""
        for node in self._held():
            node.dying = True

    async def keeper_lost(self) -> None:
        """The keeper is lost with all it held. Another is started for later work."""
        await self.new_lives(self._held(), "the keeper has died")
        try:
            await self.launcher.keeper.ensure()
        except NoKeeper as e:
            log.error("%s", e)

    def _held(self) -> list[NodeRunner]:
        """Nodes whose processes the keeper holds."""
        return [node for node in self.nodes.values() if self.launcher.keeper.knows(node.name)]

    # ------------------------------------------------------------------------------------------- desired state

    async def run_ask(self) -> None:
        # No TaskGroup: it cancels once, and a request may swallow that (`libs.bus.cancel`).
        await asyncio.gather(self.asker.run(), self._repeat())

    async def _repeat(self) -> None:
        """Reports again what placement's state does not show."""
        while True:
            await asyncio.sleep(clock.until_turn(min(self.settings.repeat_s, self.settings.ask_s) / 2))
            if not self.reports.stalled():  # repeats would only add to the backlog
                for node in self._with_life():
                    node.repeat(self.settings.repeat_s)

    # ------------------------------------------------------------------------------------------------ the rest

    async def run_samples(self) -> None:
        while True:
            for node in self._with_life():
                await self._sample(node)
            await asyncio.sleep(clock.until_turn(self.settings.sample_s))

    async def _sample(self, node: NodeRunner) -> None:
        """Fire and forget: a lost sample is followed by the next."""
        busy = node.busy()
        simulated = node.inventory.simulated
        try:
            samples = node.layer.sample(busy) if simulated else await asyncio.to_thread(node.layer.sample, busy)
        except Exception:  # work continues whatever the driver did
            log.exception("the devices of %s cannot be read", node.name)
            return
        at_us = clock.wall_us()
        message = outgoing(
            NodeSampled(
                node=node.name,
                incarnation=node.incarnation,
                at_us=at_us,
                devices=samples,
                walls=self.launcher.walls.found(),
                cleared_seq=self.left.ledger_seq,
            ),
            subject=subjects.sample(self._pool, node.name),
            type=_SAMPLE.type,
            source=self._source,
            cause=f"{node.name}/{node.incarnation}/sample/{at_us}",
        )
        try:
            await self._nats.publish(message.subject, message.payload, headers=sent_headers(self._nats, message))
        except NatsError as e:
            log.info("a sample of %s was lost: %s", node.name, str(e)[:300])

    async def run_quarantine(self) -> None:
        while True:
            await asyncio.sleep(clock.until_turn(self.settings.quarantine_s))
            for node in self._with_life():
                await self.launcher.look_at_busy(node)

    async def run_limits(self) -> None:
        """Ends attempts that exceed their limits on this machine."""
        while True:
            await asyncio.sleep(clock.until_turn(self.settings.limits_s))
            await check_limits([part for node in self.nodes.values() for part in node.parts.values()])

    async def run_shared(self) -> None:
        """Ends attempts that exceed their share of the machine's common resources."""
        looks = SharedLook(self.settings.limits_s)
        while True:
            await asyncio.sleep(
                clock.until_turn(QUICK_S if any(n.parts for n in self.nodes.values()) else _IDLE_WATCH_S)
            )
            parts = (part for node in self.nodes.values() for part in node.parts.values())
            using = {use: part for part in parts if (use := part.shared_use()) is not None}
            if using and looks.due(using):
                for use, reason in (await asyncio.to_thread(looks.look, list(using))).items():
                    using[use].exceed(reason)

    async def run_prune(self) -> None:
        groups = KeptGroups()
        await asyncio.to_thread(self.launcher.remove_left_groups)
        while True:
            await asyncio.sleep(_PRUNE_S)
            if self.launcher.memory_base is not None:
                await asyncio.to_thread(groups.look)
            if (followed := self._followed()) is not None:  # nothing begins here until then
                await self._prune(followed)
            await asyncio.to_thread(make_room, self.launcher.workdir, self.launcher.logs.left)

    async def _prune(self, followed: int) -> None:
        """Removes folders of ended attempts. The owner of a job's checkpoints is noted before its last attempt, which
        names the owner, is removed."""
        teams = {job_id: team for (job_id, _), team in self.launcher.logs.kept().items()}
        pruned = self.launcher.logs.prune()
        await asyncio.to_thread(self.launcher.owners.note, teams, followed)
        await asyncio.to_thread(prune, pruned)
        if not self.launcher.shares_checkpoints:
            kept = {job_id for job_id, _ in self.launcher.logs.kept()}
            for job_id in remove_unsaved(self.launcher.checkpoints, pruned, kept):
                self.launcher.owners.forget(job_id, teams[job_id])

    async def run_left(self) -> None:
        """Removes files of teams that have left. Without an answer it asks again soon, then at growing intervals."""
        misses = 0
        older = not self.launcher.shares_checkpoints  # on another machine the same uid may belong to another team
        while True:
            done = False
            if (followed := self._followed()) is not None:
                if older:
                    await asyncio.to_thread(self.launcher.owners.note_older, self.launcher.walls.team_of, followed)
                    older = False
                done = await self.left.look(followed)
            misses = 0 if done else min(misses + 1, _MISSES)
            every_s, soon_s = self.settings.left_s, self.settings.ask_s * 2 ** (misses - 1)
            await asyncio.sleep(clock.until_turn(every_s if done else min(every_s, soon_s)))

    def _followed(self) -> int | None:
        """A ledger record before which every grant with files here was made. None until each node has received the
        desired state of its present life, which began after all grants of earlier ones."""
        seqs = [node.view.ledger_seq for node in self.nodes.values()]
        return None if min(seqs) < 0 else max(seqs)

    def _runs(self) -> set[str]:
        return {
            job_id
            for node in self.nodes.values()
            for (job_id, _), held in node.view.parts.items()
            if held.phase is not Phase.ENDED
        }

    def read_log(self, query: LogQuery, team: str) -> LogPiece | None:
        return self.launcher.logs.read(query, team)

    async def drain(self, most_s: float) -> None:
        """Before the agent ends: asks jobs to save and end, each with the grace that it asked for and all within `most_s`; then
        reports all nodes as leaving together, so that no job is granted a node that is about to follow. With
        `on_stop: keep`, nodes whose work the keeper can hold stay."""
        self._draining = True
        if self.settings.on_stop is OnStop.KEEP:
            await self._leave_running()
        leaving = [node for node in self._with_life() if node.name not in self._left_running]
        for node in leaving:
            node.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                # Many parts are awaited, once in an agent's life, so polling is enough.
                while any(node.parts for node in leaving):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await asyncio.gather(*(node.die() for node in leaving))
        for node in leaving:
            gone = NodeLost(node=node.name, incarnation=node.incarnation, silent_s=0, planned=True)
            self.reports.add(node.name, node.incarnation, gone)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TELL_S):
                while self.reports.backlog():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async def _leave_running(self) -> None:
        """Releases the work that the keeper holds, without a deadline, to the next agent."""
        staying = [node for node in self.nodes.values() if self.launcher.may_stay(node)]
        for node in staying:
            await node.let_go()
            self.launcher.keeper.until(node.name, None)
        self._left_running = {node.name for node in staying}
        if staying:
            log.warning("the work of %s runs on without an agent", ", ".join(sorted(self._left_running)))

    async def close(self) -> None:
        """Kills what is left. The registration of the next life is the evidence."""
        ending = [node for node in self.nodes.values() if node.name not in self._left_running]
        await asyncio.gather(*(node.die() for node in ending))
        await self.launcher.keeper.close(keep=bool(self._left_running))
        for node in ending:
            self.launcher.leave(node)
        self.launcher.secret_folders.leave()
        self.launcher.state.close()


async def check_limits(parts: Iterable[RunningPart]) -> None:
    """Checks all parts that are quick to measure, and then one of the slow ones. Otherwise a team with twenty slow
    ones, of 500,000 files each, would delay finding out who fills the disk."""
    long: list[tuple[float, RunningPart]] = []
    for part in parts:
        if (since := part.slow_check_due()) is None:
            await part.check_limits()
        else:
            long.append((since, part))
    for _, part in sorted(long, key=lambda one: one[0]):
        if await part.check_limits():
            return
