"""Simulated devices of one node: they can be granted, measured and billed; only timers and ordinary programs run there.

`read_fleet` makes the nodes of a whole pool from a YAML file (examples: deploy/fleets/).
"""

from collections.abc import Mapping, Sequence
from zlib import crc32

from libs.adapters.devices.layer import process_environment
from schemas.nodes import DeviceSample, Rank
from schemas.resources import WHOLE_MILLI, Device

_IDLE_W, _IDLE_C, _BUSY_C = 70.0, 31.0, 36.0
_UNKNOWN_LIMIT_W = 700.0
_VARIATION_PCT = 6.0


class SimulatedLayer:
    """`devices` as they would be found. Readings follow what is granted, with a small repeatable variation."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self._devices = devices
        self._by_id = {d.id: d for d in devices}
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
        """As on a real node, by index; there is nothing behind them."""
        return process_environment(ranks, self._by_id)
