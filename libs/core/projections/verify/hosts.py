"""Checks shared resources when they are taken (I1): processors and host memory of a node, power of a leaf, and the
number of parts on a node: one that is full throughout a decision gets no grant in it. Ledgers from before records
declared a format predate the bound on parts."""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from schemas import ledger as led

MOST_PARTS = 4096
"""The most parts on one node."""
MOST_AT_ONCE = 1024
"""Parts that one decision may grant beyond it, since its cycle started with room."""


class Hosts(Subject):
    """Checks after each grant that its nodes and leaves can carry it."""

    handlers: ClassVar = {led.NodeJoined: "joined", led.JobGranted: "granted", led.DevicesFreed: "freed"}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._capped = False
        """Whether any node declared a power cap; only then are leaves checked."""
        self._fewest: dict[str, int] = {}
        """Node -> the fewest parts during this decision, for nodes where any started or ended."""

    def joined(self, e: led.NodeJoined) -> None:
        self._capped |= bool(e.inventory.rack_power_w)

    def granted(self, e: led.JobGranted) -> None:
        books = self.books
        leaves = set()
        for name in {claim.node for claim in e.claims}:
            self._part(name)
        for claim in e.claims:
            node = books.nodes.get(claim.node)
            if node is None:
                continue
            leaves.add(node.leaf)
            node.used_cpu += claim.cpu_milli
            node.used_mib += claim.host_memory_mib
            if claim.cpu_milli and node.used_cpu > node.cpu_milli:
                books.broken("I1", f"{node.name} has {node.cpu_milli} milli of processors, {node.used_cpu} are granted")
            if claim.host_memory_mib and node.used_mib > node.memory_mib:
                books.broken("I1", f"{node.name} has {node.memory_mib} MiB of host memory, {node.used_mib} are granted")
        if self._capped:
            for leaf in leaves:
                self._power(leaf)

    def _part(self, name: str) -> None:
        node = self.books.nodes.get(name)
        if node is None:
            return
        fewest = self._fewest.setdefault(name, node.parts)
        node.parts += 1
        if self.books.format is not None and (fewest >= MOST_PARTS or node.parts > MOST_PARTS + MOST_AT_ONCE):
            self.books.broken("I1", f"{name} is granted its part {node.parts}, and runs {MOST_PARTS} at the most")

    def _power(self, leaf: tuple[str, str, str]) -> None:
        """A leaf's power cap is the smallest that any of its nodes that are up declares. A share of a device counts its
        part of the device's limit."""
        books = self.books
        caps = [node.rack_w for node in books.nodes.values() if node.leaf == leaf and node.rack_w and node.up]
        if not caps:
            return
        drawn_mw = sum(
            row.about.power_limit_w * sum(claim.milli for claim in row.claims.values())
            for row in books.devices.values()
            if row.claims and row.node in books.nodes and books.nodes[row.node].leaf == leaf
        )
        if drawn_mw > min(caps) * 1000:
            drawn = f"granted devices draw {drawn_mw / 1000:g}"
            books.broken("I1", f"leaf {'/'.join(leaf)} may draw {min(caps)} W, {drawn}")

    def freed(self, e: led.DevicesFreed) -> None:
        found, node = self.books.attempt(e.job_id, e.attempt), self.books.nodes.get(e.node)
        if found is None or node is None:
            return
        claims = found[1].parts.get(e.node, ())
        for claim in claims:
            node.used_cpu -= claim.cpu_milli
            node.used_mib -= claim.host_memory_mib
        if claims:
            node.parts -= 1
            self._fewest[e.node] = min(node.parts, self._fewest.get(e.node, node.parts))

    def end(self) -> None:
        if self._fewest and not self.books.more:
            self._fewest.clear()

    def finish(self) -> None:
        for name, node in self.books.nodes.items():
            if node.used_cpu < 0 or node.used_mib < 0:
                self.books.broken("I8", f"{name} ends with {node.used_cpu} milli and {node.used_mib} MiB in use")
