"""Computes existing capacity, and the part held by attempts (I16): the sums that all accounts must have.

It shares no code with the accounts (`libs.core.billing.accounts`); `libs.ledger.audited` compares the two. Capacity is
counted in units, 7,000 per device. A MIG instance has its part of its board; a board counts whole, even if part of it
is in no instance.
"""

from collections.abc import Iterable
from typing import ClassVar

from libs.core.projections.verify.books import Books, Stage, Subject
from libs.core.projections.verify.limit_books import part_of_board
from schemas import ledger as led
from schemas.resources import WHOLE_MILLI, Claim, Inventory

_UNITS = 7000


class CapacityBooks(Subject):
    """Integrates offered and held capacity over ledger time."""

    handlers: ClassVar = {
        led.NodeJoined: "offered",
        led.BoardCutDone: "offered",
        led.NodeLeft: "left",
        led.DevicesFreed: "freed",
        led.DevicesFragmented: "split",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._nodes: dict[str, int] = {}
        self._units = 0
        self._since_us = 0
        self._existed = 0
        self._held = 0

    def offered(self, e: led.NodeJoined | led.BoardCutDone) -> None:
        self._set_offered(e.inventory.node, _units(e.inventory))

    def left(self, e: led.NodeLeft) -> None:
        self._set_offered(e.node, 0)

    def freed(self, e: led.DevicesFreed) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is not None:
            self._held += self._units_of(found[1].parts.get(e.node, ())) * (self.books.t_us - found[1].opened_us)

    def split(self, e: led.DevicesFragmented) -> None:
        """The accounts check that it is at most what is idle."""
        if (fragmented := sum(e.units.values())) > self._units:
            self.books.broken("I16", f"{fragmented} units are told to be fragmented, and there are {self._units}")
        if e.units and not any(job.stage is Stage.WAITING for job in self.books.jobs.values()):
            self.books.broken("I16", "devices are told to be fragmented, and no job waits")

    def finish(self) -> None:
        books, report = self.books, self.books.report
        report.capacity_unit_us = self._existed + self._units * (books.t_us - self._since_us)
        report.held_unit_us = self._held
        for open_now in (job.open for job in books.jobs.values() if job.open is not None):
            units = sum(map(self._units_of, open_now.parts.values()))
            report.held_unit_us += units * (books.t_us - open_now.opened_us)

    def _set_offered(self, node: str, units: int) -> None:
        self._existed += self._units * (self.books.t_us - self._since_us)
        self._since_us = self.books.t_us
        self._units += units - self._nodes.get(node, 0)
        self._nodes[node] = units

    def _units_of(self, claims: Iterable[Claim]) -> int:
        """Units of claims."""
        units = 0
        for claim in claims:
            row = self.books.devices.get(claim.device)
            units += int(_UNITS * part_of_board(*row.kind)) * claim.milli // WHOLE_MILLI if row is not None else 0
        return units


def _units(inventory: Inventory) -> int:
    total, boards = 0, {board.id: 0 for board in inventory.boards}
    for device in inventory.devices:
        part = int(_UNITS * part_of_board(device.model, device.mig_profile))
        if device.mig_profile and device.parent:
            boards[device.parent] = boards.get(device.parent, 0) + part
        else:
            total += part
    return total + sum(max(_UNITS, used) for used in boards.values())
