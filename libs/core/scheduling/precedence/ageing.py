"""Which waiting jobs are due, so that they come before all of their class: by their age, for their turn, or for a promise.

- by its **age**: a job that has waited `age_s` in one stretch;
- for its **turn**: a gang that has waited for longer than all that stood there when it came was to take, by `in_turn`;
- for its **promise**: a gang that was told a start, shortly before it.

`OrderKnobs` has the numbers. What falls due at a moment does so in the first decision after it.
"""

import heapq
import math
from collections.abc import Iterator

import numpy as np

from libs.core.scheduling.precedence.job_numbers import NEVER_US, JobNumbers
from libs.core.scheduling.precedence.rules import OrderKnobs
from libs.core.scheduling.precedence.served import Served
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State

_KEPT_EACH, _SPARE = 4, 64
"""So many entries for each waiting job, or so many beyond twice what was left, are kept before those of others are sought."""


class Ageing:
    """Of the jobs that were met and have not ended. Whoever keeps it says which of them wait where."""

    def __init__(self, served: Served, numbers: JobNumbers, knobs: OrderKnobs) -> None:
        self._served, self._numbers, self._knobs = served, numbers, knobs
        self.entries: list[tuple[int, str, int]] = []
        """A heap: when a waiting job falls due, its id, and since when it waits; also of jobs that wait no longer, until there
        are too many of these (`_enter`)."""
        self._most_entries = _SPARE
        self.since: dict[str, tuple[int, QueueKey]] = {}
        """Job that waits -> since when, us, and where."""
        self.due: dict[QueueKey, dict[str, None]] = {}
        """Queue -> its jobs that are due, in their order."""
        self.aged: set[str] = set()
        """All jobs that are due."""
        self.ahead_s: dict[str, float] = {}
        """Gang -> how long what stood there when it came was to take, s."""
        self.turn_us: dict[str, int] = {}
        """Gang -> when it has its turn, us."""
        self.promised_us: dict[str, int] = {}
        """Waiting gang -> when it was told to start, us."""
        self.devices = 1
        """Of the pool, when a gang came last."""

    # ----------------------------------------------------------------------------------------------- what is told

    def wait(self, job: Job, since_us: int, by_number: bool) -> None:
        """The job waits in its queue since then. It will fall due if that is ordered by numbers (`by_number`)."""
        self.since[job.id] = (since_us, job.queue)
        if by_number:
            if job.id in self.ahead_s:
                self.turn_us[job.id] = self._next_turn_us(job, since_us)
            self.expect(job.id, since_us)

    def expect(self, job_id: str, since_us: int) -> None:
        """A job that waits since then will fall due by its age or for its turn."""
        self._enter(self._by_itself_us(job_id, since_us), job_id, since_us)

    def expect_promise(self, job_id: str) -> None:
        """A gang that was told a start will fall due for it."""
        since_us, _ = self.since[job_id]
        self._enter(self.insists_us(job_id), job_id, since_us)

    def _enter(self, due_us: int, job_id: str, since_us: int) -> None:
        """The job falls due then, if it still waits. What stands here of jobs that wait no longer is thrown away when it is
        much more than what waits: each would stay for as long as the longest wait, a month."""
        heapq.heappush(self.entries, (due_us, job_id, since_us))
        if len(self.entries) > max(self._most_entries, _KEPT_EACH * len(self.since)):
            self.entries = sorted({one for one in self.entries if self.since.get(one[1], (-1,))[0] == one[2]})
            self._most_entries = 2 * len(self.entries) + _SPARE

    def came(self, job: Job, state: State, t_us: int) -> None:
        """A gang came: it has its turn when it has waited for longer than all that stands there now is to take."""
        if self._knobs.in_turn <= 0:
            return
        self.devices = max(1, int(np.count_nonzero(state.fleet.up)))
        ahead_device_s = self._numbers.backlog_device_s(self._served.slots[job.id], t_us)
        if ahead_device_s is not None and ahead_device_s / self.devices <= self._knobs.in_turn_most_s:
            ahead_s = self._knobs.in_turn * (ahead_device_s / self.devices)
            self.ahead_s[job.id] = max(self._knobs.in_turn_least_s, ahead_s)

    def granted(self, job: Job, t_us: int) -> float:
        """The job waits no longer, but has devices. How long it keeps them at the least, s."""
        guard_s = self._knobs.min_run_s
        if job.id in self.aged:
            if t_us >= self.turn_us.get(job.id, NEVER_US):
                guard_s = self._longest_turn_device_s(job) / job.shape.devices
            elif job.id not in self.promised_us:  # else the next one's promise would wait for its slice
                guard_s = self._knobs.slice_s
        self.promised_us.pop(job.id, None)
        self.since.pop(job.id, None)
        self.aged.discard(job.id)
        return guard_s

    def not_due(self, key: QueueKey, job_id: str) -> None:
        """The job stands in its queue's due no more."""
        due = self.due.get(key)
        if due is not None and job_id in due:
            del due[job_id]
            if not due:
                del self.due[key]

    def moved(self, job: Job, since_us: int) -> None:
        """A job that waits stands in another queue from here on, and keeps its age."""
        self.since[job.id] = (since_us, job.queue)
        if job.id in self.aged:
            due = {**self.due.get(job.queue, {}), job.id: None}
            self.due[job.queue] = dict.fromkeys(sorted(due, key=lambda one: (self.since[one][0], one)))

    def forget(self, job_id: str) -> None:
        """The job has ended."""
        self.since.pop(job_id, None)
        self.promised_us.pop(job_id, None)
        self.aged.discard(job_id)
        self.turn_us.pop(job_id, None)
        self.ahead_s.pop(job_id, None)

    def fall_due(self, state: State, t_us: int) -> Iterator[tuple[QueueKey, str]]:
        """The jobs that fell due before `t_us`, and their queues; they are due from here on. What falls due at `t_us` itself
        does so the next time, so that all records of one decision see the same."""
        while self.entries and self.entries[0][0] < t_us:
            _, job_id, since_us = heapq.heappop(self.entries)
            waits_since_us, key = self.since.get(job_id, (-1, None))
            if waits_since_us == since_us and key is not None:
                if self._put_off(state.jobs[job_id], t_us, since_us) or self._due_us(job_id, since_us) >= t_us:
                    continue  # its turn or its promise was moved: that stands here as well
                self.due.setdefault(key, {})[job_id] = None
                self.aged.add(job_id)
                yield key, job_id

    def _put_off(self, job: Job, t_us: int, since_us: int) -> bool:
        """A turn that has come is reckoned again, by what has been learned since. Whether the job waits on then."""
        if self.turn_us.get(job.id, NEVER_US) >= t_us or job.id not in self.ahead_s:
            return False
        self.turn_us[job.id] = self._next_turn_us(job, t_us)
        if self._due_us(job.id, since_us) < t_us:
            return False
        self.expect(job.id, since_us)
        return True

    # ----------------------------------------------------------------------------------------------- what is asked

    def insists_us(self, job_id: str) -> int:
        """When a gang falls due for its promise, also before those that have just begun. `NEVER_US`: it has none."""
        promised_us = self.promised_us.get(job_id)
        if promised_us is None:
            return NEVER_US
        return promised_us - min(int(self._knobs.lead_s * 1e6), (promised_us - self.since[job_id][0]) // 20)

    def next_due_us(self, t_us: int) -> int:
        """When a job falls due next, after `t_us`; `NEVER_US`: none will."""
        return max(t_us + 1, self.entries[0][0]) if self.entries else NEVER_US

    def _by_itself_us(self, job_id: str, since_us: int) -> int:
        """When it falls due by its age or for its turn."""
        turn_us = self.turn_us.get(job_id, NEVER_US)
        return min(since_us + int(self._knobs.age_s * 1e6), max(since_us, turn_us))

    def _due_us(self, job_id: str, since_us: int) -> int:
        """When it falls due by its age, for its turn or for its promise."""
        return min(self._by_itself_us(job_id, since_us), self.insists_us(job_id))

    def _next_turn_us(self, job: Job, t_us: int) -> int:
        """When the gang has its turn, by what is known of it now; `NEVER_US`: it has none."""
        slots = np.array([self._served.slots[job.id]], dtype=np.int64)
        left_s = float(self._numbers.left_device_s(slots, t_us)[0])
        if left_s > self._longest_turn_device_s(job):
            return NEVER_US
        took_s = (float(self._served.attained_all(slots, t_us)[0]) + left_s) / job.shape.devices
        others_s = left_s / self.devices * len(self.since) / self._knobs.turn_worth
        return job.submitted_us + int(max(self.ahead_s[job.id], self._knobs.own_turn * took_s, others_s) * 1e6)

    def _longest_turn_device_s(self, job: Job) -> float:
        """In device-seconds: twice as long where it is known how much is left of the gang."""
        known = not math.isnan(float(self._served.total_s[self._served.slots[job.id]]))
        return self._knobs.turn_most_s * self.devices * (2 if known else 1)
