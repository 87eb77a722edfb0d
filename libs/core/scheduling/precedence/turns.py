"""Whose turn it is within a class: folds the ledger into what each job got, and keeps every queue in the rule's order."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from libs.core.scheduling.precedence.learned import EDGES, Learned, cells_of, width_class
from libs.core.scheduling.precedence.rules import DEFAULT_RULE, OrderKnobs, OrderRule, classes_of, next_edges, numbers
from libs.core.scheduling.precedence.served import Served
from libs.core.state.model import Job, QueueKey, State
from schemas import ledger as led
from schemas.jobs import JobState

_Place = tuple[int, int, str]
"""Number (thousandths), submitted_us, job id."""
_NEVER = 1 << 62
_FOR_GOOD_S = 1e9


class Precedence:
    """One order for one decider. Told of every ledger event, in order; asked by the order, the backlog and the exchange."""

    def __init__(self, rule: OrderRule = DEFAULT_RULE, knobs: OrderKnobs = OrderKnobs()) -> None:
        self.rule, self.knobs = rule, knobs
        self.served, self.learned = Served(), Learned()
        self.reports: Callable[[Job], bool] = lambda job: False
        """Whether a job reports its progress."""
        self.declared: Callable[[Job], float | None] = lambda job: None
        """The service (device-seconds) that a job is declared to take; None: it is not."""
        self._places: dict[str, _Place] = {}
        self._lines: dict[QueueKey, list[_Place]] = {}
        self._aging: list[tuple[int, str, int]] = []
        """When a waiting job falls due, its id, and since when it waits."""
        self._since: dict[str, tuple[int, QueueKey]] = {}
        """Waiting job -> since when, us, and where."""
        self._due: dict[QueueKey, dict[str, None]] = {}
        self._aged: set[str] = set()
        self._in_turn_us: dict[str, int] = {}
        """Gang -> when it would have had its turn in order of age, us."""
        self._promised: dict[str, int] = {}
        """Waiting gang -> when it was told to start, us."""

    @property
    def preempts(self) -> bool:
        """Jobs of one class give way to each other."""
        return self.rule in (OrderRule.LEAST_ATTAINED, OrderRule.SHORTEST_REMAINING)

    # -------------------------------------------------------------------------------------------------- what is told

    def note(self, state: State, event: led.LedgerEvent, t_us: int) -> None:
        """`event` was decided at `t_us`; `state` is as after it."""
        told = _NOTED.get(type(event))
        if told is not None:
            told(self, state, event, t_us)

    def tell(self, state: State, job_id: str, total_s: float) -> None:
        """Somebody knows how much service (device-seconds) the job takes in all: measured progress, or a declaration."""
        slot = self.served.slots.get(job_id)
        if slot is not None:
            self.served.total_s[slot] = total_s
            if job_id in self._places:
                self._leave(state.jobs[job_id].queue, job_id)
                self._stand(state.jobs[job_id])

    def fell_due(self, state: State, t_us: int) -> set[QueueKey]:
        """Moves jobs that have waited too long before the others; the queues in which this changes who is first."""
        changed = set()
        while self._aging and self._aging[0][0] <= t_us:
            _, job_id, since = heapq.heappop(self._aging)
            waits_since, key = self._since.get(job_id, (-1, None))
            if waits_since == since and key is not None:
                self._leave(key, job_id, still=True)
                self._due.setdefault(key, {})[job_id] = None
                self._aged.add(job_id)
                changed.add(key)
        return changed

    def relearn(self, state: State, t_us: int) -> bool:
        """Works out anew what has been learned, if enough is new; whether the order may be another now."""
        if self.rule is not OrderRule.SHORTEST_REMAINING or not self.learned.due:
            return False
        slots = np.fromiter(self.served.slots.values(), dtype=np.int64, count=len(self.served.slots))
        widths = np.array([width_class(int(width)) for width in self.served.width[slots]], dtype=np.int64)
        self.learned.relearn(widths, self.served.attained_all(slots, t_us))
        for line in self._lines.values():
            fresh = self._numbers(np.array([self.served.slots[job_id] for _, _, job_id in line], dtype=np.int64), t_us)
            line[:] = [(int(n * 1000), at, job_id) for n, (_, at, job_id) in zip(fresh, line, strict=True)]
            line.sort()
            self._places.update((place[2], place) for place in line)
        return True

    def promise(self, job_id: str, start_us: int) -> None:
        """A gang that waits is told when it starts: shortly before, it falls due."""
        since_us, _ = self._since[job_id]
        self._promised[job_id] = start_us
        heapq.heappush(self._aging, (start_us - int(self.knobs.lead_s * 1e6), job_id, since_us))

    # --------------------------------------------------------------------------------------------------- what is asked

    def promised_us(self, job_id: str) -> int | None:
        return self._promised.get(job_id)

    def rank_number(self, job_id: str, t_us: int) -> float:
        """The job's number as it stands in the order: below all when it is due."""
        return -1.0 if job_id in self._aged else self.number(job_id, t_us) / 1000

    def left_s(self, slots: Any, t_us: int) -> Any:
        """Seconds that running jobs still take, shape (n,): what is known, else the median of those that got so far."""
        served = self.served
        attained = served.attained_all(slots, t_us)
        widths = served.width[slots]
        total = served.total_s[slots]
        guessed = self.learned.median[classes_of(widths), cells_of(attained)]
        return np.maximum(0.0, np.where(np.isnan(total), guessed, total) - attained) / widths

    def is_due(self, job_id: str) -> bool:
        return job_id in self._aged

    def number(self, job_id: str, t_us: int) -> int:
        """The job's number, thousandths; the lower comes first."""
        place = self._places.get(job_id)
        if place is not None:
            return place[0]
        slot = self.served.slots.get(job_id)
        return 0 if slot is None or job_id in self._aged else int(self._number(slot, t_us) * 1000)

    def turn(self, key: QueueKey) -> Iterator[str]:
        """The jobs of a queue in their order."""
        yield from tuple(self._due.get(key, ()))
        for _, _, job_id in self._lines.get(key, ()):
            yield job_id

    def gives_way(self, victim: Job, job: Job, t_us: int) -> bool:
        """Whether `victim`, which runs, gives way to `job`, which waits, of the same class and team."""
        slot = self.served.slots.get(victim.id)
        if slot is None or (victim.priority, victim.team) != (job.priority, job.team):
            return False
        if not self.served.running[slot] or self.served.guarded_us[slot] > t_us:
            return False
        return self.limit(slot, t_us) > self.rank_number(job.id, t_us)

    def limit(self, slot: int, t_us: int) -> float:
        """A running job gives way to those whose number is below this."""
        return float(self.limits(np.array([slot], dtype=np.int64), t_us)[0])

    def limits(self, slots: Any, t_us: int) -> Any:
        """`limit` of many, shape (n,)."""
        knobs = self.knobs
        losses = knobs.loss_worth * knobs.loss_s * self.served.width[slots]
        return np.maximum(-0.5, (self._numbers(slots, t_us) - losses) / knobs.ahead)

    def next_change_us(self, t_us: int) -> int:
        """When a running job's number changes or it may give way, or a waiting job falls due, at the soonest: time alone
        then changes the order."""
        soonest = max(t_us + 1, self._aging[0][0]) if self._aging else _NEVER
        if not self.preempts or not self._since:
            return soonest
        served = self.served
        slots = np.flatnonzero(served.running & (served.since_us >= 0))
        guards = served.guarded_us[slots]
        guards = guards[guards > t_us]
        if len(guards):
            soonest = min(soonest, int(guards.min()))
        if self.rule is OrderRule.SHORTEST_REMAINING:
            slots = slots[np.isnan(served.total_s[slots])]
        if not len(slots):
            return soonest
        attained = served.attained_all(slots, t_us)
        ahead = (next_edges(self.rule, attained, EDGES) - attained) / served.width[slots]
        return min(soonest, t_us + max(1_000_000, int(min(float(ahead.min()), 1e12) * 1e6) + 1))

    # ----------------------------------------------------------------------------------------------------------------

    def _number(self, slot: int, t_us: int) -> float:
        return float(self._numbers(np.array([slot], dtype=np.int64), t_us)[0])

    def _numbers(self, slots: Any, t_us: int) -> Any:
        served = self.served
        looked = np.where(served.reports[slots], self.knobs.look_s * served.width[slots], 0.0)
        attained = served.attained_all(slots, t_us)
        return numbers(self.rule, self.learned, served.width[slots], attained, served.total_s[slots], looked)

    def _stand(self, job: Job) -> None:
        number = self._number(self.served.slots[job.id], 0)
        place = self._places[job.id] = (int(number * 1000), job.submitted_us, job.id)
        insort(self._lines.setdefault(job.queue, []), place)

    def _leave(self, key: QueueKey, job_id: str, still: bool = False) -> None:
        """`still`: it waits on, before the others."""
        place = self._places.pop(job_id, None)
        if place is not None:
            line = self._lines[key]
            del line[bisect_left(line, place)]
            if not line:
                del self._lines[key]
        if not still:
            due = self._due.get(key)
            if due is not None and job_id in due:
                del due[job_id]
                if not due:
                    del self._due[key]

    def _wait(self, job: Job, t_us: int) -> None:
        self._since[job.id] = (t_us, job.queue)
        due_us = min(t_us + int(self.knobs.age_s * 1e6), max(t_us, self._in_turn_us.get(job.id, _NEVER)))
        heapq.heappush(self._aging, (due_us, job.id, t_us))
        self._stand(job)

    def _queued(self, state: State, e: led.JobQueued, t_us: int) -> None:
        job = state.jobs.get(e.job_id)
        if job is not None and e.job_id not in self.served.slots:
            slot = self.served.add(job, self.reports(job))
            declared = self.declared(job)
            if declared is not None:
                self.served.total_s[slot] = declared
            if self.preempts and job.shape.devices > 1 and self.knobs.in_turn > 0:
                ahead_s = self._backlog_s(slot, state, t_us)
                if ahead_s <= self.knobs.in_turn_most_s:
                    self._in_turn_us[job.id] = t_us + int(
                        max(self.knobs.in_turn_least_s, self.knobs.in_turn * ahead_s) * 1e6
                    )
            self._wait(job, t_us)

    def _backlog_s(self, but_slot: int, state: State, t_us: int) -> float:
        """How long all that waits and runs takes on all devices, without one job, s."""
        served = self.served
        slots = np.flatnonzero(served.width)
        slots = slots[slots != but_slot]
        attained = served.attained_all(slots, t_us)
        total = served.total_s[slots]
        guessed = attained + self.learned.rest[classes_of(served.width[slots]), cells_of(attained)]
        left = np.maximum(0.0, np.where(np.isnan(total), guessed, total) - attained)
        return float(left.sum()) / max(1, int(np.count_nonzero(state.fleet.up)))

    def _granted(self, state: State, e: led.JobGranted, t_us: int) -> None:
        job, slot = state.jobs[e.job_id], self.served.slots[e.job_id]
        self._leave(job.queue, job.id)
        rows = np.array([state.fleet.row(claim.device) for claim in e.claims], dtype=np.int64)
        self.served.grant(slot, rows, len(state.fleet.up), job.shape.whole)
        guard_s = self.knobs.min_run_s
        if job.id in self._aged:
            in_turn = t_us >= self._in_turn_us.get(job.id, _NEVER)
            guard_s = _FOR_GOOD_S if in_turn else self.knobs.slice_s
        self._promised.pop(job.id, None)
        self._since.pop(job.id, None)
        self._aged.discard(job.id)
        self.served.guarded_us[slot] = t_us + int(guard_s * 1e6)

    def _running(self, state: State, e: led.AttemptRunning, t_us: int) -> None:
        self.served.run(self.served.slots[e.job_id], t_us)

    def _stopping(
        self, state: State, e: led.AttemptPreempting | led.AttemptStopping | led.AttemptClosed, t_us: int
    ) -> None:
        slot = self.served.slots.get(e.job_id)
        if slot is not None:
            self.served.stop(slot, t_us)

    def _requeued(self, state: State, e: led.JobRequeued, t_us: int) -> None:
        job = state.jobs.get(e.job_id)
        if job is not None:
            self._wait(job, t_us)

    def _finished(self, state: State, e: led.JobFinished, t_us: int) -> None:
        slot = self.served.slots.get(e.job_id)
        if slot is None:
            return
        self.served.stop(slot, t_us)
        if e.state is JobState.SUCCEEDED:
            self.learned.ended(int(self.served.width[slot]), float(self.served.attained_s[slot]))
        waited = self._since.pop(e.job_id, None)
        if waited is not None:
            self._leave(waited[1], e.job_id)
            self._promised.pop(e.job_id, None)
        self._aged.discard(e.job_id)
        self._in_turn_us.pop(e.job_id, None)
        self.served.drop(e.job_id)


_NOTED: dict[type, Callable[..., None]] = {
    led.JobQueued: Precedence._queued,
    led.JobGranted: Precedence._granted,
    led.AttemptRunning: Precedence._running,
    led.AttemptPreempting: Precedence._stopping,
    led.AttemptStopping: Precedence._stopping,
    led.AttemptClosed: Precedence._stopping,
    led.JobRequeued: Precedence._requeued,
    led.JobFinished: Precedence._finished,
}
