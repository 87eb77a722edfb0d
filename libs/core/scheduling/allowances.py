"""Limits on what one node can add to the ledger and to its readers' memory: rate limits and totals per node.

A node reports about itself, but may be hostile: its reports are checked like anybody's, and each refusal is stored, too, in
the ledger and as a dead letter. Each life of a node is a record with all its devices, and a device's id is kept for ever,
because its epochs must go on. So each of these is limited per node. The counters are in the writer's memory and not folded: a
writer that takes over begins anew, but sees the devices that exist. An input that is decided again, because its decision was
not stored (the ledger was full, another writer had written), gets the same answer, and is not counted twice.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from libs.core.state.fleet import Fleet
from schemas.resources import Inventory

REJECTED, REJECTED_PER_S = 100.0, 1.0
"""Inputs of one node that are rejected with a word in the ledger: at once, and for ever. The others are counted in the next."""
LIVES, LIVES_PER_S = 20.0, 1 / 60
"""Lives that a node may begin. An agent whose registration is refused says it again every few seconds."""
QUARANTINES, QUARANTINES_PER_S = 200.0, 1.0
"""Devices that a node may say to be used by others, or no more: each is an event of the ledger. At least one with each message;
of one that names more, all."""
NODE_DEVICES = 65_536
"""Ids of devices that one node may ever have had. Each cut of a MIG board makes up to seven."""
NAMES, NAMES_PER_S = 65_536.0, 1 / 60
"""Names of places, models, profiles, islands and tori of which no node has told yet, that one may bring: kept for ever, too."""
POOL_DEVICES = 2_000_000
POOL_NODES = 100_000
A = TypeVar("A")

_KEPT = 20_000
"""Nodes of which it is known what they have used up: those that used some last."""


@dataclass(slots=True)
class _Used:
    """Tokens of one kind that are left, as of `t_us`."""

    left: float
    t_us: int

    def take(self, most: float, per_s: float, t_us: int, count: int) -> bool:
        self.left = min(most, self.left + max(0, t_us - self.t_us) / 1e6 * per_s)
        self.t_us = max(self.t_us, t_us)
        if self.left < count:
            return False
        self.left -= count
        return True


@dataclass(slots=True)
class NodeAllowances:
    """Of one writer. `node_devices`: see `NODE_DEVICES`."""

    node_devices: int = NODE_DEVICES
    unwritten: int = 0
    """Rejected inputs of which the ledger has no word of their own."""
    _used: OrderedDict[tuple[str, str], _Used] = field(default_factory=OrderedDict)
    _left_out: dict[str, int] = field(default_factory=dict)
    _input: int = 0
    _answers: dict[tuple[int, str, str], Any] = field(default_factory=dict)
    """Of inputs whose decision may have to be made again: sequence, node, what was asked -> the answer."""

    def decide(self, inbox_seq: int) -> None:
        """A decision begins behind this input: up to it everything is stored, and not asked for again."""
        self._input = 0
        self._answers = {asked: answer for asked, answer in self._answers.items() if asked[0] > inbox_seq}

    def judge(self, inbox_seq: int) -> None:
        """What follows is asked of this input."""
        self._input = inbox_seq

    def rejects(self, node: str, t_us: int) -> int | None:
        """How many rejections of `node` had no word of their own since its last one; None: neither has this one."""
        return self._once(node, "rejected", lambda: self._rejects(node, t_us))

    def _rejects(self, node: str, t_us: int) -> int | None:
        if not self._take(node, "rejected", REJECTED, REJECTED_PER_S, t_us):
            self.unwritten += 1
            if node in self._left_out or len(self._left_out) < _KEPT:
                self._left_out[node] = self._left_out.get(node, 0) + 1
            return None
        return self._left_out.pop(node, 0)

    def begins(self, node: str, t_us: int) -> str:
        """Why `node` may not begin another life; "" when it may: then it has."""
        if self._once(node, "lives", lambda: self._take(node, "lives", LIVES, LIVES_PER_S, t_us)):
            return ""
        return (
            f"node {node} has begun {LIVES:g} lives and may begin one a minute: see why its agent starts again and again, or "
            f"`baton node revoke {node}`"
        )

    def offers(self, fleet: Fleet, inventory: Inventory, t_us: int) -> str:
        """Why a node may not have these devices: too many that nobody has heard of, or too many other names; "" when it
        may: then it has brought them."""
        name = inventory.node
        if name not in fleet.nodes and len(fleet.nodes) >= POOL_NODES:
            return f"node {name}: the pool has had {len(fleet.nodes)} nodes and keeps no more names: begin a new pool"
        new = sum(fleet.devices.find(device.id) < 0 for device in inventory.devices)
        if new and (had := fleet.had(name)) + new > self.node_devices:
            return (
                f"node {name} has had {had} devices and offers {new} that are new; ids are kept for ever, of one node "
                f"{self.node_devices}: give the machine another node name (`baton credentials --nodes`), or raise "
                "BATON_PLACEMENT_NODE_DEVICES"
            )
        if new and len(fleet) + new > POOL_DEVICES:
            return f"node {name}: the pool has had {len(fleet)} devices and keeps no more ids: begin a new pool"
        names = fleet.new_names(inventory)
        if not names or self._once(name, "names", lambda: self._take(name, "names", NAMES, NAMES_PER_S, t_us, names)):
            return ""
        return (
            f"node {name} has brought {NAMES:g} names of models, islands, tori and places, which are kept for ever, and may "
            f"bring one a minute: see why they change at each start, or `baton node revoke {name}`"
        )

    def quarantines(self, node: str, devices: int, t_us: int) -> str:
        """Why `node` may not say that others use so many `devices`, or no more; "" when it may: then it has."""
        count = int(min(max(1, devices), QUARANTINES))
        if self._once(
            node, "quarantines", lambda: self._take(node, "quarantines", QUARANTINES, QUARANTINES_PER_S, t_us, count)
        ):
            return ""
        return (
            f"node {node} has said of {QUARANTINES:g} devices that others use them, or no more, and may say it of one a "
            "second: see what uses its devices"
        )

    def _once(self, node: str, what: str, answer: Callable[[], A]) -> A:
        """The answer to this input, as it was when it was first asked for."""
        if not self._input:
            return answer()
        asked = (self._input, node, what)
        if asked not in self._answers:
            self._answers[asked] = answer()
        given: A = self._answers[asked]
        return given

    def _take(self, node: str, what: str, most: float, per_s: float, t_us: int, count: int = 1) -> bool:
        key = (node, what)
        used = self._used.setdefault(key, _Used(most, t_us))
        self._used.move_to_end(key)
        if len(self._used) > _KEPT:
            self._used.popitem(last=False)
        return used.take(most, per_s, t_us, count)
