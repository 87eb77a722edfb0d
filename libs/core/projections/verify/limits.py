"""Checks limits of teams and queues (I7): no grant and no hold exceeds one (`limit_books`). A suspended team gets no
grant, no hold and no new job. A team that has left is suspended and has no job."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import ClassVar

from libs.core.projections.verify.books import Books, Stage, Subject
from libs.core.projections.verify.limit_books import Kind
from libs.core.state.formats import COUNTS_ONCE, FIRST
from schemas import ledger as led
from schemas.resources import Claim


class TeamLimits(Subject):
    """Passes events to the limit books."""

    handlers: ClassVar = {
        led.QuotaSet: "set",
        led.QueuesApplied: "applied",
        led.TeamSuspended: "suspended",
        led.TeamLeft: "left",
        led.TeamResumed: "resumed",
        led.JobQueued: "queued",
        led.JobGranted: "granted",
        led.AttemptPreempting: "preempting",
        led.DevicesFreed: "freed",
        led.AttemptClosed: "closed",
        led.DevicesHeld: "held",
        led.HoldReleased: "released",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._version = -1
        self._left: set[str] = set()

    def set(self, e: led.QuotaSet) -> None:
        self.books.limits.set(e.team, e.limit_milli, e.by_type)

    def applied(self, e: led.QueuesApplied) -> None:
        self.books.limits.set_queues((queue.name, queue.parent, queue.limit) for queue in e.queues)
        self.books.guarantees.applied(
            ((queue.name, queue.parent, queue.guaranteed, queue.weight_milli) for queue in e.queues), _evens_after_s(e)
        )
        if e.version <= self._version:
            self.books.broken("I7", f"queues of version {e.version} are applied after version {self._version}")
        self._version = e.version

    def suspended(self, e: led.TeamSuspended) -> None:
        self.books.suspended.add(e.team)

    def left(self, e: led.TeamLeft) -> None:
        if e.team not in self.books.suspended:
            self.books.broken("I7", f"team {e.team} has left, and was not suspended")
        if e.team in self._left:
            self.books.broken("I7", f"team {e.team} has left, and had left before")
        for job_id, job in self.books.jobs.items():
            if job.team == e.team and job.stage is not Stage.ENDED:
                self.books.broken("I7", f"team {e.team} has left, and its {job_id} has not ended")
        self._left.add(e.team)

    def resumed(self, e: led.TeamResumed) -> None:
        if e.team not in self.books.suspended:
            self.books.broken("I7", f"team {e.team} is resumed, and was not suspended")
        self.books.suspended.discard(e.team)
        self._left.discard(e.team)

    def queued(self, e: led.JobQueued) -> None:
        self._while_suspended(e.team, f"{e.job_id} is queued")

    def _while_suspended(self, team: str, what: str) -> None:
        if team in self.books.suspended:
            self.books.broken("I7", f"{what}, and its team {team} is suspended")

    def granted(self, e: led.JobGranted) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None:
            self._while_suspended(job.team, f"{e.job_id} is granted devices")
        if job is not None and job.stage is not Stage.ENDED:
            once = (self.books.format or FIRST) >= COUNTS_ONCE
            self._report(self.books.limits.grant(job.team, e.job_id, self._kinds(e.claims), counts_once=once))

    def freed(self, e: led.DevicesFreed) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is not None:
            self.books.limits.free(found[0].team, e.job_id, self._kinds(found[1].parts.get(e.node, ())))

    def preempting(self, e: led.AttemptPreempting) -> None:
        found = self.books.attempt(e.job_id, e.attempt)
        if found is not None:
            holds = (claim for claims in found[1].parts.values() for claim in claims)
            self.books.limits.gives_way(found[0].team, e.job_id, e.beneficiary, self._kinds(holds))

    def closed(self, e: led.AttemptClosed) -> None:
        self.books.limits.gone(e.job_id)

    def held(self, e: led.DevicesHeld) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None:
            self._while_suspended(job.team, f"devices are held for {e.job_id}")
        if job is not None and job.stage is not Stage.ENDED:
            milli = job.spec.resources.share_milli
            self._report(
                self.books.limits.hold(job.team, e.job_id, [(self.books.kind(device), milli) for device in e.devices])
            )

    def released(self, e: led.HoldReleased) -> None:
        self.books.limits.release(e.job_id)

    def _report(self, exceeded: list[str]) -> None:
        for what in exceeded:
            self.books.broken("I7", what)

    def _kinds(self, claims: Iterable[Claim]) -> Iterator[tuple[Kind | None, int]]:
        return ((self.books.kind(claim.device), claim.milli) for claim in claims)


def _evens_after_s(e: led.QueuesApplied) -> Fraction | None:
    """The least run time before a preemption that evens out lent devices; None: there are none. Default: a twentieth of
    a half-life."""
    said = None if e.preemption is None else e.preemption.share_grace_s
    if said == "never":
        return None
    half_life = None if e.half_life_s is None else Fraction(e.half_life_s, 20)
    return half_life if said is None else Fraction(said)
