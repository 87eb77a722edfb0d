"""Whose turn it is within a class: folds the ledger into what each job got, and keeps every queue in the rule's order."""

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from libs.core.scheduling.precedence import keep
from libs.core.scheduling.precedence.history import Kin, RunHistory, kin_of
from libs.core.scheduling.precedence.learned import EDGES, Learned, cells_of
from libs.core.scheduling.precedence.moves import movable
from libs.core.scheduling.precedence.numbered import NumberedLines, PlaceInLine
from libs.core.scheduling.precedence.promised import PromiseBook
from libs.core.scheduling.precedence.rules import (
    CODES,
    DEFAULT_RULE,
    EXCHANGING,
    OrderKnobs,
    OrderRule,
    classes_of,
    next_edges,
    numbers,
)
from libs.core.scheduling.precedence.served import Floats, Ints, Served
from libs.core.state.fleet import Bools
from libs.core.state.model import Job, QueueKey, State
from libs.core.state.queue_tree import QueueTree
from schemas import ledger as led
from schemas.jobs import JobState

_NEVER = 1 << 62
_AGING_EACH, _SPARE_AGING = 4, 64
"""So many entries for each waiting job, or so many beyond twice what was left, are kept before those of others are sought."""
_LEAST, _DUE, _BEGUN, _IN_TURN, _INSISTS = -0.5, -1.0, -1.4, -1.6, -2.0
"""Numbers beside those of the rules: the least that others stay below; of who is due; below which a job gives way that has
just begun, or has its turn; of a gang whose promise is near."""


DEFAULT_KNOBS = OrderKnobs()
"""Where nobody says others. The simulation has its own: jobs live for seconds in it (`libs.simulation.dst.run`)."""


