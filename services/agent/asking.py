"""Receives the desired state of an agent's nodes: pushed changes, and polling every few seconds.

A missed or oversized change is noticed at the next one, and the whole state is requested at once. It comes in pieces;
unknown specs are requested by their digests.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from pydantic import ValidationError

from libs.bus.queries import NoAnswer, NobodyAnswers, QueryError, ask, ask_all
from libs.ports import clock
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.nodes import (
    STATE_ANSWER_S,
    DesiredQuery,
    DesiredReply,
    DesiredState,
    NodeChanged,
    NodeSpecs,
    NodeSpecsQuery,
    NodeState,
    NodeStateQuery,
)
from services.agent.node import NodeRunner
from services.agent.wanted import Specs, Wanted

log = logging.getLogger("baton.agent")

_ASKED_AT_ONCE = 8
"""Concurrent questions: as many as placement answers at a time."""
_MISSES = 3
_FIRST_ASK_S = 0.3
_WHOLE_EVERY = 20
"""One question in this many asks for the whole state even if unchanged, to repair any inconsistency."""
_STATE = BY_TYPE["io.baton.node.state.query.v1"]
_SPECS = BY_TYPE["io.baton.node.specs.query.v1"]
_WHOLE = BY_TYPE["io.baton.node.desired.query.v1"]

NewLives = Callable[[Sequence[NodeRunner], str, Mapping[str, int]], Awaitable[None]]
"""Ends these nodes' lives and begins new ones for a reason, each above an incarnation."""


