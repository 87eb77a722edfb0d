"""The fleet as numpy arrays, one row per device and one per node. Placement searches these.

A device keeps its row for ever, and rows are found by device id. The row of a device that is gone is not `up`. Compute
is counted in milli (1,000 is the whole device), memory in MiB. `free_*` never go below zero: a ledger that would make
them so is corrupt, and the fold stops there.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.core.state.inventory import boards_of, few_layouts, island_of, torus_of, usable_mib
from libs.core.state.own_network import labels_of
from schemas.resources import (
    NAMED_ONLY,
    WHOLE_MILLI,
    Claim,
    Device,
    Inventory,
    MigBoard,
    kind_of,
)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Overcommitted(ValueError):
    """A grant beyond the capacity of a device or node, or the freeing of something that was not granted."""


class Index:
    """Names to small integers (codes), in the order in which they first came."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}
        for name in names:
            self.code(name)

    def code(self, name: str) -> int:
        """The code of `name`, given one if it is new."""
        known = self._codes.get(name)
        if known is None:
            known = self._codes[name] = len(self.names)
            self.names.append(name)
        return known

    def find(self, name: str) -> int:
        """The code of `name`, or -1."""
        return self._codes.get(name, -1)

    def codes(self, names: Iterable[str]) -> Ints:
        """The codes of all of them, shape (n,). Raises KeyError naming the first that has none."""
        return np.fromiter(map(self._codes.__getitem__, names), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True)
class FleetNode:
    """A node of the pool. `rows` are its devices' rows in index order."""

    name: str
    labels: dict[str, str]
    packed: bytes
    """The inventory, as compressed JSON. What a search needs is in the fleet's arrays; as objects the inventories would take
    more memory than everything else together."""
    incarnation: int
    up: bool
    rows: list[int] = field(default_factory=list)
    boards: frozenset[str] = frozenset()
    """Ids of all its MIG boards."""

    @classmethod
    def of(cls, inventory: Inventory, incarnation: int, rows: list[int]) -> "FleetNode":
        packed = zlib.compress(inventory.model_dump_json(exclude_defaults=True).encode(), level=1)
        labels, boards = labels_of(inventory), frozenset(boards_of(inventory))
        return cls(inventory.node, labels, packed, incarnation, up=True, rows=rows, boards=boards)

    @property
    def inventory(self) -> Inventory:
        """What the node last told."""
        return Inventory.model_validate_json(zlib.decompress(self.packed))


@dataclass(frozen=True, slots=True)
class Board:
    """A MIG board that may be repartitioned. `rows`: its instances, row of the fleet -> (profile, first memory slice)."""

    node: str
    board: MigBoard
    rows: dict[int, tuple[str, int]]


_NO_ROW = -1
NEVER_US = 1 << 61
"""Later than all times that a ledger has; two of them added are still an int64."""


