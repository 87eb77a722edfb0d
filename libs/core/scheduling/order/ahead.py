"""How many jobs are considered before one: counted queue by queue, without walking the jobs.

The naive count walks all jobs in order up to the one in question (`walk.in_order`; `tests/core/test_questions.py` compares the
two). That walk is a merge: of all queues, the one whose next job ranks first goes on. So a job is met when the walk has
come to the highest rank among those that stand before it in its own queue, itself included: its *reach*. Of each other
queue so many were met before as stand before the first one that ranks behind that reach.

In a queue rank follows age, with two exceptions: jobs for which devices are held come first, and there are few of them; and
gangs whose reservation is not due come behind all that are due, which `Line` finds by when they were queued. Queues that are
ordered by numbers are kept in that order (`precedence.turns`), what is due before the rest.
"""

from collections.abc import Collection
from typing import NamedTuple

from libs.core.scheduling.order.rank import JobRank, held_in, rank
from libs.core.scheduling.order.share import Shares
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import Precedence
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State

_OLDEST = (0, "")


class _Reach(NamedTuple):
    rank: JobRank
    place: int
    """How many of its own queue stand before it."""


class JobsAhead:
    """The jobs before others in a cycle at `t_us` that grants nothing. Reads the state, changes nothing."""

    def __init__(self, state: State, t_us: int, policy: Policy) -> None:
        self._state, self._t_us, self._policy = state, t_us, policy
        self._due_us = t_us - policy.reserve_after_us
        """A gang that was queued after this is not due."""
        self._shares = Shares(state, policy)
        self._counted: dict[str, dict[QueueKey, int]] = {}

    def count(self, job: Job, team: str = "") -> int:
        """How many jobs (of `team`, if one is given) stand before `job`, which waits itself."""
        return sum(self.by_queue(job, team).values())

    def by_queue(self, job: Job, team: str = "") -> dict[QueueKey, int]:
        """Of each queue (of `team`, if one is given) in which jobs stand before `job`: how many. `job` stands in its queue."""
        if not team and job.id in self._counted:
            return self._counted[job.id]
        reach = self._reach(job)
        found = {}
        for key in self._state.queues:
            if key.priority < job.priority or (team and key.team != team):
                continue
            count = reach.place if key is job.queue or key == job.queue else self._met(key, reach.rank)
            if count:
                found[key] = count
        if not team:
            self._counted[job.id] = found
        return found

    def held(self, job: Job) -> int:
        """How many of those before `job` have devices held for them."""
        reach = self._reach(job)
        count = 0
        for job_id in self._state.holds:
            other = self._state.jobs.get(job_id)
            if other is None or other is job or other.queue not in self._state.queues:
                continue
            if other in self._state.queues[other.queue]:
                theirs = self._reach(other)
                count += theirs.place < reach.place if other.queue == job.queue else theirs.rank < reach.rank
        return count

    def _rank(self, job: Job) -> JobRank:
        return rank(job, self._shares, self._t_us, self._policy)

    def _reach(self, job: Job) -> _Reach:
        line, held = self._state.queues[job.queue], held_in(self._state, job.queue)
        if self._by_number(job.queue) and job.id not in self._state.holds:
            turns = self._turns()
            due = [other for other in turns.due(job.queue) if other not in self._state.holds]
            place = due.index(job.id) if job.id in due else len(due) + turns.place(job.queue, job.id, self._state.holds)
            before = due[: place + 1] if job.id in due else due
            ranks = [
                self._rank(job),
                *map(self._rank, held),
                *(self._rank(self._state.jobs[other]) for other in before),
            ]
            return _Reach(max(ranks), len(held) + place)
        if job.id in self._state.holds:
            first = [other for other in held if (other.submitted_us, other.id) <= (job.submitted_us, job.id)]
            return _Reach(max(map(self._rank, first)), len(first) - 1)
        mine = self._rank(job)
        ranks = [mine, *map(self._rank, held)]
        if not mine.not_due:
            holds = [other.id for other in held]
            found = line.last_queued_after(self._due_us, job.submitted_us, job.id, holds)
            if found is not None:
                ranks.append(self._rank(self._state.jobs[found]))
        older = line.before(job.submitted_us, job.id)
        return _Reach(max(ranks), older + sum((o.submitted_us, o.id) > (job.submitted_us, job.id) for o in held))

    def _met(self, key: QueueKey, reach: JobRank) -> int:
        """How many of a queue the walk has met when it comes to `reach`, a rank in another queue of at most its priority."""
        line = self._state.queues[key]
        if -key.priority < reach.minus_priority:
            return len(line)
        held = held_in(self._state, key)
        for number, job in enumerate(held):
            if self._rank(job) > reach:
                return number
        if self._by_number(key):
            return len(held) + self._met_by_number(key, reach)
        stop = self._first_behind(key, reach, [job.id for job in held])
        if not held:
            return stop
        return len(held) + stop - sum(line.before(job.submitted_us, job.id) < stop for job in held)

    def _by_number(self, key: QueueKey) -> bool:
        """Whether the queue is in the order of numbers, and not of age."""
        return self._policy.precedence is not None and self._policy.precedence.rules.by_number(key.team)

    def _turns(self) -> Precedence:
        assert self._policy.precedence is not None
        return self._policy.precedence

    def _met_by_number(self, key: QueueKey, reach: JobRank) -> int:
        """Of those for which nothing is held."""
        turns, holds = self._turns(), self._state.holds
        due = [job_id for job_id in turns.due(key) if job_id not in holds]
        for number, job_id in enumerate(due):
            if self._rank(self._state.jobs[job_id]) > reach:
                return number
        if not reach.not_due:
            return len(due)
        share = self._shares.of(key)
        if share != reach.share:
            return len(due) + (turns.place(key, None, holds) if share < reach.share else 0)
        return len(due) + turns.before(key, (reach.number, reach.submitted_us, reach.job_id), holds)

    def _first_behind(self, key: QueueKey, reach: JobRank, held: Collection[str]) -> int:
        """How many of a queue of the same priority stand before the first, not counting `held`, that ranks behind `reach`."""
        line, age, gangs = self._state.queues[key], (reach.submitted_us, reach.job_id), key.shape.devices > 1
        gangs = gangs and self._shares.may_overtake(key)
        if not reach.not_due:
            if not gangs:
                return 0
            not_due = line.queued_after(self._due_us, *_OLDEST, held)
            return min(not_due, line.before(*age))
        share = self._shares.of(key)
        if share < reach.share or (share == reach.share and reach.number):  # here all numbers are 0
            return len(line)
        begin = _OLDEST if share > reach.share else age
        return line.queued_after(self._due_us, *begin, held) if gangs else line.before(*begin)
