"""Tells nodes what each commit changed for them, beside the writer: whatever becomes of telling, deciding goes on.

The writer's hooks only note what is to be told; a task of its own publishes it. Whatever fails there is counted and
logged. A node that was not told finds out: the next change names the sequence that it builds upon (`since`), and agents
ask every few seconds anyway.

    writer --committed--> NodeNotifier (changes as small messages) --> run (publishes)
    agent --asks--> NodeNotifier.state_of

Naively every touched node is sent all that should run there. That grows with the jobs of a node, and whoever submits
large ones makes it more than the broker takes.

What asks nothing of a node, that its reports of starts and ends were heard, waits for something to go with, `LATER_S` at
the most: a gang's nodes report its starts in several records, and each record would be told to all of them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from libs.bus.messages import Outgoing, outgoing, payload_room
from libs.bus.queries import AskAgain
from libs.core.admission.intake import Buckets
from libs.core.scheduling.decider import Decider
from libs.core.state.desired import desired, node_change, node_state, spec_bytes
from libs.core.state.model import State
from libs.ports import clock
from schemas import ledger as led
from schemas import subjects
from schemas.catalog import TYPE_OF
from schemas.ledger import LedgerRecord
from schemas.nodes import PIECE_BYTES, NodeState

log = logging.getLogger("baton.placement")

_WAITING_BYTES = 32 * 1024 * 1024
"""The maximum size of the queue of unsent messages, on a slow connection: the rest is dropped, and nodes ask for it."""
LOOKED_AT_ONCE, LOOKED_PER_S = 16_384.0, 512.0
"""Token bucket per node, in parts that its questions make placement look at: each takes some 30 us in which nothing is decided.
An agent that begins on a full node asks for 4,096 parts and their specs; later it asks for all of them every twentieth time."""
_LEAST = 8
"""The minimum cost of a question."""
LATER_S = 0.25
"""Debounce of changes that ask nothing of a node (they confirm its reports): they are sent within this time, together. A node
repeats no report sooner than that."""

Publish = Callable[[Outgoing], Awaitable[None]]


@dataclass(slots=True)
class ChangedOnNode:
    """What a record changed on a node: jobs whose parts there changed, or whose start is known now."""

    jobs: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    """Of these, gangs all of whose parts have started."""
    new_life: bool = False
    """Nothing was told before."""
    asks: bool = False
    """Of the node: to start, save or stop something, or to look at its boards. The rest only says what is known."""

    def after(self, earlier: "ChangedOnNode | None") -> None:
        """Merges an earlier change that was not sent yet."""
        if earlier is not None and not self.new_life:
            self.jobs |= earlier.jobs
            self.started |= earlier.started
            self.running |= earlier.running


class NodeNotifier:
    """Tells nodes about changes of their desired state. `refolded` and `committed` never raise and never wait; `run` is a
    task."""

    def __init__(
        self,
        pool: str,
        publish: Publish,
        registry: CollectorRegistry,
        max_payload: int,
        settled: Callable[[], Decider | None],
    ) -> None:
        """`settled`: the writer's state while it is what is committed, else None."""
        self.pool = pool
        self.largest = payload_room(max_payload)
        self.limit = min(PIECE_BYTES, self.largest)
        self._publish = publish
        self._base = 0
        """The ledger sequence from which on this process knows of every change."""
        self._changed: dict[str, int] = {}
        """Node -> sequence of the last change after `_base`."""
        self._told_to: dict[str, int] = {}
        """Node -> sequence of the last change that it was told; what came since is in `_later`."""
        self._later: dict[str, ChangedOnNode] = {}
        self._seq = 0
        self._due: asyncio.TimerHandle | None = None
        self._overdue = False
        self._settled = settled
        self._looked: Buckets[str] = Buckets()
        self._reads_whole: dict[str, None] = {}
        """Nodes whose agents read `DesiredState` only (0.1.0)."""
        self._waiting: deque[Outgoing] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._told = Counter("baton_nodes_told", "messages of desired state published to nodes", registry=registry)
        self._failed = Counter(
            "baton_nodes_not_told", "messages of desired state that were not sent; nodes ask for it", registry=registry
        )

    # ------------------------------------------------------------------------------------------------ from the writer

    def refolded(self, decider: Decider, seq: int) -> None:
        """Earlier commits may not have been told: every node that is up hears that there is something to ask for."""
        self._begin(seq)
        for name, node in decider.state.fleet.nodes.items():
            if node.up:
                self._note(decider.state, name, ChangedOnNode(), since=seq, seq=seq)

    def committed(self, record: LedgerRecord, decider: Decider, seq: int) -> None:
        """Notes for each node that the record touched what it changed there."""
        self._seq = seq
        try:
            changes = touched(record, decider.state)
        except Exception:
            log.exception("what record %d changed for nodes could not be worked out: they ask for it", seq)
            self._failed.inc()
            self._begin(seq)
            return
        for name, change in changes.items():
            change.after(self._later.pop(name, None))
            if change.asks:
                self._tell(decider.state, name, change)
            else:
                self._changed[name] = seq
                self._later[name] = change
        if self._overdue:
            self._tell_later(decider.state)
        elif self._later and self._due is None:
            self._due = asyncio.get_running_loop().call_later(LATER_S, self._fall_due)

    def _fall_due(self) -> None:
        """While a commit is under way the state has what nobody may hear yet: then the commit tells, or the next look."""
        self._due, self._overdue = None, bool(self._later)
        if self._overdue:
            if (decider := self._settled()) is not None:
                self._tell_later(decider.state)
            else:
                self._due = asyncio.get_running_loop().call_later(LATER_S, self._fall_due)

    def _tell_later(self, state: State) -> None:
        self._overdue = False
        later, self._later = self._later, {}
        for name, change in later.items():
            self._tell(state, name, change)

    def _begin(self, seq: int) -> None:
        self._base = self._seq = seq
        for kept in (self._changed, self._told_to, self._later):
            kept.clear()

    def _tell(self, state: State, name: str, change: ChangedOnNode) -> None:
        if state.fleet.nodes[name].up:
            since = self._seq if change.new_life else self._told_to.get(name, self._base)
            self._note(state, name, change, since=since, seq=self._seq)

    def _note(self, state: State, name: str, touch: ChangedOnNode, *, since: int, seq: int) -> None:
        # First of all: a change that is not told is missed by the next one's `since`.
        self._changed[name] = self._told_to[name] = seq
        try:
            change = node_change(
                state, name, touch.jobs, self.pool, since=since, ledger_seq=seq, started=touch.started,
                running=touch.running, limit=self.limit,
            )  # fmt: skip
            self._add(change, subjects.changed(self.pool, name), name, seq)
            if name in self._reads_whole and (touch.jobs or touch.new_life or not touch.started):
                self._add_whole(state, name, seq)
        except Exception:
            log.exception("the changes of node %s at record %d could not be prepared: it asks for them", name, seq)
            self._failed.inc()

    def _add_whole(self, state: State, name: str, seq: int) -> None:
        """Where that is too much or too often, its agent asks, as it does every few seconds anyway."""
        if spec_bytes(state, name) > self.largest:
            del self._reads_whole[name]
        elif not self._looks_at(name, len(state.on_node[name])):
            self._add(desired(state, name, self.pool, seq), subjects.desired(self.pool, name), name, seq)

    def _add(self, model: Any, subject: str, node: str, seq: int) -> None:
        message = outgoing(
            model,
            subject=subject,
            type=TYPE_OF[type(model)],
            source=f"/baton/{self.pool}/placement",
            cause=f"{self.pool}:{seq}",
            key=node,
        )
        size = len(message.payload)
        if size > self.largest or self._bytes + size > _WAITING_BYTES:
            self._failed.inc()
            return
        self._bytes += size
        self._waiting.append(message)
        self._wake.set()

    # --------------------------------------------------------------------------------------------------- to the nodes

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                message = self._waiting.popleft()
                self._bytes -= len(message.payload)
                try:
                    await self._publish(message)
                    self._told.inc()
                except Exception as e:
                    self._failed.inc()
                    log.warning("a message on %s was not sent: %s", message.subject, str(e)[:300] or type(e).__name__)

    def looks_at(self, node: str, parts: int) -> None:
        """For an answer to `node` so many of its parts are looked at. Raises AskAgain when its questions have had that done too
        often: one node that asks as fast as it can must not keep the writer from deciding."""
        if wait_s := self._looks_at(node, parts):
            raise AskAgain(
                f"node {node} asks for more than {LOOKED_PER_S:g} of its parts a second, {LOOKED_AT_ONCE:g} at once: ask again "
                f"in {wait_s:.1f} s"
            )

    def _looks_at(self, node: str, parts: int) -> float:
        """0: it may, and it counts; else the seconds until the next one may."""
        most, per_s, now_us = LOOKED_AT_ONCE, LOOKED_PER_S, int(clock.boot_s() * 1e6)
        return self._looked.of(node, most, now_us).take(most, per_s, now_us, _LEAST + parts)

    def state_of(self, decider: Decider, node: str, followed: int, seq: int, *, leading: bool) -> list[NodeState]:
        """The state of `node` at `seq` in pieces, or that it is still the one at `followed`. Only a process that writes
        the ledger knows the latter: one that follows hears of no change. Raises AskAgain."""
        known = decider.state.fleet.nodes.get(node)
        if known is not None and known.up and leading and self._changed.get(node, self._base) <= followed <= seq:
            self.looks_at(node, 0)
            return [
                NodeState(
                    pool=self.pool, node=node, incarnation=known.incarnation, up=True, ledger_seq=seq, unchanged=True
                )
            ]
        self.looks_at(node, len(decider.state.on_node.get(node, ())))
        return node_state(decider.state, node, self.pool, seq, self.limit)

    def reads_whole(self, node: str) -> None:
        """The agent of a known node asks as 0.1.0 does: it is told everything after each change, as far as that can be
        sent."""
        self._reads_whole[node] = None

    def reads_changes(self, node: str) -> None:
        self._reads_whole.pop(node, None)


