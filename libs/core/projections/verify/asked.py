"""Checks that a grant is what was requested (I2): the whole gang in one event, and each device of the requested kind,
share, memory and place.

Not checked: the shape of a torus box, and which devices of a role form a group, because claims do not say.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from libs.core.accelerators.precisions import computes
from libs.core.projections.verify.books import Books, DeviceRow, JobRow, NodeRow, Stage, Subject
from schemas import ledger as led
from schemas.resources import NAMED_ONLY, WHOLE_MILLI, Claim, Level, Resources, Role, Runtime, Spread, TopologyPolicy

_LEVELS = frozenset(level.value for level in Level)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The requirements on one device of a request, or of one role of a nested gang."""

    types: tuple[str, ...]
    memory_mib: int
    cpu_milli: int
    host_mib: int


class GrantMatchesRequest(Subject):
    """Compares each grant with its job's request."""

    handlers: ClassVar = {led.JobGranted: "granted", led.AttemptClosed: "closed"}

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._peers: dict[tuple[str, str], dict[str, Spread]] = {}
        """(team, spread key) -> jobs with an open attempt, and the distance that each requires."""

    def granted(self, e: led.JobGranted) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is None or job.stage is Stage.ENDED:
            return
        asked = job.spec.resources
        self._size(e, job, asked)
        by_role = {role.name: _of_role(role, asked) for role in asked.roles}
        wanted = _Wanted(asked.types, asked.memory_mib, asked.cpu_milli, asked.host_memory_mib)
        rows: list[tuple[DeviceRow, NodeRow]] = []
        for claim in e.claims:
            row, node = self.books.devices.get(claim.device), self.books.nodes.get(claim.node)
            if row is None or node is None:
                continue  # `devices` reports an unknown device
            rows.append((row, node))
            one = by_role.get(claim.role, wanted) if by_role else wanted
            self._amounts(e.job_id, claim, one, asked.share_milli, row, node)
            self._kind(e.job_id, job, one, row, node)
        if len(rows) > 1:
            self._together(e.job_id, asked, rows)
            if e.span is not None and self.books.format is not None:
                self._spans(e.job_id, e.span.level, rows)
        if asked.spread is not None:
            self._apart(job, asked.spread, {claim.node for claim in e.claims})

    def closed(self, e: led.AttemptClosed) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None and (spread := job.spec.resources.spread) is not None:
            peers = self._peers.get((job.team, spread.key), {})
            peers.pop(job.id, None)
            if not peers:
                self._peers.pop((job.team, spread.key), None)

    def _size(self, e: led.JobGranted, job: JobRow, asked: Resources) -> None:
        count = len({claim.device for claim in e.claims})
        fewest, most = sizes(asked)
        if len(e.claims) != count or not fewest <= count <= most:
            self._mismatch(e.job_id, f"{asked.devices} devices", f"{len(e.claims)} claims")
        model = job.spec.model
        if asked.min_devices and model is not None and count < asked.devices and count % model.devices_per_replica:
            self._mismatch(e.job_id, f"multiples of {model.devices_per_replica} devices", f"{count}")
        if not asked.roles:
            if any(claim.role for claim in e.claims):
                self._mismatch(e.job_id, "no roles", ", ".join({claim.role for claim in e.claims}))
            return
        roles = Counter(claim.role for claim in e.claims)
        for role in asked.roles:
            groups, rest = divmod(roles.pop(role.name, 0), role.devices)
            if rest or not (role.min_count or role.count) <= groups <= role.count:
                got = f"{groups} and {rest} devices" if rest else f"{groups}"
                self._mismatch(e.job_id, f"{role.count} groups of role {role.name}", got)
        if roles:
            self._mismatch(e.job_id, "other roles", ", ".join(roles))

    def _amounts(self, job_id: str, claim: Claim, one: _Wanted, milli: int, row: DeviceRow, node: NodeRow) -> None:
        if claim.milli != milli:
            self._mismatch(job_id, f"{milli} milli", f"{claim.milli}")
        part_mib = one.memory_mib or row.memory_mib * milli // WHOLE_MILLI
        memory_mib = row.memory_mib if milli == WHOLE_MILLI else part_mib
        if claim.memory_mib != memory_mib or row.memory_mib < one.memory_mib:
            self._mismatch(job_id, f"{max(memory_mib, one.memory_mib)} MiB", f"{claim.memory_mib} of {claim.device}")
        cpu, host = one.cpu_milli, one.host_mib
        if (claim.cpu_milli, claim.host_memory_mib) == (cpu, host):
            return
        if row.about.runtime is Runtime.CPU:  # processors granted as a device are part of their node's
            cpu = max(cpu, node.cpu_milli * milli // WHOLE_MILLI)
            host = max(host, claim.memory_mib * node.memory_mib // max(1, row.memory_mib))
        if (claim.cpu_milli, claim.host_memory_mib) != (cpu, host):
            got = f"{claim.cpu_milli} milli and {claim.host_memory_mib} MiB of {claim.node}"
            self._mismatch(job_id, f"{cpu} milli of processors and {host} MiB of host memory", got)

    def _kind(self, job_id: str, job: JobRow, one: _Wanted, row: DeviceRow, node: NodeRow) -> None:
        asked, device = job.spec.resources, row.about
        if device.model not in one.types if one.types else device.kind in NAMED_ONLY:
            self._mismatch(job_id, "/".join(one.types) or "any accelerator", f"{device.id}, {device.model}")
        if device.mig_profile != asked.mig_profile:
            what = asked.mig_profile or "a whole device"
            self._mismatch(job_id, what, f"{device.id}, {device.mig_profile or 'which is not cut'}")
        if asked.runtime is not None and device.runtime is not asked.runtime:
            self._mismatch(job_id, f"runtime {asked.runtime.value}", f"{device.id}, {device.runtime.value}")
        if asked.precision is not None and not computes(device.model, asked.precision.value):
            self._mismatch(job_id, asked.precision.value, f"{device.id}, {device.model}")
        if asked.labels and not asked.labels.items() <= node.labels.items():
            self._mismatch(
                job_id, f"labels {_labels(asked.labels)}", f"{device.id} of {node.name}: {_labels(node.labels)}"
            )
        if job.spec.simulation is not None and not node.simulated:
            self._mismatch(job_id, "simulated devices", f"{device.id}")

    def _together(self, job_id: str, asked: Resources, rows: list[tuple[DeviceRow, NodeRow]]) -> None:
        if not asked.roles and len({row.kind for row, _ in rows}) > 1:
            self._mismatch(job_id, "identical devices", ", ".join(sorted({row.kind[0] for row, _ in rows})))
        topology = asked.topology
        if topology.policy is not TopologyPolicy.REQUIRED or topology.level is Level.POOL:
            return
        islands = {island(row) for row, _ in rows}
        if len(islands) == 1 and "" not in islands:
            return  # there is no closer level
        groups = {group_of(topology.level, node) for _, node in rows}
        if len(groups) > 1 or topology.level in (Level.NVLINK, Level.DEVICE):
            self._mismatch(job_id, f"devices within one {topology.level.value}", f"{len(rows)} of {len(groups)} groups")

    def _spans(self, job_id: str, recorded: str, rows: list[tuple[DeviceRow, NodeRow]]) -> None:
        """The gang's recorded span. It may be wider than the actual one."""
        islands = {island(row) for row, _ in rows}
        together = len(islands) == 1 and "" not in islands
        if recorded in _LEVELS and recorded not in (Level.NVLINK, Level.DEVICE):
            together = together or len({group_of(Level(recorded), node) for _, node in rows}) == 1
        if not together:
            self.books.broken("I2", f"{job_id} is told to be within one {recorded}, and its devices are not")

    def _apart(self, job: JobRow, spread: Spread, nodes: set[str]) -> None:
        peers = self._peers.setdefault((job.team, spread.key), {})
        for other_id, other in peers.items():
            peer = self.books.jobs.get(other_id)
            if other_id == job.id or peer is None or peer.open is None:
                continue
            for level in {spread.level, other.level}:
                if shared := self._groups(level, peer.open.parts) & self._groups(level, nodes):
                    near = f"the {level.value} of {other_id} ({', '.join(shared.pop())})"
                    self._mismatch(job.id, f"to be apart by {spread.key}", near)
        peers[job.id] = spread

    def _groups(self, level: Level, nodes: Iterable[str]) -> set[tuple[str, ...]]:
        return {group_of(level, self.books.nodes[node]) for node in nodes if node in self.books.nodes}

    def _mismatch(self, job_id: str, asked: str, got: str) -> None:
        self.books.broken("I2", f"{job_id} asked for {asked} and is granted {got}")


def sizes(asked: Resources) -> tuple[int, int]:
    """The least and the most devices that satisfy a request."""
    if asked.roles:
        return sum((role.min_count or role.count) * role.devices for role in asked.roles), asked.devices
    return asked.min_devices or asked.devices, asked.devices


def _of_role(role: Role, asked: Resources) -> _Wanted:
    """A role's requirements; those it lacks come from its job."""
    return _Wanted(
        role.types or asked.types,
        role.memory_mib or asked.memory_mib,
        role.cpu_milli or asked.cpu_milli,
        role.host_memory_mib or asked.host_memory_mib,
    )


def island(row: DeviceRow) -> str:
    """The NVLink island of a device, which a fabric may extend over nodes; empty: none."""
    device = row.about
    return device.fabric or (f"{row.node}/{device.nvlink_domain}" if device.nvlink_domain else "")


def group_of(level: Level, node: NodeRow) -> tuple[str, ...]:
    """A node's group at `level`; below node level, the node itself."""
    zone, spine, leaf = node.leaf
    match level:
        case Level.LEAF:
            return (zone, spine, leaf)
        case Level.SPINE:
            return (zone, spine)
        case Level.ZONE:
            return (zone,)
        case Level.POOL:
            return ()
    return (node.name,)


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
