"""Checks preemption and its holds (I11). A victim has a lower class than a waiting beneficiary that may preempt; or it
runs on borrowed devices of its queue, and the other's queue is within its guarantee or has a smaller share of lent
devices; or both have the same class and team, and their queue's order says so. Held devices are granted to nobody else.
A plan with victims holds devices for its beneficiary. Limits on frequency are in `thrash`."""

from collections import Counter
from collections.abc import Collection
from typing import ClassVar, NamedTuple

from libs.core.projections.verify.asked import sizes
from libs.core.projections.verify.books import Books, JobRow, Promises, Stage, Subject
from libs.core.projections.verify.limit_books import Kind
from libs.core.projections.verify.thrash import ThrashBooks
from libs.core.state.formats import FIRST, OWN_UNCOUNTED, PREEMPTION_LIMITED, UNCREDITED
from schemas import ledger as led
from schemas.ids import split_attempt_id
from schemas.resources import WHOLE_MILLI


class _GivesBack(NamedTuple):
    """A victim that the beneficiary's class may not preempt."""

    job_id: str
    team: str
    kinds: Counter[Kind]
    level: int | None
    """The level at which the two queues part, if it runs on borrowed devices."""
    early: str
    """The violation if it is preempted to even out lent devices."""


class Holds(Subject):
    """Tracks devices held for beneficiaries."""

    handlers: ClassVar = {
        led.AttemptPreempting: "preempting",
        led.AttemptStopping: "stopping",
        led.AttemptClosed: "closed",
        led.DevicesHeld: "held",
        led.HoldReleased: "released",
        led.JobGranted: "granted",
        led.JobFinished: "finished",
        led.QueuesApplied: "applied",
        led.TeamSuspended: "suspended",
        led.NodeSilence: "silent",
        led.NodeHeard: "heard",
        led.DevicesReserved: "reserved",
        led.NodeLeft: "node_is_gone",
        led.NodeJoined: "node_is_gone",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._will_hold = Promises(books, "somebody gives way to {}, and nothing is held for it")
        self._thrash = ThrashBooks()
        self._plans: dict[str, set[str]] = {}
        """Beneficiary -> plans of this decision."""
        self._leaving: set[str] = set()
        """Jobs whose attempt is being preempted or stopped: their devices no longer count for their queues."""
        self._takes_back: dict[str, list[_GivesBack]] = {}
        """Beneficiary -> victims that return borrowed devices."""
        self._let_go = Promises(books, "what is held for {} is released, and it neither starts nor ends")
        self._paused = Promises(books, "the team of {} is suspended, and devices stay held for it")
        self._silent: set[str] = set()
        """Silent nodes: holds on them are released."""
        self._was_on: dict[str, set[str]] = {}
        """Job -> nodes of such holds."""
        self._queues: dict[str, tuple[str, str | None]] = {"": ("", None)}
        """Queue -> its parent and its order; "": the pool."""

    def applied(self, e: led.QueuesApplied) -> None:
        self._thrash.applied(e)
        self._queues = {"": ("", e.order), **{queue.name: (queue.parent, queue.order) for queue in e.queues}}

    def _exchanges(self, team: str) -> bool:
        """Whether jobs of one class and team preempt each other, by the order of their queue or the nearest parent with
        an order."""
        name = team if team in self._queues else ""
        while name and self._queues[name][1] is None:
            name = self._queues[name][0]
        return self._queues[name][1] in ("least-attained", "shortest-remaining")

    def preempting(self, e: led.AttemptPreempting) -> None:
        books = self.books
        books.report.preemptions += 1
        victim, winner = books.jobs.get(e.job_id), books.jobs.get(e.beneficiary)
        self._will_hold.make(e.beneficiary)
        self._plans.setdefault(e.beneficiary, set()).add(e.plan_id)
        early = self._too_soon(e, victim, winner)
        own = victim is not None and winner is not None and victim.team == winner.team
        if e.for_own_team != (own and (books.format or FIRST) >= UNCREDITED):
            whose = "its own team" if e.for_own_team else "others"
            books.broken("I11", f"{e.job_id} gives way to {e.beneficiary}, which is said to be for {whose}")
        if e.counts == (own and (books.format or FIRST) >= OWN_UNCOUNTED):
            counts = "counts" if e.counts else "does not count"
            books.broken("I11", f"{e.job_id} gives way to {e.beneficiary}, and {counts} for the rates")
        if winner is None or winner.stage is not Stage.WAITING:
            books.broken("I11", f"{e.job_id} gives way to {e.beneficiary}, which does not wait")
        elif victim is not None and victim.team == winner.team and victim.priority == winner.priority:
            if not self._exchanges(winner.team):
                books.broken(
                    "I11", f"{e.job_id} gives way to {e.beneficiary} of its own class, in an order that has no such"
                )
            elif early:
                books.broken("I11", f"{e.job_id} gives way to {e.beneficiary} {early}")
        elif victim is not None and not (winner.preempts and victim.priority < winner.priority and not early):
            self._check_return(victim, winner, early)
        self._leaving.add(e.job_id)

    def _too_soon(self, e: led.AttemptPreempting, victim: JobRow | None, winner: JobRow | None) -> str:
        """The violation in how long the victim ran, if it returns no borrowed devices; "": none. Reports preemptions
        that are too frequent itself."""
        same = (
            victim is not None
            and winner is not None
            and (victim.team, victim.priority) == (winner.team, winner.priority)
        )
        if self.books.format is None or victim is None or victim.open is None or (same and not self._thrash.said):
            return ""
        limited = self.books.format >= PREEMPTION_LIMITED
        for often in self._thrash.gives_way(
            e.job_id, e.plan_id, self.books.t_us, limited=limited, counts=e.counts, own=same
        ):
            self.books.broken("I11", f"{e.job_id} gives way to {e.beneficiary} {often}")
        return self._thrash.too_short(victim.team, victim.open, self.books.t_us, lent=False)

    def _check_return(self, victim: JobRow, winner: JobRow, early: str) -> None:
        """The violation of a preemption that the beneficiary's class does not allow."""
        parted, guarantees = None, self.books.guarantees
        may_lend = guarantees and victim.priority <= winner.priority
        if may_lend:
            asked = _asked(winner)
            parted = guarantees.lends(victim.team, winner.team, asked, self._holdings_left)
        if parted is not None or (may_lend and guarantees.evens_after_s is not None and victim.team != winner.team):
            soon = self._too_soon_to_even_out(victim)
            kinds = self._kinds_of(victim)
            gives = _GivesBack(victim.id, victim.team, kinds, parted, soon)
            self._takes_back.setdefault(winner.id, []).append(gives)
            if parted is not None and early and victim.open is not None:
                early = self._thrash.too_short(victim.team, victim.open, self.books.t_us, lent=True)
                if early:
                    self.books.broken("I11", f"{victim.id} gives back to {winner.id} {early}")
        elif not winner.preempts:
            self.books.broken("I11", f"{victim.id} gives way to {winner.id}, whose class may not preempt")
        elif early and victim.priority < winner.priority:
            self.books.broken("I11", f"{victim.id} gives way to {winner.id} {early}")
        else:
            classes = f"of class {victim.priority} gives way to {winner.id} of class {winner.priority}"
            self.books.broken("I11", f"{victim.id} {classes}")

    def _too_soon_to_even_out(self, victim: JobRow) -> str:
        evens_after_s, t_us = self.books.guarantees.evens_after_s, self.books.t_us
        if victim.open is None:
            return ""
        return self._thrash.too_short(victim.team, victim.open, t_us, evens_after_s=evens_after_s)

    def _kinds_of(self, job: JobRow) -> Counter[Kind]:
        """The kinds it holds."""
        total: Counter[Kind] = Counter()
        for claims in job.open.parts.values() if job.open is not None else ():
            for claim in claims:
                if (kind := self.books.kind(claim.device)) is not None:
                    total[kind] += claim.milli
        return total

    def _given_back(self, job: JobRow, given: list[_GivesBack], gets: Counter[Kind]) -> str:
        """The violation in what others return to a job that gets `gets`; "": none."""
        levels = [one.level for one in given if one.level is not None]
        within = self.books.guarantees.within
        if len(levels) == len(given) and within(job.team, min(levels), gets, _asked(job), self._holdings_left):
            return ""
        for one in given:
            if one.early:
                return f"{one.job_id} gives way to {job.id} {one.early}"
            if not self.books.guarantees.evens(one.team, job.team, one.kinds, gets, self._holdings_left):
                return f"{one.job_id} gives back to {job.id}, whose queues are not within their guarantees, and have not less"
        return ""

    def _holdings_left(self, teams: Collection[str]) -> Counter[Kind]:
        """Devices held by teams or for them, without those being returned."""
        total = self.books.limits.counted(teams)
        for job_id in self._leaving:
            job = self.books.jobs.get(job_id)
            for claims in (
                job.open.parts.values() if job is not None and job.open is not None and job.team in teams else ()
            ):
                for claim in claims:
                    if (kind := self.books.kind(claim.device)) is not None:
                        total[kind] -= claim.milli
        return total

    def stopping(self, e: led.AttemptStopping) -> None:
        self._leaving.add(e.job_id)

    def closed(self, e: led.AttemptClosed) -> None:
        self._leaving.discard(e.job_id)

    def held(self, e: led.DevicesHeld) -> None:
        books = self.books
        self._will_hold.keep(e.job_id)
        plans = self._plans.get(e.job_id, set())
        if books.format is not None and plans - {e.plan_id}:
            books.broken(
                "I11", f"others give way to {e.job_id} by plan {', '.join(plans)}, what is held is by {e.plan_id}"
            )
        if e.job_id in books.holds:
            books.broken("I11", f"devices are held for {e.job_id} a second time")
            self._forget(e.job_id)
        job, given = books.jobs.get(e.job_id), self._takes_back.pop(e.job_id, None)
        if job is not None and given is not None:
            gets = Counter[Kind]()
            for device in e.devices:
                if (kind := books.kind(device)) is not None:
                    gets[kind] += job.spec.resources.share_milli
            if wrong := self._given_back(job, given, gets):
                books.broken("I11", wrong)
        elif job is not None and not job.preempts and not self._exchanges(job.team):
            books.broken("I11", f"devices are held for {e.job_id}, whose class may not preempt")
        if job is not None and books.format is not None:
            fewest, most = sizes(job.spec.resources)
            if not fewest <= len(e.devices) <= most:
                books.broken("I11", f"{len(e.devices)} devices are held for {e.job_id}, it runs on {fewest} to {most}")
        books.holds[e.job_id] = e.devices
        if len(set(e.devices)) != len(e.devices):
            books.broken("I11", f"a device is held twice for {e.job_id}")
        for device in e.devices:
            row = books.devices.get(device)
            away = row is None or row.going or row.quarantine is not None or row.node in books.cordoned
            if row is None or away or not books.offered(device, row.node):
                books.broken("I11", f"{device} is held for {e.job_id} and is not in the pool now")
                if row is None:
                    continue
            if row.held_for:
                books.broken("I11", f"{device} is held for {e.job_id} and for {row.held_for}")
            row.held_for = e.job_id
            if (
                job is not None
                and (stay := self._still_taken(device, e.job_id)) + job.spec.resources.share_milli > WHOLE_MILLI
            ):
                books.broken(
                    "I11", f"{device} is held for {e.job_id}, and {stay} milli of it are of jobs that do not give way"
                )

    def _still_taken(self, device: str, beneficiary: str) -> int:
        """Thousandths of a device still taken after all victims of `beneficiary` have gone."""
        stay = 0
        for name, claim in self.books.devices[device].claims.items():
            job_id, number = split_attempt_id(name)
            found = self.books.attempt(job_id, number)
            if found is None or found[1].beneficiary != beneficiary:
                stay += claim.milli
        return stay

    def released(self, e: led.HoldReleased) -> None:
        if e.job_id not in self.books.holds:
            self.books.broken("I11", f"nothing is held for {e.job_id}, and it is released")
        devices = self.books.holds.get(e.job_id, ())
        found = (self.books.devices.get(device) for device in devices)
        rows = [row for row in found if row is not None]
        nodes = {row.node for row in rows}
        job = self.books.jobs.get(e.job_id)
        paused = job is not None and job.team in self.books.suspended
        unpaid = job is not None and not self.books.covers(job, devices)
        away = self._silent | self.books.cordoned
        there = all(row.quarantine is None and self.books.offered(row.about.id, row.node) for row in rows)
        if not paused and not unpaid and not nodes & away and there:
            self._was_on[e.job_id] = nodes
            self._let_go.make(e.job_id)
        self._forget(e.job_id)

    def granted(self, e: led.JobGranted) -> None:
        if e.job_id in self.books.holds:
            self.books.broken("I11", f"{e.job_id} is granted devices, and its hold is not released")
            self._forget(e.job_id)
        if self._was_on:
            self._accept_release(e.job_id)
        if not self.books.holds:
            return
        for claim in e.claims:
            row = self.books.devices.get(claim.device)
            if row is not None and row.held_for not in ("", e.job_id):
                self.books.broken("I11", f"{claim.device} is held for {row.held_for} and granted to {e.job_id}")

    def finished(self, e: led.JobFinished) -> None:
        if e.job_id in self.books.holds:
            self.books.broken("I11", f"{e.job_id} ends, and devices are held for it")
            self._forget(e.job_id)
        self._accept_release(e.job_id)
        self._thrash.ended(e.job_id)

    def reserved(self, e: led.DevicesReserved) -> None:
        """Devices reserved for a waiting job exist in the pool; the job need not be granted these. Usually it is a
        gang. A single device is reserved for a job that has waited so long that it precedes all others."""
        job = self.books.jobs.get(e.gang)
        if job is None or job.stage is not Stage.WAITING:
            self.books.broken("I11", f"devices are reserved for {e.gang}, which does not wait")
        if unknown := [device for device in e.devices if device not in self.books.devices]:
            self.books.broken("I11", f"{unknown[0]} is reserved for {e.gang}, and no node has brought it")
        if len(set(e.devices)) < len(e.devices):
            self.books.broken("I11", f"a device is reserved twice for {e.gang}")

    def silent(self, e: led.NodeSilence) -> None:
        self._silent.add(e.node)

    def heard(self, e: led.NodeHeard) -> None:
        self._silent.discard(e.node)

    def node_is_gone(self, e: led.NodeLeft | led.NodeJoined) -> None:
        node = e.node if isinstance(e, led.NodeLeft) else e.inventory.node
        self._silent.discard(node)
        if self._was_on:
            for job in [job for job, nodes in self._was_on.items() if node in nodes]:
                self._accept_release(job)

    def suspended(self, e: led.TeamSuspended) -> None:
        for job_id in self.books.holds:
            job = self.books.jobs.get(job_id)
            if job is not None and job.team == e.team:
                self._paused.make(job_id)

    def end(self) -> None:
        if self._paused:
            for job_id in [job_id for job_id in self._paused if job_id not in self.books.holds]:
                self._paused.keep(job_id)
            self._paused.check("I11")
        if self._will_hold:
            self._will_hold.check("I11")
        if self._plans and not self.books.more:
            self._plans.clear()
            self._thrash.decided()
        if self._was_on:
            self._let_go.check("I11")
            self._was_on = {job: nodes for job, nodes in self._was_on.items() if job in self._let_go}

    def _accept_release(self, job_id: str) -> None:
        self._let_go.keep(job_id)
        self._was_on.pop(job_id, None)

    def _forget(self, job_id: str) -> None:
        for device in self.books.holds.pop(job_id, ()):
            row = self.books.devices.get(device)
            if row is not None and row.held_for == job_id:
                row.held_for = ""


def _asked(job: JobRow) -> list[Kind]:
    """The kinds that a job requests; none: any accelerator."""
    asked = job.spec.resources
    if asked.roles:
        return [(model, "") for role in asked.roles for model in role.types or asked.types]
    return [(model, asked.mig_profile) for model in asked.types]
