"""Checks nodes and leases (I8): a node's lives follow each other, a lease ends only when the node leaves, and a node
that leaves or starts a new life holds nothing."""

from collections.abc import Iterator
from typing import ClassVar

from libs.core.projections.verify.books import Books, JobRow, NodeRow, Promises, SilentRow, Subject
from libs.core.state.formats import FORMAT_OF
from schemas import ledger as led
from schemas.attempts import Evidence
from schemas.ids import split_attempt_id
from schemas.resources import Inventory

_LEAVES = frozenset({Evidence.LEASE_ENDED, Evidence.NODE_LEFT})


class Nodes(Subject):
    """Keeps a row per node."""

    handlers: ClassVar = {
        led.NodeJoined: "joined",
        led.NodeLeft: "left",
        led.BoardCutDone: "cut",
        led.DevicesFreed: "freed",
        led.JobGranted: "granted",
        led.NodeSilence: "silence",
        led.NodeHeard: "heard",
        led.NodeDeclaredDead: "dead",
        led.GranterNamed: "granter",
        led.NodeCordoned: "cordoned",
        led.NodeUncordoned: "uncordoned",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._leaves = Promises(books, "a part on node {} ended with its node, and the node does not leave")
        self._anew = Promises(books, "a part on node {} ended with its life, and the node does not begin a new one")
        self._dead: set[str] = set()
        """Nodes declared dead that have not left yet."""
        self._reported_silent: set[str] = set()
        """Nodes whose silence this decision reports."""
        self._epoch = 0
        self._ticked_us: int | None = None
        """Time of the last tick, us of ledger time; None: none yet."""
        self._now_us = 0
        """An upper bound of the time: after a long pause, or in a restored ledger, inputs advance time little by little
        at first."""
        self._term_us = 0
        """Term of the granter of leases."""
        self._deaf_us = 0
        """Until then the previous granter may have renewed leases unknown to this one."""

    def begin(self, record: led.LedgerRecord) -> None:
        mark, self._now_us = record.clock, record.t_us
        if mark is not None:
            self._ticked_us = mark.t_us
            if record.wall_us is not None:
                self._now_us = max(record.t_us, mark.t_us + record.wall_us - mark.wall_us)

    def joined(self, e: led.NodeJoined) -> None:
        name, known = e.inventory.node, self.books.nodes.get(e.inventory.node)
        if known is not None and e.incarnation <= known.incarnation:
            self.books.broken("I8", f"node {name} joins with incarnation {e.incarnation} after {known.incarnation}")
        self.books.silent.pop(name, None)
        self._dead.discard(name)
        row = _row(e.inventory, e.incarnation)
        self.books.nodes[name] = row
        self._anew.keep(name)
        if self._leaves.keep(name):
            self.books.broken("I8", f"node {name} joins, and its parts were freed because it left")
        if known is not None:
            row.used_cpu, row.used_mib, row.parts = known.used_cpu, known.used_mib, known.parts
            self._holds_nothing(known, "joins")
        for device in row.offered - (known.offered if known is not None else frozenset()):
            if (found := self.books.devices.get(device)) is not None and found.claims:  # it was another node's so far
                self.books.broken("I8", f"node {name} joins while {device} is held by {', '.join(found.claims)}")

    def left(self, e: led.NodeLeft) -> None:
        row = self.books.nodes.get(e.node)
        if row is None or not row.up or row.incarnation != e.incarnation:
            present = f"its life is {row.incarnation}, {'up' if row.up else 'gone'}" if row else "it never joined"
            self.books.broken("I8", f"node {e.node} leaves in life {e.incarnation}; {present}")
        self._leaves.keep(e.node)
        if self._anew.keep(e.node):
            self.books.broken("I8", f"node {e.node} leaves, and its parts were freed because it began a new life")
        self.books.silent.pop(e.node, None)
        self._dead.discard(e.node)
        if row is not None:
            row.incarnation, row.up = max(row.incarnation, e.incarnation), False
            self._holds_nothing(row, "leaves")

    def cut(self, e: led.BoardCutDone) -> None:
        """The node has a new inventory; held devices stay held, and exist."""
        row = self.books.nodes.get(e.inventory.node)
        if row is None:
            return  # `boards` reports that it is not up
        new = _row(e.inventory, row.incarnation)
        new.up, new.used_cpu, new.used_mib, new.parts = row.up, row.used_cpu, row.used_mib, row.parts
        self.books.nodes[row.name] = new
        for device in row.offered - new.offered:
            known = self.books.devices.get(device)
            if known is not None and known.claims:
                holders = ", ".join(known.claims)
                self.books.broken("I8", f"{device} is gone from node {row.name} while held by {holders}")

    def freed(self, e: led.DevicesFreed) -> None:
        row = self.books.nodes.get(e.node)
        if row is None or not row.up:
            self.books.broken("I8", f"node {e.node} frees devices and is not up")
        if e.evidence is Evidence.LEASE_ENDED and e.node not in self._dead and not self._reason_says_dead(e):
            self._surely_silent(e.node, e.silent_s or 0)
            job = self.books.jobs.get(e.job_id)
            if job is not None and not job.lease_s:
                self.books.broken("I8", f"{e.job_id} is kept, and silence of node {e.node} ends it")
            silence = self.books.silent.get(e.node)
            if silence is not None and job is not None:
                if silence.kept and job.lease_s:
                    return  # the node's own lease ended; it may be shorter than the class's
                recorded = self.books.format is None or silence.ended_lease_s >= job.lease_s
                # Inputs that waited in the inbox are decided late and together, so ledger time shows a shorter span
                # than the actual one.
                shown_s = (self.books.t_us - silence.since_us) / 1e6
                if recorded and (e.silent_s if e.silent_s is not None else shown_s) >= job.lease_s:
                    return  # its own lease was shorter than the node's
        if e.evidence in _LEAVES:
            self._leaves.make(e.node)
        elif e.evidence is Evidence.NEW_INCARNATION:
            self._anew.make(e.node)

    def _reason_says_dead(self, e: led.DevicesFreed) -> bool:
        """The reason says that the node was declared dead; older readers have no event for that."""
        older = (self.books.format or 0) < FORMAT_OF["node.declared-dead"]
        return older and e.reason.startswith(led.DECLARED_DEAD)

    def granted(self, e: led.JobGranted) -> None:
        if self._leaves or self._anew:
            for node in {claim.node for claim in e.claims}:
                if node in self._leaves or node in self._anew:
                    self.books.broken(
                        "I8", f"{e.job_id} is granted devices of node {node}, whose parts have ended with it"
                    )
        if self.books.silent:
            for node in {claim.node for claim in e.claims} & self.books.silent.keys():
                self.books.broken("I8", f"{e.job_id} is granted devices of node {node}, which is not heard")

        if self.books.cordoned:
            for node in {claim.node for claim in e.claims} & self.books.cordoned:
                self.books.broken("I8", f"{e.job_id} is granted devices of node {node}, which is out of use")

    def cordoned(self, e: led.NodeCordoned) -> None:
        if e.node in self.books.cordoned or e.node not in self.books.nodes:
            self.books.broken("I8", f"node {e.node} is taken out of use, and it is already, or never joined")
        self.books.cordoned.add(e.node)

    def uncordoned(self, e: led.NodeUncordoned) -> None:
        if e.node not in self.books.cordoned:
            self.books.broken("I8", f"node {e.node} is put into use, and was not out of it")
        self.books.cordoned.discard(e.node)

    def silence(self, e: led.NodeSilence) -> None:
        self._same_life(e.node, e.incarnation, "silent")
        self._surely_silent(e.node, e.silent_s)
        known = self.books.silent.get(e.node)
        if known is not None and (known.kept or not (e.kept or e.ended_lease_s > known.ended_lease_s)):
            self.books.broken("I8", f"node {e.node} falls silent, and was silent already")
        since_us = known.since_us if known is not None else self.books.t_us - int(e.silent_s * 1_000_000)
        if not e.kept and e.ended_lease_s > e.silent_s:
            what = f"leases of {e.ended_lease_s:g} s have ended there"
            self.books.broken("I8", f"node {e.node} is silent for {e.silent_s:g} s, and {what}")
        if e.kept and all(job.lease_s for job in self._jobs_on(e.node)):
            self.books.broken("I8", f"node {e.node} is told to keep work, and has none that is kept")
        self._reported_silent.add(e.node)
        self.books.silent[e.node] = SilentRow(since_us, e.kept, e.ended_lease_s)

    def heard(self, e: led.NodeHeard) -> None:
        self._same_life(e.node, e.incarnation, "heard again")
        if e.node not in self.books.silent:
            self.books.broken("I8", f"node {e.node} is heard again, and was not silent")
        self.books.silent.pop(e.node, None)

    def dead(self, e: led.NodeDeclaredDead) -> None:
        self._same_life(e.node, e.incarnation, "declared dead")
        if e.node not in self.books.silent or e.node in self._dead:
            self.books.broken("I8", f"node {e.node} is declared dead, and it is {_how(e.node in self._dead)}")
        self._dead.add(e.node)
        self._leaves.make(e.node)

    def granter(self, e: led.GranterNamed) -> None:
        if e.epoch != self._epoch + 1:
            self.books.broken("I8", f"leases are granted in epoch {e.epoch} after {self._epoch}")
        if self._epoch:  # the first named granter knows of earlier silence until it is decided
            named_us = self.books.t_us if self._ticked_us is None else min(self._ticked_us, self.books.t_us)
            self._deaf_us = max(self._deaf_us, named_us + self._term_us)
        self._epoch, self._term_us = max(self._epoch, e.epoch), int(e.term_s * 1_000_000)

    def _surely_silent(self, node: str, silent_s: float) -> None:
        """A granter counts a node's silence from the end of its predecessor's term."""
        if self._deaf_us and self._now_us - int(silent_s * 1_000_000) < self._deaf_us:
            what = f"was silent for {silent_s:g} s" if silent_s else "has lost its leases"
            self.books.broken("I8", f"node {node} {what}, and who granted them before may have renewed them since")

    def _same_life(self, node: str, incarnation: int, what: str) -> None:
        row = self.books.nodes.get(node)
        if row is None or not row.up or row.incarnation != incarnation:
            self.books.broken("I8", f"node {node} is {what} in life {incarnation}, which it does not live")

    def _jobs_on(self, node: str) -> Iterator[JobRow]:
        """Jobs that hold something on a node."""
        row = self.books.nodes.get(node)
        for device in row.offered if row is not None else ():
            for name in self.books.devices[device].claims:
                job = self.books.jobs.get(split_attempt_id(name)[0])
                if job is not None:
                    yield job

    def _check_leases_ended(self) -> None:
        """Parts whose leases are recorded as ended must be freed by the same decision."""
        for node in self._reported_silent:
            silence = self.books.silent.get(node)
            if silence is None:
                continue
            for job in self._jobs_on(node):
                if 0 < job.lease_s <= silence.ended_lease_s or (silence.kept and job.lease_s):
                    lease = f"its lease of {job.lease_s:g} s has ended there"
                    self.books.broken("I8", f"{job.id} holds devices of node {node}, and {lease}")
        self._reported_silent.clear()

    def end(self) -> None:
        if self._reported_silent and not self.books.more:
            self._check_leases_ended()
        if self._leaves or self._anew:
            self._leaves.check("I8")
            self._anew.check("I8")

    def _holds_nothing(self, row: NodeRow, what: str) -> None:
        for device in row.offered:
            known = self.books.devices.get(device)
            if known is None or known.node != row.name:
                continue
            if known.claims:
                self.books.broken("I8", f"node {row.name} {what} while {device} is held by {', '.join(known.claims)}")
            if known.held_for:
                self.books.broken("I8", f"node {row.name} {what} while {device} is held for {known.held_for}")


def _how(dead: bool) -> str:
    return "dead already" if dead else "heard"


def _row(inventory: Inventory, incarnation: int) -> NodeRow:
    where = inventory.position
    return NodeRow(
        name=inventory.node,
        incarnation=incarnation,
        up=True,
        offered=frozenset(device.id for device in inventory.devices),
        labels=dict(inventory.labels),
        leaf=(where.zone, where.spine, where.leaf),
        simulated=inventory.simulated,
        cpu_milli=inventory.cpus * 1000,
        memory_mib=inventory.memory_mib,
        rack_w=inventory.rack_power_w,
    )
