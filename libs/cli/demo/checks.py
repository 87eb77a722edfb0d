"""The checks of the demo's story: each states what it expects, and what the ledger or a log shows. Pure."""

import re
from collections.abc import Iterable

from libs.cli.demo.load import GRACE_S, SAVE_EVERY, SAVE_S, STEP_S, STEPS
from libs.core.projections.verify import Verification
from libs.report.document import Step
from libs.report.facts import AttemptFacts, Facts, JobFacts
from libs.report.figures import end_of, window
from schemas.attempts import Outcome
from schemas.billing import BillReply
from schemas.resources import WHOLE_MILLI

_STEP = re.compile(r"^rank 0: step (\d+) ", re.MULTILINE)
_RESUMED = re.compile(r"^rank 0: resumed at step (\d+) ", re.MULTILINE)
_DONE = re.compile(r"^rank 0: done", re.MULTILINE)


def has_begun(log: str) -> bool:
    """Whether rank 0 has reported its start."""
    return bool(_RESUMED.search(log) or _STEP.search(log))


def is_done(log: str) -> bool:
    """Whether rank 0 has reported that it is done."""
    return bool(_DONE.search(log))


def placed(facts: Facts, gang: JobFacts) -> Step:
    first = gang.attempts[0]
    return Step(
        name="The training gang gets two whole nodes of one leaf",
        expected="16 devices: all 8 of 2 nodes, on 1 leaf",
        observed=_where(facts, first),
        ok=_two_nodes(facts, first),
        at_s=_at(facts, first.granted_us),
    )


def full(facts: Facts, serving: JobFacts) -> Step:
    capacity = sum(seat.accelerator for seat in facts.seats.values())
    free = capacity - held_at(facts, serving.submitted_us) / WHOLE_MILLI
    return Step(
        name="A serving job needs 8 devices at once, and the fleet is full",
        expected="0 free accelerators at the moment of its submit",
        observed=f"{free:g} of {capacity} accelerators are free",
        ok=free == 0,
        at_s=_at(facts, serving.submitted_us),
    )


def yielded(facts: Facts, gang: JobFacts, serving: JobFacts) -> Step:
    first = gang.attempts[0]
    saved = [(t_us, c) for t_us, c in first.checkpoints if t_us >= first.preempting_us > 0]
    victims = [a.job.spec.name for a in facts.attempts() if a.beneficiary == serving.id]
    observed = f"asked to give way: {', '.join(victims) or 'nobody'}"
    if saved and first.closed_us:
        observed += (
            f"; saved step {saved[0][1].step} after {_s(saved[0][0] - first.preempting_us)}, and its devices were free "
            f"after {_s(first.closed_us - first.preempting_us)}"
        )
    return Step(
        name="The gang checkpoints and yields, nobody else does",
        expected="only the gang is asked; it saves within its grace, and all its devices are freed",
        observed=observed,
        ok=victims == [gang.spec.name] and bool(saved) and first.outcome is Outcome.PREEMPTED,
        at_s=_at(facts, first.closed_us) if first.closed_us else None,
    )


def in_time(facts: Facts, serving: JobFacts) -> Step:
    first = serving.attempts[0]
    waited_us = first.stored_us - serving.submitted_us
    return Step(
        name="The serving job gets its 8 devices within the grace",
        expected=f"8 devices of one node, at most {GRACE_S:g} s after its submit",
        observed=f"{_where(facts, first)}, after {_s(waited_us)}",
        ok=len(first.holds) == 8 and len(first.nodes) == 1 and waited_us <= GRACE_S * 1e6,
        at_s=_at(facts, first.granted_us),
    )


def resumed(facts: Facts, gang: JobFacts, log: str) -> Step:
    """`log`: output of rank 0 of the second attempt."""
    saved = gang.attempts[0].checkpoints[-1][1] if gang.attempts[0].checkpoints else None
    second = gang.attempts[1]
    began = _RESUMED.search(log)
    told = f"step {second.resume.step}" if second.resume else "the beginning"
    return Step(
        name="It is requeued, gets two whole nodes again, and resumes from its checkpoint",
        expected="the grant carries the last checkpoint, and the program begins there",
        observed=f"{_where(facts, second)}; granted from {told}, began at step {began[1] if began else '?'}",
        ok=_two_nodes(facts, second)
        and saved is not None
        and second.resume == saved
        and began is not None
        and int(began[1]) == saved.step,
        at_s=_at(facts, second.granted_us),
    )


