"""The lives of nodes that the pool knows, and the right to grant leases: all that the service leases reads of the ledger.
Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from libs.core.state import parts
from schemas import ledger as led

NodeNews = led.NodeJoined | led.NodeLeft | led.NodeSilence | led.NodeHeard | led.GranterNamed


@dataclass(frozen=True, slots=True)
class GrantRight:
    """The right to grant leases, as the ledger's last word on it says. `epoch` 0: nobody had it yet.

    `term_s`: its holder grants for so long after it last saw the ledger name it; `max_lease_s`: no longer lease.
    """

    epoch: int = 0
    holder: str = ""
    term_s: float = 0.0
    max_lease_s: float = 0.0


class RecordedSilence(NamedTuple):
    """A silence, as the ledger has it. `seq`: the record that told it last."""

    seq: int
    since_us: int
    """When the node was heard last: it names the silence."""
    kept: bool
    """It keeps work that no silence ends."""
    ended_lease_s: float
    """Leases of at most this length have ended."""


class NodeLives:
    """Feed it every valid record; kinds of events that are not `handled` need not be understood."""

    version: ClassVar[int] = 2
    handled: ClassVar[frozenset[str]] = led.kinds_of(
        (led.NodeJoined, led.NodeLeft, led.NodeSilence, led.NodeHeard, led.GranterNamed)
    )
    ignored: ClassVar[frozenset[str]] = frozenset(led.EVENT_KINDS) - handled
    """Jobs, devices, quotas: a lease is a node's."""

    def __init__(self) -> None:
        self.up: dict[str, int] = {}
        """Node -> incarnation of its life."""
        self.left: dict[str, int] = {}
        """Node -> the last incarnation that is over."""
        self.silent: dict[str, RecordedSilence] = {}
        """Nodes that are not heard."""
        self.right = GrantRight()

    def apply(self, record: led.LedgerRecord, seq: int) -> tuple[NodeNews, ...]:
        """Folds a valid record; returns what it says about nodes and the right."""
        news: list[NodeNews] = []
        for event in record.events:
            match event:
                case led.NodeJoined():
                    self.up[event.inventory.node] = event.incarnation
                    self.silent.pop(event.inventory.node, None)
                case led.NodeLeft():
                    self.up.pop(event.node, None)
                    self.silent.pop(event.node, None)
                    self.left[event.node] = event.incarnation
                case led.NodeSilence():
                    known = self.silent.get(event.node)
                    since_us = record.t_us - int(event.silent_s * 1_000_000) if known is None else known.since_us
                    self.silent[event.node] = RecordedSilence(seq, max(0, since_us), event.kept, event.ended_lease_s)
                case led.NodeHeard():
                    self.silent.pop(event.node, None)
                case led.GranterNamed():
                    self.right = GrantRight(event.epoch, event.holder, event.term_s, event.max_lease_s)
                case _:
                    continue
            news.append(event)
        return tuple(news)

    def skip(self, seq: int) -> None:
        """A void record says nothing."""

    def dump(self) -> Iterator[bytes]:
        right = self.right
        return parts.write(
            {"right": [right.epoch, right.holder, right.term_s, right.max_lease_s]},
            {
                "up": self.up.items(),
                "left": self.left.items(),
                "silent": ((node, *how) for node, how in self.silent.items()),
            },
        )

    @classmethod
    def load(cls, dumped: Iterable[bytes]) -> "NodeLives":
        made = cls()
        about, tables = parts.read(dumped)
        made.right = GrantRight(*about["right"])
        for table, rows in tables:
            into: Any = {"up": made.up, "left": made.left, "silent": made.silent}[table]
            into.update((row[0], row[1] if len(row) == 2 else RecordedSilence(*row[1:])) for row in rows)
        return made
