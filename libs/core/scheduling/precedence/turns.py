"""The order of jobs within a class: folds the ledger into the service that each job got, and keeps every queue in its rule's
order."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from libs.core.scheduling.precedence import keep
from libs.core.scheduling.precedence.ageing import Ageing
from libs.core.scheduling.precedence.history import RunHistory, SimilarJobs, similar_to
from libs.core.scheduling.precedence.job_numbers import DUE, PROMISED, JobNumbers
from libs.core.scheduling.precedence.learned import Learned
from libs.core.scheduling.precedence.moves import movable
from libs.core.scheduling.precedence.numbered import NumberedLines, PlaceInLine
from libs.core.scheduling.precedence.promised import PromiseBook
from libs.core.scheduling.precedence.queue_rules import QueueRules
from libs.core.scheduling.precedence.rules import CODES, DEFAULT_RULE, OrderKnobs, OrderRule, classes_of
from libs.core.scheduling.precedence.served import Served
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State
from schemas import ledger as led
from schemas.jobs import JobState

DEFAULT_KNOBS = OrderKnobs()
"""Where nobody says others. The simulation has its own: jobs live for seconds in it (`libs.simulation.dst.run`)."""


class Precedence:
    """What orders the jobs of one state. Follows its fold, event by event; asked by the order, the backlog and the exchange.

    All of it follows from the ledger: who folds the same records, or goes on from a snapshot (`keep`), has the same.

    While no queue is ordered by numbers, nothing is kept of a job that has only waited: it is met (`_met`) when it gets devices
    or is promised a start, or when a queue comes to be ordered so."""

    def __init__(self, rule: OrderRule | None = DEFAULT_RULE, knobs: OrderKnobs | None = None) -> None:
        """`rule`: of every queue; None: each queue's own, as the state's tree says."""
        self.knobs = knobs or DEFAULT_KNOBS
        self.rules = QueueRules(rule)
        self.served, self.learned, self.history = Served(), Learned(), RunHistory()
        self.numbers = JobNumbers(rule, self.served, self.learned, self.knobs)
        self.ageing = Ageing(self.served, self.numbers, self.knobs)
        self.book = PromiseBook()
        self._lines = NumberedLines()
        self._kin: dict[str, SimilarJobs] = {}
        """Of each job that was met and has not ended."""
        self.reports: Callable[[Job], bool] = lambda job: False
        """Whether a job reports its progress."""
        self.declared: Callable[[Job], float | None] = lambda job: None
        """The service (device-seconds) that a job is declared to take; None: it is not."""
        self._shuffled = self._renumbered = False
        self.meets_all = self.rules.preempts
        """Some queue is ordered by numbers, so that all jobs count."""

    def dump(self) -> Iterator[bytes]:
        """Parts for a snapshot, as of this call (`keep`)."""
        return keep.dump(self)

    @classmethod
    def beside(cls, state: State, parts: Sequence[bytes] = ()) -> "Precedence":
        """One that follows `state` from now on, as it was dumped beside it. Queues are ordered by their own rules."""
        made = cls(None)
        keep.load(made, state, parts)
        state.turns = made
        return made

    def shuffled(self) -> bool:
        """Whether the order of jobs that wait may be another than when this was asked last."""
        was, self._shuffled = self._shuffled, False
        return was

    def renumbered(self) -> bool:
        """Whether all that waits has other numbers than when this was asked last, and nothing else of it has changed."""
        was, self._renumbered = self._renumbered, False
        return was

    # -------------------------------------------------------------------------------------------------- what is told

    def note(self, state: State, event: led.LedgerEvent, t_us: int) -> None:
        """`event` was decided at `t_us`; `state` is as after it."""
        told = _NOTED.get(type(event))
        if told is not None:
            told(self, state, event, t_us)
        self.book.note(state, event, t_us)

    def knows(self, job: Job) -> None:
        """The job is one that has not ended."""
        self._kin[job.id] = similar_to(job.team, job.user, job.name)

    def foretold_s(self, kin: SimilarJobs, devices: int) -> tuple[float, float]:
        """P50 and P90 of how long a job runs that has not begun, s: by its kin, or else by its width."""
        known = self.history.foretold(kin, devices)
        if known is not None:
            return known
        p50, p90 = self.learned.foretold(devices)
        return p50 / devices, p90 / devices

    def tell(self, state: State, job_id: str, total_s: float) -> None:
        """Somebody knows how much service (device-seconds) the job takes in all: measured progress, or a declaration; NaN:
        nobody does any more."""
        slot = self.served.slots.get(job_id)
        if slot is not None:
            self.served.total_s[slot] = total_s
            if job_id in self._lines:
                self._leave(state.jobs[job_id].queue, job_id)
                self._stand(state.jobs[job_id])

    def begin(self, state: State, t_us: int, back: Sequence[Job] = ()) -> set[QueueKey]:
        """Something is decided, or folded, at `t_us`; `back` wait in their queues again, after losses. Moves jobs that fell due
        before the others; the queues in which this changes who is first."""
        self.book.look(state, t_us)
        for job in back:
            self._wait(job, job.not_before_us)
        changed = set()
        for key, job_id in self.ageing.fall_due(state, t_us):
            self._lines.leave(key, job_id)
            changed.add(key)
        return changed

    def promise(self, job_id: str, start_us: int) -> None:
        """A gang that waits is told when it starts: just before, it falls due."""
        self.ageing.promised_us[job_id] = start_us
        if self.rules.by_number(self.ageing.since[job_id][1].team):
            self.ageing.expect_promise(job_id)

    # --------------------------------------------------------------------------------------------------- what is asked

    def rank_number(self, job_id: str, t_us: int) -> float:
        """The job's number as it stands in the order: below all when it is due, and below those when its promise is."""
        if job_id not in self.ageing.aged:
            return self.number(job_id, t_us) / 1000
        return PROMISED if self.ageing.insists_us(job_id) <= t_us else DUE

    def is_due(self, job_id: str) -> bool:
        return job_id in self.ageing.aged

    def number(self, job_id: str, t_us: int) -> int:
        """The job's number, thousandths; the lower comes first."""
        stands = self._lines.number(job_id)
        if stands is not None:
            return stands
        slot = self.served.slots.get(job_id)
        if slot is None or job_id in self.ageing.aged or not self.served.rule[slot]:
            return 0
        return int(self.numbers.of_one(slot, t_us) * 1000)

    def turn(self, key: QueueKey) -> Iterator[str]:
        """The jobs of a queue in their order."""
        yield from tuple(self.ageing.due.get(key, ()))
        yield from self._lines.of(key)

    def due(self, key: QueueKey) -> tuple[str, ...]:
        """The jobs of a queue that stand before the others, in their order."""
        return tuple(self.ageing.due.get(key, ()))

    def place(self, key: QueueKey, job_id: str | None, but: Collection[str]) -> int:
        """How many of a queue's line stand before a job in it (None: behind all), `but` not counted."""
        return self._lines.before_job(key, job_id, but)

    def before(self, key: QueueKey, place: PlaceInLine | None, but: Collection[str]) -> int:
        """How many of a queue's line stand before this number, age and id (None: behind all), `but` not counted."""
        return self._lines.before(key, place, but)

    def exchanges(self, victim: Job, job: Job) -> bool:
        """Whether `victim` runs, and is of the same class and team as `job`, in an order in which jobs give way."""
        slot = self.served.slots.get(victim.id)
        if (
            slot is None
            or (victim.priority, victim.team) != (job.priority, job.team)
            or not self.rules.by_number(job.team)
        ):
            return False
        return bool(self.served.running[slot])

    def gives_way(self, victim: Job, job: Job, t_us: int) -> bool:
        """Whether it stands behind `job`."""
        return self.numbers.limit(self.served.slots[victim.id], t_us) > self.rank_number(job.id, t_us)

    def may_move(self, victim: Job, t_us: int) -> bool:
        """Whether it has run for long enough to be stopped for a job that stands behind it."""
        slots = np.array([self.served.slots[victim.id]], dtype=np.int64)
        return movable(victim.shape) and bool(self.numbers.settled(slots, t_us)[0])

    def foretold_of(self, job_id: str, t_us: int) -> tuple[float, float] | None:
        """P50 and P90 of how long a job runs in all that got so far, by its kin, s; None: too little is known."""
        slot = self.served.slots[job_id]
        devices = int(self.served.width[slot])
        return self.history.foretold(self._kin[job_id], devices, self.served.attained(slot, t_us) / devices)

    def next_change_us(self, t_us: int) -> int:
        """When a running job's number changes or it may give way, or a waiting job falls due, at the soonest: time alone
        then changes the order."""
        soonest_us = self.ageing.next_due_us(t_us)
        if not self.rules.preempts or not self.ageing.since:
            return soonest_us
        return min(soonest_us, self.numbers.next_change_us(t_us))

    # --------------------------------------------------------------------------------------------- the ledger's events

    def _stand(self, job: Job) -> None:
        """It stands in the line of its queue, if that is ordered by numbers; others stand by age, in the state."""
        if not self.rules.by_number(job.team):
            return
        number = self.numbers.of_one(self.served.slots[job.id], 0)
        self._lines.stand(job.queue, (int(number * 1000), job.submitted_us, job.id))

    def _leave(self, key: QueueKey, job_id: str) -> None:
        self._lines.leave(key, job_id)
        self.ageing.not_due(key, job_id)

    def _wait(self, job: Job, since_us: int) -> None:
        self.ageing.wait(job, since_us, self.rules.by_number(job.team))
        self._stand(job)

    def _queued(self, state: State, e: led.JobQueued, t_us: int) -> None:
        job = state.jobs.get(e.job_id)
        if job is not None and self.meets_all and e.job_id not in self.served.slots:
            self._met(job)
            if self.rules.by_number(job.team) and job.shape.devices > 1:
                self.ageing.came(job, state, t_us)
            self._wait(job, t_us)

    def _met(self, job: Job) -> int:
        """The job's slot; it gets one when there is none yet."""
        slot = self.served.slots.get(job.id)
        if slot is None:
            slot = self.served.add(job, self.reports(job))
            self.knows(job)
            self.served.rule[slot] = CODES.get(self.rules.of(job.team), 0)
            declared = self.declared(job)
            if declared is not None:
                self.served.total_s[slot] = declared
        return slot

    def _granted(self, state: State, e: led.JobGranted, t_us: int) -> None:
        job = state.jobs[e.job_id]
        slot = self._met(job)
        self._leave(job.queue, job.id)
        self.served.grant(slot, state.fleet.rows_of(e.claims), len(state.fleet.up), job.shape.whole)
        self.served.guarded_us[slot] = t_us + int(self.ageing.granted(job, t_us) * 1e6)

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
        if job is not None and job.id not in state.backing_off:
            self._wait(job, t_us)

    def _progress(self, state: State, e: led.AttemptProgress, t_us: int) -> None:
        slot = self.served.slots.get(e.job_id)
        if slot is not None:
            left_s = e.progress.left_s
            so_far_s = self.served.attained(slot, t_us)
            total_s = so_far_s + left_s * int(self.served.width[slot]) if left_s is not None else math.nan
            self.tell(state, e.job_id, total_s)

    def _told_start(self, state: State, e: led.GangPromised, t_us: int) -> None:
        job = state.jobs.get(e.job_id)
        if job is not None and e.job_id not in self.served.slots and job.waits_for_first:
            self._met(job)
            self._wait(job, job.queued_us)
        if e.job_id in self.ageing.since:
            self.promise(e.job_id, e.promise.start_us)

    def _ranked(self, state: State, e: led.JobBoosted | led.BoostEnded, t_us: int) -> None:
        """A job is of another priority from here on."""
        job = state.jobs[e.job_id]
        if job.id in self.served.slots:
            self.served.ranked(job)
        self._moved(job)

    def _moved(self, job: Job) -> None:
        """It may stand in another queue, and keeps its age."""
        waited = self.ageing.since.get(job.id)
        if waited is None or waited[1] == job.queue:
            self._shuffled |= job.id not in self.served.slots
            return
        self._leave(waited[1], job.id)
        self.ageing.moved(job, waited[0])
        if job.id not in self.ageing.aged:
            self._stand(job)
        self._shuffled = True

    def _applied(self, state: State, e: led.QueuesApplied, t_us: int) -> None:
        """Queues may be ordered by another rule from here on."""
        self.follow(state)

    def follow(self, state: State) -> None:
        """Orders by the rules of the state's tree, what waits already too."""
        self.rules.follow(state.tree)
        self._shuffled = True
        self.meets_all = self.rules.preempts
        ageing = self.ageing
        for job in state.jobs.values() if self.meets_all else ():
            if job.id not in self.served.slots:
                self._met(job)
                if job.state is JobState.QUEUED and job.id not in state.backing_off:
                    ageing.since[job.id] = (job.queued_us, job.queue)
        for job_id in list(ageing.since):
            self._moved(state.jobs[job_id])
        if self.rules.fixed is None:
            self._order_anew(state)

    def _order_anew(self, state: State) -> None:
        """Brings each job that waits to where the rule of its queue has it."""
        ageing = self.ageing
        for job_id, slot in self.served.slots.items():
            self.served.rule[slot] = CODES.get(self.rules.of(state.jobs[job_id].team), 0)
        self._lines.clear()
        ageing.entries.clear()
        for job_id, (since_us, key) in ageing.since.items():
            job = state.jobs[job_id]
            by_number = self.rules.by_number(job.team)
            if job_id in ageing.aged:
                if by_number:
                    continue
                ageing.aged.discard(job_id)
                ageing.not_due(key, job_id)
            if by_number:
                ageing.expect(job_id, since_us)
                self._stand(job)
                if job_id in ageing.promised_us:
                    ageing.expect_promise(job_id)

    def _finished(self, state: State, e: led.JobFinished, t_us: int) -> None:
        slot = self.served.slots.get(e.job_id)
        if slot is None:
            return
        self.served.stop(slot, t_us)
        if e.state is JobState.SUCCEEDED:
            devices, service_s = int(self.served.width[slot]), float(self.served.attained_s[slot])
            self.learned.ended(devices, service_s)
            self.history.ended(self._kin[e.job_id], devices, service_s / devices)
            if self.learned.due:
                self._relearn(t_us)
        if e.job_id in self.ageing.since:
            self._leave(self.ageing.since[e.job_id][1], e.job_id)
        self.ageing.forget(e.job_id)
        self._kin.pop(e.job_id, None)
        self.served.drop(e.job_id)

    def _relearn(self, t_us: int) -> None:
        """Works out anew what has been learned, and all numbers that stand in lines: all at once, because a look at a few costs
        nearly as much, and there is a line for each shape. Of jobs that got nothing yet nothing is learned."""
        slots, slot_of = self.served.begun(), self.served.slots
        self.learned.relearn(classes_of(self.served.width[slots]), self.served.attained_all(slots, t_us))
        waiting = np.array([slot_of[job_id] for job_id in self._lines], dtype=np.int64)
        self._lines.renumber((self.numbers.of(waiting, t_us) * 1000).astype(np.int64).tolist())
        self._renumbered = True


_NOTED: dict[type, Callable[..., None]] = {
    led.JobQueued: Precedence._queued,
    led.JobBoosted: Precedence._ranked,
    led.BoostEnded: Precedence._ranked,
    led.JobGranted: Precedence._granted,
    led.AttemptRunning: Precedence._running,
    led.AttemptProgress: Precedence._progress,
    led.QueuesApplied: Precedence._applied,
    led.GangPromised: Precedence._told_start,
    led.AttemptPreempting: Precedence._stopping,
    led.AttemptStopping: Precedence._stopping,
    led.AttemptClosed: Precedence._stopping,
    led.JobRequeued: Precedence._requeued,
    led.JobFinished: Precedence._finished,
}
