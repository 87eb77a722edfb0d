"""Why a job waits. The same code that places jobs says what keeps it out.

An answer is made for whoever asks (`seen_by`). A team is told what is free for it, and nothing of others' jobs: not how many
wait ahead, not what they hold each, not what giving way costs them. The operator is told all.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice

from libs.core.explain.diagnosis import diagnose
from libs.core.explain.holders import holders
from libs.core.explain.kept_back import kept_back
from libs.core.explain.reasons import Reasons
from libs.core.explain.start_estimate import estimate_start
from libs.core.explain.user_shares import user_shares
from libs.core.placement.answer import Blocked, BlockReason
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.scheduling import retry
from libs.core.scheduling.order import JobsAhead, in_order
from libs.core.scheduling.policy import Policy
from libs.core.state.boosts import Boost
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State, running
from libs.core.state.ranges import in_ranges
from libs.core.state.unused_cuts import AT_ONCE
from schemas.explanations import Explanation
from schemas.jobs import JobState, StartPromise
from schemas.queue_status import ExpectedStart, QueuedJob
from schemas.resources import Span
from schemas.subjects import OPERATOR

BACKING_OFF = "backing-off"
"""The reason of a job that waits for a time, and for no device."""
SUSPENDED = "suspended"
"""The reason of a job whose team an operator has paused: it keeps its age, and waits for no device."""
SPARED = "spared"
"""The reason of a job to which others would give way, were it not for a limit on preemption."""
CUTS_USED_UP = "cuts-used-up"
"""The reason of a job for which a MIG board would be cut, had its team used those that were cut for it."""
_LACKS = frozenset({BlockReason.NO_DEVICES, BlockReason.TYPE, BlockReason.BUSY, BlockReason.HELD, BlockReason.RESERVED})
"""Reasons of a job that a further node would help."""
ESTIMATED = 4
"""Jobs of a list, the first ones, whose start is worked out: each costs some searches."""


def explain(state: State, job: Job, reasons: Reasons, *, seen_by: str = OPERATOR) -> Explanation:
    """The explanation of a job that has not ended. `reasons` are of this `state`."""
    found = _explained(state, job, reasons, seen_by=seen_by)
    return found if job.boost is None else found.model_copy(update={"text": found.text + _boosted(job.boost)})


def _boosted(boost: Boost) -> str:
    until = datetime.fromtimestamp(boost.until_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"; it is boosted above its class until {until}: {boost.reason}"


def _explained(state: State, job: Job, reasons: Reasons, *, seen_by: str) -> Explanation:
    if job.state is not JobState.QUEUED:
        text = _running(job) + _ends_then(state, job) + _unheard(state, job)
        return Explanation(job_id=job.id, state=job.state, reason=job.state.value, text=text, span=_span(job))
    if job.team in state.suspended:
        text = state.suspended[job.team].text(job.team)
        return Explanation(job_id=job.id, state=job.state, reason=SUSPENDED, text=text)
    if job.id in state.backing_off:
        return Explanation(job_id=job.id, state=job.state, reason=BACKING_OFF, text=_backs_off(state, job))
    if job.id in state.holds:
        devices = len(state.holds[job.id])
        text = f"{devices} devices are being freed for it: lower classes are saving their work and giving way"
        text += _cost(state, job) if seen_by == OPERATOR else ""
        return Explanation(job_id=job.id, state=job.state, reason="preempting", text=text)
    view, context = reasons.view_of(job), context_of(state, job, state.t_us)
    room = reasons.tally.room(job)
    found = room.outcome if room.request is None else find(view, room.request, context=context)
    outcome = found if isinstance(found, Blocked) else reasons.of(job.queue)
    before = JobsAhead(state, state.t_us, reasons.policy)
    ahead = before.count(job, "" if seen_by == OPERATOR else seen_by)
    if outcome is None:
        text = "it fits now and is granted with the next decision"
        return Explanation(job_id=job.id, state=job.state, reason="next", text=text, ahead=ahead, position=ahead + 1)
    limit_s = reasons.limit_in_time_s(job)
    found_out = diagnose(state, job, outcome, view, context, most=1, seen_by=seen_by, limit_in_time_s=limit_s)
    spared, uncut = kept_back(state, job, reasons.policy), _cuts_used_up(state, job, outcome.reason)
    limits = "; ".join(limit for limit in (spared, uncut) if limit)
    users = user_shares(state, job.team)
    behind = holders(state, job, reasons.policy.precedence, seen_by=seen_by)
    return Explanation(
        job_id=job.id,
        state=job.state,
        reason=SPARED if spared else CUTS_USED_UP if uncut else outcome.reason.value,
        text=(f"{limits}; {found_out.text}" if limits else found_out.text)
        + ("" if uncut else _may_be_cut(state, job, outcome.reason))
        + _out_of_hearing(state, job, outcome.reason),
        ahead=ahead,
        position=ahead + 1,
        behind=behind.shown,
        behind_more=behind.more,
        behind_others_devices=behind.others_devices,
        start=expected_start(state, job, reasons, before=before, seen_by=seen_by),
        promise=_promised(job, reasons.policy),
        user=next((one for one in users if one.user == job.user), None),
        users=len(users),
        removed=found_out.removed,
        suggestion=found_out.suggestion,
    )


def expected_start(
    state: State, job: Job, reasons: Reasons, *, before: JobsAhead | None = None, seen_by: str = OPERATOR
) -> ExpectedStart | None:
    """When a waiting job is expected to start; None: unknown."""
    t_us, policy = reasons.t_us, reasons.policy
    found = estimate_start(state, job, t_us, policy, before=before, ends=reasons.ends, seen_by=seen_by)
    if found.start_s is not None:
        latest_us = None if found.latest_s is None else t_us + int(max(found.latest_s, found.start_s) * 1e6)
        return ExpectedStart(p50_us=t_us + int(found.start_s * 1e6), p90_us=latest_us, basis=found.basis)
    told = _promised(job, policy)
    return None if told is None else ExpectedStart(p50_us=told.p50_us, p90_us=told.p90_us, basis="as it was promised")


def _promised(job: Job, policy: Policy) -> StartPromise | None:
    known = policy.precedence.book.of.get(job.id) if policy.precedence is not None else None
    return None if known is None else known.last


def queue_view(state: State, reasons: Reasons, limit: int, *, seen_by: str = OPERATOR) -> list[QueuedJob]:
    """The first `limit` waiting jobs that `seen_by` may see in the order in which they are considered, each with the reason of
    its queue; then those that are not considered yet, because they were lost several times in a row, or their
    team is suspended. `reasons` are of this `state`."""
    shown = in_order(state, state.t_us, reasons.policy, _seen(state.queues, seen_by))
    waiting = []
    for number, job in enumerate(islice(shown, limit)):
        start = expected_start(state, job, reasons, seen_by=seen_by) if number < ESTIMATED else None
        waiting.append(_queued(job, _reason(reasons, job.queue), number + 1, start))
    later = [state.jobs[job] for job in state.backing_off if seen_by in (OPERATOR, state.jobs[job].team)]
    later.sort(key=lambda job: (state.backing_off[job.id], job.id))
    waiting += [_queued(job, BACKING_OFF) for job in later[: limit - len(waiting)]]
    parked = (job_id for key in _seen(state.parked, seen_by) for job_id in state.parked[key])
    return waiting + [_queued(state.jobs[job_id], SUSPENDED) for job_id in islice(parked, limit - len(waiting))]


def waiting_jobs(state: State, *, seen_by: str = OPERATOR) -> int:
    """How many jobs wait that `seen_by` may see."""
    later = sum(seen_by in (OPERATOR, state.jobs[job].team) for job in state.backing_off)
    return later + sum(len(queues[key]) for queues in (state.queues, state.parked) for key in _seen(queues, seen_by))


def _seen(queues: Iterable[QueueKey], seen_by: str) -> list[QueueKey]:
    return [key for key in queues if seen_by in (OPERATOR, key.team)]


def _reason(reasons: Reasons, key: QueueKey) -> str:
    why = reasons.of(key)
    return "" if why is None else why.reason.value


def _backs_off(state: State, job: Job) -> str:
    wait_s = max(1, (job.not_before_us - state.t_us + 999_999) // 1_000_000)
    why = [
        f"it {what} {times} times in a row (in all: {_in_all(job, budget)})"
        for what, times, budget in (
            ("was lost", job.losses, retry.Budget.INFRASTRUCTURE), ("failed", job.failures, retry.Budget.USER),
        )
        if times > 1
    ]  # fmt: skip
    return (
        f"it waits for another {wait_s} s, because {' and '.join(why)}; every further time doubles the wait, "
        "up to five minutes, and a run of ten minutes ends it"
    )


def _in_all(job: Job, budget: retry.Budget) -> str:
    """How often it came to each kind of end that this budget pays for."""
    kinds = [category for category, rule in retry.POLICY.items() if rule.budget is budget and category in job.endings]
    return ", ".join(f"{kind.value} {job.endings[kind]} times" for kind in kinds)


def _queued(job: Job, reason: str, position: int = 0, start: ExpectedStart | None = None) -> QueuedJob:
    return QueuedJob(
        job_id=job.id,
        team=job.team,
        name=job.name,
        priority_class=job.spec.priority_class,
        priority=job.priority,
        devices=job.shape.devices,
        waiting_since_us=job.submitted_us,
        reason=reason,
        position=position,
        start=start,
    )


def _cost(state: State, beneficiary: Job) -> str:
    """What giving way to `beneficiary` costs its victims; "" when the plan named no costs."""
    attempts = (job.current for job in running(state) if job.state is JobState.PREEMPTING)
    costs = [a.cost_device_s for a in attempts if a is not None and a.beneficiary == beneficiary.id]
    known = [cost for cost in costs if cost is not None]
    return f", which costs them {sum(known):,.0f} device-seconds" if known else ""


def _running(job: Job) -> str:
    attempt = job.current
    assert attempt is not None
    where = ", ".join(in_ranges(attempt.parts))
    why = f" ({attempt.reason})" if attempt.reason else ""
    if job.state is JobState.PREEMPTING and attempt.cost_device_s is not None:
        why += f", giving way costs it {attempt.cost_device_s:,.0f} device-seconds"
    together = f", {attempt.span.text}" if attempt.span else ""
    return f"attempt {attempt.number} is {job.state.value} on {where}{together}{why}"


def _ends_then(state: State, job: Job) -> str:
    """Of a job that was cancelled while its attempt was being stopped for another reason."""
    return "" if state.early_cancels.of(job.id, job.team) is None else "; it was cancelled, and does not wait again"


def _out_of_hearing(state: State, job: Job, reason: BlockReason) -> str:
    """Of a job that lacks devices: which silent nodes have such that it could use, and that count as out of the pool."""
    if reason not in _LACKS:
        return ""
    fleet, types = state.fleet, job.shape.types
    models, codes = fleet.models.names, fleet.model
    silent = [
        node
        for node in state.silent
        if not types or any(models[int(codes[row])] in types for row in fleet.nodes[node].rows)
    ]
    if not silent:
        return ""
    verb, has = ("is", "has") if len(silent) == 1 else ("are", "have")
    return f"; {', '.join(in_ranges(silent))} {verb} silent, and {has} devices that it could use"


def _cuts_used_up(state: State, job: Job, reason: BlockReason) -> str:
    """Of a job that lacks MIG instances: until when no board is cut for its team; "" when one may be."""
    cuts = state.unused_cuts
    if not _lacks_instances(state, job, reason) or cuts.left(job.team, state.t_us):
        return ""
    wait_s = -(-(cuts.next_us(job.team, state.t_us) - state.t_us) // 1_000_000)
    return (
        f"{AT_ONCE} MIG boards were cut for team {job.team} that it has not used, the most at once: the next one in "
        f"{wait_s} s, or as soon as a job of the team is granted what was cut for it"
    )


def _may_be_cut(state: State, job: Job, reason: BlockReason) -> str:
    """Of a job that lacks MIG instances: that waiting may bring them; "" when no board can be cut into them."""
    if not _lacks_instances(state, job, reason):
        return ""
    return f"; a board may be cut into {job.shape.profile} for it, when enough of the board is idle and it has waited a while"


def _lacks_instances(state: State, job: Job, reason: BlockReason) -> bool:
    """Whether more instances of its profile would help, and there are boards that can be cut into them."""
    profile = job.shape.profile
    if not profile or reason not in {*_LACKS, BlockReason.PROFILE}:
        return False
    return any(offered.name == profile for board in state.fleet.boards.values() for offered in board.board.profiles)


def _unheard(state: State, job: Job) -> str:
    """Of which of its nodes nothing is heard, so that its state is that of before; "" when all are heard."""
    attempt = job.current
    parts = {} if attempt is None else attempt.parts
    silent = [node for node, part in parts.items() if node in state.silent and not part.freed]
    if not silent:
        return ""
    one = len(silent) == 1
    are, nodes = ("is", "the node is") if one else ("are", "the nodes are")
    what = f"what is known of the job there is old, until {nodes} heard or given up"
    return f"; {', '.join(in_ranges(silent))} {are} silent: {what}"


def _span(job: Job) -> Span | None:
    return job.current.span if job.current is not None else None
