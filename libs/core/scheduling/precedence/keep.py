"""Snapshot encoding of `Precedence`: the service that each job got, learned run times, and what falls due.

A part is one letter and JSON. The first has what is small (`learned`, of constant size); the next a row for each job that ran
or for which something is noted; the last the run times of each key (`history`, bounded). A job that only waited needs no row:
the state says since when. So the parts grow with jobs that have run and have not ended; of ended jobs only counts and the run
times of the history are kept.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from libs.core.scheduling.precedence.learned import TABLES, pack, unpack
from libs.core.scheduling.precedence.served import NOT_RUNNING
from libs.core.state.cut import chunks
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas.jobs import JobState

if TYPE_CHECKING:
    from libs.core.scheduling.precedence.turns import Precedence

_CHUNK = 2000
_HISTORY = 200
"""Keys of the history of one part: each has up to some dozens of numbers."""
_COUNTS = ("_ended", "_passed")


class _TurnRow(NamedTuple):
    """What is noted of a job. Its order is that of the snapshot."""

    job_id: str
    attained_s: float = 0.0
    """Device-seconds up to `runs_since_us`."""
    runs_since_us: int = NOT_RUNNING
    total_s: float | None = None
    """Device-seconds in all; None: nobody knows."""
    guarded_us: int = 0
    holds: bool = False
    """It holds devices, and nothing has been decided about its end."""
    waits_since_us: int | None = None
    turn_us: int | None = None
    promised_us: int | None = None
    place: int | None = None
    """Among those of its queue that are due; None: it is not."""
    ahead_s: float | None = None
    """Snapshots of before have none."""


def dump(turns: "Precedence") -> Iterator[bytes]:
    """The parts as of this call, made as they are asked for."""
    served, learned, ageing = turns.served, turns.learned, turns.ageing
    tables = {name: pack(getattr(learned, name)) for name in _COUNTS} | {name: learned.packed(name) for name in TABLES}
    head = {
        "learned": tables, "count": learned.count, "learned_at": learned._learned_at, "promises": turns.book.dump(),
        "devices": ageing.devices,
    }  # fmt: skip
    ran = np.flatnonzero((served.width > 0) & ((served.guarded_us > 0) | ~np.isnan(served.total_s)))
    ids = dict.fromkeys(
        [*(served.ids[slot] for slot in ran.tolist()), *ageing.ahead_s, *ageing.promised_us, *ageing.aged]
    )
    due = {job_id: number for jobs in ageing.due.values() for number, job_id in enumerate(jobs)}
    rows = [_row(turns, job_id, due) for job_id in sorted(ids)]
    history = list(turns.history.dump())

    def parts() -> Iterator[bytes]:
        yield b"P" + json.dumps(head, sort_keys=True).encode()
        yield from (b"P" + json.dumps(some).encode() for some in chunks(rows, _CHUNK))
        yield from (b"P" + json.dumps({"history": some}).encode() for some in chunks(history, _HISTORY))

    return parts()


def _row(turns: "Precedence", job_id: str, due: dict[str, int]) -> _TurnRow:
    served, ageing, slot = turns.served, turns.ageing, turns.served.slots[job_id]
    total_s = float(served.total_s[slot])
    return _TurnRow(
        job_id,
        attained_s=float(served.attained_s[slot]),
        runs_since_us=int(served.since_us[slot]),
        total_s=None if math.isnan(total_s) else total_s,
        guarded_us=int(served.guarded_us[slot]),
        holds=bool(served.running[slot]),
        waits_since_us=ageing.since.get(job_id, (None,))[0],
        turn_us=ageing.turn_us.get(job_id),
        promised_us=ageing.promised_us.get(job_id),
        place=due.get(job_id),
        ahead_s=ageing.ahead_s.get(job_id),
    )


def load(turns: "Precedence", state: State, parts: Sequence[bytes]) -> None:
    """Makes a new `turns` what it was when it was dumped beside `state`. Without parts (a snapshot of before) it
    knows of each job what the state says, and has learned nothing."""
    known: dict[str, _TurnRow] = {}
    history: list[list[Any]] = []
    for number, part in enumerate(parts):
        told = json.loads(part)
        if number == 0:
            _load_head(turns, told)
        elif isinstance(told, dict):
            history += told["history"]
        else:
            known.update(
                (row[0], _TurnRow(*row[: len(_TurnRow._fields)])) for row in told
            )  # a later version may tell more
    if history:
        turns.history.load(history)
    turns.rules.follow(state.tree)
    turns.meets_all = turns.rules.preempts
    aged = []
    for job in state.jobs.values():
        if not turns.meets_all and job.waits_for_first and job.id not in known:
            continue
        row = known.get(job.id) or _told_by(job)
        _load_job(turns, state, job, row)
        if row.place is not None and job.id in turns.ageing.since:
            aged.append((row.place, job))
    for _, job in sorted(aged, key=lambda one: (one[0], one[1].id)):
        turns.ageing.due.setdefault(job.queue, {})[job.id] = None
        turns.ageing.aged.add(job.id)
    turns.follow(state)
    turns.shuffled()


def _load_head(turns: "Precedence", told: dict[str, Any]) -> None:
    learned = turns.learned
    tables = {name: unpack(told["learned"][name]) for name in (*_COUNTS, *TABLES)}
    learned._ended, learned._passed = (tables[name] for name in _COUNTS)
    learned.restore(tables)
    learned.count, learned._learned_at = told["count"], told["learned_at"]
    turns.book.load(told["promises"])
    turns.ageing.devices = told.get("devices", 1)


def _load_job(turns: "Precedence", state: State, job: Job, row: _TurnRow) -> None:
    served, ageing = turns.served, turns.ageing
    slot = served.add(job, turns.reports(job))
    turns.knows(job)
    served.attained_s[slot], served.guarded_us[slot] = row.attained_s, row.guarded_us
    if row.total_s is not None:
        served.total_s[slot] = row.total_s
    if row.holds:
        assert job.current is not None
        served.grant(slot, state.fleet.rows_of(job.current.claims), len(state.fleet.up), job.shape.whole)
        served.since_us[slot] = row.runs_since_us
    if row.turn_us is not None:
        ageing.turn_us[job.id] = row.turn_us
    if row.ahead_s is not None:
        ageing.ahead_s[job.id] = row.ahead_s
    if job.state is JobState.QUEUED and job.id not in state.backing_off:
        ageing.since[job.id] = (row.waits_since_us if row.waits_since_us is not None else job.queued_us, job.queue)
        if row.promised_us is not None:
            ageing.promised_us[job.id] = row.promised_us


def _told_by(job: Job) -> _TurnRow:
    """The row of a job that was not dumped: it has only waited; or it runs, and nothing is known of before."""
    attempt = job.current
    if attempt is None:
        return _TurnRow(job.id)
    runs = not attempt.cause
    since_us = attempt.running_us if runs and attempt.running_us else NOT_RUNNING
    return _TurnRow(job.id, runs_since_us=since_us, guarded_us=attempt.granted_us, holds=runs)
