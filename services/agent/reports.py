"""Publishes agents' reports to the pool's inbox: observations and registrations, in order, batched, each retried until
stored.

One batch is in flight at a time, which keeps the order; reports made meanwhile form the next batch. A single report is
sent at once, with others of the same iteration of the event loop. A batch that the broker rejects stays at the head
until it is stored. Memory is bounded by what runs on the nodes: a part has at most one start, one end and its newest
checkpoint waiting.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from libs.bus.messages import Outgoing, outgoing, payload_room
from libs.ports import clock
from libs.ports.host import failpoint
from schemas import subjects
from schemas.catalog import TYPE_OF
from schemas.inbox import (
    BoardCut,
    CheckpointTaken,
    NodeLost,
    NodeObserved,
    NodeQuarantine,
    NodeRegistered,
    ProgressSeen,
    SeenOfPart,
)
from schemas.resources import Inventory

log = logging.getLogger("baton.agent")

LINGER_S = 0.004
BUSY_S = 0.02
"""An observation sooner than this after a stored batch waits for `LINGER_S`, since more are likely."""
RETRY_S = 1.0
STALLED_S = 1.0
MESSAGE_BYTES = 150_000
"""The most encoded bytes of observations in a message, well below placement's limit (libs/ledger/inputs.py). Text
length says little, since a control character takes six bytes of JSON."""
LARGEST_BYTES = 240_000
"""The most bytes of an indivisible message, e.g. a registration."""
_AROUND_BYTES = 4096
"""Allowance for the envelope around observations."""
_BATCH_COUNT = 1000

Publish = Callable[[Sequence[Outgoing]], Awaitable[Any]]
Whole = NodeRegistered | NodeLost | BoardCut | NodeQuarantine
"""Reports that are messages of their own."""
Entry = tuple[str, int, SeenOfPart | Whole]
"""(node, incarnation at the time of the observation, observation)."""
_SUBJECTS: dict[type[Whole], str] = {
    NodeRegistered: "registered", NodeLost: "lost", BoardCut: "board-cut", NodeQuarantine: "quarantine"
}  # fmt: skip


class Reports:
    """Collects entries and publishes them. `add` never blocks; `run` is a task that lives as long as the agent."""

    def __init__(self, publish: Publish, *, pool: str, source: str, max_payload: int = 1024 * 1024) -> None:
        """`max_payload`: the broker's limit, bytes."""
        room = payload_room(max_payload)
        self._most = min(MESSAGE_BYTES, room - _AROUND_BYTES)
        self._largest = min(LARGEST_BYTES, room)
        self._publish, self._pool, self._source = publish, pool, source
        self._waiting: list[Entry] = []
        self._under_way: list[Entry] = []
        self._wake = asyncio.Event()
        # A later agent may continue this one's lives: its messages must not look like repeats of ours.
        self._run = f"{clock.wall_ns():x}"
        self._count = 0
        self._since = 0.0
        self.published = 0

    def add(self, node: str, incarnation: int, seen: SeenOfPart | Whole) -> None:
        if isinstance(seen, CheckpointTaken | ProgressSeen):
            self._drop_older(seen)
        self._waiting.append((node, incarnation, seen))
        self._wake.set()

    def stalled(self) -> bool:
        """Whether the batch in flight has waited longer than a healthy broker takes."""
        return bool(self._under_way) and asyncio.get_running_loop().time() - self._since > STALLED_S

    def backlog(self) -> int:
        return len(self._waiting) + len(self._under_way)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        stored_s = -math.inf
        while True:
            await self._wake.wait()
            # One turn is enough for a timer that ends as it starts: its start and end become one message.
            await asyncio.sleep(LINGER_S if loop.time() - stored_s < BUSY_S else 0)
            self._wake.clear()
            self._under_way, self._waiting = self._waiting, []
            self._since = loop.time()
            await self._store(self._messages(self._under_way))
            failpoint("agent.reported")
            self.published += len(self._under_way)
            self._under_way = []
            stored_s = loop.time()

    async def _store(self, batch: Sequence[Outgoing]) -> None:
        """Returns when the batch is stored, however often the broker refuses. Observations are never dropped, and their
        ids make repeats harmless."""
        while True:
            try:
                await self._publish(batch)
                return
            except Exception as e:
                problem = f"{type(e).__name__}: {e}"[:300]
                log.warning("%d messages wait for the broker: %s", len(batch), problem)
            await asyncio.sleep(RETRY_S)

    def _drop_older(self, seen: CheckpointTaken | ProgressSeen) -> None:
        """Drops an attempt's older waiting reports of the same kind; only the newest matters, and they would pile up
        while the broker is away."""
        if len(self._waiting) > _BATCH_COUNT:
            key = (seen.job_id, seen.attempt)
            self._waiting = [
                entry
                for entry in self._waiting
                if not (isinstance(entry[2], type(seen)) and (entry[2].job_id, entry[2].attempt) == key)
            ]

    def _messages(self, entries: Iterable[Entry]) -> list[Outgoing]:
        """One message per node and life, in order of first entries; registrations, cuts and farewells separate them."""
        out: list[Outgoing] = []
        groups: dict[tuple[str, int], list[SeenOfPart]] = {}
        for node, incarnation, seen in entries:
            if isinstance(seen, Whole):
                earlier = [key for key in groups if key[0] == node]
                for key in earlier:
                    out.extend(self._observed(*key, groups.pop(key)))
                out.append(self._message(_bounded(seen, self._largest), _SUBJECTS[type(seen)], node, incarnation))
            else:
                groups.setdefault((node, incarnation), []).append(seen)
        for key, observations in groups.items():
            out.extend(self._observed(*key, observations))
        return out

    def _observed(self, node: str, incarnation: int, seen: list[SeenOfPart]) -> list[Outgoing]:
        return [
            self._message(_observed(node, incarnation, piece), "observed", node, incarnation)
            for piece in _pieces(seen, self._most)
        ]

    def _message(self, model: NodeObserved | Whole, what: str, node: str, incarnation: int) -> Outgoing:
        """Uses the node's own subject, the only one that its credential permits."""
        self._count += 1
        return outgoing(
            model,
            subject=subjects.node_inbox(what, self._pool, node),
            type=TYPE_OF[type(model)],
            source=self._source,
            cause=f"{node}/{incarnation}/{self._run}/{self._count}",
        )


