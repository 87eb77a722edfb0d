"""The seam between Baton and the drivers of a node's accelerators: find them, read them, hand them to a process."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from libs.core.accelerators.vendors import Granted, visibility
from schemas.nodes import DeviceSample, Rank
from schemas.resources import Device, MigBoard, MigPlace


class NoDevices(RuntimeError):
    """The driver or the devices are not there; the text says what was tried and what to do."""


class RepartitionFailed(RuntimeError):
    """A board was not repartitioned; the text says why, and whether it is as it was."""


class DeviceLayer(Protocol):
    """One node's devices. Calls may block for some milliseconds (a driver answers them)."""

    @property
    def at_once(self) -> bool:
        """`users` is answered from memory, so that it needs no thread."""

    def discover(self) -> tuple[Device, ...]:
        """All devices that may be granted now, in index order, each with a stable id. Raises NoDevices."""

    def sample(self, busy: Mapping[str, int]) -> tuple[DeviceSample, ...]:
        """One reading per device that answers. `busy` (device id -> granted milli) is used by simulated ones only."""

    def users(self, devices: Collection[str]) -> dict[str, frozenset[int]]:
        """Device id -> ids of the processes that use it now: they have work on it, or hold its file open. A device that
        cannot be looked at is left out."""

    def files(self, devices: Collection[str]) -> tuple[str, ...]:
        """The files in /dev that a process needs to use these devices. What is granted together only is shared: the
        driver's own, without which no device of its kind can be used."""

    def boards(self) -> tuple[MigBoard, ...]:
        """The MIG boards that the devices last discovered are part of, as far as their geometry is known."""

    def repartition(self, board: str, destroy: tuple[str, ...], create: tuple[MigPlace, ...]) -> None:
        """Cuts a MIG board anew: instances `destroy` go, `create` come, the others stay. May take seconds; the devices
        are to be discovered anew afterwards. Raises RepartitionFailed, and leaves the board as it was, as far as it can."""

    def environment(self, ranks: Sequence[Rank]) -> dict[str, str]:
        """The variables that make exactly the devices of `ranks` visible to a process, in rank order.

        Raises NoDevices naming a device that is not on this node.
        """


class NoMig:
    """The part of a layer whose devices cannot be repartitioned."""

    def boards(self) -> tuple[MigBoard, ...]:
        return ()

    def repartition(self, board: str, destroy: tuple[str, ...], create: tuple[MigPlace, ...]) -> None:
        raise RepartitionFailed(f"{board} is no MIG board: the devices of this node cannot be repartitioned")


def process_environment(ranks: Sequence[Rank], devices: Mapping[str, Device]) -> dict[str, str]:
    """What a process is told of its devices: those of Baton, and those by which the vendor makes just these visible.

    `devices`: all of the node, by id. Raises NoDevices naming one that is not among them.
    """
    missing = [rank.device for rank in ranks if rank.device not in devices]
    if missing:
        raise NoDevices(f"device {missing[0]} is not on this node; it has {', '.join(sorted(devices))}")
    own = {"BATON_DEVICES": ",".join(r.device for r in ranks), "BATON_SHARE_MILLI": str(ranks[0].milli)}
    return own | visibility([Granted(devices[r.device], r.milli, r.memory_mib) for r in ranks])
