"""What devices share (I1): processors and host memory of a node, power of a leaf, at the moment that they are taken."""

from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from schemas import ledger as led


class Hosts(Subject):
    """Looks after each grant whether its nodes and leaves can serve it."""

    handlers: ClassVar = {led.NodeJoined: "joined", led.JobGranted: "granted", led.DevicesFreed: "freed"}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._capped = False
        """A node declared a power cap: only then leaves are looked at."""

    def joined(self, e: led.NodeJoined) -> None:
        self._capped |= bool(e.inventory.rack_power_w)

    def granted(self, e: led.JobGranted) -> None:
        books = self.books
        leaves = set()
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

    def _power(self, leaf: tuple[str, str, str]) -> None:
        """A leaf's power cap is the smallest that a node of it declares; a share of a device draws its part of the limit."""
        books = self.books
        caps = [node.rack_w for node in books.nodes.values() if node.leaf == leaf and node.rack_w]
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
        for claim in found[1].parts.get(e.node, ()):
            node.used_cpu -= claim.cpu_milli
            node.used_mib -= claim.host_memory_mib

    def finish(self) -> None:
        for name, node in self.books.nodes.items():
            if node.used_cpu < 0 or node.used_mib < 0:
                self.books.broken("I8", f"{name} ends with {node.used_cpu} milli and {node.used_mib} MiB in use")
