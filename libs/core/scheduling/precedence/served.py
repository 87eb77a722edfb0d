"""The service that each job got and what is known of the rest, as arrays: one row per job that has not ended.

It is a projection of the ledger, like the scorer's statistics: no part of the state, but folded from the same events.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from libs.core.scheduling.precedence.moves import movable
from libs.core.state.job import Job

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NOT_RUNNING = -1
_COLUMNS = (
    "width", "attained_s", "since_us", "total_s", "guarded_us", "running", "reports", "rule", "peers", "movable",
)  # fmt: skip


class Served:
    """Columns (shape (S,), spare rows have width 0):

    `width`: devices of the gang. `attained_s`: device-seconds up to `since_us`. `since_us`: when it began to run, or
    NOT_RUNNING. `total_s`: device-seconds in all, where somebody knows; else NaN. `guarded_us`: until when it does not
    give way. `running`: it holds devices
    and nothing has been decided about its end. `reports`: it tells its progress. `rule`: by which its queue is ordered
    (`rules.CODES`). `peers`: a number for its class and team, the same for all of both (`peers_of`). `movable`: as
    `moves.movable` says.
    """

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.ids: list[str] = []
        self._free: list[int] = []
        self.width: Ints = np.zeros(0, dtype=np.int64)
        self.attained_s: Floats = np.zeros(0)
        self.since_us: Ints = np.zeros(0, dtype=np.int64)
        self.total_s: Floats = np.zeros(0)
        self.guarded_us: Ints = np.zeros(0, dtype=np.int64)
        self.running: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.reports: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.rule: Ints = np.zeros(0, dtype=np.int64)
        self.peers: Ints = np.zeros(0, dtype=np.int64)
        self._peers: dict[tuple[int, str], int] = {}
        self.movable: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.owner: Ints = np.zeros(0, dtype=np.int64)
        """Row of the fleet -> slot of the running job that has the whole device, or -1."""
        self.rows: dict[int, Ints] = {}
        """Slot of a running job -> its rows of the fleet."""

    def add(self, job: Job, reports: bool) -> int:
        """A slot for a job that has come."""
        if not self._free:
            size = len(self.width)
            grown = max(64, size)
            self._free = list(range(size + grown - 1, size - 1, -1))
            fill: dict[str, Any] = {"since_us": NOT_RUNNING, "total_s": np.nan}
            for name in _COLUMNS:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full(grown, fill.get(name, 0), dtype=old.dtype)]))
            self.ids.extend([""] * grown)
        slot = self._free.pop()
        self.slots[job.id], self.ids[slot] = slot, job.id
        self.width[slot], self.attained_s[slot], self.since_us[slot] = max(1, job.shape.devices), 0.0, NOT_RUNNING
        self.total_s[slot], self.guarded_us[slot], self.reports[slot] = np.nan, 0, reports
        self.rule[slot] = 0
        self.peers[slot], self.movable[slot] = self.peers_of(job), movable(job.shape)
        return slot

    def peers_of(self, job: Job) -> int:
        """The number of its class and team."""
        return self._peers.setdefault((job.priority, job.team), len(self._peers))

    def ranked(self, job: Job) -> None:
        """It is of another class from here on."""
        self.peers[self.slots[job.id]] = self.peers_of(job)

    def drop(self, job_id: str) -> None:
        """The job has ended."""
        slot = self.slots.pop(job_id)
        self.ids[slot] = ""
        self.width[slot], self.running[slot] = 0, False
        self.since_us[slot] = NOT_RUNNING
        self._free.append(slot)

    def grant(self, slot: int, rows: Ints, devices: int, whole: bool) -> None:
        """It holds these rows of a fleet of so many devices."""
        if len(self.owner) < devices:
            grown = np.full(devices, -1, dtype=np.int64)
            grown[: len(self.owner)] = self.owner
            self.owner = grown
        self.rows[slot] = rows
        if whole:
            self.owner[rows] = slot
        self.running[slot] = True

    def run(self, slot: int, t_us: int) -> None:
        self.since_us[slot] = t_us

    def stop(self, slot: int, t_us: int) -> None:
        """It gets nothing any more."""
        if self.since_us[slot] != NOT_RUNNING:
            self.attained_s[slot] += (t_us - int(self.since_us[slot])) / 1e6 * self.width[slot]
            self.since_us[slot] = NOT_RUNNING
        self.running[slot] = False
        rows = self.rows.pop(slot, None)
        if rows is None:
            return
        if len(rows) == 1:  # numpy takes several times as long for one as for a number
            if self.owner[rows[0]] == slot:
                self.owner[rows[0]] = -1
        else:
            self.owner[rows[self.owner[rows] == slot]] = -1

    def begun(self) -> Ints:
        """Slots of the jobs that run, or got something before."""
        slots: Ints = np.flatnonzero((self.width > 0) & (self.running | (self.attained_s > 0)))
        return slots

    def attained(self, slot: int, t_us: int) -> float:
        """Device-seconds by `t_us`."""
        since_us = int(self.since_us[slot])
        so_far = float(self.attained_s[slot])
        return so_far if since_us == NOT_RUNNING else so_far + (t_us - since_us) / 1e6 * int(self.width[slot])

    def attained_all(self, slots: Ints, t_us: int) -> Floats:
        since = self.since_us[slots]
        running = np.where(since == NOT_RUNNING, 0.0, (t_us - since) / 1e6 * self.width[slots])
        result: Floats = self.attained_s[slots] + running
        return result
