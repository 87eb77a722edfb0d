"""Checks boosts (I20): a job is raised above its class for a limited time, within its team's budget, by an admin of its
own team, and gets its priority back afterwards."""

from collections import deque
from typing import ClassVar

from libs.core.projections.verify.books import Books, Subject
from schemas import ledger as led
from schemas.queues import MOST_BOOSTS, BoostBudget

_S = 1_000_000


class Boosts(Subject):
    """Tracks raised jobs and each team's use of boosts. Writes the priority of a job's row."""

    handlers: ClassVar = {
        led.JobBoosted: "boosted",
        led.BoostEnded: "ended",
        led.QueuesApplied: "applied",
        led.JobFinished: "finished",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._raised: dict[str, tuple[int, int]] = {}
        """Job -> priority of its class, and end of the boost."""
        self._had: dict[str, deque[int]] = {}
        self._budgets: dict[str, tuple[str, BoostBudget | None]] = {}
        """Queue -> its parent, and its own budget."""

    def applied(self, e: led.QueuesApplied) -> None:
        self._budgets = {queue.name: (queue.parent, queue.boosts) for queue in e.queues}

    def boosted(self, e: led.JobBoosted) -> None:
        books, job = self.books, self.books.jobs.get(e.job_id)
        if job is None:
            return
        own = self._raised.get(e.job_id, (job.priority, 0))[0]
        budget, had = self._budget(job.team), self._had.setdefault(job.team, deque(maxlen=MOST_BOOSTS))
        if e.priority <= own:
            books.broken("I20", f"{e.job_id} is boosted to priority {e.priority}, its class has {own}")
        if not books.t_us < e.until_us <= books.t_us + budget.longest_s * _S:
            books.broken("I20", f"{e.job_id} is boosted until {e.until_us} us, and {budget.longest_s} s are the most")
        if sum(at > books.t_us - budget.within_s * _S for at in had) >= budget.most:
            books.broken("I20", f"{e.job_id} is boosted, and team {job.team} has had {budget.most} boosts")
        self._of_own_team(e, job.team)
        had.append(books.t_us)
        self._raised[e.job_id], job.priority = (own, e.until_us), e.priority

    def ended(self, e: led.BoostEnded) -> None:
        own, _ = self._raised.pop(e.job_id, (None, 0))
        if own is None:
            self.books.broken("I20", f"a boost of {e.job_id} ends, which is not boosted")
        elif e.priority != own:
            self.books.broken("I20", f"the boost of {e.job_id} leaves it priority {e.priority}, its class has {own}")
        if (job := self.books.jobs.get(e.job_id)) is not None:
            self._of_own_team(e, job.team)
            job.priority = e.priority

    def _of_own_team(self, e: led.JobBoosted | led.BoostEnded, team: str) -> None:
        if e.team not in ("", team):
            self.books.broken("I20", f"an admin of team {e.team} says it of {e.job_id}, a job of team {team}")

    def finished(self, e: led.JobFinished) -> None:
        self._raised.pop(e.job_id, None)

    def end(self) -> None:
        if self._raised and not self.books.more:
            for job_id, (_, until_us) in self._raised.items():
                if until_us <= self.books.t_us:
                    self.books.broken("I20", f"{job_id} is boosted until {until_us} us, and it is later")

    def _budget(self, team: str) -> BoostBudget:
        name = team
        for _ in range(len(self._budgets)):
            above, said = self._budgets.get(name, ("", None))
            if said is not None:
                return said
            name = above
        return BoostBudget()
