"""Repartitions of a node's MIG boards. Each request is tried once per life of the node, one board at a time, and its
result is reported until placement shows it. `services.agent.repartitions` checks and executes one."""

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
    """The node, for the owner of its boards."""

    inventory: Inventory
    layer: DeviceLayer

    def may_repartition(self) -> bool:
        """Whether a repartition may begin."""
        ...

    def busy(self) -> dict[str, int]:
        """Device -> thousandths held by parts."""
        ...

    def offer(self, devices: frozenset[str]) -> None:
        """Parts may use these devices from now on."""
        ...

    def tell(self, seen: BoardCut) -> None:
        """Reports to placement."""
        ...


@dataclass(eq=False, slots=True)
class BoardRepartition:
    """A repartition in this life, pending until `at`, the time of the last report. `reason`: why it failed."""

    asked: Recut
    begun: bool = False
    """The board may have changed from here on."""
    at: float | None = None
    reason: str = ""


class NodeBoards:
    """The repartitions of one node in its present life."""

    def __init__(self, node: BoardOwner) -> None:
        self._node = node
        self._repartitions: dict[tuple[str, int], BoardRepartition] = {}
        """(board, number) -> repartition; once no longer requested, it will not be requested again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_board = asyncio.Lock()
        """One board at a time, so that each report lists complete boards."""

    def begin(self) -> None:
        """Starts a new life without requests."""
        self._repartitions.clear()

    def follow(self, requests: Iterable[Recut], withdrawn: Iterable[Recut]) -> None:
        """Begins new repartitions, each once per life, and drops withdrawn ones that have not begun.

        A withdrawn one that has begun is answered when it ends, whatever the result. An answered one is reported again
        until placement shows it.
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
        """Reports results again that were last reported at least this many seconds ago."""
        now = self._node.now()
        for repartition in self._repartitions.values():
            if repartition.at is not None and now - repartition.at >= older_than_s:
                repartition.at = now
                self._report(repartition)

    async def settle(self) -> None:
        """Waits until nothing is pending. A new life must not begin with a board being repartitioned."""
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
        """Offers the inventory's devices, without instances about to be removed."""
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
