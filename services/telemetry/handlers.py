"""Answers to questions about nodes and devices: rows of the projection, joined with readings and heartbeat ages.

What there is, and whether it is up, every team may know: it asks for devices by type, label and place. What is held, and what
a device does, is told to those whose jobs hold it: a sample of a device that two teams share would tell each of the other's
work.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from libs.bus.queries import NothingFound
from libs.core.projections.hot_state import Row
from schemas.nodes import DeviceSample, NodeSampled
from schemas.pool_status import DeviceList, DeviceListQuery, DeviceView, NodeList, NodeListQuery, NodeView
from schemas.resources import WHOLE_MILLI
from schemas.subjects import OPERATOR
from services.telemetry.readings import Samples

Rows = Mapping[str, Row]

NO_JOB = "something that is no job uses it"
"""Shown to teams in place of a quarantined device's users: these are another team's processes."""


def node_list(
    query: NodeListQuery,
    nodes: Rows,
    devices: Rows,
    readings: Samples,
    age: Callable[[str], float | None],
    sight: "Visibility",
    *,
    told: Mapping[str, NodeSampled] | None = None,
) -> NodeList:
    """All nodes, by name. `told`: what their agents said last, also long ago: walls are found once, at an agent's start."""
    last = told or {}
    return NodeList(
        nodes=tuple(
            _node(
                name,
                row,
                [(d, devices[d]) for d in row["devices"] if d in devices],
                readings,
                age(name),
                sight,
                told=last.get(name),
            )
            for name, row in sorted(nodes.items())
        )
    )


def device_list(
    query: DeviceListQuery, nodes: Rows, devices: Rows, readings: Samples, sight: "Visibility"
) -> DeviceList:
    """Devices by node and index; of what is on a device a team sees its own alone. Raises NothingFound for an unknown node."""
    if query.node and query.node not in nodes:
        raise NothingFound(f"no node {query.node!r} in this pool; `baton get nodes` lists them")
    shown = [(name, row) for name, row in devices.items() if not query.node or row["node"] == query.node]
    shown.sort(key=lambda item: (item[1]["node"], item[1]["index"], item[0]))
    return DeviceList(
        devices=tuple(_device(name, row, readings.get((str(row["node"]), name)), sight) for name, row in shown)
    )


@dataclass(frozen=True, slots=True)
class Visibility:
    """The part of device data that `team` may see. `jobs`: rows of jobs by id, with the share of a device that each holds."""

    team: str = OPERATOR
    jobs: Rows = field(default_factory=dict)

    def whole(self, row: Row) -> bool:
        """Whether the team may see all that is on the device."""
        return self.team == OPERATOR or all(owner == self.team for owner in row["jobs"].values())

    def mine(self, row: Row) -> tuple[str, ...]:
        """The jobs on the device that the team may see."""
        return tuple(sorted(job for job, owner in row["jobs"].items() if self.team in (owner, OPERATOR)))

    def milli_used(self, name: str, row: Row) -> int:
        """Of the device, by those jobs."""
        if self.whole(row):
            return int(row["milli_used"])
        return sum(self.jobs[job]["claims"].get(name, (0,))[0] for job in self.mine(row) if job in self.jobs)

    def sample(self, row: Row, sample: DeviceSample | None) -> DeviceSample | None:
        """A team sees what a device does while its own jobs, and nobody else's, are on it."""
        return sample if self.team == OPERATOR or (row["jobs"] and self.whole(row)) else None


def _node(
    name: str,
    row: Row,
    devices: list[tuple[str, Row]],
    readings: Samples,
    age: float | None,
    sight: Visibility,
    *,
    told: NodeSampled | None,
) -> NodeView:
    samples = [sight.sample(device, readings.get((str(device["node"]), name))) for name, device in devices]
    seen = [sample.utilization_pct for sample in samples if sample is not None]
    return NodeView(
        node=name,
        status="maintenance" if row["status"] == "up" and row.get("out_of_use") else row["status"],
        out_of_use=row.get("out_of_use", "") if sight.team == OPERATOR else "",
        leaf=row["leaf"],
        spine=row["spine"],
        zone=row["zone"],
        incarnation=row["incarnation"],
        models=_counted(device["model"] for _, device in devices),
        devices=len(devices),
        milli_used=sum(sight.milli_used(name, device) for name, device in devices),
        milli_total=len(devices) * WHOLE_MILLI,
        utilization_pct=round(sum(seen) / len(seen), 2) if seen else None,
        heartbeat_age_s=None if age is None else round(age, 3),
        cpus=row["cpus"],
        memory_mib=row["memory_mib"],
        labels=row["labels"],
        simulated=row["simulated"],
        walls=None if told is None else told.walls,
        cleared_seq=told.cleared_seq if told is not None and sight.team == OPERATOR else None,
    )


def _device(name: str, row: Row, sample: DeviceSample | None, sight: Visibility) -> DeviceView:
    operator, users = sight.team == OPERATOR, row.get("quarantine", "")  # a projector of before writes none
    sample = sight.sample(row, sample)
    return DeviceView(
        device=name,
        node=row["node"],
        index=row["index"],
        kind=row["kind"],
        model=row["model"],
        mig_profile=row["mig_profile"],
        memory_mib=row["memory_mib"],
        milli_used=sight.milli_used(name, row),
        quarantine=users if operator or not users else NO_JOB,
        quarantine_since_us=row.get("quarantine_since_us", 0) if operator else 0,
        jobs=sight.mine(row),
        utilization_pct=sample.utilization_pct if sample else None,
        memory_used_mib=sample.memory_used_mib if sample else None,
        power_w=sample.power_w if sample else None,
        temperature_c=sample.temperature_c if sample else None,
    )


def _counted(models: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(models).items()))