def _observed(node: str, incarnation: int, seen: Sequence[SeenOfPart]) -> NodeObserved:
    return NodeObserved(
        node=node,
        incarnation=incarnation,
        observations=tuple(one for one in seen if not isinstance(one, ProgressSeen)),
        progress=tuple(one for one in seen if isinstance(one, ProgressSeen)),
    )


def _pieces(observations: Sequence[SeenOfPart], most: int) -> Iterable[list[SeenOfPart]]:
    """Splits into pieces below `most` bytes. A single larger observation is shortened, with a note, so that no start or
    end is lost because of its text."""
    piece: list[SeenOfPart] = []
    size = 0
    for whole in observations:
        seen = whole if (extra := _size(whole)) <= most else _shortened(whole)
        if seen is None:
            log.error("a checkpoint of %s is not told: its reference takes %d bytes", whole.job_id, extra)
            continue
        extra = extra if seen is whole else _size(seen)
        if piece and (size + extra > most or len(piece) >= _BATCH_COUNT):
            yield piece
            piece, size = [], 0
        piece.append(seen)
        size += extra
    if piece:
        yield piece


def _size(model: Any) -> int:
    return len(model.__pydantic_serializer__.to_json(model)) + 1


def _shortened(seen: SeenOfPart) -> SeenOfPart | None:
    """The observation without its text; None for a checkpoint, since a cut reference names nothing."""
    if isinstance(seen, CheckpointTaken):
        return None
    note = "its reason was too long to be told; the job's log has it"
    return seen.model_copy(update={"reason": note}) if hasattr(seen, "reason") else seen


def check_registration(inventory: Inventory, lease_s: float) -> None:
    """Raises ValueError when the node's inventory does not fit into one message."""
    alone = NodeRegistered(incarnation=1, inventory=inventory.model_copy(update={"contents": ()}), lease_s=lease_s)
    if (size := _size(alone)) > LARGEST_BYTES:
        raise ValueError(
            f"node {inventory.node} cannot be told of in one message: with its {len(inventory.devices)} devices and "
            f"{len(inventory.boards)} boards that has {size:,} bytes, and {LARGEST_BYTES:,} are the most (some 800 devices): "
            "offer fewer, see BATON_AGENT_DEVICES and BATON_AGENT_LABELS"
        )


def _bounded(model: Whole, most: int) -> Whole:
    """A registration or report of a cut that fits: the list of the node's disk contents is cut at the end."""
    if isinstance(model, NodeLost | NodeQuarantine) or _size(model) <= most:
        return model
    contents = model.inventory.contents
    kept = len(contents)
    while kept and _size(model) > most:
        kept //= 2
        model = model.model_copy(update={"inventory": model.inventory.model_copy(update={"contents": contents[:kept]})})
    log.warning("node %s has %d contents; the first %d are told", model.inventory.node, len(contents), kept)
    return model
