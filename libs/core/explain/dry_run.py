"""A dry run: whether, where, when and at what price a job would run if it were submitted now. Nothing is changed.

It is made for the team that asks: of other teams' jobs it tells what is free beside them, and nothing else. The operator is
told of all.

Every answer comes from the code that decides in earnest: admission's `evaluate`, a scheduling cycle on the state with the
job added to its queue, `preemption` for its victims, `find` for what would help, and the price book of the bill. So a
reply is right for the state that it was made from. Others may submit before the job is submitted.

When a job would start that cannot start now is a guess: see `libs.core.explain.start_estimate`.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from libs.core.admission.demand import demand_of
from libs.core.admission.evaluate import AdmissionContext, Admitted, NotAdmitted, evaluate
from libs.core.admission.fleet_shape import FleetShape
from libs.core.admission.priority_class import DEFAULT_CLASSES, PriorityClass
from libs.core.billing.pricing import Prices
from libs.core.explain.diagnosis import diagnose
from libs.core.explain.planned_cost import cost_of, prices_for, right_sizes
from libs.core.explain.reasons import Reasons, open_view
from libs.core.explain.start_estimate import counted, estimate_start
from libs.core.placement.answer import Blocked, BlockReason, Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.search.links import slowest
from libs.core.placement.search.topology import span_of
from libs.core.placement.throughput import Chooser, Throughputs
from libs.core.placement.view import Context, View
from libs.core.scheduling import cycle, limits, preemption
from libs.core.scheduling.order import JobsAhead
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence.remaining import time_to_stop
from libs.core.scheduling.reservation import keep_ahead, kept
from libs.core.state.fleet import Ints
from libs.core.state.job import Job
from libs.core.state.line import Line
from libs.core.state.model import State
from libs.core.state.shape import shape_of
from schemas.explanations import PlannedNode, PlannedVictim, PlanReply, PlanVerdict
from schemas.jobs import JobSpec
from schemas.requests import SubmitJob
from schemas.subjects import OPERATOR

_ME = "plan"


@dataclass(frozen=True, slots=True)
class DryRunInputs:
    """What a dry run knows beside the state: classes, prices, measured rates, and the policy of the pool's cycle."""

    prices: Prices
    table: Throughputs = field(default_factory=Throughputs)
    classes: Mapping[str, PriorityClass] = field(default_factory=lambda: {c.name: c for c in DEFAULT_CLASSES})
    policy: Policy = field(default_factory=Policy)

    @property
    def chooser(self) -> Chooser | None:
        return self.policy.chooser


def dry_run(
    state: State,
    spec: JobSpec,
    team: str,
    t_us: int,
    inputs: DryRunInputs,
    *,
    fleet: FleetShape | None = None,
    steps: float | None = None,
    seen_by: str = "",
) -> PlanReply:
    """What would become of `spec` if `team` submitted it at `t_us`.

    Args:
        state: as of the last commit, after its cycle: what waits there does not fit.
        fleet: the shape of `state`'s fleet, if the caller has kept it (`FleetShape.of`).
        inputs: where the team's jobs come by numbers, the policy's order is passed over: the job has none, so all come by age.
        steps: training steps that the job has to do, for time and cost.
        seen_by: who is told; the team itself without it.
    """
    admission = AdmissionContext(fleet or shape_of_fleet(state), limits.room, inputs.classes)
    judged = evaluate(SubmitJob(client_key=_ME, job=spec), team, admission)
    demand = demand_of(spec)
    memory_text = demand.estimate.text if demand.estimate else ""
    if isinstance(judged, NotAdmitted):
        reasons = tuple(refusal.reason for refusal in judged.refusals)
        return PlanReply(
            verdict=PlanVerdict.REFUSED,
            reason="refused",
            text=f"admission would refuse it: {reasons[0].field}: {reasons[0].problem}",
            reasons=reasons,
            suggestion=reasons[0].fix,
            memory_mib=demand.memory_mib,
            memory_text=memory_text,
        )
    assert isinstance(judged, Admitted)  # no job has the plan's key
    job = _job(judged.job, team, t_us, judged.priority_class)
    if inputs.policy.precedence is not None and inputs.policy.precedence.rules.by_number(team):
        inputs = replace(inputs, policy=replace(inputs.policy, precedence=None))
    if state.fleet.version == 0 or not state.fleet.up.any():
        return PlanReply(
            verdict=PlanVerdict.UNKNOWN, reason=BlockReason.NO_DEVICES, text="no node is up: it would wait for the first",
            memory_mib=job.shape.memory_mib, memory_text=memory_text,
        )  # fmt: skip

    def admits(changed: JobSpec) -> bool:
        return isinstance(evaluate(SubmitJob(client_key=_ME, job=changed), team, admission), Admitted)

    answer = _answer(_with(state, job), job, t_us, inputs, seen_by or team)
    prices = prices_for(state, job, inputs.prices)
    return answer.model_copy(
        update={
            "memory_mib": job.shape.memory_mib,
            "memory_text": memory_text,
            "cost": cost_of(job, answer, prices, inputs.table, steps),
            "right_size": right_sizes(state, job, answer, prices, inputs.table, steps=steps, admits=admits),
        }
    )


