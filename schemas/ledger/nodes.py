"""What was decided of nodes, their devices and boards, and who grants leases."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import DeviceId, Fact, JobId, Micros, NodeName, User
from schemas.resources import Inventory, Recut


class NodeJoined(Fact):
    """A node offers its devices. A later incarnation replaces an earlier one."""

    kind: Literal["node.joined"] = "node.joined"
    incarnation: int = Field(ge=1)
    inventory: Inventory


class NodeLeft(Fact):
    """A node's lease has ended; its devices are gone until it registers again."""

    kind: Literal["node.left"] = "node.left"
    node: NodeName
    incarnation: int = Field(ge=1)
    reason: str


class BoardRecut(Fact):
    """A MIG board is to be repartitioned for a request that waits: nobody is granted the instances that go any more."""

    kind: Literal["board.recut"] = "board.recut"
    node: NodeName
    incarnation: int = Field(ge=1)
    recut: Recut
    why: str = Field(default="", max_length=1024)
    for_job: JobId | None = Field(
        default=None,
        description="the job that waits for it: its team uses up one of its cuts; null: decided before cuts were counted. The"
        " event is of the pool, and no team's",
    )


class BoardCutDone(Fact):
    """The node has repartitioned the board, or put it back as it was; `inventory` is what it offers from here on."""

    kind: Literal["board.cut"] = "board.cut"
    node: NodeName
    incarnation: int = Field(ge=1)
    board: DeviceId
    number: int = Field(ge=1)
    ok: bool
    reason: str = Field(default="", max_length=1024, description="why it failed")
    inventory: Inventory


class BoardRecutWithdrawn(Fact):
    """A node that is up did not answer a repartition in time: it is asked to drop it and to say what the board is now.

    Until its answer (`BoardCutDone`) nobody is granted the instances that were to go: the node may have destroyed them.
    """

    kind: Literal["board.recut-withdrawn"] = "board.recut-withdrawn"
    node: NodeName
    incarnation: int = Field(ge=1)
    board: DeviceId
    number: int = Field(ge=1, description="of the repartition that is withdrawn")
    reason: str = Field(default="", max_length=1024)


class GranterNamed(Fact):
    """From here on this process grants leases, and nobody of an earlier epoch. A successor of it reports no node lost before
    its term, its longest lease and the kill bound have passed."""

    kind: Literal["lease.granter"] = "lease.granter"
    epoch: int = Field(ge=1)
    holder: str = Field(max_length=128, description="the process")
    term_s: float = Field(gt=0, description="it grants so long after it last saw the ledger name it, s")
    max_lease_s: float = Field(gt=0, description="no longer lease is granted, s")
    skippable: Literal[True] = True


class NodeSilence(Fact):
    """A node is not heard. Nothing new is granted there until it is; what runs there goes on until its lease ends. Told again,
    with the same beginning, as more of its leases have ended."""

    kind: Literal["node.silent"] = "node.silent"
    node: NodeName
    incarnation: int = Field(ge=1)
    silent_s: float = Field(ge=0, description="time since the last renewal, s")
    kept: bool = Field(
        default=False,
        description="all leases have ended but of work that is kept: only the node, or an operator, can say that it is over",
    )
    ended_lease_s: float = Field(default=0, ge=0, description="leases of at most this length have surely ended, s")
    skippable: Literal[True] = True


class NodeHeard(Fact):
    """A silent node is heard again, in the same life."""

    kind: Literal["node.heard"] = "node.heard"
    node: NodeName
    incarnation: int = Field(ge=1)
    skippable: Literal[True] = True


DECLARED_DEAD = "declared dead by "
"""Begins the reason of all that an operator's word ended: while an older reader reads along, nothing else says it."""


class NodeDeclaredDead(Fact):
    """An operator says that nothing runs on a node any more, and how that was made sure of. What it held is freed in the same
    record, work that is kept too. A life of it can only begin with a higher incarnation: its agent kills everything first."""

    kind: Literal["node.declared-dead"] = "node.declared-dead"
    node: NodeName
    incarnation: int = Field(ge=1, description="the life that is over")
    fenced_by: str = Field(min_length=1, max_length=1024, description="power off, BMC, ... in the operator's words")
    user: User = ""
    skippable: Literal[True] = True


class DeviceQuarantined(Fact):
    """Something uses a device that is no attempt of ours: nobody is granted it until it is returned."""

    kind: Literal["device.quarantined"] = "device.quarantined"
    node: NodeName
    incarnation: int = Field(ge=1)
    device: DeviceId
    users: str = Field(description="who: name and process id of each")
    since_us: Micros = Field(description="by the node's clock: names this quarantine")
    skippable: Literal[True] = True


class DeviceReturned(Fact):
    """A device's quarantine is over: it is free, or an operator says that it may be used all the same."""

    kind: Literal["device.returned"] = "device.returned"
    node: NodeName
    device: DeviceId
    since_us: Micros = Field(description="names the quarantine")
    user: User = Field(default="", description="the operator; empty: the node saw that it is free")
    reason: str = ""
    skippable: Literal[True] = True


class NodeCordoned(Fact):
    """An operator takes a node out of use, or placement does, because every job failed there: nothing new is granted there,
    what runs goes on. It holds over the node's lives."""

    kind: Literal["node.cordoned"] = "node.cordoned"
    node: NodeName
    user: User = Field(default="", description="the operator; empty: nobody, it was placement")
    reason: str = ""
    skippable: Literal[True] = True


class NodeUncordoned(Fact):
    """An operator puts a node into use again."""

    kind: Literal["node.uncordoned"] = "node.uncordoned"
    node: NodeName
    user: User = Field(default="", description="the operator")
    reason: str = ""
    skippable: Literal[True] = True


class DevicesReserved(Fact):
    """Which devices are kept free for a gang whose reservation is due, or for a job of one that comes before all for its age,
    from now on: all of them, those in use as well. Told with ticks, when it is not what was told last. It is over when the job
    is granted or ends, too."""

    kind: Literal["devices.reserved"] = "devices.reserved"
    gang: JobId = Field(description="for which job; the event is of the pool, and no team's")
    devices: tuple[DeviceId, ...] = Field(description="in the fleet's order; empty: none any more")
    skippable: Literal[True] = True


class DevicesFragmented(Fact):
    """What is free, and of no use to any job that waits for devices, from now on: all of it. Told with ticks, when it is not
    what was told last. A split of what is idle, and no account: nobody but the cycle knows what it could not place."""

    kind: Literal["devices.fragmented"] = "devices.fragmented"
    units: dict[str, Annotated[int, Field(gt=0)]] = Field(
        description="kind of device -> capacity units (7,000 a device); empty: nothing is"
    )
    skippable: Literal[True] = True
