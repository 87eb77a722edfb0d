"""What a scenario looks at: the ledger as it grows, what was refused, and who is called how."""

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
    """Of one stretch in which a gang waited: the start that it was promised first, and when it started; 0: it waits."""

    first_us: int
    attempt: int


@dataclass(slots=True)
class LedgerSeen:
    """Folded from the records so far."""

    facts: Facts = field(default_factory=Facts)
    promises: dict[str, PromiseSeen] = field(default_factory=dict)
    """Job -> the first promise that it ever got."""
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    """(victim, beneficiary) -> why it gave way, as the record says."""
    boosted: set[str] = field(default_factory=set)
    progress: dict[str, StepProgress] = field(default_factory=dict)
    """Job -> how far it is, as it was told last."""

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
    """Answers by the names that the scenario gives to jobs."""

    def __init__(self, operator: Baton, teams: dict[str, str]) -> None:
        """`teams`: job's name -> its team."""
        self.ids = {name: job_id(team, name) for name, team in teams.items()}
        self.names = {found: name for name, found in self.ids.items()}
        self.ledger = LedgerSeen()
        self.refused: dict[str, tuple[Reason, ...]] = {}
        super().__init__(LedgerReader(operator.nats.jetstream(), operator.place.pool), self.ledger.apply)

    def job(self, name: str) -> JobFacts | None:
        """None: not in the ledger."""
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
        """Of this scenario's jobs, in the order of grants."""
        return [one for one in self.ledger.facts.attempts() if one.job.id in self.names]

    def held_most(self, parents: Mapping[str, str]) -> dict[str, int]:
        """Queue -> thousandths of devices that its jobs held at the most at one moment. `parents`: queue -> the one above."""
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