def shape_of_fleet(state: State) -> FleetShape:
    """What admission knows of the pool, made from placement's state."""
    shape = FleetShape.of((node.inventory for node in state.fleet.nodes.values()), state.quotas)
    shape.suspended, shape.tree = dict(state.suspended), state.tree
    return shape


def _job(spec: JobSpec, team: str, t_us: int, priority_class: PriorityClass) -> Job:
    return Job(
        id=_ME, team=team, spec=spec, spec_hash="", priority=priority_class.priority, preempts=priority_class.preempts,
        submitted_us=t_us, queued_us=t_us, shape=shape_of(spec, priority_class.network),
        latency=priority_class.latency, network=priority_class.network,
    )  # fmt: skip


def _with(state: State, job: Job) -> State:
    """`state` with the job at the end of its queue; neither the jobs nor the queue are copied."""
    queue = state.queues.get(job.queue, Line()).with_last(job)
    jobs = cast(dict[str, Job], ChainMap({job.id: job}, state.jobs))
    return replace(state, jobs=jobs, queues={**state.queues, job.queue: queue})


def _answer(state: State, job: Job, t_us: int, inputs: DryRunInputs, seen_by: str) -> PlanReply:
    before = JobsAhead(state, t_us, inputs.policy)
    ahead = before.count(job, "" if seen_by == OPERATOR else seen_by)
    reasons = Reasons(state, inputs.policy, t_us)
    placed, outcome, view = _now(state, job, t_us, inputs, reasons)
    if placed is not None:
        where = _where(state, placed)
        text = f"it would run now, on {counted(len(placed.rows), 'device')} of {counted(len(where), 'node')}"
        return PlanReply(
            verdict=PlanVerdict.NOW, text=text, nodes=where, level=placed.level.value, link_gb_s=placed.link_gb_s,
            start_s=0.0, latest_s=0.0, start_basis="free now", ahead=ahead,
        )  # fmt: skip
    assert outcome is not None
    context = context_of(state, job, t_us)
    limit_s = reasons.limit_in_time_s(job)
    found = diagnose(state, job, outcome, view, context, seen_by=seen_by, limit_in_time_s=limit_s)
    reply = PlanReply(
        verdict=PlanVerdict.UNKNOWN,
        reason=outcome.reason.value,
        text=found.text,
        ahead=ahead,
        removed=found.removed,
        suggestion=found.suggestion,
        alternatives=found.changes[1:],
    )
    choice = preemption.choice_for(state, job, t_us, inputs.policy)
    if choice is not None:
        return reply.model_copy(update=_by_preemption(state, choice, seen_by))
    return reply.model_copy(update=_later(state, job, t_us, inputs, before, seen_by))


