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
from services.agent.launcher import Launcher, make_room, prune, remove_unsaved
from services.agent.node import NodeRunner, RunningPart
from services.agent.reconcile import Phase
from services.agent.reports import Reports
from services.agent.settings import AgentSettings, OnStop
from services.agent.shared import QUICK_S, SharedLook

log = logging.getLogger("baton.agent")

WATCH_S = 0.1
_IDLE_WATCH_S = 0.5
"""Where nothing runs: what is started meanwhile outlives its lease by no more."""
_BARE_S = 0.5
_FIRST_BARE_S = 0.1
_PRUNE_S = 60.0
_MISSES = 12
"""The pause is doubled no more often than this."""
_DISK_S = 1.0
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
        self._kept: set[str] = set()
        """Nodes whose work runs on when this agent has ended."""
        self._between: set[str] = set()
        """Nodes whose last life is being ended, and whose next one has not begun."""
        self._numberless: set[str] = set()
        """Those of them whose next life waits for its number: the disk does not take it."""
        self._unborn: list[NodeRunner] = []
        """Nodes that have no life since this agent started, for the same reason."""
        self._refused: set[tuple[str, int]] = set()
        """Lives that the keeper has ended: it held nothing of them that is kept when their lease ended."""
        self._beats = 0
        self.left = DepartedTeamFiles(nats, settings.pool, next(iter(self.nodes)), launcher, self._runs)
        for node in self.nodes.values():
            node.may_start = lambda: not self._draining
            node.start_blocked = self.left.removes
        launcher.begins = self.left.begins
        launcher.keeper.on_dying = self.keeper_dies
        launcher.keeper.on_loss = self.keeper_lost
        launcher.keeper.on_over = lambda node, incarnation: self._refused.add((node, incarnation))

    async def subscribe(self) -> None:
        """Follows what placement pushes after each commit."""
        await self.asker.subscribe()

    def follow(self, desired: DesiredState) -> None:
        self.asker.follow(desired)

    def begin(self, nodes: Sequence[NodeRunner]) -> None:
        """The first lives of nodes that no earlier agent's life goes on with. Where the disk takes no number for them they
        wait, and keep nobody waiting: what the other nodes run goes on."""
        try:
            fresh = self.launcher.state.next_incarnations([node.name for node in nodes])
        except OSError as e:
            log.error("no life can begin on %s until this is mended: %s", ", ".join(node.name for node in nodes), e)
            for node in nodes:
                node.wait()
            self._unborn = list(nodes)
            self._between.update(node.name for node in nodes)
            self._numberless.update(node.name for node in nodes)
            return
        self._first_lives(nodes, fresh)

    async def _begin_late(self) -> None:
        names = [node.name for node in self._unborn]
        self._first_lives(self._unborn, await self._incarnations(names, {}))
        self._unborn = []
        self._between.difference_update(names)

    def _first_lives(self, nodes: Sequence[NodeRunner], fresh: Mapping[str, int]) -> None:
        for node in nodes:
            node.begin(fresh[node.name])
            if not node.inventory.simulated:
                self.launcher.watch(node)  # also without work: the next agent goes on with this life

    def _living(self) -> list[NodeRunner]:
        """All nodes but those that have had no life yet."""
        return [node for node in self.nodes.values() if node not in self._unborn]

    # ------------------------------------------------------------------------------------------------- leases

    async def run_heartbeats(self) -> None:
        """All nodes at once, each on its own subject: no node's silence delays another's renewal."""
        while True:
            every_s = self._renewed_every_s()
            began = now() + clock.until_turn(every_s) - every_s  # at the turn that this one belongs to
            self._beats += 1
            problems = await asyncio.gather(*(self._heartbeat(node, every_s) for node in self.nodes.values()))
            if failed := [problem for problem in problems if problem]:
                log.warning("the leases of %d nodes were not renewed: %s", len(failed), failed[0])
            while (left_s := self._renewed_every_s() - (now() - began)) > 0:  # noqa: ASYNC110 - shorter with a part's start
                await asyncio.sleep(min(left_s, clock.until_turn(_BARE_S)))

    def _renewed_every_s(self) -> float:
        """At least three times in the shortest lease that runs here: an answer that is lost ends no work. A node without a
        lease can start nothing: it asks more often, until somebody grants; most of all at first, as who grants starts, too."""
        nodes = self.nodes.values()
        usual_s = min(self.settings.heartbeat_s, min(node.shortest_lease_s() for node in nodes) / 3)
        bare_s = min(usual_s, _BARE_S, _FIRST_BARE_S * (1 + self._beats))
        return bare_s if any(node.lease.deadline is None for node in nodes) else usual_s

    async def _heartbeat(self, node: NodeRunner, timeout_s: float) -> str:
        """Renews one lease, and says why it could not. It counts from `sent`, taken before the message is even made."""
        if node.name in self._numberless:  # nothing can run here: whoever waits for this node is to hear of it
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
            if not had_one:  # what was granted meanwhile waits for it
                self.asker.ask_soon(node)
        return ""

    async def run_watch_leases(self) -> None:
        """A node that waits for its next life keeps nobody from looking at the others."""
        async with asyncio.TaskGroup() as lives:
            if self._unborn:
                lives.create_task(self._begin_late())
            while True:
                every_s = WATCH_S if any(node.parts for node in self.nodes.values()) else _IDLE_WATCH_S
                await asyncio.sleep(clock.until_turn(every_s))
                if over := self._look_at_leases(now()):
                    lives.create_task(self.new_lives(over, "the lease has ended"))

    def _look_at_leases(self, at: float) -> list[NodeRunner]:
        """Ends what a lease no longer covers; returns the nodes whose life is over."""
        living = [node for node in self.nodes.values() if node.name not in self._between]
        refused = [node for node in living if (node.name, node.incarnation) in self._refused]
        self._refused.clear()
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
        """Ends all work of these nodes and lets them begin anew, in this order; those named in `above` with an incarnation
        above that one, which the pool has seen. Nodes that are between two lives already are left to who began that."""
        nodes = [node for node in nodes if node.name not in self._between]
        self._between.update(node.name for node in nodes)
        try:
            await self._new_lives(nodes, reason, above or {})
        finally:
            self._between.difference_update(node.name for node in nodes)

    async def _new_lives(self, nodes: Sequence[NodeRunner], reason: str, above: Mapping[str, int]) -> None:
        if not nodes:
            return
        names = ", ".join(node.name for node in nodes[:10])
        log.warning(
            "ending the work of %d nodes (%s%s): %s", len(nodes), names, ", ..." if len(nodes) > 10 else "", reason
        )
        await asyncio.gather(*(node.die() for node in nodes))
        failpoint("agent.killed-all")
        fresh = await self._incarnations([node.name for node in nodes], above)
        for node in nodes:
            self.launcher.leave(node)
            node.begin(fresh[node.name])
            self.launcher.rewatch(node)

    async def _incarnations(self, names: Sequence[str], above: Mapping[str, int]) -> dict[str, int]:
        """Waits for as long as the disk does not take them: two lives of one number would be taken for one."""
        try:
            while True:
                try:
                    return self.launcher.state.next_incarnations(names, above)
                except OSError as e:
                    log.error("no life can begin on %s until this is mended: %s", ", ".join(names), e)
                    self._numberless.update(names)
                    await asyncio.sleep(_DISK_S)
        finally:
            self._numberless.difference_update(names)

    def keeper_dies(self) -> None:
        """What it holds dies with it, and none of that is an end of its own."""
        for node in self._held():
            node.dying = True

    async def keeper_lost(self) -> None:
        """What it held is gone. Another takes its place for what comes."""
        await self.new_lives(self._held(), "the keeper has died")
        try:
            await self.launcher.keeper.ensure()
        except NoKeeper as e:
            log.error("%s", e)

    def _held(self) -> list[NodeRunner]:
        """The nodes whose processes the keeper holds."""
        return [node for node in self.nodes.values() if self.launcher.keeper.knows(node.name)]

    # ------------------------------------------------------------------------------------------- desired state

    async def run_ask(self) -> None:
        # No TaskGroup: it passes one cancellation on, and a request may drop it (`libs.bus.cancel`).
        await asyncio.gather(self.asker.run(), self._repeat())

    async def _repeat(self) -> None:
        """What placement's state does not show is reported again."""
        while True:
            await asyncio.sleep(clock.until_turn(min(self.settings.repeat_s, self.settings.ask_s) / 2))
            if not self.reports.stalled():  # repeating what waits would only pile up
                for node in self._living():
                    node.repeat(self.settings.repeat_s)

    # ------------------------------------------------------------------------------------------------ the rest

    async def run_samples(self) -> None:
        while True:
            for node in self._living():
                await self._sample(node)
            await asyncio.sleep(clock.until_turn(self.settings.sample_s))

    async def _sample(self, node: NodeRunner) -> None:
        """Fire and forget: a lost sample is followed by the next."""
        busy = node.busy()
        simulated = node.inventory.simulated
        try:
            samples = node.layer.sample(busy) if simulated else await asyncio.to_thread(node.layer.sample, busy)
        except Exception:  # whatever the driver did, what runs goes on
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
            for node in self._living():
                await self.launcher.look_at_busy(node)

    async def run_limits(self) -> None:
        """Ends attempts that have taken more of the machine than they may."""
        while True:
            await asyncio.sleep(clock.until_turn(self.settings.limits_s))
            await look_at_limits([part for node in self.nodes.values() for part in node.parts.values()])

    async def run_shared(self) -> None:
        """And those that have taken more of what all processes of the machine share."""
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
        while True:
            await asyncio.sleep(_PRUNE_S)
            if self.launcher.memory_base is not None:
                await asyncio.to_thread(groups.look)
            if (followed := self._followed()) is not None:  # before, nothing begins here
                await self._prune(followed)
            await asyncio.to_thread(make_room, self.launcher.workdir, self.launcher.logs.left)

    async def _prune(self, followed: int) -> None:
        """Whose its checkpoints are is noted before the last attempt of a job goes, which says so."""
        teams = {job_id: team for (job_id, _), team in self.launcher.logs.kept().items()}
        pruned = self.launcher.logs.prune()
        await asyncio.to_thread(self.launcher.owners.note, teams, followed)
        await asyncio.to_thread(prune, pruned)
        if not self.launcher.shares_checkpoints:
            kept = {job_id for job_id, _ in self.launcher.logs.kept()}
            for job_id in remove_unsaved(self.launcher.checkpoints, pruned, kept):
                self.launcher.owners.forget(job_id, teams[job_id])

    async def run_left(self) -> None:
        """Removes files of teams that have left. Where nobody answers it is asked again soon, and then less and less often."""
        misses = 0
        older = not self.launcher.shares_checkpoints  # on another machine a user's number may be another team's
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
        """A ledger record before which everything was granted of which there are files here. None until each node has been told
        what should run there in this life of it, which begins after all that earlier ones were granted."""
        told = [node.view.ledger_seq for node in self.nodes.values()]
        return None if min(told) < 0 else max(told)

    def _runs(self) -> set[str]:
        return {
            job_id
            for node in self.nodes.values()
            for (job_id, _), held in node.view.parts.items()
            if held.phase is not Phase.ENDED
        }

    def read_log(self, query: LogQuery, team: str) -> LogPiece | None:
        return self.launcher.logs.read(query, team)

    async def drain(self, grace_s: float) -> None:
        """Before the agent ends: jobs are asked to save, and end; then all nodes say together that they leave, so that
        no job is granted a device of one that is about to follow. With `on_stop: keep`, nodes whose work the keeper can
        hold stay as they are."""
        self._draining = True
        if self.settings.on_stop is OnStop.KEEP:
            await self._keep()
        leaving = [node for node in self._living() if node.name not in self._kept]
        for node in leaving:
            node.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                # Many parts are waited for at once, once in an agent's life: a poll will do.
                while any(node.parts for node in leaving):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await asyncio.gather(*(node.die() for node in leaving))
        for node in leaving:
            gone = NodeLost(node=node.name, incarnation=node.incarnation, silent_s=0, planned=True)
            self.reports.add(node.name, node.incarnation, gone)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.reports.backlog():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async def _keep(self) -> None:
        """Lets go of the work that the keeper holds, without a deadline; it is the next agent's."""
        staying = [node for node in self.nodes.values() if self.launcher.may_stay(node)]
        for node in staying:
            await node.let_go()
            self.launcher.keeper.until(node.name, None)
        self._kept = {node.name for node in staying}
        if staying:
            log.warning("the work of %s runs on without an agent", ", ".join(sorted(self._kept)))

    async def close(self) -> None:
        """Kills what is left. The next life's registration is the evidence."""
        ending = [node for node in self.nodes.values() if node.name not in self._kept]
        await asyncio.gather(*(node.die() for node in ending))
        await self.launcher.keeper.close(keep=bool(self._kept))
        for node in ending:
            self.launcher.leave(node)
        self.launcher.state.close()


async def look_at_limits(parts: Iterable[RunningPart]) -> None:
    """At all that are soon looked at, and then at one of those that take seconds: a team that has twenty of them, of 500,000
    files each, would keep the agent from seeing who fills the disk meanwhile."""
    long: list[tuple[float, RunningPart]] = []
    for part in parts:
        if (since := part.waits_for_long_look_since()) is None:
            await part.look_at_limits()
        else:
            long.append((since, part))
    for _, part in sorted(long, key=lambda one: one[0]):
        if await part.look_at_limits():
            return
