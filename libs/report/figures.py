"""The numbers of a report, from facts. Pure; what each number means is said once, in `document.py`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from libs.core.projections.verify import Verification
from libs.report.document import BillFigures, LedgerFigures, Quartiles, Report, Step, TeamFigures
from libs.report.facts import AttemptFacts, Facts, JobFacts
from schemas.attempts import Outcome
from schemas.billing import BillReply, BillRow
from schemas.resources import WHOLE_MILLI


@dataclass(frozen=True, slots=True)
class Window:
    """The busy window: from the first grant to the last freeing (or the last record, while claims are held)."""

    start_us: int
    end_us: int

    @property
    def length_us(self) -> int:
        return self.end_us - self.start_us


def window(facts: Facts) -> Window:
    """The busy window; empty when nothing was granted."""
    attempts = facts.attempts()
    if not attempts:
        return Window(facts.first_us, facts.first_us)
    return Window(attempts[0].granted_us, max(end_of(a, facts.last_us) for a in attempts))


def end_of(attempt: AttemptFacts, now_us: int, node: str | None = None) -> int:
    """When an attempt's part on `node` (without: its last part) was freed; `now_us` while it is held."""
    nodes = [node] if node is not None else attempt.nodes
    return max(attempt.freed_us.get(name, now_us) for name in nodes)


def spread(values: Iterable[float]) -> Quartiles:
    """Nearest-rank quantiles."""
    ordered = sorted(values)
    if not ordered:
        return Quartiles(count=0, p50=0, p99=0, max=0)

    def quantile(q: float) -> float:
        return round(ordered[max(0, ceil(q * len(ordered)) - 1)], 6)

    return Quartiles(count=len(ordered), p50=quantile(0.5), p99=quantile(0.99), max=round(ordered[-1], 6))


def held_milli_us(facts: Facts, *, team: str | None = None) -> int:
    """Accelerator-microseconds x thousandths that were held, by `team` or by all."""
    total = 0
    for attempt in facts.attempts():
        if team is not None and attempt.job.team != team:
            continue
        for hold in attempt.holds:
            if facts.seats[hold.device].accelerator:
                total += hold.milli * (end_of(attempt, facts.last_us, hold.node) - attempt.granted_us)
    return total


def available_milli_us(facts: Facts, span: Window) -> int:
    """Accelerator-microseconds x 1,000 that the pool offered within `span`."""
    seats = Counter(seat.node for seat in facts.seats.values() if seat.accelerator)
    total = 0
    for node, periods in facts.up.items():
        for start, end in periods:
            overlap = min(end or span.end_us, span.end_us) - max(start, span.start_us)
            total += seats[node] * WHOLE_MILLI * max(0, overlap)
    return total


def queue_waits_s(jobs: Iterable[JobFacts]) -> list[float]:
    """Submit to first grant of every job that was granted, seconds."""
    return [(job.attempts[0].stored_us - job.submitted_us) / 1e6 for job in jobs if job.attempts]


def scheduling_latencies_ms(jobs: Iterable[JobFacts]) -> list[float]:
    """The same, milliseconds, of jobs that fitted at once."""
    return [
        (job.attempts[0].stored_us - job.submitted_us) / 1e3 for job in jobs if job.attempts and job.attempts[0].at_once
    ]


def ledger_figures(audit: Verification) -> LedgerFigures:
    return LedgerFigures(
        verified=audit.ok,
        records=audit.records,
        void=audit.void,
        events=audit.events,
        attempts=audit.attempts,
        open_attempts=audit.open_attempts,
        violations=audit.violations,
        last_seq=audit.last_seq,
    )


def bill_figures(audit: Verification, bill: BillReply) -> BillFigures:
    """`bill` must be grouped by team and cover every team."""
    billed = {row.key: row.milli_us for row in bill.rows if row.milli_us}
    integral = {team: amount for team, amount in audit.by_team.items() if amount}
    return BillFigures(
        currency=bill.currency,
        total_cost_micros=bill.total_cost_micros,
        total_milli_us=bill.total_milli_us,
        integral_milli_us=audit.milli_us,
        equal=billed == integral and bill.total_milli_us == audit.milli_us,
    )


def sums_up(audit: Verification) -> bool:
    """Whether the accounts, where they were kept, sum to what existed."""
    return not audit.accounts or sum(audit.accounts.values()) == audit.capacity_unit_us