class Fleet:
    """All devices and nodes of a pool.

    Arrays over devices (shape (D,), D >= devices: spare rows are not `up`): `node`, `model`, `profile`, `domain` (codes;
    `domain` is the NVLink island, which a fabric joins over nodes, or -1), `runtime` (code), `memory_mib` (usable),
    `power_w` (board limit), `index`, `free_milli`, `free_mib`, `epoch`, `up`, `cpu` (granted only to jobs that name it),
    `held` (position of its beneficiary in `State.holds`, or -1), `torus` (code of a TPU chip's torus, or -1) and its
    coordinates `t0`, `t1`, `t2` (0 along axes that the torus has not).
    Of those that are held whole (`libs.core.state.team_claims`): `holder` (number of the team, 0: nobody holds it whole),
    `since_us` (when it was granted), `end_us` (by when it is given back; 0: nobody holds it whole, `NEVER_US` or more: its
    job has no time limit), `beside_cpu` and `beside_host` (what is held of its node beside it).
    Arrays over nodes (shape (N,)): `leaf`, `spine`, `zone` (codes), `simulated` (0 or 1), `cpu_milli` and `host_mib`
    (what the node has), `free_cpu` and `free_host` (what of it no claim holds), `rack_w` (the power cap that it declares
    for its leaf, watts, 0: none, or it is not up), `fetch_mib_s`.
    """

    def __init__(self) -> None:
        self.devices = Index()
        self.models = Index()
        self.profiles = Index([""])
        self.domains = Index()
        self.runtimes = Index()
        self.tori = Index()
        self.torus_shapes: dict[int, tuple[int, ...]] = {}
        """Chips along each axis, by torus code."""
        self.leaves, self.spines, self.zones = Index(), Index(), Index()
        self.nodes: dict[str, FleetNode] = {}
        self.node_names = Index()
        self.content_nodes: dict[str, set[int]] = {}
        """Content name -> codes of the nodes that have it on their disk."""
        self.boards: dict[str, Board] = {}
        """Boards that may be repartitioned, by id, of nodes that are up or were."""
        self.board_of: dict[int, str] = {}
        """Row of an instance of such a board -> the board's id."""
        self._board_nodes: dict[str, str] = {}
        """Any board -> the node that named it last."""
        self.full: set[int] = set()
        """Codes of nodes that run as many parts as a node may: nothing new is granted there."""
        self.lasting: dict[Any, Any] = {}
        self.lasting_version = -1
        """What the constraints that do not pass leave, by kind of request (`placement.constraints`)."""
        self.scorer: Any = None
        """The placer's scorer (`libs.core.placement.score.scorer`), where there is one: views of this fleet carry it."""
        self._capacity: tuple[int, dict[str, int]] = (-1, {})
        self.version = 0
        """Grows when nodes or devices come or go: whoever caches something derived from the shape compares it."""
        for name in _DEVICE_COLUMNS:
            setattr(self, name, np.zeros(0, dtype=_DEVICE_COLUMNS[name]))
        for name in _NODE_COLUMNS:
            setattr(self, name, np.zeros(0, dtype=np.int64))

    node: Ints
    model: Ints
    profile: Ints
    domain: Ints
    runtime: Ints
    power_w: Ints
    index: Ints
    memory_mib: Ints
    free_milli: Ints
    free_mib: Ints
    epoch: Ints
    holder: Ints
    beside_cpu: Ints
    beside_host: Ints
    since_us: Ints
    end_us: Ints
    up: Bools
    cpu: Bools
    held: Ints
    torus: Ints
    t0: Ints
    t1: Ints
    t2: Ints
    leaf: Ints
    spine: Ints
    zone: Ints
    simulated: Ints
    cpu_milli: Ints
    host_mib: Ints
    free_cpu: Ints
    free_host: Ints
    rack_w: Ints
    fetch_mib_s: Ints

    def __len__(self) -> int:
        return len(self.devices)

    def join(self, inventory: Inventory, incarnation: int) -> FleetNode:
        """A node offers its devices (again). Devices that it no longer has are not `up` any more."""
        self.version += 1
        node_code = self._node_row(inventory)
        rows = [self._device_row(device, node_code, inventory.node) for device in inventory.devices]
        old = self.nodes.get(inventory.node)
        node = FleetNode.of(inventory, incarnation, rows)
        if old is not None:
            self.up[old.rows] = False
            for gone in old.boards - node.boards:
                if self._board_nodes.get(gone) == node.name:
                    del self._board_nodes[gone]
        self.up[rows] = True
        self._board_nodes.update(dict.fromkeys(node.boards, node.name))
        self.nodes[inventory.node] = node
        self._set_boards(inventory, rows)
        return node

    def leave(self, name: str) -> None:
        """A node's devices are gone until it joins again, and so is what it says of its leaf's power."""
        self.version += 1
        node = self.nodes[name]
        node.up = False
        self.up[node.rows] = False
        self.rack_w[self.node_names.find(name)] = 0

    def owner(self, id: str) -> str:
        """The node that is up and has a device, or a MIG board, of this id; "": none."""
        row = self.devices.find(id)
        if row != _NO_ROW and self.up[row]:
            return self.node_names.names[int(self.node[row])]
        known = self.nodes.get(self._board_nodes.get(id, ""))
        return known.name if known is not None and known.up else ""

    def new_names(self, inventory: Inventory) -> int:
        """How many names it has that no node had before, of those that are kept for ever beside ids of devices."""
        where, node = inventory.position, inventory.node
        found = [
            (self.zones, where.zone),
            (self.spines, f"{where.zone}/{where.spine}"),
            (self.leaves, f"{where.zone}/{where.spine}/{where.leaf}"),
        ]
        for device in inventory.devices:
            found += (self.models, device.model), (self.profiles, device.mig_profile)
            found += (self.domains, island_of(device, node)), (self.tori, torus_of(device))
        return len({(id(index), name) for index, name in found if name and index.find(name) < 0})

    def had(self, node: str) -> int:
        """How many devices were last seen at `node`, those that it has now among them."""
        code = self.node_names.find(node)
        return 0 if code < 0 else int(np.count_nonzero(self.node[: len(self)] == code))

    def row(self, device: str) -> int:
        """Raises KeyError naming a device that the pool has never had."""
        found = self.devices.find(device)
        if found == _NO_ROW:
            raise KeyError(f"no device {device!r} in this pool")
        return found

    def rows_of(self, claims: Iterable[Claim]) -> Ints:
        """The rows of claimed devices, shape (n,). Raises KeyError naming a device that the pool has never had."""
        return self.devices.codes(claim.device for claim in claims)

    def adopt(self, device: str) -> int:
        """A row for a device that no node has now (from a snapshot); it is not `up`."""
        row = self.devices.code(device)
        if row == len(self.node):
            self._grow(_DEVICE_COLUMNS)
        self.held[row] = self.torus[row] = -1
        return row

    def take(self, claims: Iterable[Claim]) -> None:
        """Subtracts a grant. Raises Overcommitted, naming the device, before anything is changed."""
        taken = [(self.row(c.device), c) for c in claims]
        for row, c in taken:
            if self.free_milli[row] < c.milli or self.free_mib[row] < c.memory_mib or not self.up[row]:
                raise Overcommitted(
                    f"{c.device}: {c.milli} milli and {c.memory_mib} MiB asked of "
                    f"{self.free_milli[row]} milli and {self.free_mib[row]} MiB free (up: {bool(self.up[row])})"
                )
            if c.epoch <= self.epoch[row]:
                raise Overcommitted(f"{c.device}: epoch {c.epoch} does not grow beyond {self.epoch[row]}")
        self._check_hosts(taken)
        for row, c in taken:
            self.free_milli[row] -= c.milli
            self.free_mib[row] -= c.memory_mib
            self.epoch[row] = c.epoch
        self.occupy_hosts(c for _, c in taken)

    def occupy_hosts(self, claims: Iterable[Claim]) -> None:
        """Subtracts the processors and host memory of claims, of whose devices the rest is already taken."""
        for c in claims:
            if c.cpu_milli or c.host_memory_mib:
                at = self.node_names.find(c.node)
                self.free_cpu[at] -= c.cpu_milli
                self.free_host[at] -= c.host_memory_mib

    def give_back(self, claims: Iterable[Claim]) -> None:
        """Adds back what a node's evidence freed. Raises Overcommitted when more than the device has would be free."""
        for c in claims:
            row = self.row(c.device)
            self.free_milli[row] += c.milli
            self.free_mib[row] += c.memory_mib
            if self.free_milli[row] > WHOLE_MILLI or self.free_mib[row] > self.memory_mib[row]:
                raise Overcommitted(f"{c.device}: freed twice ({self.free_milli[row]} milli would be free)")
            if not c.cpu_milli and not c.host_memory_mib:
                continue
            at = self.node_names.find(c.node)
            self.free_cpu[at] += c.cpu_milli
            self.free_host[at] += c.host_memory_mib
            if self.free_cpu[at] > self.cpu_milli[at] or self.free_host[at] > self.host_mib[at]:
                raise Overcommitted(f"{c.node}: more processors or host memory are freed than it has")

    def _check_hosts(self, taken: list[tuple[int, Claim]]) -> None:
        """Raises Overcommitted, naming the node whose processors or host memory would not suffice."""
        cpu: dict[int, int] = {}
        host: dict[int, int] = {}
        for _, c in taken:
            if c.cpu_milli or c.host_memory_mib:
                at = self.node_names.find(c.node)
                cpu[at] = cpu.get(at, 0) + c.cpu_milli
                host[at] = host.get(at, 0) + c.host_memory_mib
        for at in cpu:
            if cpu[at] > max(0, self.free_cpu[at]) or host[at] > max(0, self.free_host[at]):
                raise Overcommitted(
                    f"{self.node_names.names[at]}: {cpu[at]} thousandths of a processor and {host[at]} MiB of host memory "
                    f"asked of {self.free_cpu[at]} and {self.free_host[at]} MiB free"
                )

    def kind(self, row: int) -> str:
        """The kind of a device by name: `H100`, or `H100:1g.10gb` for a MIG instance."""
        return kind_of(self.models.names[int(self.model[row])], self.profiles.names[int(self.profile[row])])

    def capacity(self) -> dict[str, int]:
        """Kind of device -> thousandths of devices that are up. Not to be changed."""
        version, known = self._capacity
        if version != self.version:
            known = {kind: WHOLE_MILLI * count for kind, count in self.kinds(np.flatnonzero(self.up).tolist()).items()}
            self._capacity = (self.version, known)
        return known

    def offered(self) -> set[str]:
        """Every kind of device that there is or was."""
        return set(self.kinds(range(len(self.devices.names)))) if self.devices.names else set()

    def kinds(self, rows: Sequence[int]) -> dict[str, int]:
        """How many of the devices `rows` are of each kind."""
        if len(rows) == 1:
            return {self.kind(rows[0]): 1}
        models, profiles, at = self.models.names, self.profiles.names, list(rows)
        pairs = Counter(zip(self.model[at].tolist(), self.profile[at].tolist(), strict=True))
        return {kind_of(models[model], profiles[profile]): count for (model, profile), count in pairs.items()}

    def _grow(self, columns: Iterable[str]) -> None:
        """Doubles the arrays. Rows without a device are not `up`, so no search ever finds them."""
        for name in columns:
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(max(64, len(old)), dtype=old.dtype)]))

    def _node_row(self, inventory: Inventory) -> int:
        code = self.node_names.code(inventory.node)
        if code == len(self.leaf):
            self._grow(_NODE_COLUMNS)
        where = inventory.position
        self.rack_w[code], self.fetch_mib_s[code] = inventory.rack_power_w, inventory.fetch_mib_s
        self._set_contents(code, inventory)
        self.simulated[code] = inventory.simulated
        self.free_cpu[code] += inventory.cpus * 1000 - self.cpu_milli[code]
        self.free_host[code] += inventory.memory_mib - self.host_mib[code]
        self.cpu_milli[code], self.host_mib[code] = inventory.cpus * 1000, inventory.memory_mib
        self.zone[code] = self.zones.code(where.zone)
        self.spine[code] = self.spines.code(f"{where.zone}/{where.spine}")
        self.leaf[code] = self.leaves.code(f"{where.zone}/{where.spine}/{where.leaf}")
        return code

    def _set_contents(self, code: int, inventory: Inventory) -> None:
        before = self.nodes.get(inventory.node)
        for name in set(before.inventory.contents) if before is not None else ():  # a node may say one twice
            self.content_nodes[name].discard(code)
            if not self.content_nodes[name]:
                del self.content_nodes[name]
        for name in inventory.contents:
            self.content_nodes.setdefault(name, set()).add(code)

    def _set_boards(self, inventory: Inventory, rows: list[int]) -> None:
        for gone in [name for name, board in self.boards.items() if board.node == inventory.node]:
            for row in self.boards.pop(gone).rows:
                self.board_of.pop(row, None)
        for board in inventory.boards:
            if not board.dynamic or not few_layouts(board):
                continue
            instances = {
                row: (d.mig_profile, d.mig_start)
                for row, d in zip(rows, inventory.devices, strict=True)
                if d.parent == board.id
            }
            known = {(profile.name, start) for profile in board.profiles for start in profile.starts}
            if known.issuperset(
                instances.values()
            ):  # else a person partitioned it by hand, in ways that no plan can continue from
                self.boards[board.id] = Board(inventory.node, board, instances)
                self.board_of.update(dict.fromkeys(instances, board.id))

    def _device_row(self, device: Device, node_code: int, node: str) -> int:
        row, memory_mib = self.devices.find(device.id), usable_mib(device)
        fresh = row == _NO_ROW
        if fresh:
            row = self.devices.code(device.id)
            if row == len(self.node):
                self._grow(_DEVICE_COLUMNS)
            self.held[row] = -1
            self.free_milli[row] = WHOLE_MILLI
            self.free_mib[row] = memory_mib
        else:
            self.free_mib[row] += memory_mib - self.memory_mib[row]
        self.node[row] = node_code
        self.model[row] = self.models.code(device.model)
        self.profile[row] = self.profiles.code(device.mig_profile)
        island = island_of(device, node)
        self.domain[row] = self.domains.code(island) if island else -1
        self.index[row] = device.index
        self.memory_mib[row] = memory_mib
        self.runtime[row] = self.runtimes.code(device.runtime.value)
        self.power_w[row] = device.power_limit_w
        self.cpu[row] = device.kind in NAMED_ONLY
        self._torus_row(row, device)
        return row

    def _torus_row(self, row: int, device: Device) -> None:
        """A chip whose coordinates do not lie in its torus, or whose torus is larger than any, belongs to none, so that no
        slice uses it. One that tells another shape than others of its torus lies in another torus: no node's word changes
        where the chips of the others lie."""
        torus = torus_of(device)
        self.torus[row] = self.tori.code(torus) if torus else -1
        if torus:
            self.torus_shapes[int(self.torus[row])] = device.torus_shape
        self.t0[row], self.t1[row], self.t2[row] = (*device.torus_at, 0, 0, 0)[:3] if torus else (0, 0, 0)


_DEVICE_COLUMNS: dict[str, type] = {
    "node": np.int64,
    "model": np.int64,
    "profile": np.int64,
    "domain": np.int64,
    "runtime": np.int64,
    "power_w": np.int64,
    "index": np.int64,
    "memory_mib": np.int64,
    "free_milli": np.int64,
    "free_mib": np.int64,
    "epoch": np.int64,
    "holder": np.int64,
    "beside_cpu": np.int64,
    "beside_host": np.int64,
    "since_us": np.int64,
    "end_us": np.int64,
    "up": np.bool_,
    "cpu": np.bool_,
    "held": np.int64,
    "torus": np.int64,
    "t0": np.int64,
    "t1": np.int64,
    "t2": np.int64,
}
_NODE_COLUMNS = (
    "leaf", "spine", "zone", "simulated", "cpu_milli", "host_mib", "free_cpu", "free_host", "rack_w", "fetch_mib_s"
)  # fmt: skip