def touched(record: LedgerRecord, state: State) -> Mapping[str, ChangedOnNode]:
    """Node -> what a record changed of what should run there."""
    out: dict[str, ChangedOnNode] = {}

    def on(node: str, asks: bool = True) -> ChangedOnNode:
        found = out.setdefault(node, ChangedOnNode())
        found.asks |= asks
        return found

    for event in record.events:
        match event:
            case led.JobGranted() | led.AttemptPreempting() | led.AttemptStopping():
                for node in _nodes_of(state, event.job_id):
                    on(node).jobs.add(event.job_id)
            case led.DevicesFreed():
                on(event.node, asks=False).jobs.add(event.job_id)
            case led.AttemptStarting():
                on(event.node, asks=False).started.add(event.job_id)
            case led.AttemptRunning():
                for node in (nodes := _nodes_of(state, event.job_id)):
                    on(node, asks=False).started.add(event.job_id)
                    if len(nodes) > 1:  # else its node knows
                        on(node, asks=False).running.add(event.job_id)
            case led.BoardRecut() | led.BoardRecutWithdrawn() | led.DeviceQuarantined() | led.DeviceReturned():
                on(event.node)
            case led.BoardCutDone():
                on(event.inventory.node)
            case led.NodeJoined():
                on(event.inventory.node).new_life = True
    return out


def _nodes_of(state: State, job_id: str) -> list[str]:
    job = state.jobs.get(job_id)
    if job is None or job.current is None:
        return []
    return [part.node for part in job.current.parts.values() if not part.freed]
