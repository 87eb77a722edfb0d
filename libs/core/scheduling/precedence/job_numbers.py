"""The number of each job at a moment, by the rule of its queue, and below which number of another it gives way.

All of it is arithmetic on the columns of `Served` and on what is learned; nothing is kept here. Slots are rows of `Served`;
arrays have shape (n,), one entry for each slot that is asked about.
"""

import numpy as np

from libs.core.scheduling.precedence.learned import EDGES, Learned, cells_of
from libs.core.scheduling.precedence.rules import (
    CODES,
    EXCHANGING,
    OrderKnobs,
    OrderRule,
    classes_of,
    next_edges,
    numbers,
)
from libs.core.scheduling.precedence.served import Floats, Ints, Served
from libs.core.state.fleet import Bools

NEVER_US = 1 << 62
DUE, PROMISED = -1.0, -2.0
"""The numbers of a job that is due, and of a gang whose promise is near: below those of all that wait in line."""
_LEAST, _JUST_BEGUN, _IN_TURN = -0.5, -1.4, -1.6
"""Limits of running jobs (`limits`): the least of one that may give way, so that it gives way to who is due; of one that has
just begun, or that has its turn: they give way to promises alone, who has just begun first."""


class JobNumbers:
    """`rule`: of every queue; None: each job's own, as the column `rule` says."""

    def __init__(self, rule: OrderRule | None, served: Served, learned: Learned, knobs: OrderKnobs) -> None:
        self._rule, self._served, self._learned, self._knobs = rule, served, learned, knobs

    def of(self, slots: Ints, t_us: int) -> Floats:
        """The lower comes first; 0 where the queue is not ordered by numbers."""
        served = self._served
        looked_at = np.where(served.reports[slots], self._knobs.look_s * served.width[slots], 0.0)
        attained = served.attained_all(slots, t_us)
        if self._rule is not None:
            return numbers(self._rule, self._learned, served.width[slots], attained, served.total_s[slots], looked_at)
        found = np.zeros(len(slots))
        for rule in EXCHANGING:
            of = served.rule[slots] == CODES[rule]
            if of.any():
                at = slots[of]
                found[of] = numbers(
                    rule, self._learned, served.width[at], attained[of], served.total_s[at], looked_at[of]
                )
        return found

    def of_one(self, slot: int, t_us: int) -> float:
        return float(self.of(np.array([slot], dtype=np.int64), t_us)[0])

    # ---------------------------------------------------------------------------------------------- who gives way

    def limit(self, slot: int, t_us: int) -> float:
        """A running job gives way to those whose number is below this."""
        return float(self.limits(np.array([slot], dtype=np.int64), t_us)[0])

    def limits(self, slots: Ints, t_us: int) -> Floats:
        """`limit` of many."""
        guard_s = (self._served.guarded_us[slots] - t_us) / 1e6
        guarded = np.where(guard_s <= self._knobs.min_run_s, _JUST_BEGUN, _IN_TURN)
        result: Floats = np.where(guard_s <= 0, self.limits_unguarded(slots, t_us), guarded)
        return result

    def limits_unguarded(self, slots: Ints, t_us: int) -> Floats:
        """What `limits` will be of those that may not give way yet."""
        return self._limits_of(self.of(slots, t_us), slots)

    def _limits_of(self, own: Floats, slots: Ints) -> Floats:
        """The number below which another must be, of jobs with these numbers, shape (n,) or (n, cells): it must be worth what
        giving way loses."""
        losses = self._knobs.loss_worth * self._knobs.loss_s * self._served.width[slots]
        result: Floats = np.maximum(_LEAST, ((own.T - losses) / self._knobs.ahead).T)
        return result

    def settled(self, slots: Ints, t_us: int) -> Bools:
        """Which running jobs have run for so long without a break that they may be moved."""
        since_us, guarded_us = self._served.since_us[slots], self._served.guarded_us[slots]
        ran: Bools = (since_us >= 0) & (t_us - since_us >= self._knobs.move_run_s * 1e6)
        return ran & (guarded_us <= t_us)

    # ---------------------------------------------------------------------------------------------- what is to come

    def left_s(self, slots: Ints, t_us: int) -> Floats:
        """Seconds that running jobs still take: what is known, else the median of those that got so far."""
        served = self._served
        attained, widths = served.attained_all(slots, t_us), served.width[slots]
        median = self._learned.median[classes_of(widths), cells_of(attained)]
        return self._left(slots, attained, median) / widths

    def left_device_s(self, slots: Ints, t_us: int) -> Floats:
        """Device-seconds that jobs still take: what is known, else the mean of those that got so far."""
        served = self._served
        attained = served.attained_all(slots, t_us)
        mean = attained + self._learned.rest[classes_of(served.width[slots]), cells_of(attained)]
        return self._left(slots, attained, mean)

    def _left(self, slots: Ints, attained: Floats, guessed: Floats) -> Floats:
        """Device-seconds: of what is known to be taken in all, or else of the guess, what is not attained yet."""
        total = self._served.total_s[slots]
        result: Floats = np.maximum(0.0, np.where(np.isnan(total), guessed, total) - attained)
        return result

    def backlog_device_s(self, but_slot: int, t_us: int) -> float | None:
        """Device-seconds that all that waits and runs still takes, without one job. None: that would be a guess."""
        slots = np.flatnonzero(self._served.width)
        slots = slots[slots != but_slot]
        if self._learned.count < self._knobs.in_turn_ends and np.isnan(self._served.total_s[slots]).any():
            return None
        # In whole device-seconds: the same sum, in whatever order a reader has the jobs.
        return float(np.round(self.left_device_s(slots, t_us).sum()))

    def until_known_s(self, slots: Ints, t_us: int) -> Floats:
        """Seconds until it is known how fast jobs are that report their progress; infinite: it is, or never will be."""
        served = self._served
        looks = served.reports[slots] & np.isnan(served.total_s[slots])
        left_s = self._knobs.look_s - served.attained_all(slots, t_us) / served.width[slots]
        return np.where(looks & (left_s > 0), left_s, np.inf)

    def until_dear_s(self, slots: Ints, number: float, t_us: int) -> Floats:
        """Seconds until running jobs of which nobody knows the length have run for so long that they give way to this number;
        infinite: they will not."""
        served = self._served
        attained, widths = served.attained_all(slots, t_us), served.width[slots]
        dear = self._limits_of(self._learned.price[classes_of(widths)], slots) > number
        dear &= np.arange(dear.shape[1]) >= cells_of(attained)[:, None]
        dear &= (np.isnan(served.total_s[slots]) & (served.rule[slots] == CODES[OrderRule.SHORTEST_REMAINING]))[:, None]
        begin_s = np.concatenate([[0.0], EDGES[:-1]])[np.argmax(dear, axis=1)]
        return np.where(dear.any(axis=1), np.maximum(0.0, begin_s - attained) / widths, np.inf)

    def next_change_us(self, t_us: int) -> int:
        """When the number of a running job changes, or it may give way, at the soonest."""
        served = self._served
        slots = np.flatnonzero(served.running & (served.since_us >= 0) & (served.rule > 0))
        guards = served.guarded_us[slots]
        guards = guards[guards > t_us]
        soonest_us = int(guards.min()) if len(guards) else NEVER_US
        slots = slots[np.isnan(served.total_s[slots]) | (served.rule[slots] != CODES[OrderRule.SHORTEST_REMAINING])]
        if not len(slots):
            return soonest_us
        attained, ahead = served.attained_all(slots, t_us), np.full(len(slots), np.inf)
        for rule in EXCHANGING:
            of = served.rule[slots] == CODES[rule]
            ahead[of] = (next_edges(rule, attained[of], EDGES) - attained[of]) / served.width[slots[of]]
        return min(soonest_us, t_us + max(1_000_000, int(min(float(ahead.min()), 1e12) * 1e6) + 1))
