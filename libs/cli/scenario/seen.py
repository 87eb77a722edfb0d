"""What a scenario observes: the growing ledger, refusals, and its names of jobs."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from libs.client import Baton
from libs.ledger.growing import GrowingLedger
from libs.ledger.reader import LedgerReader
from libs.report.facts import AttemptFacts, Facts, JobFacts
from schemas import ledger as led
from schemas.ids import job_id
from schemas.jobs import Reason, StepProgress


@dataclass(slots=True)
class PromiseSeen:
    """One wait of a gang: the first promised start, and the actual start; 0: it still waits."""

    first_us: int
    attempt: int


@dataclass(slots=True)
class LedgerSeen:
    """A fold of the records so far."""

    facts: Facts = field(default_factory=Facts)
    promises: dict[str, PromiseSeen] = field(default_factory=dict)
    """Job -> its first promise ever."""
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    """(victim, beneficiary) -> the preemption's reason in the record."""
    boosted: set[str] = field(default_factory=set)
    progress: dict[str, StepProgress] = field(default_factory=dict)
    """Job -> its last reported progress."""

    def apply(self, record: led.LedgerRecord, seq: int, time_us: int) -> None:
        self.facts.apply(record, seq, time_us)
        for event in record.events:
            match event:
                case led.GangPromised():
                    attempt = len(self.facts.jobs[event.job_id].attempts)
                    self.promises.setdefault(event.job_id, PromiseSeen(event.promise.start_us, attempt))
                case led.AttemptPreempting():
                    self.reasons[event.job_id, event.beneficiary] = event.reason
                case led.AttemptProgress():
                    self.progress[event.job_id] = event.progress
                case led.JobBoosted():
                    self.boosted.add(event.job_id)
                case led.BoostEnded():
                    self.boosted.discard(event.job_id)


class ScenarioWatch(GrowingLedger):
    """Answers by the scenario's names of jobs."""

    def __init__(self, operator: Baton, teams: dict[str, str]) -> None:
        """`teams`: job's name -> its team."""
        self.ids = {name: job_id(team, name) for name, team in teams.items()}
        self.names = {found: name for name, found in self.ids.items()}
        self.ledger = LedgerSeen()
        self.refused: dict[str, tuple[Reason, ...]] = {}
        super().__init__(LedgerReader(operator.nats.jetstream(), operator.place.pool), self.ledger.apply)

    def job(self, name: str) -> JobFacts | None:
        """The job; None if it is not in the ledger."""
        return self.ledger.facts.jobs.get(self.ids[name])

    def state(self, name: str) -> str:
        """`not seen`, `refused`, `waiting`, `starting`, `running`, or how it ended."""
        job = self.job(name)
        if job is None:
            return "refused" if name in self.refused else "not seen"
        if job.state == "running":
            return "running" if job.last.running_us else "starting"
        return "waiting" if job.state == "queued" else job.state

    def attempts(self) -> list[AttemptFacts]:
        """Attempts of this scenario's jobs, in order of grants."""
        return [one for one in self.ledger.facts.attempts() if one.job.id in self.names]

    def held_most(self, parents: Mapping[str, str]) -> dict[str, int]:
        """Queue -> the most thousandths of devices that its jobs held at one moment. `parents`: queue -> its parent."""
        changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for attempt in self.attempts():
            queue = attempt.job.team
            while queue:
                for hold in attempt.holds:
                    changes[queue].append((attempt.granted_us, hold.milli))
                    if freed_us := attempt.freed_us.get(hold.node, 0):
                        changes[queue].append((freed_us, -hold.milli))
                queue = parents.get(queue, "")
        return {queue: max(accumulate(milli for _, milli in sorted(found))) for queue, found in changes.items()}