class Asker:
    """Passes the desired state to `nodes`. `run` is a task; `unreadable` counts pushes that could not be decoded."""

    def __init__(
        self, nats: Client, pool: str, nodes: Mapping[str, NodeRunner], *, ask_s: float, new_lives: NewLives
    ) -> None:
        self.unreadable = 0
        self._nats, self._pool, self._nodes, self._ask_s, self._new_lives = nats, pool, nodes, ask_s, new_lives
        self._seen = Specs()
        self._wanted: dict[str, Wanted] = {}
        self._asked: dict[str, int] = {}
        self._behind: dict[str, None] = {}
        self._news = asyncio.Event()

    async def subscribe(self) -> None:
        """Subscribes to what placement, also of 0.1.0, pushes after each commit."""
        for name in self._nodes:
            await self._nats.subscribe(subjects.changed(self._pool, name), cb=self._changed)
            await self._nats.subscribe(subjects.desired(self._pool, name), cb=self._pushed)

    async def run(self) -> None:
        """Asks for all nodes every `ask_s`, more often until placement knows them all, and at once for those that are
        behind. A node that has nothing and should have nothing is asked for every other time."""
        loop = asyncio.get_running_loop()
        due, idle_too = 0.0, True
        while True:
            self._news.clear()
            now = loop.time()
            if now >= due:
                all_known = all(node.known for node in self._nodes.values())
                names = [name for name, node in self._nodes.items() if idle_too or node.parts or node.view.parts]
                idle_too = not (idle_too and all_known)
                due = now + clock.until_turn(self._ask_s if all_known else min(_FIRST_ASK_S, self._ask_s))
            else:
                names = [name for name in self._behind if name in self._nodes]
            for name in names:
                self._behind.pop(name, None)
            await self._ask_each([self._nodes[name] for name in names])
            try:
                async with asyncio.timeout(max(0.0, due - loop.time())):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _ask_each(self, nodes: Sequence[NodeRunner]) -> None:
        for start in range(0, len(nodes), _ASKED_AT_ONCE):
            some = nodes[start : start + _ASKED_AT_ONCE]
            problems = [problem for problem in await asyncio.gather(*map(self._ask, some)) if problem]
            if over := [node for node in some if node.missed >= _MISSES]:
                await self._new_lives(over, "placement no longer knows this life of the node", {})
            if problems:
                log.warning("placement does not say what should run: %s", problems[0])
                return

    # ---------------------------------------------------------------------------------------------------- pushes

    async def _changed(self, msg: Msg) -> None:
        try:
            change = NodeChanged.model_validate_json(msg.data)
        except ValidationError as e:
            self._cannot_read(msg, e)
            return
        node = self._nodes.get(change.node)
        if node is None or change.pool != self._pool or change.incarnation != node.incarnation:
            return
        wanted = self._wanted_by(node)
        if wanted.take_change(change):
            node.follow(wanted.state(node.view.parts))
            if not wanted.lacking():
                return
        self.ask_soon(node)

    async def _pushed(self, msg: Msg) -> None:
        try:
            self.follow(DesiredState.model_validate_json(msg.data))
        except ValidationError as e:
            self._cannot_read(msg, e)

    def ask_soon(self, node: NodeRunner) -> None:
        """Asks for this node's state at once: it may be able to do now what it could not when it received it."""
        self._behind[node.name] = None
        self._news.set()

    def follow(self, desired: DesiredState) -> None:
        node = self._nodes.get(desired.node)
        if node is not None and desired.pool == self._pool:
            node.follow(desired)

    def _cannot_read(self, msg: Msg, error: ValidationError) -> None:
        self.unreadable += 1
        log.error("unreadable desired state on %s: %s", msg.subject, str(error)[:500])

    # ------------------------------------------------------------------------------------------------- questions

    async def _ask(self, node: NodeRunner) -> str:
        """Asks for one node on its own subject; returns the reason if there is no answer."""
        try:
            try:
                return await self._ask_state(node)
            except NobodyAnswers:
                return await self._ask_whole(node)
        except (NoAnswer, QueryError, NatsError, ValidationError) as e:
            return str(e)[:300] or type(e).__name__

    async def _ask_state(self, node: NodeRunner) -> str:
        wanted = self._wanted_by(node)
        asked = self._asked[node.name] = self._asked.get(node.name, 0) + 1
        query = NodeStateQuery(followed=wanted.seq if asked % _WHOLE_EVERY else -1)
        pieces: list[NodeState] = await ask_all(
            self._nats, _STATE, query, pool=self._pool, node=node.name, timeout_s=STATE_ANSWER_S
        )
        if node.incarnation != wanted.incarnation:
            return ""
        first = pieces[0]
        if first.up and first.incarnation == node.incarnation:
            wanted.take_state(pieces)
            await self._fetch(node, wanted)
            if node.incarnation == wanted.incarnation:
                node.follow(wanted.state(node.view.parts))
        elif not node.may_start():
            return ""  # the agent is ending and has already reported that it leaves
        elif not first.up and first.incarnation >= node.incarnation:
            reason = f"placement has seen the end of incarnation {first.incarnation}"
            await self._new_lives([node], reason, {node.name: first.incarnation})
        elif first.up and first.incarnation > node.incarnation:
            why = (
                f"{node.name}: incarnation {first.incarnation} is up and ours is {node.incarnation}: another agent uses "
                "the name, or an earlier life of this one has not ended yet"
            )
            if node.parts and not node.dying:
                log.error("%s; the pool has given away what runs here, so it ends", why)
                await node.die()
            return why
        else:
            node.missed += node.known
        return ""

    async def _fetch(self, node: NodeRunner, wanted: Wanted) -> None:
        """Asks for specs until all are known, or placement has none of the missing ones."""
        while digests := wanted.lacking():
            reply: NodeSpecs = await ask(
                self._nats,
                _SPECS,
                NodeSpecsQuery(specs=tuple(digests)),
                pool=self._pool,
                node=node.name,
                timeout_s=STATE_ANSWER_S,
            )
            if not reply.specs or node.incarnation != wanted.incarnation:
                return
            wanted.take_specs(reply.specs)

    async def _ask_whole(self, node: NodeRunner) -> str:
        """Asks in 0.1.0's protocol. Several answers must agree that this life is over, since one may come from a
        placement process that is still reading the ledger."""
        incarnation = node.incarnation
        query = DesiredQuery(nodes=(node.name,))
        reply: DesiredReply = await ask(
            self._nats, _WHOLE, query, pool=self._pool, node=node.name, timeout_s=STATE_ANSWER_S
        )
        for state in reply.states:
            self.follow(state)
        incarnations = [state.incarnation for state in reply.states if state.node == node.name]
        if node.incarnation == incarnation and incarnations != [incarnation]:
            node.missed += node.known
        return ""

    def _wanted_by(self, node: NodeRunner) -> Wanted:
        wanted = self._wanted.get(node.name)
        if wanted is None or wanted.incarnation != node.incarnation:
            wanted = self._wanted[node.name] = Wanted(self._pool, node.name, node.incarnation, self._seen)
        return wanted
