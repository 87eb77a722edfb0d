"""The rest of Baton as an agent sees it: a placement that says what should run, a telemetry that grants leases."""

from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas import subjects
from schemas.ids import content_hash
from schemas.inbox import BoardCut, NodeLost, NodeObserved, NodeQuarantine, NodeRegistered, Observation, Started
from schemas.nodes import (
    DesiredPart,
    DesiredState,
    Heartbeat,
    LeaseGranted,
    LiftedQuarantine,
    NodeChanged,
    NodeSampled,
    NodeSpecs,
    NodeSpecsQuery,
    NodeState,
    ReferencedPart,
    TeamsLeft,
    TeamsLeftQuery,
)
from schemas.resources import Recut
from tests.agent.build import state
from tests.agent.conftest import until


def digest(part: DesiredPart) -> str:
    return content_hash(part.spec.model_dump_json().encode())


def referenced(part: DesiredPart, started: bool = False) -> ReferencedPart:
    """The part as placement tells it."""
    return ReferencedPart.model_validate(part.model_dump(mode="json") | {"spec": digest(part), "started": started})


class World:
    """Everything is decided by the test; nothing is inferred. `grants` turns lease renewals on and off."""

    def __init__(self, nats: Client, pool: str) -> None:
        self.nats, self.pool = nats, pool
        self.grants = True
        self.lives: dict[str, list[int]] = {}
        self.inventories: dict[str, NodeRegistered] = {}
        self.farewells: list[NodeLost] = []
        self.seen: list[tuple[str, int, Observation]] = []
        self.samples: list[NodeSampled] = []
        self.cuts: list[BoardCut] = []
        self.recuts: dict[str, tuple[Recut, ...]] = {}
        self.withdrawn: dict[str, tuple[Recut, ...]] = {}
        self.lifted: dict[str, tuple[LiftedQuarantine, ...]] = {}
        self.quarantines: list[NodeQuarantine] = []
        self.wanted: dict[str, tuple[DesiredPart, ...]] = {}
        self.seq = 1
        self.disowned: set[str] = set()
        self.left: set[str] = set()
        self.left_as_of: int | None = None
        """The record of which it is said who has left; None: the last."""
        self.asked_who_left: list[tuple[str, ...]] = []
        self.answers = True
        self.hears_starts = True

    async def open(self) -> "World":
        for what, call in (
            (subjects.node_inbox("registered", self.pool), self._registered),
            (subjects.node_inbox("observed", self.pool), self._observed),
            (subjects.node_inbox("lost", self.pool), self._left),
            (subjects.node_inbox("board-cut", self.pool), self._cut),
            (subjects.node_inbox("quarantine", self.pool), self._quarantined),
            (subjects.heartbeat(self.pool), self._heartbeat),
            (subjects.sample(self.pool), self._sampled),
            (subjects.anyone(subjects.NODE_QUESTION, what="state", pool=self.pool), self._asked),
            (subjects.anyone(subjects.NODE_QUESTION, what="specs", pool=self.pool), self._asked_for_specs),
            (subjects.anyone(subjects.NODE_QUESTION, what="left", pool=self.pool), self._asked_who_left),
        ):
            await self.nats.subscribe(what, cb=call)
        await self.nats.flush()
        return self

    async def _registered(self, msg: Msg) -> None:
        registered = NodeRegistered.model_validate_json(msg.data)
        node = registered.inventory.node
        self.inventories[node] = registered
        lives = self.lives.setdefault(node, [])
        if registered.incarnation not in lives:
            lives.append(registered.incarnation)
            self.wanted[node] = ()
            self.disowned.discard(node)

    async def _observed(self, msg: Msg) -> None:
        observed = NodeObserved.model_validate_json(msg.data)
        self.seen.extend((observed.node, observed.incarnation, seen) for seen in observed.observations)

    async def _left(self, msg: Msg) -> None:
        self.farewells.append(NodeLost.model_validate_json(msg.data))

    async def _cut(self, msg: Msg) -> None:
        self.cuts.append(BoardCut.model_validate_json(msg.data))

    async def _quarantined(self, msg: Msg) -> None:
        self.quarantines.append(NodeQuarantine.model_validate_json(msg.data))

    async def _heartbeat(self, msg: Msg) -> None:
        beat = Heartbeat.model_validate_json(msg.data)
        if self.grants:
            await msg.respond(LeaseGranted(nodes=tuple(n for n, _ in beat.nodes)).model_dump_json().encode())

    async def _sampled(self, msg: Msg) -> None:
        self.samples.append(NodeSampled.model_validate_json(msg.data))

    async def _asked(self, msg: Msg) -> None:
        if not self.answers:
            return
        node = subjects.read(subjects.fill(subjects.NODE_QUESTION, what="state"), msg.subject)["node"]
        life = self.lives.get(node, [0])[-1]
        told = NodeState(pool=self.pool, node=node, ledger_seq=self.seq, incarnation=life)
        if life and node not in self.disowned:
            state = self.state(node)
            told = told.model_copy(
                update={
                    "up": True,
                    "parts": tuple(map(self.referenced, state.parts)),
                    "recuts": state.recuts,
                    "withdrawn": state.withdrawn,
                    "lifted": self.lifted.get(node, ()),
                }
            )
        await msg.respond(told.model_dump_json().encode())

    async def _asked_for_specs(self, msg: Msg) -> None:
        node = subjects.read(subjects.fill(subjects.NODE_QUESTION, what="specs"), msg.subject)["node"]
        digests = NodeSpecsQuery.model_validate_json(msg.data).specs
        specs = {digest(part): part.spec for part in self.wanted.get(node, ()) if digest(part) in digests}
        await msg.respond(NodeSpecs(specs=specs).model_dump_json().encode())

    async def _asked_who_left(self, msg: Msg) -> None:
        query = TeamsLeftQuery.model_validate_json(msg.data)
        self.asked_who_left.append(query.teams)
        seq = self.seq if self.left_as_of is None else self.left_as_of
        left = tuple(team for team in query.teams if team in self.left)
        await msg.respond(TeamsLeft(ledger_seq=seq, left=left).model_dump_json().encode())

    def state(self, node: str) -> DesiredState:
        parts = self.wanted.get(node, ())
        life, recuts, withdrawn = self.lives[node][-1], self.recuts.get(node, ()), self.withdrawn.get(node, ())
        return state(
            *parts, seq=self.seq, node=node, incarnation=life, pool=self.pool, recuts=recuts, withdrawn=withdrawn
        )

    async def want(self, node: str, *parts: DesiredPart) -> None:
        """From now on exactly this should run on `node`; pushed at once, as after a commit."""
        before = {part.job_id: part for part in self.wanted.get(node, ())}
        now = {part.job_id: part for part in parts}
        since, self.seq = self.seq, self.seq + 1
        self.wanted[node] = parts
        changed = [part for part in parts if before.get(part.job_id) is not part]
        change = self.change(node, *changed, since=since, seq=self.seq, incarnation=self.lives[node][-1])
        await self.push(change.model_copy(update={"gone": tuple(before.keys() - now.keys())}))

    def change(self, node: str, *parts: DesiredPart, since: int, seq: int, incarnation: int) -> NodeChanged:
        """As placement tells it after a commit."""
        return NodeChanged(
            pool=self.pool,
            node=node,
            incarnation=incarnation,
            since=since,
            ledger_seq=seq,
            parts=tuple(map(self.referenced, parts)),
            specs={digest(part): part.spec for part in parts},
            recuts=self.recuts.get(node, ()),
            withdrawn=self.withdrawn.get(node, ()),
            lifted=self.lifted.get(node, ()),
        )

    async def ask_repartitions(self, node: str, *recuts: Recut) -> None:
        self.recuts[node] = recuts
        await self.want(node, *self.wanted.get(node, ()))

    async def withdraw_repartitions(self, node: str, *recuts: Recut) -> None:
        """They are not asked for any more: the node should say what its boards are."""
        self.recuts[node], self.withdrawn[node] = (), recuts
        await self.want(node, *self.wanted.get(node, ()))

    async def push(self, change: NodeChanged) -> None:
        await self.nats.publish(subjects.changed(self.pool, change.node), change.model_dump_json().encode())

    def referenced(self, part: DesiredPart) -> ReferencedPart:
        """With its start, if the ledger would have that."""
        return referenced(part, started=self.hears_starts and bool(self.of(part, Started)))

    def of(self, wanted: DesiredPart, kind: type) -> list[Observation]:
        key = (wanted.job_id, wanted.attempt)
        return [s for _, _, s in self.seen if isinstance(s, kind) and (s.job_id, s.attempt) == key]

    async def sees(self, wanted: DesiredPart, kind: type) -> Observation:
        """The first observation of this kind about the part, when it has come."""
        await until(lambda: self.of(wanted, kind))
        return self.of(wanted, kind)[0]

    async def joined(self, node: str, lives: int = 1) -> int:
        """The node's incarnation, once it has registered for the `lives`-th time."""
        await until(lambda: len(self.lives.get(node, ())) >= lives)
        return self.lives[node][lives - 1]
