"""Simulated devices of one node: they can be granted, measured and billed; only timers and ordinary programs run there.

`read_fleet` makes the nodes of a whole pool from a YAML file (examples: deploy/fleets/).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from uuid import uuid4
from zlib import crc32

from libs.adapters.devices.layer import RepartitionFailed, process_environment
from libs.core.placement.mig.layouts import geometry_of, legal
from schemas.nodes import DeviceSample, Rank
from schemas.resources import WHOLE_MILLI, Device, DeviceKind, MigBoard, MigPlace

_IDLE_W, _IDLE_C, _BUSY_C = 70.0, 31.0, 36.0
_UNKNOWN_LIMIT_W = 700.0
_VARIATION_PCT = 6.0


def _unique() -> Callable[[], str]:
    """Names that no other layer gives, in this process or another: an id must not come back as another device."""
    life, number = uuid4().hex[:12], count(1)
    return lambda: f"{life}-{next(number)}"


class SimulatedLayer:
    """`devices` as they would be found. Readings follow what is granted, with a small repeatable variation.

    Instances that a repartition makes are called `<board>-<name>`, each with a name of `fresh`.
    """

    at_once = True

    def __init__(
        self, devices: tuple[Device, ...], boards: tuple[MigBoard, ...] = (), fresh: Callable[[], str] | None = None
    ) -> None:
        self._devices, self._boards, self._fresh = devices, boards, fresh or _unique()
        self._by_id = {d.id: d for d in devices}
        self._round = 0
        self.used_by: dict[str, frozenset[int]] = {}
        """What `users` tells of a device: nothing uses a simulated one but what a test says."""

    def discover(self) -> tuple[Device, ...]:
        return self._devices

    def boards(self) -> tuple[MigBoard, ...]:
        return self._boards

    def repartition(self, board: str, destroy: tuple[str, ...], create: tuple[MigPlace, ...]) -> None:
        """As on a real board, what its geometry does not allow fails before anything changes."""
        known = next((one for one in self._boards if one.id == board), None)
        if known is None:
            raise RepartitionFailed(f"{board} is no MIG board of this node")
        there = {d.id: d for d in self._devices if d.parent == board}
        gone = [name for name in destroy if name not in there]
        if gone:
            raise RepartitionFailed(f"board {board} has no instance {gone[0]}")
        stay = [d for d in there.values() if d.id not in destroy]
        after = [(d.mig_profile, d.mig_start) for d in stay] + [(place.profile, place.start) for place in create]
        if not legal(geometry_of(known), after):
            raise RepartitionFailed(
                f"board {board} cannot be partitioned into {', '.join(f'{name} at {at}' for name, at in after)}"
            )
        memory = {profile.name: profile.memory_mib for profile in known.profiles}
        limit_w = next((d.power_limit_w for d in there.values()), 0)
        made = [
            Device(
                id=f"{board}-{self._fresh()}",
                index=0,
                kind=DeviceKind.MIG,
                model=known.model,
                memory_mib=memory[place.profile],
                mig_profile=place.profile,
                parent=board,
                mig_start=place.start,
                power_limit_w=limit_w,
            )
            for place in create
        ]
        others = [d for d in self._devices if d.parent != board]
        order = {one.id: one.index for one in self._boards}
        every = sorted([*others, *stay, *made], key=lambda d: (order.get(d.parent, -1), d.mig_start, d.index))
        devices = tuple(d.model_copy(update={"index": index}) for index, d in enumerate(every))
        self._by_id, self._devices = {d.id: d for d in devices}, devices

    def users(self, devices: Collection[str]) -> dict[str, frozenset[int]]:
        return {device: self.used_by.get(device, frozenset()) for device in devices if device in self._by_id}

    def files(self, devices: Collection[str]) -> tuple[str, ...]:
        return ()

    def sample(self, busy: Mapping[str, int]) -> tuple[DeviceSample, ...]:
        self._round += 1
        return tuple(self._read(device, busy.get(device.id, 0)) for device in self._devices)

    def _read(self, device: Device, milli: int) -> DeviceSample:
        """A busy device works at 92 to 98 % of what is granted of it: job code never keeps one quite full."""
        share = min(milli, WHOLE_MILLI) / WHOLE_MILLI
        wobble = crc32(f"{device.id}/{self._round}".encode()) % 1000 / 1000
        used_pct = share * (98.0 - _VARIATION_PCT * wobble)
        limit_w = float(device.power_limit_w or _UNKNOWN_LIMIT_W)
        return DeviceSample(
            device=device.id,
            model=device.model,
            utilization_pct=round(used_pct, 2),
            memory_used_mib=int(device.memory_mib * share * 0.85),
            power_w=round(_IDLE_W + max(0.0, limit_w - _IDLE_W) * used_pct / 100, 1),
            temperature_c=round(_IDLE_C + _BUSY_C * used_pct / 100, 1),
        )

    def environment(self, ranks: Sequence[Rank]) -> dict[str, str]:
        """As on a real node, by index; there is nothing behind them."""
        return process_environment(ranks, self._by_id)