class Precedence:
    """What orders the jobs of one state. Follows its fold, event by event; asked by the order, the backlog and the exchange.

    All of it follows from the ledger: who folds the same records, or goes on from a snapshot (`keep`), has the same.

    While no queue is ordered by numbers, nothing is kept of a job that has only waited: it is met (`_met`) when it gets devices
    or is promised a start, or when a queue comes to be ordered so."""

    def __init__(self, rule: OrderRule | None = DEFAULT_RULE, knobs: OrderKnobs | None = None) -> None:
        """`rule`: of every queue; None: each queue's own, as the state's tree says."""
        self.rule, self.knobs = rule, knobs or DEFAULT_KNOBS
        self._tree = QueueTree()
        self._rules: dict[str, OrderRule] = {}
        """Team -> its rule, of those that were asked for."""
        self._shuffled = self._renumbered = False
        self.served, self.learned, self.history = Served(), Learned(), RunHistory()
        self._kin: dict[str, Kin] = {}
        """Of each job that was met and has not ended."""
        self.reports: Callable[[Job], bool] = lambda job: False
        """Whether a job reports its progress."""
        self.declared: Callable[[Job], float | None] = lambda job: None
        """The service (device-seconds) that a job is declared to take; None: it is not."""
        self._lines = NumberedLines()
        self._aging: list[tuple[int, str, int]] = []
        """When a waiting job falls due, its id, and since when it waits; also of jobs that wait no longer, until there are too
        many of these (`_await`)."""
        self._most_aging = _SPARE_AGING
        self._since: dict[str, tuple[int, QueueKey]] = {}
        """Job that was met and waits -> since when, us, and where."""
        self._due: dict[QueueKey, dict[str, None]] = {}
        self._aged: set[str] = set()
        self._ahead_s: dict[str, float] = {}
        """Gang -> how long what stood there when it came was to take, s."""
        self._devices = 1
        self._in_turn_us: dict[str, int] = {}
        """Gang -> when it has its turn, us."""
        self._promised: dict[str, int] = {}
        """Waiting gang -> when it was told to start, us."""
        self.book = PromiseBook()
        self.meets_all = self.preempts
        """Some queue is ordered by numbers, so that all jobs count."""

    @property
    def preempts(self) -> bool:
        """In some queue jobs of one class give way to each other."""
        if self.rule is not None:
            return self.rule in EXCHANGING
        return self._tree.order in EXCHANGING or any(queue.order in EXCHANGING for queue in self._tree)

    @property
    def flat(self) -> bool:
        """All jobs of a class come by age, whoever's they are."""
        return self.rule is OrderRule.FIFO or (self.rule is None and not len(self._tree) and self._tree.order == "fifo")

    def rule_of(self, team: str) -> OrderRule:
        """Of a team's jobs."""
        if self.rule is not None:
            return self.rule
        found = self._rules.get(team)
        if found is None:
            found = self._rules[team] = OrderRule(self._tree.order_of(team) or OrderRule.FAIR_SHARE)
        return found

    def orders(self, team: str) -> bool:
        """A team's jobs come by their numbers, and give way to each other."""
        return self.rule_of(team) in EXCHANGING

    def dump(self) -> Iterator[bytes]:
        """Parts for a snapshot, as of this call (`keep`)."""
        return keep.dump(self)

    @classmethod
    def beside(cls, state: State, parts: Sequence[bytes] = (), rule: OrderRule | None = None) -> "Precedence":
        """One that follows `state` from now on, as it was dumped beside it."""
        made = cls(rule)
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
        self._kin[job.id] = kin_of(job.team, job.user, job.name)

    def foretold_s(self, kin: Kin, devices: int) -> tuple[float, float]:
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
        """Something is decided, or folded, at `t_us`; `back` wait in their queues again, after losses. Moves jobs that have
        waited too long before the others; the queues in which this changes who is first. What falls due at `t_us` itself does
        so the next time, so that all records of one decision see the same."""
        for job in back:
            self._wait(job, job.not_before_us)
        changed = set()
        while self._aging and self._aging[0][0] < t_us:
            _, job_id, since = heapq.heappop(self._aging)
            waits_since, key = self._since.get(job_id, (-1, None))
            if waits_since == since and key is not None:
                if self._put_off(state.jobs[job_id], t_us, since) or self._due_us(job_id, since) >= t_us:
                    continue  # its turn or its promise was moved: that stands here as well
                self._leave(key, job_id, still=True)
                self._due.setdefault(key, {})[job_id] = None
                self._aged.add(job_id)
                changed.add(key)
        return changed

    def _relearn(self, t_us: int) -> None:
        """Works out anew what has been learned. Of jobs that got nothing yet nothing is learned."""
        slots = self.served.begun()
        self.learned.relearn(classes_of(self.served.width[slots]), self.served.attained_all(slots, t_us))
        self._renumber(t_us)
        self._renumbered = True

    def _renumber(self, t_us: int) -> None:
        """Gives all that waits its number anew: all at once, because a look at a few costs nearly as much, and there is a line
        for each shape."""
        slot_of = self.served.slots
        slots = np.array([slot_of[job_id] for job_id in self._lines], dtype=np.int64)
        self._lines.renumber((self._numbers(slots, t_us) * 1000).astype(np.int64).tolist())

    def promise(self, job_id: str, start_us: int) -> None:
        """A gang that waits is told when it starts: just before, it falls due."""
        self._promised[job_id] = start_us
        if self.orders(self._since[job_id][1].team):
            self._await_promise(job_id)

    def _await_promise(self, job_id: str) -> None:
        since_us, _ = self._since[job_id]
        self._await(self._insists_us(job_id), job_id, since_us)

    def _await(self, due_us: int, job_id: str, since_us: int) -> None:
        """The job falls due then, if it still waits. What stands here of jobs that wait no longer is thrown away when it is
        much more than what waits: each would stay for as long as the longest wait, a month."""
        heapq.heappush(self._aging, (due_us, job_id, since_us))
        if len(self._aging) > max(self._most_aging, _AGING_EACH * len(self._since)):
            self._aging = sorted({one for one in self._aging if self._since.get(one[1], (-1,))[0] == one[2]})
            self._most_aging = 2 * len(self._aging) + _SPARE_AGING

    # --------------------------------------------------------------------------------------------------- what is asked

    def promised_us(self, job_id: str) -> int | None:
        return self._promised.get(job_id)

    def rank_number(self, job_id: str, t_us: int) -> float:
        """The job's number as it stands in the order: below all when it is due, and below those when its promise is."""
        if job_id not in self._aged:
            return self.number(job_id, t_us) / 1000
        return _INSISTS if self._insists_us(job_id) <= t_us else _DUE

    def _insists_us(self, job_id: str) -> int:
        """When a gang falls due for its promise, also before those that have just begun. `_NEVER`: it has none."""
        promised_us = self._promised.get(job_id)
        if promised_us is None:
            return _NEVER
        return promised_us - min(int(self.knobs.lead_s * 1e6), (promised_us - self._since[job_id][0]) // 20)

    def left_s(self, slots: Any, t_us: int) -> Any:
        """Seconds that running jobs still take, shape (n,): what is known, else the median of those that got so far."""
        served = self.served
        attained = served.attained_all(slots, t_us)
        widths = served.width[slots]
        total = served.total_s[slots]
        guessed = self.learned.median[classes_of(widths), cells_of(attained)]
        return np.maximum(0.0, np.where(np.isnan(total), guessed, total) - attained) / widths

    def until_known_s(self, slots: Ints, t_us: int) -> Floats:
        """Seconds until it is known how fast jobs are that report their progress, shape (n,); infinite: it is, or never
        will be."""
        served = self.served
        looks = served.reports[slots] & np.isnan(served.total_s[slots])
        left_s = self.knobs.look_s - served.attained_all(slots, t_us) / served.width[slots]
        return np.where(looks & (left_s > 0), left_s, np.inf)

    def until_dear_s(self, slots: Ints, number: float, t_us: int) -> Floats:
        """Seconds until running jobs of which nobody knows the length have run for so long that they give way to this number,
        shape (n,); infinite: they will not."""
        served = self.served
        attained, widths = served.attained_all(slots, t_us), served.width[slots]
        dear = self._limits_of(self.learned.price[classes_of(widths)], slots) > number
        dear &= np.arange(dear.shape[1]) >= cells_of(attained)[:, None]
        dear &= (np.isnan(served.total_s[slots]) & (served.rule[slots] == CODES[OrderRule.SHORTEST_REMAINING]))[:, None]
        begin_s = np.concatenate([[0.0], EDGES[:-1]])[np.argmax(dear, axis=1)]
        return np.where(dear.any(axis=1), np.maximum(0.0, begin_s - attained) / widths, np.inf)

    def is_due(self, job_id: str) -> bool:
        return job_id in self._aged

    def number(self, job_id: str, t_us: int) -> int:
        """The job's number, thousandths; the lower comes first."""
        stands = self._lines.number(job_id)
        if stands is not None:
            return stands
        slot = self.served.slots.get(job_id)
        if slot is None or job_id in self._aged or not self.served.rule[slot]:
            return 0
        return int(self._number(slot, t_us) * 1000)

    def turn(self, key: QueueKey) -> Iterator[str]:
        """The jobs of a queue in their order."""
        yield from tuple(self._due.get(key, ()))
        yield from self._lines.of(key)

    def due(self, key: QueueKey) -> tuple[str, ...]:
        """The jobs of a queue that stand before the others, in their order."""
        return tuple(self._due.get(key, ()))

    def place(self, key: QueueKey, job_id: str | None, but: Collection[str]) -> int:
        """How many of a queue's line stand before a job in it (None: behind all), `but` not counted."""
        return self._lines.before_job(key, job_id, but)

    def before(self, key: QueueKey, place: PlaceInLine | None, but: Collection[str]) -> int:
        """How many of a queue's line stand before this number, age and id (None: behind all), `but` not counted."""
        return self._lines.before(key, place, but)

    def exchanges(self, victim: Job, job: Job, t_us: int) -> bool:
        """Whether `victim` runs, and is of the same class and team as `job`, in an order in which jobs give way."""
        slot = self.served.slots.get(victim.id)
        if slot is None or (victim.priority, victim.team) != (job.priority, job.team) or not self.orders(job.team):
            return False
        return bool(self.served.running[slot])

    def gives_way(self, victim: Job, job: Job, t_us: int) -> bool:
        """Whether it stands behind `job`."""
        return self.limit(self.served.slots[victim.id], t_us) > self.rank_number(job.id, t_us)

    def may_move(self, victim: Job, t_us: int) -> bool:
        """Whether it has run for long enough to be stopped for a job that stands behind it."""
        slots = np.array([self.served.slots[victim.id]], dtype=np.int64)
        return movable(victim.shape) and bool(self.settled(slots, t_us)[0])

    def foretold_of(self, job_id: str, t_us: int) -> tuple[float, float] | None:
        """P50 and P90 of how long a job runs in all that got so far, by its kin, s; None: too little is known."""
        slot = self.served.slots[job_id]
        devices = int(self.served.width[slot])
        return self.history.foretold(self._kin[job_id], devices, self.served.attained(slot, t_us) / devices)

    def settled(self, slots: Ints, t_us: int) -> Bools:
        """Which running jobs have run for so long without a break that they may be moved, mask of shape (n,)."""
        since_us, guarded_us = self.served.since_us[slots], self.served.guarded_us[slots]
        ran: Bools = (since_us >= 0) & (t_us - since_us >= self.knobs.move_run_s * 1e6)
        return ran & (guarded_us <= t_us)

    def limit(self, slot: int, t_us: int) -> float:
        """A running job gives way to those whose number is below this."""
        return float(self.limits(np.array([slot], dtype=np.int64), t_us)[0])

    def limits(self, slots: Any, t_us: int) -> Any:
        """`limit` of many, shape (n,)."""
        guard_s = (self.served.guarded_us[slots] - t_us) / 1e6
        guarded = np.where(guard_s <= self.knobs.min_run_s, _BEGUN, _IN_TURN)
        return np.where(guard_s <= 0, self.limits_unguarded(slots, t_us), guarded)

    def limits_unguarded(self, slots: Any, t_us: int) -> Any:
        """What `limits` will be of those that may not give way yet."""
        return self._limits_of(self._numbers(slots, t_us), slots)

    def _limits_of(self, numbers: Floats, slots: Ints) -> Floats:
        """The number below which another must be, of jobs with these numbers: it must be worth what giving way loses."""
        losses = self.knobs.loss_worth * self.knobs.loss_s * self.served.width[slots]
        return np.maximum(_LEAST, ((numbers.T - losses) / self.knobs.ahead).T)

    def next_change_us(self, t_us: int) -> int:
        """When a running job's number changes or it may give way, or a waiting job falls due, at the soonest: time alone
        then changes the order."""
        soonest = max(t_us + 1, self._aging[0][0]) if self._aging else _NEVER
        if not self.preempts or not self._since:
            return soonest
        served = self.served
        slots = np.flatnonzero(served.running & (served.since_us >= 0) & (served.rule > 0))
        guards = served.guarded_us[slots]
        guards = guards[guards > t_us]
        if len(guards):
            soonest = min(soonest, int(guards.min()))
        slots = slots[np.isnan(served.total_s[slots]) | (served.rule[slots] != CODES[OrderRule.SHORTEST_REMAINING])]
        if not len(slots):
            return soonest
        attained, ahead = served.attained_all(slots, t_us), np.full(len(slots), np.inf)
        for rule in EXCHANGING:
            of = served.rule[slots] == CODES[rule]
            ahead[of] = (next_edges(rule, attained[of], EDGES) - attained[of]) / served.width[slots[of]]
        return min(soonest, t_us + max(1_000_000, int(min(float(ahead.min()), 1e12) * 1e6) + 1))

    # ----------------------------------------------------------------------------------------------------------------

    def _number(self, slot: int, t_us: int) -> float:
        return float(self._numbers(np.array([slot], dtype=np.int64), t_us)[0])

    def _numbers(self, slots: Any, t_us: int) -> Any:
        served = self.served
        looked = np.where(served.reports[slots], self.knobs.look_s * served.width[slots], 0.0)
        attained = served.attained_all(slots, t_us)
        if self.rule is not None:
            return numbers(self.rule, self.learned, served.width[slots], attained, served.total_s[slots], looked)
        found = np.zeros(len(slots))
        for rule in EXCHANGING:
            of = served.rule[slots] == CODES[rule]
            if of.any():
                at = slots[of]
                found[of] = numbers(rule, self.learned, served.width[at], attained[of], served.total_s[at], looked[of])
        return found

    def _stand(self, job: Job) -> None:
        """In a queue that is ordered by numbers; the others stand by age, in the state."""
        if not self.orders(job.team):
            return
        number = self._number(self.served.slots[job.id], 0)
        self._lines.stand(job.queue, (int(number * 1000), job.submitted_us, job.id))

    def _leave(self, key: QueueKey, job_id: str, still: bool = False) -> None:
        """`still`: it waits on, before the others."""
        self._lines.leave(key, job_id)
        if not still:
            due = self._due.get(key)
            if due is not None and job_id in due:
                del due[job_id]
                if not due:
                    del self._due[key]

    def _wait(self, job: Job, t_us: int) -> None:
        self._since[job.id] = (t_us, job.queue)
        self._age(job, t_us)
        self._stand(job)

    def _age(self, job: Job, t_us: int) -> None:
        """When it falls due, that waits since `t_us`."""
        if not self.orders(job.team):
            return
        if job.id in self._ahead_s:
            self._in_turn_us[job.id] = self._turn_us(job, t_us)
        self._await_age(job.id, t_us)

    def _await_age(self, job_id: str, since_us: int) -> None:
        self._await(self._falls_due_us(job_id, since_us), job_id, since_us)

    def _falls_due_us(self, job_id: str, since_us: int) -> int:
        """By its age, or for its turn."""
        turn_us = self._in_turn_us.get(job_id, _NEVER)
        return min(since_us + int(self.knobs.age_s * 1e6), max(since_us, turn_us))

    def _due_us(self, job_id: str, since_us: int) -> int:
        """By its age, for its turn or for its promise."""
        return min(self._falls_due_us(job_id, since_us), self._insists_us(job_id))

    def _put_off(self, job: Job, t_us: int, since_us: int) -> bool:
        """A turn that has come is reckoned again, by what has been learned since. Whether the job waits on then."""
        if self._in_turn_us.get(job.id, _NEVER) >= t_us or job.id not in self._ahead_s:
            return False
        self._in_turn_us[job.id] = self._turn_us(job, t_us)
        if self._due_us(job.id, since_us) < t_us:
            return False
        self._await_age(job.id, since_us)
        return True

    def _turn_us(self, job: Job, t_us: int) -> int:
        """When the gang has its turn, by what is known of it now; `_NEVER`: it has none."""
        slots = np.array([self.served.slots[job.id]], dtype=np.int64)
        left_s = float(self._left_device_s(slots, t_us)[0])
        if left_s > self._turn_device_s(job):
            return _NEVER
        took_s = (float(self.served.attained_all(slots, t_us)[0]) + left_s) / job.shape.devices
        others_s = left_s / self._devices * len(self._since) / self.knobs.turn_worth
        return job.submitted_us + int(max(self._ahead_s[job.id], self.knobs.own_turn * took_s, others_s) * 1e6)

    def _turn_device_s(self, job: Job) -> float:
        """The longest turn, in device-seconds: twice as long where it is known how much is left of the gang."""
        known = not math.isnan(float(self.served.total_s[self.served.slots[job.id]]))
        return self.knobs.turn_most_s * self._devices * (2 if known else 1)

    def _left_device_s(self, slots: Ints, t_us: int) -> Floats:
        """Device-seconds that jobs still take: what is known, else the mean of those that got so far."""
        served = self.served
        attained = served.attained_all(slots, t_us)
        mean = attained + self.learned.rest[classes_of(served.width[slots]), cells_of(attained)]
        total = served.total_s[slots]
        return np.maximum(0.0, np.where(np.isnan(total), mean, total) - attained)

    def _queued(self, state: State, e: led.JobQueued, t_us: int) -> None:
        job = state.jobs.get(e.job_id)
        if job is not None and self.meets_all and e.job_id not in self.served.slots:
            slot = self._met(job)
            if self.orders(job.team) and job.shape.devices > 1 and self.knobs.in_turn > 0:
                ahead_s = self._backlog_s(slot, state, t_us)
                if ahead_s is not None and ahead_s <= self.knobs.in_turn_most_s:
                    self._ahead_s[job.id] = max(self.knobs.in_turn_least_s, self.knobs.in_turn * ahead_s)
            self._wait(job, t_us)

    def _met(self, job: Job) -> int:
        """The job's slot; it gets one when there is none yet."""
        slot = self.served.slots.get(job.id)
        if slot is None:
            slot = self.served.add(job, self.reports(job))
            self.knows(job)
            self.served.rule[slot] = CODES.get(self.rule_of(job.team), 0)
            declared = self.declared(job)
            if declared is not None:
                self.served.total_s[slot] = declared
        return slot

    def _backlog_s(self, but_slot: int, state: State, t_us: int) -> float | None:
        """How long all that waits and runs takes on all devices, without one job, s. None: that would be a guess."""
        self._devices = max(1, int(np.count_nonzero(state.fleet.up)))
        slots = np.flatnonzero(self.served.width)
        slots = slots[slots != but_slot]
        if self.learned.count < self.knobs.in_turn_ends and np.isnan(self.served.total_s[slots]).any():
            return None
        left_s = self._left_device_s(slots, t_us)
        # In whole device-seconds: the same sum, in whatever order a reader has the jobs.
        return float(np.round(left_s.sum())) / self._devices

    def _granted(self, state: State, e: led.JobGranted, t_us: int) -> None:
        job = state.jobs[e.job_id]
        slot = self._met(job)
        self._leave(job.queue, job.id)
        rows = state.fleet.rows_of(e.claims)
        self.served.grant(slot, rows, len(state.fleet.up), job.shape.whole)
        guard_s = self.knobs.min_run_s
        if job.id in self._aged:
            if t_us >= self._in_turn_us.get(job.id, _NEVER):
                guard_s = self._turn_device_s(job) / job.shape.devices
            elif job.id not in self._promised:  # else the next one's promise would wait for its slice
                guard_s = self.knobs.slice_s
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
        if job is not None and e.job_id not in self.served.slots and job.waits_only:
            self._met(job)
            self._wait(job, job.queued_us)
        if e.job_id in self._since:
            self.promise(e.job_id, e.promise.start_us)

    def _ranked(self, state: State, e: led.JobBoosted | led.BoostEnded, t_us: int) -> None:
        """A job is of another priority from here on."""
        job = state.jobs[e.job_id]
        if job.id in self.served.slots:
            self.served.ranked(job)
        self._moved(job)

    def _moved(self, job: Job) -> None:
        """It may stand in another queue, and keeps its age."""
        waited = self._since.get(job.id)
        if waited is None or waited[1] == job.queue:
            self._shuffled |= job.id not in self.served.slots
            return
        self._leave(waited[1], job.id)
        self._since[job.id] = (waited[0], job.queue)
        if job.id in self._aged:
            due = {**self._due.get(job.queue, {}), job.id: None}
            self._due[job.queue] = dict.fromkeys(sorted(due, key=lambda one: (self._since[one][0], one)))
        else:
            self._stand(job)
        self._shuffled = True

    def _applied(self, state: State, e: led.QueuesApplied, t_us: int) -> None:
        """Queues may be ordered by another rule from here on."""
        self.follow(state)

    def follow(self, state: State) -> None:
        """Orders by the rules of the state's tree, what waits already too."""
        self._tree, self._rules, self._shuffled = state.tree, {}, True
        self.meets_all = self.preempts
        for job in state.jobs.values() if self.meets_all else ():
            if job.id not in self.served.slots:
                self._met(job)
                if job.state is JobState.QUEUED and job.id not in state.backing_off:
                    self._since[job.id] = (job.queued_us, job.queue)
        for job_id in list(self._since):
            self._moved(state.jobs[job_id])
        if self.rule is not None:
            return
        for job_id, slot in self.served.slots.items():
            self.served.rule[slot] = CODES.get(self.rule_of(state.jobs[job_id].team), 0)
        self._lines.clear()
        self._aging.clear()
        for job_id, (since_us, key) in self._since.items():
            job = state.jobs[job_id]
            if job_id in self._aged and self.orders(job.team):
                continue
            if job_id in self._aged:
                self._aged.discard(job_id)
                self._leave(key, job_id)
            if self.orders(job.team):
                self._await_age(job_id, since_us)
            self._stand(job)
            if job_id in self._promised and self.orders(job.team):
                self._await_promise(job_id)

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
        waited = self._since.pop(e.job_id, None)
        if waited is not None:
            self._leave(waited[1], e.job_id)
            self._promised.pop(e.job_id, None)
        self._aged.discard(e.job_id)
        self._in_turn_us.pop(e.job_id, None)
        self._ahead_s.pop(e.job_id, None)
        self._kin.pop(e.job_id, None)
        self.served.drop(e.job_id)


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
