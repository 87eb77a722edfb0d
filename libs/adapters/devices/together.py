"""A node's accelerators and its processors, as one layer: so that jobs for processors run beside those for GPUs."""

from collections.abc import Collection, Mapping, Sequence

from libs.adapters.devices.cpu import CpuLayer
from libs.adapters.devices.layer import DeviceLayer
from schemas.nodes import DeviceSample, Rank
from schemas.resources import Device, MigBoard, MigPlace


class WithProcessors:
    """All calls go to the accelerators' layer; the processors come last in the inventory.

    Both draw on the same processors: placement counts a share of the processors' device as processors of the node
    (`libs.core.placement.view.host_of`), so that nothing is granted twice.
    """

    def __init__(self, accelerators: DeviceLayer, processors: CpuLayer) -> None:
        self._accelerators, self._processors = accelerators, processors

    @property
    def at_once(self) -> bool:
        return self._accelerators.at_once

    def discover(self) -> tuple[Device, ...]:
        found = self._accelerators.discover()
        behind = 1 + max((device.index for device in found), default=-1)
        return (*found, *(d.model_copy(update={"index": behind + d.index}) for d in self._processors.discover()))

    def sample(self, busy: Mapping[str, int]) -> tuple[DeviceSample, ...]:
        return (*self._accelerators.sample(busy), *self._processors.sample(busy))

    def users(self, devices: Collection[str]) -> dict[str, frozenset[int]]:
        mine = {device.id for device in self._processors.discover()}
        return self._accelerators.users([device for device in devices if device not in mine])

    def files(self, devices: Collection[str]) -> tuple[str, ...]:
        mine = {device.id for device in self._processors.discover()}
        others = [device for device in devices if device not in mine]
        return self._accelerators.files(others) if others else ()

    def boards(self) -> tuple[MigBoard, ...]:
        return self._accelerators.boards()

    def repartition(self, board: str, destroy: tuple[str, ...], create: tuple[MigPlace, ...]) -> None:
        self._accelerators.repartition(board, destroy, create)

    def environment(self, ranks: Sequence[Rank]) -> dict[str, str]:
        """A process that holds both sees its accelerators; it is told of its processors as one that holds no others."""
        mine = {device.id for device in self._processors.discover()}
        processors = [rank for rank in ranks if rank.device in mine]
        others = [rank for rank in ranks if rank.device not in mine]
        out = self._processors.environment(processors) if processors else {}
        out |= self._accelerators.environment(others) if others else {}
        return out | {"BATON_DEVICES": ",".join(rank.device for rank in ranks)}
