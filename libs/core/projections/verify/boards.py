"""Checks repartitions of boards (I8): only idle instances are removed, none of them is granted meanwhile, and each
request is answered once, in the life of the node that was asked."""

from dataclasses import dataclass
from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from schemas import ledger as led


@dataclass(slots=True)
class _OpenRepartition:
    """A pending repartition."""

    node: str
    number: int
    destroy: tuple[str, ...]
    withdrawn: bool = False


class Boards(Subject):
    """Tracks pending repartitions."""

    handlers: ClassVar = {
        led.BoardRecut: "asked",
        led.BoardCutDone: "cut",
        led.BoardRecutWithdrawn: "withdrawn",
        led.NodeJoined: "node_begins_anew",
        led.NodeLeft: "node_begins_anew",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._asked: dict[str, _OpenRepartition] = {}
        self._numbers: dict[str, int] = {}
        """Board -> number of its last repartition."""

    def asked(self, e: led.BoardRecut) -> None:
        books, board = self.books, e.recut.board
        self._present(e.node, e.incarnation, f"board {board} is to be repartitioned")
        if board in self._asked:
            books.broken("I8", f"board {board} is to be repartitioned while its last repartition is under way")
        if e.recut.number <= self._numbers.get(board, 0):
            books.broken("I8", f"repartition {e.recut.number} of board {board} follows {self._numbers[board]}")
        self._asked[board] = _OpenRepartition(e.node, e.recut.number, e.recut.destroy)
        self._numbers[board] = max(e.recut.number, self._numbers.get(board, 0))
        for device_id in e.recut.destroy:
            row = books.devices.get(device_id)
            if row is None or not books.offered(device_id, e.node):
                books.broken("I8", f"{device_id} is to be destroyed and is not of node {e.node}")
                continue
            if row.claims:
                books.broken("I8", f"{device_id} is to be destroyed while held by {', '.join(row.claims)}")
            if row.held_for:
                books.broken("I8", f"{device_id} is to be destroyed while held for {row.held_for}")
            row.going = board

    def cut(self, e: led.BoardCutDone) -> None:
        self._present(e.node, e.incarnation, f"board {e.board} is repartitioned")
        if e.inventory.node != e.node:
            self.books.broken("I8", f"node {e.node} repartitions a board with the inventory of {e.inventory.node}")
        asked = self._asked.get(e.board)
        if asked is None or asked.number != e.number or asked.node != e.node:
            self.books.broken(
                "I8", f"node {e.node} answers repartition {e.number} of board {e.board}, which was not asked"
            )
        self._forget(e.board)

    def withdrawn(self, e: led.BoardRecutWithdrawn) -> None:
        """The instances may be gone already, so none may be granted until the node reports its board."""
        self._present(e.node, e.incarnation, f"repartition {e.number} of board {e.board} is withdrawn")
        asked = self._asked.get(e.board)
        if asked is None or asked.number != e.number or asked.node != e.node or asked.withdrawn:
            self.books.broken("I8", f"repartition {e.number} of board {e.board} is withdrawn and was not under way")
        else:
            asked.withdrawn = True

    def node_begins_anew(self, e: led.NodeJoined | led.NodeLeft) -> None:
        if self._asked:
            node = e.node if isinstance(e, led.NodeLeft) else e.inventory.node
            for board in [board for board, asked in self._asked.items() if asked.node == node]:
                self._forget(board)

    def _forget(self, board: str) -> None:
        asked = self._asked.pop(board, None)
        for device in asked.destroy if asked is not None else ():
            row = self.books.devices.get(device)
            if row is not None:
                row.going = ""

    def _present(self, node: str, incarnation: int, what: str) -> None:
        row = self.books.nodes.get(node)
        if row is None or not row.up or row.incarnation != incarnation:
            self.books.broken("I8", f"{what} in a life of node {node} that is not its present one")
