"""Answers to questions about nodes and devices: rows of the projection, joined with readings and heartbeat ages."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from libs.bus.queries import NothingFound
from libs.core.projections.hot_state import Row
from schemas.nodes import DeviceSample
from schemas.queries import DeviceList, DeviceListQuery, DeviceView, NodeList, NodeListQuery, NodeView
from schemas.resources import WHOLE_MILLI
from schemas.subjects import OPERATOR

Rows = Mapping[str, Row]


def node_list(
    query: NodeListQuery,
    nodes: Rows,
    devices: Rows,
    readings: Mapping[str, DeviceSample],
    age: Callable[[str], float | None],
) -> NodeList:
    """All nodes, by name."""
    return NodeList(
        nodes=tuple(
            _node(name, row, [(d, devices[d]) for d in row["devices"] if d in devices], readings, age(name))
            for name, row in sorted(nodes.items())
        )
    )


def device_list(
    query: DeviceListQuery, team: str, nodes: Rows, devices: Rows, readings: Mapping[str, DeviceSample]
) -> DeviceList:
    """Devices by node and index; of the jobs on a device a team sees its own alone. Raises NothingFound for an unknown node."""
    if query.node and query.node not in nodes:
        raise NothingFound(f"no node {query.node!r} in this pool; `baton get nodes` lists them")
    shown = [(name, row) for name, row in devices.items() if not query.node or row["node"] == query.node]
    shown.sort(key=lambda item: (item[1]["node"], item[1]["index"], item[0]))
    return DeviceList(devices=tuple(_device(name, row, team, readings.get(name)) for name, row in shown))


def _node(
    name: str, row: Row, devices: list[tuple[str, Row]], readings: Mapping[str, DeviceSample], age: float | None
) -> NodeView:
    seen = [readings[device].utilization_pct for device, _ in devices if device in readings]
    return NodeView(
        node=name,
        status=row["status"],
        leaf=row["leaf"],
        spine=row["spine"],
        zone=row["zone"],
        incarnation=row["incarnation"],
        models=_counted(device["model"] for _, device in devices),
        devices=len(devices),
        milli_used=sum(device["milli_used"] for _, device in devices),
        milli_total=len(devices) * WHOLE_MILLI,
        utilization_pct=round(sum(seen) / len(seen), 2) if seen else None,
        heartbeat_age_s=None if age is None else round(age, 3),
        cpus=row["cpus"],
        memory_mib=row["memory_mib"],
        labels=row["labels"],
        simulated=row["simulated"],
    )


def _device(name: str, row: Row, team: str, sample: DeviceSample | None) -> DeviceView:
    return DeviceView(
        device=name,
        node=row["node"],
        index=row["index"],
        kind=row["kind"],
        model=row["model"],
        mig_profile=row["mig_profile"],
        memory_mib=row["memory_mib"],
        milli_used=row["milli_used"],
        quarantine=row.get("quarantine", ""),  # a projector of before writes none
        jobs=tuple(sorted(job for job, owner in row["jobs"].items() if team in (owner, OPERATOR))),
        utilization_pct=sample.utilization_pct if sample else None,
        memory_used_mib=sample.memory_used_mib if sample else None,
        power_w=sample.power_w if sample else None,
        temperature_c=sample.temperature_c if sample else None,
    )


def _counted(models: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(models).items()))