def _now(
    state: State, job: Job, t_us: int, inputs: DryRunInputs, reasons: Reasons
) -> tuple[Placed | None, Blocked | None, View]:
    """The job's place in a cycle at `t_us`, or why it gets none; and the view on which changes are to be tried.

    Queues that wait have been tried by the last cycle, so of them only those matter whose gangs keep devices.
    """
    gangs = {one.queue for one in reasons.kept if one.queue.priority >= job.priority}
    queues = {key: state.queues[key] for key in {job.queue, *gangs}}
    view = open_view(state, inputs.chooser)
    unbounded = replace(inputs.policy, claims_per_cycle=len(state.fleet.up))  # nothing of it goes into a record
    result = cycle.plan(replace(state, queues=queues), t_us, unbounded)
    for grant in result.grants:
        rows = state.fleet.rows_of(grant.claims)
        if grant.job.id == job.id:
            return _exactly(view, job, rows, context_of(state, job, t_us)), None, view
        names = [role.name for role in grant.job.shape.roles]
        roles = np.array([names.index(claim.role) for claim in grant.claims]) if names else None
        view.take(rows, grant.job.shape, roles)
    outcome = result.waiting.get(job.queue) or Blocked(BlockReason.BUSY, (), 0)
    keep_ahead(view, reasons.rank_of(job), job, t_us, kept(view.copy(), state, t_us, inputs.policy, result.waiting))
    return None, outcome, view


def _exactly(view: View, job: Job, rows: Ints, context: Context) -> Placed:
    """The placement on these rows with its level and slowest link."""
    only = replace(view, blocked=np.ones(len(view.blocked), dtype=np.bool_))
    only.blocked[rows] = False
    placed = find(only, job.shape, context=context)
    if isinstance(placed, Placed):
        return placed
    level = span_of(view.fleet, rows)
    return Placed(rows, level, slowest(view.fleet, rows, level))


def _where(state: State, placed: Placed) -> tuple[PlannedNode, ...]:
    fleet = state.fleet
    nodes: dict[tuple[str, str], list[str]] = {}
    for row in placed.rows.tolist():
        key = (fleet.node_names.names[int(fleet.node[row])], fleet.models.names[int(fleet.model[row])])
        nodes.setdefault(key, []).append(fleet.devices.names[row])
    return tuple(PlannedNode(node=n, model=m, devices=tuple(d)) for (n, m), d in nodes.items())


def _by_preemption(state: State, choice: preemption.VictimChoice, seen_by: str) -> dict[str, object]:
    """The plan when others give way: it starts when the slowest of them has saved its work."""
    victims = tuple(
        PlannedVictim(
            job_id=v.id,
            team=v.team,
            priority_class=v.spec.priority_class,
            devices=len(v.current.claims) if v.current else 0,
            lost_device_s=round(cost, 3),
        )
        for v, cost in zip(choice.victims, choice.costs, strict=True)
        if seen_by in (OPERATOR, v.team)
    )
    stops = [time_to_stop(v.spec, saves=True) for v in choice.victims]
    grace = max((one.p50_s for one in stops), default=0.0)
    who = counted(len(victims), "job") if seen_by == OPERATOR else "jobs"
    why = (
        "of lower classes" if choice.takes_back is None else f"that run on what queue {choice.takes_back} is guaranteed"
    )
    return {
        "verdict": PlanVerdict.AFTER_PREEMPTION,
        "victims": victims,
        "nodes": _where(state, choice.placed),
        "level": choice.placed.level.value,
        "link_gb_s": choice.placed.link_gb_s,
        "start_s": grace,
        "latest_s": max((one.p90_s for one in stops), default=0.0),
        "start_basis": f"after {who} {why} had up to {grace:g} s to save their work",
    }


def _later(
    state: State, job: Job, t_us: int, inputs: DryRunInputs, before: JobsAhead, seen_by: str
) -> dict[str, object]:
    """The reply when it has to wait for running jobs to end."""
    found = estimate_start(state, job, t_us, inputs.policy, before=before, seen_by=seen_by)
    if found.placed is None:
        return {"verdict": found.verdict, "start_basis": found.basis}
    return {
        "verdict": found.verdict,
        "start_s": found.start_s,
        "latest_s": found.latest_s,
        "nodes": _where(state, found.placed),
        "level": found.placed.level.value,
        "link_gb_s": found.placed.link_gb_s,
        "start_basis": found.basis,
    }
