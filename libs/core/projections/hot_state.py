"""The ledger's present, as rows: what Redis holds, and what telemetry counts. A pure fold.

`HotState.apply(record, seq)` returns one delta per row that the record touched, with the row's whole new value. Values
are absolute, never increments, so a delta that is applied twice, or a later one alone, gives the same table.
"""

import json
import marshal
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from libs.core.accelerators.kinds import accelerators_milli
from libs.core.state import lifecycle, parts
from libs.core.state.by_job import ByJob
from schemas import ledger as led
from schemas.jobs import JobState
from schemas.resources import WHOLE_MILLI, kind_of

TABLES = ("nodes", "devices", "teams", "jobs")

Row = dict[str, Any]


class Delta(NamedTuple):
    """`value` is the row `key` of `table` from now on; None when it is gone."""

    table: str
    key: str
    value: Row | None


class _JobRows(MutableMapping[str, Row]):
    """Rows of jobs. Those of jobs that wait and have never run are kept as bytes, and made when they are asked for."""

    def __init__(self) -> None:
        self._of: ByJob[Row | bytes] = ByJob()

    def __getitem__(self, job_id: str) -> Row:
        row = self._of[job_id]
        return _from_bytes(row) if isinstance(row, bytes) else row

    def __setitem__(self, job_id: str, row: Row) -> None:
        self._of[job_id] = row

    def __delitem__(self, job_id: str) -> None:
        del self._of[job_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def opened(self, job_id: str) -> Row:
        """The row, to be changed in place."""
        row = self._of[job_id] = self[job_id]
        return row

    def pack(self, job_id: str) -> None:
        """The row has been changed."""
        row = self._of.get(job_id)
        if isinstance(row, dict) and _waits(row):
            self._of[job_id] = _as_bytes(row)

    def load(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Rows of a snapshot."""
        self._of.fill((job_id, _as_bytes(row) if _waits(row) else row) for job_id, row in rows)


def _waits(row: Row) -> bool:
    return row["state"] == JobState.QUEUED and not row["attempt"]


def _as_bytes(row: Row) -> bytes:
    """Of a job that waits: the columns in which such jobs differ."""
    return marshal.dumps((*_of_waiting(row), row["queued_us"] - row["submitted_us"]))


def _from_bytes(packed: bytes) -> Row:
    team, name, priority_class, priority, devices, submitted_us, until_queued_us = marshal.loads(packed)
    return _waiting(
        team,
        name,
        priority_class,
        priority,
        devices=devices,
        submitted_us=submitted_us,
        queued_us=submitted_us + until_queued_us,
    )


def _waiting(
    team: str, name: str, priority_class: str, priority: int, *, devices: int, submitted_us: int, queued_us: int
) -> Row:
    """The row of a job that waits and has never run."""
    return {
        "team": team,
        "name": name,
        "state": JobState.QUEUED.value,
        "priority_class": priority_class,
        "priority": priority,
        "devices": devices,
        "attempt": 0,
        "submitted_us": submitted_us,
        "queued_us": queued_us,
        "granted_us": 0,
        "claims": {},
    }


_of_waiting = itemgetter("team", "name", "priority_class", "priority", "devices", "submitted_us")


class HotState:
    """Rows by table and key; their columns are listed in libs/adapters/redis/keys.py."""

    version: ClassVar[int] = 3
    """Of the layout of `dump`."""
    handled: ClassVar[frozenset[str]]
    ignored: ClassVar = frozenset({
        "attempt.checkpointed", "attempt.progress", "gang.promised",
        "attempt.closed", "devices.held", "hold.released", "board.recut",
        "devices.reserved", "devices.fragmented",
        "input.rejected", "board.recut-withdrawn", "plan.declined", "clock.jumped", "segment.sealed", "team.suspended",
        "team.left", "team.resumed", "queues.applied", "lease.granter", "node.declared-dead", "operator.acted",
        "command.refused", "ledger.summed",
        "prices.applied", "period.closed", "budgets.applied",
        "budget.topped-up", "budget.period-began", "budget.holds-renewed", "budget.reached",
    })  # fmt: skip
    """No column shows them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Row] = {}
        self.devices: dict[str, Row] = {}
        self.teams: dict[str, Row] = {}
        self.jobs = _JobRows()
        self.seq = 0
        self.t_us = 0
        self.grants = 0
        self.preemptions = 0
        self._touched: dict[tuple[str, str], None] = {}

    def apply(self, record: led.LedgerRecord, seq: int) -> list[Delta]:
        """Folds a valid record. Raises KeyError or `lifecycle.Forbidden` on a ledger that cannot be: stop there."""
        self._touched.clear()
        for event in record.events:
            fold = _FOLD.get(type(event))
            if fold is not None:
                fold(self, event, record.t_us)
        self.seq, self.t_us = seq, record.t_us
        deltas = [Delta(table, key, _copy(table, getattr(self, table).get(key))) for table, key in self._touched]
        for table, key in self._touched:
            if table == "jobs":
                self.jobs.pack(key)
        return deltas

    def skip(self, seq: int) -> None:
        """A void record: no row changes."""

    def rows(self) -> Iterator[Delta]:
        """Every row, as if all were new."""
        for table in TABLES:
            for key, row in getattr(self, table).items():
                yield Delta(table, key, _copy(table, row))

    def milli(self) -> tuple[int, int]:
        """(held, all) compute of the accelerators of nodes that are up and in use, thousandths of a device. No CPUs."""
        held = total = 0
        for row in self.devices.values():
            if row["kind"] != "cpu" and self._in_use(row["node"]):
                held += row["milli_used"]
                total += WHOLE_MILLI
        return held, total

    def _in_use(self, node: str) -> bool:
        row = self.nodes[node]
        return bool(row["status"] == "up" and not row.get("out_of_use"))

    def dump(self) -> Iterator[bytes]:
        """Parts for a snapshot; the state must not change before the last one is taken."""
        return parts.write(
            {name: getattr(self, name) for name in _COUNTERS}, {name: getattr(self, name).items() for name in TABLES}
        )

    @classmethod
    def load(cls, dumped: Iterable[bytes]) -> "HotState":
        """The inverse of `dump`, of parts that this `version` wrote."""
        state = cls()
        about, tables = parts.read(dumped)
        for name in _COUNTERS:
            setattr(state, name, about[name])
        for table, rows in tables:
            if table == "jobs":
                state.jobs.load(rows)
            else:
                getattr(state, table).update(rows)
        return state

    def _row(self, table: str, key: str) -> Row:
        self._touched[table, key] = None
        row: Row = self.jobs.opened(key) if table == "jobs" else getattr(self, table)[key]
        return row

    def _put(self, table: str, key: str, row: Row) -> None:
        self._touched[table, key] = None
        getattr(self, table)[key] = row

    def _drop(self, table: str, key: str) -> None:
        self._touched[table, key] = None
        del getattr(self, table)[key]

    def _team(self, team: str) -> Row:
        if team not in self.teams:
            self.teams[team] = {
                "limit_milli": None,
                "by_type": {},
                "used_milli": 0,
                "used": {},
                "queued": 0,
                "active": 0,
            }
        return self._row("teams", team)

    def _move(self, job: Row, state: JobState) -> None:
        team = self._team(job["team"])
        for name, step in ((job["state"], -1), (state.value, 1)):
            team["queued" if name == JobState.QUEUED else "active"] += step
        job["state"] = state.value

    def _transition(self, event: led.EventOfJob, t_us: int) -> None:
        job = self._row("jobs", event.job_id)
        state = lifecycle.job_after(event, JobState(job["state"]))
        assert state is not None, "a job that is known has a state"
        self._move(job, state)

    def _node_joined(self, e: led.NodeJoined | led.BoardCutDone, t_us: int) -> None:
        name, where = e.inventory.node, e.inventory.position
        offered = {device.id for device in e.inventory.devices}
        for gone in [d for d in self.nodes.get(name, {}).get("devices", ()) if d not in offered]:
            if self.devices[gone]["node"] == name:
                self._drop("devices", gone)
        self._put(
            "nodes",
            name,
            {
                "status": "up",
                "incarnation": e.incarnation,
                "since_us": t_us,
                "out_of_use": self.nodes.get(name, {}).get("out_of_use", ""),
                "leaf": where.leaf,
                "spine": where.spine,
                "zone": where.zone,
                "cpus": e.inventory.cpus,
                "memory_mib": e.inventory.memory_mib,
                "labels": dict(e.inventory.labels),
                "simulated": e.inventory.simulated,
                "devices": [device.id for device in e.inventory.devices],
            },
        )
        for device in e.inventory.devices:
            held = self.devices.get(device.id) or {"milli_used": 0, "memory_used_mib": 0, "jobs": {}}
            if held.get("node", name) != name:
                held = held | {"quarantine": "", "quarantine_since_us": 0}
            self._put(
                "devices",
                device.id,
                {
                    "node": name,
                    "index": device.index,
                    "kind": device.kind.value,
                    "model": device.model,
                    "memory_mib": device.memory_mib,
                    "mig_profile": device.mig_profile,
                    **{column: held[column] for column in ("milli_used", "memory_used_mib", "jobs")},
                    "quarantine": held.get("quarantine", ""),
                    "quarantine_since_us": held.get("quarantine_since_us", 0),
                },
            )

    def _board_cut(self, e: led.BoardCutDone, t_us: int) -> None:
        """What the node offers is another, and no more: one that is silent is no less so."""
        before = self._row("nodes", e.node)
        self._node_joined(e, before["since_us"])
        self.nodes[e.node]["status"] = before["status"]

    def _node_left(self, e: led.NodeLeft, t_us: int) -> None:
        node = self._row("nodes", e.node)
        node["status"], node["since_us"] = "lost", t_us

    def _node_silent(self, e: led.NodeSilence, t_us: int) -> None:
        node = self._row("nodes", e.node)
        if node["status"] != "silent":
            node["status"], node["since_us"] = "silent", t_us

    def _node_heard(self, e: led.NodeHeard, t_us: int) -> None:
        node = self._row("nodes", e.node)
        node["status"], node["since_us"] = "up", t_us

    def _node_cordoned(self, e: led.NodeCordoned, t_us: int) -> None:
        self._row("nodes", e.node)["out_of_use"] = e.reason or "maintenance"

    def _node_uncordoned(self, e: led.NodeUncordoned, t_us: int) -> None:
        self._row("nodes", e.node)["out_of_use"] = ""

    def _device_quarantined(self, e: led.DeviceQuarantined, t_us: int) -> None:
        row = self._row("devices", e.device)
        row["quarantine"], row["quarantine_since_us"] = e.users, e.since_us

    def _device_returned(self, e: led.DeviceReturned, t_us: int) -> None:
        if e.device in self.devices:  # its node may offer it no longer
            row = self._row("devices", e.device)
            row["quarantine"], row["quarantine_since_us"] = "", 0

    def _quota_set(self, e: led.QuotaSet, t_us: int) -> None:
        team = self._team(e.team)
        team["limit_milli"], team["by_type"] = e.limit_milli, dict(e.by_type)

    def _job_queued(self, e: led.JobQueued, t_us: int) -> None:
        spec = e.spec
        row = _waiting(
            e.team,
            spec.name,
            spec.priority_class,
            e.priority,
            devices=spec.resources.devices,
            submitted_us=e.submitted_us,
            queued_us=t_us,
        )
        self._put("jobs", e.job_id, row)
        self._team(e.team)["queued"] += 1

    def _ranked(self, e: led.JobBoosted | led.BoostEnded, t_us: int) -> None:
        self._row("jobs", e.job_id)["priority"] = e.priority

    def _job_granted(self, e: led.JobGranted, t_us: int) -> None:
        self._transition(e, t_us)
        job = self.jobs[e.job_id]
        job["attempt"], job["granted_us"] = e.attempt, t_us
        job["claims"] = {c.device: [c.milli, c.memory_mib] for c in e.claims}
        used: dict[str, int] = {}
        for claim in e.claims:
            device = self._row("devices", claim.device)
            device["milli_used"] += claim.milli
            device["memory_used_mib"] += claim.memory_mib
            device["jobs"][e.job_id] = job["team"]
            kind = kind_of(device["model"], device["mig_profile"])
            used[kind] = used.get(kind, 0) + claim.milli
        self._count_use(job["team"], used, 1)
        self.grants += 1

    def _attempt_preempting(self, e: led.AttemptPreempting, t_us: int) -> None:
        self._transition(e, t_us)
        self.preemptions += 1

    def _devices_freed(self, e: led.DevicesFreed, t_us: int) -> None:
        job = self._row("jobs", e.job_id)
        used: dict[str, int] = {}
        for name in e.devices:
            milli, memory_mib = job["claims"].pop(name)
            device = self._row("devices", name)
            device["milli_used"] -= milli
            device["memory_used_mib"] -= memory_mib
            del device["jobs"][e.job_id]
            kind = kind_of(device["model"], device["mig_profile"])
            used[kind] = used.get(kind, 0) + milli
        self._count_use(job["team"], used, -1)

    def _count_use(self, name: str, milli: dict[str, int], sign: int) -> None:
        team = self._team(name)
        for kind, share in milli.items():
            team["used"][kind] = team["used"].get(kind, 0) + sign * share
            if not team["used"][kind]:
                del team["used"][kind]
        team["used_milli"] = accelerators_milli(team["used"])

    def _job_finished(self, e: led.JobFinished, t_us: int) -> None:
        job = self.jobs[e.job_id]
        lifecycle.job_after(e, JobState(job["state"]))
        self._team(job["team"])["queued" if job["state"] == JobState.QUEUED else "active"] -= 1
        self._drop("jobs", e.job_id)


def encode(row: Row) -> str:
    """A row as it is stored: JSON with sorted keys."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"))


def _copy(table: str, row: Row | None) -> Row | None:
    """A row as of now: later records change rows in place."""
    if row is None:
        return None
    copied = row.copy()
    for column in _CHANGE_INSIDE[table]:
        copied[column] = copied[column].copy()
    return copied


_CHANGE_INSIDE: dict[str, tuple[str, ...]] = {
    "nodes": (), "devices": ("jobs",), "teams": ("used",), "jobs": ("claims",)
}  # fmt: skip
"""The columns of each table in which something is changed; in the others another value is put in place of the last."""


_COUNTERS = ("seq", "t_us", "grants", "preemptions")
_FOLD: dict[type, Callable[[HotState, Any, int], None]] = {
    led.NodeJoined: HotState._node_joined,
    led.BoardCutDone: HotState._board_cut,
    led.NodeLeft: HotState._node_left,
    led.NodeSilence: HotState._node_silent,
    led.NodeHeard: HotState._node_heard,
    led.DeviceQuarantined: HotState._device_quarantined,
    led.DeviceReturned: HotState._device_returned,
    led.NodeCordoned: HotState._node_cordoned,
    led.NodeUncordoned: HotState._node_uncordoned,
    led.QuotaSet: HotState._quota_set,
    led.JobQueued: HotState._job_queued,
    led.JobBoosted: HotState._ranked,
    led.BoostEnded: HotState._ranked,
    led.JobGranted: HotState._job_granted,
    led.AttemptStarting: HotState._transition,
    led.AttemptRunning: HotState._transition,
    led.AttemptPreempting: HotState._attempt_preempting,
    led.AttemptStopping: HotState._transition,
    led.DevicesFreed: HotState._devices_freed,
    led.JobRequeued: HotState._transition,
    led.JobFinished: HotState._job_finished,
}
HotState.handled = led.kinds_of(_FOLD)