def lost_little(gang: JobFacts, log: str) -> Step:
    """`log`: output of rank 0 of the first attempt, a line every ten steps. Work after its last checkpoint is lost:
    counted in steps from its log, and in time from the ledger."""
    first = gang.attempts[0]
    interval_s = SAVE_EVERY * STEP_S + SAVE_S
    steps = [int(step) for step in _STEP.findall(log)]
    saved_us, saved = first.checkpoints[-1] if first.checkpoints else (first.granted_us, None)
    lost_steps = max(0, max(steps, default=0) - (saved.step if saved else 0))
    lost_us = end_of(first, first.closed_us) - saved_us
    return Step(
        name="It lost no more than its checkpoint interval",
        expected=f"at most {SAVE_EVERY} steps, {interval_s:g} s",
        observed=f"{lost_steps} steps by its log; {_s(lost_us)} from its last checkpoint to its end",
        ok=bool(steps) and saved is not None and lost_steps <= SAVE_EVERY and lost_us <= interval_s * 1e6,
    )


def trained(facts: Facts, gang: JobFacts, log: str) -> Step:
    """`log`: output of rank 0 of the last attempt."""
    steps = [int(step) for step in _STEP.findall(log)]
    return Step(
        name="The training reaches its last step",
        expected=f"succeeded in 2 attempts, at step {STEPS}",
        observed=f"{gang.state} in {len(gang.attempts)} attempts, at step {max(steps, default=0)}",
        ok=gang.state == "succeeded" and len(gang.attempts) == 2 and max(steps, default=0) == STEPS and is_done(log),
        at_s=_at(facts, gang.finished_us),
    )


def all_ended(facts: Facts, submitted: int, cancelled: Iterable[str]) -> Step:
    """`cancelled`: jobs that were cancelled on purpose."""
    on_purpose = set(cancelled)
    wrong = [
        f"{job.spec.name} {job.state}{': ' + job.reason if job.reason else ''}"
        for job in facts.jobs.values()
        if job.state != ("cancelled" if job.id in on_purpose else "succeeded")
    ]
    not_so = f"; not so: {'; '.join(wrong[:3])}" if wrong else ""
    well = len(facts.jobs) - len(wrong) - len(on_purpose)
    return Step(
        name="Every job ends as it should",
        expected=f"all {submitted} are in the ledger; the {len(on_purpose)} replicas are cancelled, the others succeed",
        observed=f"{well} succeeded, {len(on_purpose)} were cancelled{not_so}",
        ok=not wrong and len(facts.jobs) == submitted,
        at_s=_at(facts, facts.last_us),
    )


def verified(audit: Verification) -> Step:
    first = f"; the first: {audit.violations[0]}" if audit.violations else ""
    return Step(
        name="The ledger is verified",
        expected="no violation, no attempt left open",
        observed=f"{audit.records} records, {audit.attempts} attempts, {audit.violations_total} violations, "
        f"{audit.open_attempts} open{first}",
        ok=audit.ok and audit.open_attempts == 0,
    )


def billed(audit: Verification, bill: BillReply) -> Step:
    by_team = {row.key: row.milli_us for row in bill.rows if row.milli_us}
    integral = {team: amount for team, amount in audit.by_team.items() if amount}
    return Step(
        name="The bill equals the ledger's integral",
        expected=f"{audit.milli_us} device-microseconds x 1000, for each team the same",
        observed=f"{bill.total_milli_us}, {bill.total_cost_micros / 1e6:.4f} {bill.currency}",
        ok=by_team == integral and bill.total_milli_us == audit.milli_us,
    )


def accounted(audit: Verification) -> Step:
    total = sum(audit.accounts.values())
    parts = ", ".join(f"{name} {n / total:.1%}" for name, n in audit.accounts.items() if n)
    return Step(
        name="The accounts sum to what existed",
        expected=f"{audit.capacity_unit_us} capacity units x microseconds, to the microsecond",
        observed=f"{total} ({parts})",
        ok=total == audit.capacity_unit_us > 0,
    )


def held_at(facts: Facts, t_us: int) -> int:
    """Thousandths of accelerators held at `t_us`."""
    return sum(
        hold.milli
        for attempt in facts.attempts()
        for hold in attempt.holds
        if facts.seats[hold.device].accelerator
        and attempt.granted_us <= t_us < end_of(attempt, facts.last_us + 1, hold.node)
    )


def _two_nodes(facts: Facts, attempt: AttemptFacts) -> bool:
    leaves = {facts.seats[hold.device].leaf for hold in attempt.holds}
    on_each = [sum(hold.node == node for hold in attempt.holds) for node in attempt.nodes]
    return on_each == [8, 8] and len(leaves) == 1


def _where(facts: Facts, attempt: AttemptFacts) -> str:
    leaves = sorted({facts.seats[hold.device].leaf for hold in attempt.holds})
    return f"{len(attempt.holds)} devices of {' and '.join(attempt.nodes)} ({', '.join(leaves)})"


def _at(facts: Facts, t_us: int) -> float:
    return round((t_us - window(facts).start_us) / 1e6, 3)


def _s(us: float) -> str:
    return f"{us / 1e6:.2f} s"
