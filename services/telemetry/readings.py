"""The latest sample of each device, for answers and for Prometheus. Samples may be lost: only what is fresh is shown."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from libs.core.projections.hot_state import HotState
from schemas.nodes import DeviceSample, NodeSampled

_MAX_NODES = 20_000
LABELS = ("gpu", "UUID", "device", "modelName", "Hostname", "hostname")
"""As dcgm-exporter writes them; `Hostname` until May 2026, `hostname` since."""

Value = Callable[[DeviceSample, int], float]

GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("gpu_utilization_pct", "device utilization, percent", lambda s, total: s.utilization_pct),
    ("gpu_memory_used_mib", "device memory in use, MiB", lambda s, total: s.memory_used_mib),
    ("gpu_memory_total_mib", "device memory, MiB", lambda s, total: total),
    ("gpu_power_w", "power draw, watts", lambda s, total: s.power_w),
    ("gpu_temperature_c", "temperature, degrees Celsius", lambda s, total: s.temperature_c),
    ("gpu_ecc_errors", "uncorrected memory errors since the driver was loaded", lambda s, total: s.ecc_errors),
    ("gpu_throttled", "1 while clocks are held down by heat or power", lambda s, total: float(s.throttled)),
    # The names that stock dashboards for dcgm-exporter ask for.
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda s, total: s.utilization_pct),
    ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", lambda s, total: s.memory_used_mib),
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", lambda s, total: max(0, total - s.memory_used_mib)),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda s, total: s.power_w),
    ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda s, total: s.temperature_c),
)


Samples = Mapping[tuple[str, str], DeviceSample]
"""By the node that says so, and the device: what a node says of another's devices counts for nothing."""


class Readings:
    """Samples by node, with the time at which each arrived (seconds of the service's monotonic clock)."""

    def __init__(self, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._nodes: dict[str, tuple[float, NodeSampled]] = {}

    def take(self, sample: NodeSampled, now: float) -> None:
        """Keeps a sample; an earlier life of the node does not replace a later one."""
        known = self._nodes.get(sample.node)
        if known is not None and known[1].incarnation > sample.incarnation:
            return
        if known is None and len(self._nodes) >= _MAX_NODES:
            self._nodes = {name: seen for name, seen in self._nodes.items() if now - seen[0] <= self._fresh_s}
            if len(self._nodes) >= _MAX_NODES:
                return
        self._nodes[sample.node] = (now, sample)

    def fresh(self, now: float) -> Samples:
        """The latest samples of nodes."""
        return {
            (sample.node, device.device): device
            for at, sample in self._nodes.values()
            if now - at <= self._fresh_s
            for device in sample.devices
        }

    def last(self) -> dict[str, NodeSampled]:
        """By node, what it said last, however long ago."""
        return {name: sample for name, (_, sample) in self._nodes.items()}


class DeviceCollector(Collector):
    """Gauges per device at the moment of the scrape: those of devices that the pool has."""

    def __init__(
        self, readings: Readings, state: Callable[[], HotState], now: Callable[[], float], *, dcgm_names: bool = True
    ) -> None:
        self._readings, self._state, self._now = readings, state, now
        self._gauges = [g for g in GAUGES if dcgm_names or not g[0].startswith("DCGM_")]

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for name, text, _ in self._gauges:
            yield GaugeMetricFamily(name, text, labels=LABELS)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = list(self.describe())
        rows = self._state().devices
        for (node, device), sample in self._readings.fresh(self._now()).items():
            row = rows.get(device)
            if row is None or row["node"] != node:
                continue
            labels = _labels(device, row)
            for family, (_, _, value) in zip(families, self._gauges, strict=True):
                family.add_metric(labels, value(sample, row["memory_mib"]))
        yield from families


def _labels(device: str, row: Mapping[str, object]) -> list[str]:
    node, index = str(row["node"]), str(row["index"])
    return [index, device, f"{row['kind']}{index}", str(row["model"]), node, node]
