"""What a node does about its MIG boards: each repartition that is asked for is tried once in a life of the node, one board at
a time, and its end is reported until placement has heard it. `services.agent.repartitions` looks at one and carries it out."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from libs.adapters.devices import DeviceLayer
from schemas.inbox import BoardCut
from schemas.resources import Inventory, Recut
from services.agent.living import LivingNode
from services.agent.repartitions import carry_out, refusal

log = logging.getLogger("baton.agent")


class BoardOwner(LivingNode, Protocol):
    """The node, as far as its boards are concerned."""

    inventory: Inventory
    layer: DeviceLayer

    def may_repartition(self) -> bool:
        """Whether something new may be begun."""
        ...

    def busy(self) -> dict[str, int]:
        """Device -> milli that parts hold there."""
        ...

    def offer(self, devices: frozenset[str]) -> None:
        """Parts may use these devices from here on."""
        ...

    def tell(self, seen: BoardCut) -> None:
        """Placement is to hear it."""
        ...


@dataclass(eq=False, slots=True)
class BoardRepartition:
    """A repartition in this life: under way until `at`, when it was last reported, is set. `reason`: why it failed."""

    asked: Recut
    begun: bool = False
    """The board may be another from here on."""
    at: float | None = None
    reason: str = ""


class NodeBoards:
    """The repartitions of one node in its present life."""

    def __init__(self, node: BoardOwner) -> None:
        self._node = node
        self._repartitions: dict[tuple[str, int], BoardRepartition] = {}
        """(board, number) -> what was asked for; one that is no longer asked for is not asked again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_board = asyncio.Lock()
        """One board at a time: each report then tells of boards that are whole."""

    def begin(self) -> None:
        """A new life of the node: it was asked for nothing."""
        self._repartitions.clear()

    def follow(self, requests: Iterable[Recut], withdrawn: Iterable[Recut]) -> None:
        """Begins the repartitions that are new, each once in this life, and drops withdrawn ones that are not begun.

        A withdrawn one that is under way is answered when it ends, whatever came of it; one that was answered is
        reported again until placement has heard it.
        """
        asked = {(request.board, request.number): request for request in requests}
        dropped = {(request.board, request.number): request for request in withdrawn}
        for key, repartition in list(self._repartitions.items()):
            if repartition.at is not None and key not in asked and key not in dropped:
                del self._repartitions[key]
        for key, request in dropped.items():
            repartition = self._repartitions.setdefault(key, BoardRepartition(request))
            if not repartition.begun and repartition.at is None:
                self._ended(repartition, "withdrawn before it was begun")
        for key, request in asked.items():
            if key in self._repartitions or not self._node.may_repartition():
                continue
            repartition = self._repartitions[key] = BoardRepartition(request)
            if reason := refusal(request, self._node.inventory, self._node.busy()):
                self._ended(repartition, reason)
                continue
            self._offer()
            task = asyncio.create_task(self._carry_out(repartition))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def repeat(self, older_than_s: float) -> None:
        """Reports ends again that were last reported so long ago, s."""
        now = self._node.now()
        for repartition in self._repartitions.values():
            if repartition.at is not None and now - repartition.at >= older_than_s:
                repartition.at = now
                self._report(repartition)

    async def settle(self) -> None:
        """Returns when nothing is under way: a board that is being repartitioned is nothing to begin a new life with."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry_out(self, repartition: BoardRepartition) -> None:
        async with self._one_board:
            if self._node.dying or repartition.at is not None:
                return
            repartition.begun = True
            asked = repartition.asked
            log.info("%s repartitions board %s (number %d)", self._node.name, asked.board, asked.number)
            reason, self._node.inventory = await asyncio.to_thread(
                carry_out, self._node.layer, asked, self._node.inventory
            )
            self._ended(repartition, reason)

    def _ended(self, repartition: BoardRepartition, reason: str) -> None:
        if reason:
            log.warning("%s did not repartition board %s: %s", self._node.name, repartition.asked.board, reason)
        repartition.at, repartition.reason = self._node.now(), reason
        self._offer()
        self._report(repartition)

    def _offer(self) -> None:
        """Parts may use what the inventory has, less the instances that are about to go."""
        going = {
            name
            for repartition in self._repartitions.values()
            if repartition.at is None
            for name in repartition.asked.destroy
        }
        self._node.offer(frozenset(device.id for device in self._node.inventory.devices if device.id not in going))

    def _report(self, repartition: BoardRepartition) -> None:
        if self._node.dying:
            return
        self._node.tell(
            BoardCut(
                node=self._node.name,
                incarnation=self._node.incarnation,
                board=repartition.asked.board,
                number=repartition.asked.number,
                ok=not repartition.reason,
                reason=repartition.reason,
                inventory=self._node.inventory,
            )
        )
