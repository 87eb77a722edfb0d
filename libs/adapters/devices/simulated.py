"""Simulated devices of one node: they can be granted, measured and billed; only timers and ordinary programs run there.

`read_fleet` makes the nodes of a whole pool from a YAML file (examples: deploy/fleets/).
"""

from collections.abc import Mapping, Sequence
from zlib import crc32

from libs.adapters.devices.layer import NoDevices, share_environment
from schemas.nodes import DeviceSample, Rank
from schemas.resources import WHOLE_MILLI, Device

_IDLE_W, _IDLE_C, _BUSY_C = 70.0, 31.0, 36.0
_UNKNOWN_LIMIT_W = 700.0
_VARIATION_PCT = 6.0


class SimulatedLayer:
    """`devices` as they would be found. Readings follow what is granted, with a small repeatable variation."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._devices = devices
        self._index = {d.id: d.index for d in devices}
        self._round = 0

    def discover(self) -> tuple[Device, ...]:
        return self._devices

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
        """Indices, as on a real node; there is nothing behind them."""
        missing = [rank.device for rank in ranks if rank.device not in self._index]
        if missing:
            raise NoDevices(f"device {missing[0]} is not on this node; it has {', '.join(sorted(self._index))}")
        indices = ",".join(str(self._index[rank.device]) for rank in ranks)
        return share_environment(ranks) | {"CUDA_VISIBLE_DEVICES": indices}
