"""Checks promised starts (I18): a promise moves later only for a cause that occurred since it was made. The grant of a
late gang names the promised start since which only jobs of its own team delayed it, whenever that applies; it may name one
that passed before its team, which was suspended, was resumed.

It counts devices itself, and shares no code with placement's decision.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from libs.core.projections.verify.asked import group_of, island, sizes
from libs.core.projections.verify.books import Books, DeviceRow, JobRow, NodeRow, Subject
from libs.core.state.formats import FIRST, OWN_DELAY
from schemas import ledger as led
from schemas.jobs import PromiseCause
from schemas.resources import NAMED_ONLY, WHOLE_MILLI, Level, Resources, TopologyPolicy


class _CountedOn(NamedTuple):
    """A promised start, and the jobs of the gang's team that were expected to run beyond it."""

    start_us: int
    stays: frozenset[str]


_InUse = tuple[DeviceRow, NodeRow, int, JobRow | None]


class PromisedStarts(Subject):
    """Tracks promises of waiting gangs, and the last time of each cause."""

    handlers: ClassVar = {
        led.GangPromised: "promised",
        led.JobGranted: "granted",
        led.AttemptClosed: "closed",
        led.JobFinished: "over",
        led.NodeSilence: "fault",
        led.NodeDeclaredDead: "fault",
        led.DeviceQuarantined: "fault",
        led.NodeJoined: "fault",
        led.NodeLeft: "left",
        led.NodeCordoned: "left",
        led.JobQueued: "arrived",
        led.JobBoosted: "arrived",
        led.JobRequeued: "arrived",
        led.TeamResumed: "resumed",
    }

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._promises: dict[str, tuple[int, int]] = {}
        """Job -> promised start, and when it was promised."""
        self._last: dict[PromiseCause, int] = {}
        self._arrivals: dict[int, int] = {}
        """Priority -> when a job of it last arrived."""
        self._counted_on: dict[str, list[_CountedOn]] = {}
        """Job -> its first promises and its last since a higher class delayed it."""
        self._own_delay: dict[str, int] = {}
        """Job -> the earliest of these starts after which only its own team was in its way."""
        self._open: dict[str, set[str]] = defaultdict(set)
        """Team -> jobs with an open attempt."""
        self._resumed: dict[str, int] = {}
        self._noted_us, self._looked_us = -1, -led.OWN_DELAY_US
        """Time of the last record, and of the last check. Records with the same time are one decision."""

    def begin(self, record: led.LedgerRecord) -> None:
        """A decision is based on the state before it."""
        if not record.events or record.t_us <= self._noted_us:
            return
        self._noted_us = record.t_us
        if record.t_us < self._looked_us + led.OWN_DELAY_US:
            return
        late = [
            (self.books.jobs[job_id], start_us, stays)
            for job_id, promises in self._counted_on.items()
            for start_us, stays in promises
            if start_us < min(record.t_us, self._own_delay.get(job_id, record.t_us)) and job_id in self.books.jobs
        ]
        if late:
            self._looked_us, in_use = record.t_us, list(self._in_use())
            for job, start_us, stays in late:
                if start_us < self._own_delay.get(job.id, record.t_us) and self._in_the_way(job, stays, in_use):
                    self._own_delay[job.id] = start_us

    def promised(self, e: led.GangPromised) -> None:
        books, new = self.books, e.promise
        job = books.jobs.get(e.job_id)
        if not books.t_us <= new.p50_us <= new.p90_us or new.start_us < new.p50_us:
            books.broken("I18", f"{e.job_id} is promised a start by {new.start_us} us, and expected at {new.p50_us} us")
        before = self._promises.get(e.job_id)
        if before is not None:
            start_us, told_us = before
            if new.start_us > start_us and (
                new.cause is None or self._since(new.cause, job.priority if job is not None else None) < told_us
            ):
                why = f"for {new.cause}, of which there was none" if new.cause else "for no cause"
                books.broken(
                    "I18", f"the promised start of {e.job_id} moves from {start_us} to {new.start_us} us {why}"
                )
        elif new.cause is not None:
            books.broken("I18", f"the first promise of {e.job_id} names {new.cause} as the cause of a move")
        self._promises[e.job_id] = (new.start_us, books.t_us)
        self._note_expected(e, job)

    def _note_expected(self, e: led.GangPromised, job: JobRow | None) -> None:
        books = self.books
        if (e.stays is not None) != ((books.format or FIRST) >= OWN_DELAY):
            said = "does not say" if e.stays is None else "says"
            books.broken("I18", f"the promise of {e.job_id} {said} who of its team runs on, in format {books.format}")
        if len(set(e.stays or ())) < len(e.stays or ()):
            books.broken("I18", f"a job is told twice to run on beyond the start of {e.job_id}")
        for other_id in e.stays or ():
            other = books.jobs.get(other_id)
            if job is None or other is None or other.team != job.team or other.open is None:
                books.broken(
                    "I18", f"{other_id} is to run on beyond the start of {e.job_id}, and does not run for its team"
                )
        if e.job_id not in self._counted_on or e.promise.cause is PromiseCause.HIGHER_CLASS:
            self._counted_on[e.job_id] = []
            self._own_delay.pop(e.job_id, None)
        if e.stays is not None:
            expected = _CountedOn(e.promise.start_us, frozenset(e.stays))
            self._counted_on[e.job_id][led.MOST_COUNTED_ON - 1 :] = [expected]

    def _since(self, cause: PromiseCause, priority: int | None) -> int:
        if cause is not PromiseCause.HIGHER_CLASS:
            return self._last.get(cause, -1)
        return max(
            (at for other, at in self._arrivals.items() if priority is not None and other > priority), default=-1
        )

    def granted(self, e: led.JobGranted) -> None:
        books, found = self.books, self._own_delay.get(e.job_id)
        if e.own_delay_us not in (found, self._with_pauses(e.job_id, found)):
            was = "of nobody" if found is None else f"of its own team since {found} us"
            recorded = "of nobody" if e.own_delay_us is None else f"of its own team since {e.own_delay_us} us"
            books.broken("I18", f"{e.job_id} starts late for jobs {was} alone, and is told to for jobs {recorded}")
        self.over(e)
        if (job := books.jobs.get(e.job_id)) is not None and job.open is not None:
            self._open[job.team].add(e.job_id)

    def _with_pauses(self, job_id: str, found: int | None) -> int | None:
        """A writer of before names no start at which the team was suspended; nor does one a week after."""
        job = self.books.jobs.get(job_id)
        until_us = self._resumed.get(job.team, 0) if job is not None else 0
        starts = [one.start_us for one in self._counted_on.get(job_id, ()) if one.start_us < until_us]
        return min(starts if found is None else [found, *starts], default=None)

    def resumed(self, e: led.TeamResumed) -> None:
        self._resumed[e.team] = self.books.t_us

    def closed(self, e: led.AttemptClosed) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None and job.open is None:
            self._open[job.team].discard(e.job_id)

    def over(self, e: led.JobGranted | led.JobFinished) -> None:
        for kept in (self._promises, self._counted_on, self._own_delay):
            kept.pop(e.job_id, None)

    def fault(self, e: led.LedgerEvent) -> None:
        self._last[PromiseCause.FAULT] = self.books.t_us

    def left(self, e: led.NodeLeft | led.NodeCordoned) -> None:
        self._last[PromiseCause.DRAIN] = self.books.t_us

    def arrived(self, e: led.JobQueued | led.JobRequeued | led.JobBoosted) -> None:
        job = self.books.jobs.get(e.job_id)
        if job is not None:
            self._arrivals[job.priority] = self.books.t_us

    def _in_the_way(self, job: JobRow, stays: frozenset[str], in_use: list[_InUse]) -> bool:
        """Whether it would fit if its team's jobs, except those in `stays`, held nothing."""
        theirs = Counter[str]()
        for other_id in self._open.get(job.team, set()) - stays:
            other = self.books.jobs.get(other_id)
            for claims in other.open.parts.values() if other is not None and other.open is not None else ():
                for claim in claims:
                    theirs[claim.device] += claim.milli
        if not theirs and not self.books.holds:
            return False
        asked, fewest = job.spec.resources, sizes(job.spec.resources)[0]
        has, would_have = Counter[object](), Counter[object]()
        for row, node, free, whose in in_use:
            mine = whose is None or whose is job
            if (whose is not None and whose.team != job.team) or not _as_asked(row, node, asked):
                continue
            for group in _groups(row, node, asked):
                has[group] += mine and free >= asked.share_milli
                would_have[group] += free + theirs[row.about.id] >= asked.share_milli
        return any(count >= fewest and count > has[group] for group, count in would_have.items())

    def _in_use(self) -> Iterator[_InUse]:
        """Grantable devices now: free thousandths, and the job that it is held for."""
        books = self.books
        for device_id, row in books.devices.items():
            if row.going or row.quarantine is not None or row.node in books.cordoned or row.node in books.silent:
                continue
            if books.offered(device_id, row.node):
                free = WHOLE_MILLI - sum(claim.milli for claim in row.claims.values())
                yield row, books.nodes[row.node], free, books.jobs.get(row.held_for) if row.held_for else None


def _as_asked(row: DeviceRow, node: NodeRow, asked: Resources) -> bool:
    model, profile = row.kind
    wanted = [role.types or asked.types for role in asked.roles] or [asked.types]
    if not any(model in types if types else row.about.kind not in NAMED_ONLY for types in wanted):
        return False
    return profile == asked.mig_profile and asked.labels.items() <= node.labels.items()


def _groups(row: DeviceRow, node: NodeRow, asked: Resources) -> Iterator[object]:
    """The groups of which the gang uses one."""
    topology = asked.topology
    if asked.roles:
        yield ()
    elif topology.policy is not TopologyPolicy.REQUIRED or topology.level is Level.POOL:
        yield row.kind
    else:
        yield "group", group_of(topology.level, node), row.kind
        if found := island(row):
            yield "island", found, row.kind