def report(
    facts: Facts, audit: Verification, bill: BillReply, *, title: str, pool: str, steps: Sequence[Step]
) -> Report:
    """The whole document. Never divides by an empty window."""
    span = window(facts)
    attempts = facts.attempts()
    jobs = list(facts.jobs.values())
    preempted = sum(a.outcome is Outcome.PREEMPTED for a in attempts)
    available = available_milli_us(facts, span)
    accelerators = sum(seat.accelerator for seat in facts.seats.values())
    rows = {row.key: row for row in bill.rows}
    ledger, money = ledger_figures(audit), bill_figures(audit, bill)
    return Report(
        title=title,
        pool=pool,
        started_us=span.start_us,
        window_s=round(span.length_us / 1e6, 3),
        nodes=len(facts.up),
        devices=dict(Counter(seat.model for seat in facts.ordered_devices())),
        jobs=len(jobs),
        by_state=_states(jobs),
        attempts=len(attempts),
        gangs=sum(len(a.holds) > 1 for a in attempts),
        widest_gang=max((len(a.holds) for a in attempts), default=0),
        preempted=preempted,
        preemption_rate=round(preempted / len(attempts), 6) if attempts else 0.0,
        preemption_cost_device_s=round(sum(a.preemption_cost_device_s for a in attempts), 3),
        utilization=_ratio(held_milli_us(facts), available),
        utilization_peak=_ratio(peak_milli(facts), accelerators * WHOLE_MILLI),
        queue_wait_s=spread(queue_waits_s(jobs)),
        scheduling_latency_ms=spread(scheduling_latencies_ms(jobs)),
        teams=[_team(facts, team, rows.get(team), available) for team in facts.teams],
        ledger=ledger,
        bill=money,
        accounts=audit.accounts,
        fragmented_unit_us=audit.fragmented_unit_us,
        capacity_unit_us=audit.capacity_unit_us,
        steps=list(steps),
        ok=ledger.verified and money.equal and sums_up(audit) and all(step.ok for step in steps),
    )


def _team(facts: Facts, team: str, row: BillRow | None, available: int) -> TeamFigures:
    jobs = [job for job in facts.jobs.values() if job.team == team]
    attempts = [a for job in jobs for a in job.attempts]
    return TeamFigures(
        team=team,
        jobs=len(jobs),
        by_state=_states(jobs),
        attempts=len(attempts),
        preempted=sum(a.outcome is Outcome.PREEMPTED for a in attempts),
        device_seconds=row.device_seconds if row else 0.0,
        milli_us=row.milli_us if row else 0,
        cost_micros=row.cost_micros if row else 0,
        share_of_capacity=_ratio(held_milli_us(facts, team=team), available),
        queue_wait_s=spread(queue_waits_s(jobs)),
    )


def _states(jobs: Iterable[JobFacts]) -> dict[str, int]:
    return dict(sorted(Counter(job.state for job in jobs).items()))


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


# ------------------------------------------------------------------------------------------------------------- curves


def allocation(facts: Facts) -> dict[str, list[tuple[int, int]]]:
    """Per team: steps (t_us, milli of accelerators held from then on), in time order, one per moment of change."""
    changes: dict[str, Counter[int]] = {team: Counter() for team in facts.teams}
    for attempt in facts.attempts():
        change = changes[attempt.job.team]
        for hold in attempt.holds:
            if facts.seats[hold.device].accelerator:
                change[attempt.granted_us] += hold.milli
                change[end_of(attempt, facts.last_us, hold.node)] -= hold.milli
    return {team: _steps(change) for team, change in changes.items()}


def queue_length(facts: Facts) -> list[tuple[int, int]]:
    """Steps (t_us, jobs waiting from then on), by the ledger's clock."""
    change: Counter[int] = Counter()
    for job in facts.jobs.values():
        begins = [job.submitted_us, *job.requeued_us]
        ends = [attempt.granted_us for attempt in job.attempts]
        if len(ends) < len(begins) and job.finished_us:
            ends.append(job.finished_us)
        for begin, end in zip(begins, ends, strict=False):
            change[begin] += 1
            change[max(begin, end)] -= 1
        for begin in begins[len(ends) :]:
            change[begin] += 1
    return _steps(change)


def peak_milli(facts: Facts) -> int:
    """The most that was held at one moment, thousandths of accelerators."""
    total: Counter[int] = Counter()
    for steps in allocation(facts).values():
        before = 0
        for t_us, value in steps:
            total[t_us] += value - before
            before = value
    return max((value for _, value in _steps(total)), default=0)


def _steps(change: Counter[int]) -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    level = 0
    for t_us in sorted(change):
        if change[t_us]:
            level += change[t_us]
            steps.append((t_us, level))
    return steps
