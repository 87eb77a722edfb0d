"""What `Precedence` knows beside the jobs, as parts of a snapshot and back: what each job got, what is learned, who falls due.

A part is one letter and JSON. The first has what is small (`learned`, of the same size for ever); the next a row for each job
that ran or for which something is noted; the last how long jobs of each key ran (`history`, bounded). A job that only waited
needs none: the state says since when. So the parts grow with what runs and has run and has not ended, and nothing is kept of
ended jobs but counts and the run times of the history.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from libs.core.scheduling.precedence.learned import TABLES, pack, unpack
from libs.core.state.cut import chunks
from libs.core.state.model import Job, State
from schemas.jobs import JobState

if TYPE_CHECKING:
    from libs.core.scheduling.precedence.turns import Precedence

_CHUNK = 2000
_HISTORY = 200
"""Keys of the history of one part: each has up to some dozens of numbers."""
_COUNTS = ("_ended", "_passed")


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


def _row(turns: "Precedence", job_id: str, due: dict[str, int]) -> list[Any]:
    served, ageing, slot = turns.served, turns.ageing, turns.served.slots[job_id]
    total_s = float(served.total_s[slot])
    return [
        job_id, float(served.attained_s[slot]), int(served.since_us[slot]), None if math.isnan(total_s) else total_s,
        int(served.guarded_us[slot]), bool(served.running[slot]), ageing.since.get(job_id, (None,))[0],
        ageing.turn_us.get(job_id), ageing.promised_us.get(job_id), due.get(job_id), ageing.ahead_s.get(job_id),
    ]  # fmt: skip


def load(turns: "Precedence", state: State, parts: Sequence[bytes]) -> None:
    """Makes a new `turns` what it was when it was dumped beside `state`. Without parts (a snapshot of before) it
    knows of each job what the state says, and has learned nothing."""
    ageing = turns.ageing
    known: dict[str, list[Any]] = {}
    history: list[list[Any]] = []
    for number, part in enumerate(parts):
        told = json.loads(part)
        if number == 0:
            learned = turns.learned
            tables = {name: unpack(told["learned"][name]) for name in (*_COUNTS, *TABLES)}
            learned._ended, learned._passed = (tables[name] for name in _COUNTS)
            learned.restore(tables)
            turns.book.load(told["promises"])
            ageing.devices = told.get("devices", 1)
            learned.count, learned._learned_at = told["count"], told["learned_at"]
        elif isinstance(told, dict):
            history += told["history"]
        else:
            known.update((row[0], row) for row in told)
    if history:
        turns.history.load(history)
    turns.rules.follow(state.tree)
    turns.meets_all = turns.rules.preempts
    aged = []
    for job in state.jobs.values():
        if not turns.meets_all and job.waits_only and job.id not in known:
            continue
        row = known.get(job.id) or _told_by(job)
        slot = turns.served.add(job, turns.reports(job))
        turns.knows(job)
        turns.served.attained_s[slot], turns.served.guarded_us[slot] = row[1], row[4]
        if row[3] is not None:
            turns.served.total_s[slot] = row[3]
        if row[5]:
            rows = state.fleet.rows_of(job.current.claims)  # type: ignore[union-attr]
            turns.served.grant(slot, rows, len(state.fleet.up), job.shape.whole)
            turns.served.since_us[slot] = row[2]
        if row[7] is not None:
            ageing.turn_us[job.id] = row[7]
        if len(row) > 10 and row[10] is not None:  # a snapshot of before has none
            ageing.ahead_s[job.id] = row[10]
        if job.state is JobState.QUEUED and job.id not in state.backing_off:
            ageing.since[job.id] = (row[6] if row[6] is not None else job.queued_us, job.queue)
            if row[8] is not None:
                ageing.promised_us[job.id] = row[8]
            if row[9] is not None:
                aged.append((row[9], job))
    for _, job in sorted(aged, key=lambda one: (one[0], one[1].id)):
        ageing.due.setdefault(job.queue, {})[job.id] = None
        ageing.aged.add(job.id)
    turns.follow(state)
    turns.shuffled()


def _told_by(job: Job) -> list[Any]:
    """The row of a job that was not dumped: it has only waited; or it runs, and nothing is known of before."""
    attempt = job.current
    runs = attempt is not None and not attempt.cause
    since_us = attempt.running_us if attempt is not None and runs and attempt.running_us else -1
    return [job.id, 0.0, since_us, None, attempt.granted_us if attempt is not None else 0, runs, None, None, None, None]
