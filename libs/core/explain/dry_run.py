"""A dry run: whether, where, when and at what price a job would run if it were submitted now. Nothing is changed.

Every answer comes from the code that would decide in earnest: admission's `evaluate`, a scheduling cycle on the state
with the job added to its queue, `preemption` for its victims, `find` for what would help, and the price book of the
bill. So a plan is as right as the state is young; by the time the job is submitted others may have come.

When it would start, if not now, is a guess: running jobs are ended in order, on one view, and the jobs that wait ahead
are placed before it.

- A job with a time limit is guessed to end when half of all jobs of its age would have: at the geometric mean of its age
  (at least `YOUNG_S`) and its limit, the median of a run time that is spread evenly over its order of magnitude. Timers
  end when they say. `latest_s` takes each to its limit.
- A job without a limit never ends here: what only it could free makes the start unknown.
- Jobs ahead go first and strictly in order, so backfilling is not counted on; more than `AHEAD` of them are not
  followed, and the start is unknown as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import sqrt

import numpy as np

from libs.core.admission.demand import demand_of
from libs.core.admission.evaluate import (
    DEFAULT_CLASSES,
    AdmissionContext,
    Admitted,
    NotAdmitted,
    PriorityClass,
    evaluate,
)
from libs.core.admission.fleet_shape import FleetShape
from libs.core.billing.metering import Prices
from libs.core.explain.diagnosis import diagnose
from libs.core.explain.right_sizing import kinds_of, suggest
from libs.core.explain.waiting import jobs_ahead, open_view
from libs.core.placement import Blocked, BlockReason, Context, Placed, View, find
from libs.core.placement.context import context_of
from libs.core.placement.throughput import HOUR_S, Chooser, Throughputs
from libs.core.scheduling import cycle, limits, preemption
from libs.core.scheduling.order import front, in_order, is_due
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.reservation import keep_ahead
from libs.core.state.fleet import Ints
from libs.core.state.model import Job, State, shape_of
from schemas.jobs import JobSpec, JobState, SubmitJob
from schemas.queries import PlannedCost, PlannedNode, PlannedVictim, PlanReply, PlanVerdict, RightSize
from schemas.resources import WHOLE_MILLI, Claim
from schemas.subjects import OPERATOR

AHEAD = 12
"""Waiting jobs that are followed in the replay: each costs a few searches."""
YOUNG_S = 60.0
"""A job that has just begun is taken to be this old."""
_ME = "plan"


@dataclass(frozen=True, slots=True)
class Market:
    """What a plan knows beside the state: classes, prices, measured rates, and the policy of the pool's cycle."""

    prices: Prices
    table: Throughputs = field(default_factory=Throughputs)
    classes: Mapping[str, PriorityClass] = field(default_factory=lambda: {c.name: c for c in DEFAULT_CLASSES})
    policy: Policy = field(default_factory=Policy)

    @property
    def chooser(self) -> Chooser | None:
        return self.policy.chooser


def plan_job(
    state: State,
    spec: JobSpec,
    team: str,
    t_us: int,
    market: Market,
    *,
    fleet: FleetShape | None = None,
    steps: float | None = None,
) -> PlanReply:
    """What would become of `spec` if `team` submitted it at `t_us`.

    Args:
        state: as of the last commit, after its cycle: what waits there does not fit.
        fleet: the shape of `state`'s fleet, if the caller has kept it (`FleetShape.of`).
        steps: training steps that the job has to do, for time and cost.
    """
    admission = AdmissionContext(fleet or shape_of_fleet(state), limits.room, market.classes)
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
    if state.fleet.version == 0 or not state.fleet.up.any():
        return PlanReply(
            verdict=PlanVerdict.UNKNOWN, reason=BlockReason.NO_DEVICES, text="no node is up: it would wait for the first",
            memory_mib=job.shape.memory_mib, memory_text=memory_text,
        )  # fmt: skip
    answer = _answer(_with(state, job), job, t_us, market)
    return answer.model_copy(
        update={
            "memory_mib": job.shape.memory_mib,
            "memory_text": memory_text,
            "cost": _cost(job, answer, market, steps),
            "right_size": _right_size(state, job, answer, market, steps, admission),
        }
    )


def shape_of_fleet(state: State) -> FleetShape:
    """What admission knows of the pool, made from placement's state."""
    return FleetShape.of((node.inventory for node in state.fleet.nodes.values()), state.quotas)


def hide(reply: PlanReply, team: str) -> PlanReply:
    """The reply as `team` may see it: of other teams' jobs neither the id nor the team."""
    if team == OPERATOR:
        return reply
    victims = tuple(v if v.team == team else v.model_copy(update={"job_id": "", "team": ""}) for v in reply.victims)
    return reply.model_copy(update={"victims": victims})


def _job(spec: JobSpec, team: str, t_us: int, priority_class: PriorityClass) -> Job:
    return Job(
        id=_ME, team=team, spec=spec, spec_hash="", priority=priority_class.priority, preempts=priority_class.preempts,
        submitted_us=t_us, queued_us=t_us, shape=shape_of(spec), latency=priority_class.latency,
    )  # fmt: skip


def _with(state: State, job: Job) -> State:
    """`state` with the job at the end of its queue; only what is changed is copied."""
    queue = {**state.queues.get(job.queue, {}), job.id: job.submitted_us}
    return replace(state, jobs={**state.jobs, job.id: job}, queues={**state.queues, job.queue: queue})


def _answer(state: State, job: Job, t_us: int, market: Market) -> PlanReply:
    ahead = jobs_ahead(state, job, t_us, market.policy)
    placed, outcome, view = _now(state, job, t_us, market)
    if placed is not None:
        where = _where(state, placed)
        text = f"it would run now, on {_some(len(placed.rows), 'device')} of {_some(len(where), 'node')}"
        return PlanReply(
            verdict=PlanVerdict.NOW, text=text, nodes=where, level=placed.level, link_gb_s=placed.link_gb_s,
            start_s=0.0, latest_s=0.0, start_basis="free now", ahead=ahead,
        )  # fmt: skip
    assert outcome is not None
    context = context_of(state, job, t_us)
    found = diagnose(state, job, outcome, view, context)
    reply = PlanReply(
        verdict=PlanVerdict.UNKNOWN,
        reason=outcome.reason.value,
        text=found.text,
        ahead=ahead,
        removed=found.removed,
        suggestion=found.suggestion,
        alternatives=found.changes[1:],
    )
    choice = preemption.choice_for(state, job, t_us, market.policy)
    if choice is not None:
        return reply.model_copy(update=_by_preemption(state, choice))
    return reply.model_copy(update=_later(state, job, outcome, context, t_us, market))


def _now(state: State, job: Job, t_us: int, market: Market) -> tuple[Placed | None, Blocked | None, View]:
    """The job's place in a cycle at `t_us`, or why it gets none; and the view on which changes are to be tried.

    Queues that wait have been tried by the last cycle, so of them only those matter that may keep devices: gangs whose
    reservation is due, of its priority or above.
    """
    keep = {
        key: queue
        for key, queue in state.queues.items()
        if key == job.queue
        or (key[0] >= job.priority and any(is_due(j, t_us, market.policy) for j in front(state, key)))
    }
    view = open_view(state, market.chooser)
    result = cycle.plan(replace(state, queues=keep), t_us, market.policy)
    for grant in result.grants:
        rows = np.array([state.fleet.row(claim.device) for claim in grant.claims])
        if grant.job.id == job.id:
            return _exactly(view, job, rows, context_of(state, job, t_us)), None, view
        view.take(rows, grant.job.shape)
    outcome = result.waiting.get(job.queue) or Blocked(BlockReason.BUSY, (), 0)
    keep_ahead(view, state, job, result.waiting, t_us, market.policy)
    return None, outcome, view


def _exactly(view: View, job: Job, rows: Ints, context: Context) -> Placed:
    """The placement on these rows with its level and slowest link."""
    only = replace(view, blocked=np.ones(len(view.blocked), dtype=np.bool_))
    only.blocked[rows] = False
    placed = find(only, job.shape, context=context)
    return placed if isinstance(placed, Placed) else Placed(rows, "")


def _where(state: State, placed: Placed) -> tuple[PlannedNode, ...]:
    fleet = state.fleet
    nodes: dict[tuple[str, str], list[str]] = {}
    for row in placed.rows.tolist():
        key = (fleet.node_names.names[int(fleet.node[row])], fleet.models.names[int(fleet.model[row])])
        nodes.setdefault(key, []).append(fleet.devices.names[row])
    return tuple(PlannedNode(node=n, model=m, devices=tuple(d)) for (n, m), d in nodes.items())


def _by_preemption(state: State, choice: preemption.VictimChoice) -> dict[str, object]:
    """The plan when lower classes give way: it starts when the slowest of them has saved its work."""
    victims = tuple(
        PlannedVictim(
            job_id=v.id,
            team=v.team,
            priority_class=v.spec.priority_class,
            devices=len(v.current.claims) if v.current else 0,
            lost_device_s=round(cost, 3),
        )
        for v, cost in zip(choice.victims, choice.costs, strict=True)
    )
    grace = max((_grace_s(v) for v in choice.victims), default=0.0)
    return {
        "verdict": PlanVerdict.AFTER_PREEMPTION,
        "victims": victims,
        "nodes": _where(state, choice.placed),
        "level": choice.placed.level,
        "link_gb_s": choice.placed.link_gb_s,
        "start_s": grace,
        "latest_s": grace,
        "start_basis": f"after {_some(len(victims), 'job')} of lower classes had up to {grace:g} s to save their work",
    }


def _grace_s(job: Job) -> float:
    return job.spec.checkpoint.grace_s if job.spec.checkpoint else job.spec.stop_grace_s


# ---------------------------------------------------------------------------------------------------------- when later


@dataclass(frozen=True, slots=True)
class _End:
    """A running job that is expected to give back its devices at `at_us`: a guess, and its time limit."""

    job: Job
    at_us: int
    latest_us: int


def _later(state: State, job: Job, outcome: Blocked, context: Context, t_us: int, market: Market) -> dict[str, object]:
    """When it would start: `verdict`, `start_s`, `latest_s`, and what that rests on."""
    running = [j for j in state.jobs.values() if j.current is not None]
    if not _ever(state, job, market):
        return {
            "verdict": PlanVerdict.NEVER,
            "start_basis": "it would not fit on the devices that are up even if all were free",
        }
    waiting = takewhile(lambda other: other.id != job.id, in_order(state, t_us, market.policy))
    ahead = [other for other in waiting if other.id not in state.holds]
    ends = [end for j in running if (end := _end_of(j, t_us)) is not None]
    endless = len(running) - len(ends)
    but = f"; {_some(endless, 'running job')} without a time limit not counted" if endless else ""
    if len(ahead) > AHEAD:
        return {"start_basis": f"unknown: {len(ahead)} jobs wait ahead of it{but}"}
    held = _HeldClaims(state, [end.job for end in ends])
    ends.sort(key=lambda end: (end.at_us, end.job.id))
    guess = _start(state, job, ahead, ends, [end.at_us for end in ends], held, t_us, market)
    if guess is None:
        return {"start_basis": f"unknown: it needs devices of jobs that have no time limit{but}"}
    ends.sort(key=lambda end: (end.latest_us, end.job.id))
    latest = _start(state, job, ahead, ends, [end.latest_us for end in ends], held, t_us, market)
    at_us, placed, ended = guess
    return {
        "verdict": PlanVerdict.LATER,
        "start_s": round(max(0, at_us - t_us) / 1e6, 3),
        "latest_s": None if latest is None else round(max(0, latest[0] - t_us) / 1e6, 3),
        "nodes": _where(state, placed),
        "level": placed.level,
        "link_gb_s": placed.link_gb_s,
        "start_basis": f"guess: after {_some(ended, 'running job')} of {len(running)} end and "
        f"{_some(len(ahead), 'job')} ahead start{but}",
    }


def _ever(state: State, job: Job, market: Market) -> bool:
    """Whether it fits on the devices that are up when all of them are free."""
    fleet = state.fleet
    view = View.of(fleet, market.chooser)
    view.free_milli[:], view.free_mib[:], view.held[:] = WHOLE_MILLI, fleet.memory_mib, -1
    view.free_cpu[:], view.free_host[:] = fleet.cpu_milli, fleet.host_mib
    return isinstance(find(view, job.shape), Placed)


def _end_of(job: Job, t_us: int) -> _End | None:
    """When a running job ends: at its limit, or (a guess) before; None when it never says."""
    attempt, spec = job.current, job.spec
    assert attempt is not None
    if job.state in (JobState.STOPPING, JobState.PREEMPTING):
        at_us = t_us + int(_grace_s(job) * 1e6)
        return _End(job, at_us, at_us)
    began_us = attempt.running_us or t_us
    if spec.simulation is not None:
        run_s = min(spec.simulation.duration_s, spec.time_limit_s or float("inf"))
        at_us = max(t_us, began_us + int(run_s * 1e6))
        return _End(job, at_us, at_us)
    if not spec.time_limit_s:
        return None
    age_s = max((t_us - began_us) / 1e6, YOUNG_S)
    guess_s = min(spec.time_limit_s, sqrt(age_s * spec.time_limit_s))
    latest_us = max(t_us, began_us + int(spec.time_limit_s * 1e6))
    return _End(job, min(latest_us, max(t_us, began_us + int(guess_s * 1e6))), latest_us)


def _start(
    state: State,
    job: Job,
    ahead: list[Job],
    ends: list[_End],
    times: list[int],
    held: "_HeldClaims",
    t_us: int,
    market: Market,
) -> tuple[int, Placed, int] | None:
    """(time, place, how many running jobs have ended by then) of `job`'s start; None when the known ends do not do.

    Jobs are placed in order, each after the fewest further ends with which it fits: what fits with some ends fits with
    more, so that number is found by bisection. Who ahead cannot be placed with all of them is passed by, as in a cycle.

    Args:
        ends: in the order of `times`, when each of them happens.
        held: what their jobs hold, in any order.
    """
    replay = _Replay(state, open_view(state, market.chooser), [end.job for end in ends], held)
    for one in (*ahead, job):
        context = replace(context_of(state, one, t_us), avoid=())
        found = replay.first(one, context)
        if found is None:
            continue
        ended, placed = found
        if one is job:
            return (times[ended - 1] if ended else t_us), placed, ended
        replay.start(ended, one, placed)
    return None


class _HeldClaims:
    """What jobs hold, looked up once: arrays over their open claims. `owner` is the job's place in the list given."""

    def __init__(self, state: State, jobs: list[Job]) -> None:
        self.index = {job.id: i for i, job in enumerate(jobs)}
        claims = [(i, claim) for i, job in enumerate(jobs) for part in _open_parts(job) for claim in part]
        find_row = state.fleet.row
        table = [(i, find_row(c.device), c.milli, c.memory_mib, c.cpu_milli, c.host_memory_mib) for i, c in claims]
        columns = np.array(table, dtype=np.int64).reshape(len(table), 6)
        self.owner, self.rows, self.holds = columns[:, 0], columns[:, 1], columns[:, 2:]


class _Replay:
    """One view on which running jobs end, in order, and waiting ones start. Of the claims, in the order of the
    ends, the first `_upto[n]` are free after n ends."""

    def __init__(self, state: State, view: View, jobs: list[Job], held: "_HeldClaims") -> None:
        self.ended = 0
        self._state, self._view, self._jobs = state, view, jobs
        self._tally = limits.Tally(state)
        """What teams hold at the beginning, and what they have got in the replay."""
        rank = np.empty(len(jobs), dtype=np.int64)
        rank[[held.index[job.id] for job in jobs]] = np.arange(len(jobs))
        in_order = np.argsort(rank[held.owner], kind="stable")
        self._upto = np.searchsorted(rank[held.owner][in_order], np.arange(len(jobs) + 1))
        self._rows, self._holds = held.rows[in_order], held.holds[in_order]

    def after(self, ends: int, job: Job, context: Context) -> Placed | None:
        """Where `job` would go after so many ends, counted from the beginning."""
        tally = self._tally.copy()
        for ended in self._jobs[:ends] if job.team in self._state.quotas else ():
            for part in _open_parts(ended) if ended.team == job.team else ():
                tally.give_back(job.team, part)
        request = tally.room(job).request
        placed = None if request is None else find(self._freed(ends), request, context=context)
        return placed if isinstance(placed, Placed) else None

    def first(self, job: Job, context: Context) -> tuple[int, Placed] | None:
        """The fewest ends after which `job` has a place, not fewer than have been used up; None without one."""
        ends = _first(lambda n: self.after(n, job, context) is not None, self.ended, len(self._jobs))
        placed = None if ends is None else self.after(ends, job, context)
        return None if ends is None or placed is None else (ends, placed)

    def start(self, ends: int, job: Job, placed: Placed) -> None:
        """So many jobs have ended, and `job` takes its place."""
        self._view, self.ended = self._freed(ends), ends
        self._view.take(placed.rows, job.shape, placed.roles)
        self._tally.take(job, placed.rows.tolist())

    def _freed(self, ends: int) -> View:
        view, span = self._view, slice(self._upto[self.ended], self._upto[ends])
        view = replace(
            view, free_milli=view.free_milli.copy(), free_mib=view.free_mib.copy(), held=view.held.copy(),
            epoch=view.epoch.copy(), free_cpu=view.free_cpu.copy(), free_host=view.free_host.copy(),
        )  # fmt: skip
        rows, holds = self._rows[span], self._holds[span]
        nodes = view.fleet.node[rows]
        for free, at, column in (
            (view.free_milli, rows, 0), (view.free_mib, rows, 1), (view.free_cpu, nodes, 2), (view.free_host, nodes, 3),
        ):  # fmt: skip
            np.add.at(free, at, holds[:, column])
        return view


def _first(works: Callable[[int], bool], least: int, most: int) -> int | None:
    """The least n of `least`..`most` for which `works`, which never stops working as n grows; None when it never does.

    The distance is doubled first: mostly few further ends suffice.
    """
    bad, step = least - 1, 1
    good = least
    while not works(good):
        if good == most:
            return None
        bad, good, step = good, min(most, good + step), 2 * step
    while good - bad > 1:
        middle = (bad + good) // 2
        bad, good = (bad, middle) if works(middle) else (middle, good)
    return good


def _open_parts(job: Job) -> list[tuple[Claim, ...]]:
    """The claims of the parts that still hold devices."""
    attempt = job.current
    return [] if attempt is None else [part.claims for part in attempt.parts.values() if not part.freed]


# --------------------------------------------------------------------------------------------------------------- money


def _cost(job: Job, answer: PlanReply, market: Market, steps: float | None) -> PlannedCost | None:
    """What it costs where it would run; without a place, on the first acceptable model. None: that has no price."""
    billed = _billed(job, answer)
    if billed is None:
        return None
    spec, devices = job.spec, sum(len(n.devices) for n in answer.nodes) or job.shape.devices
    hour = market.prices.of(billed, spec.priority_class)
    if hour is None:
        return None
    milli = devices * job.shape.milli
    rate = market.table.rate(spec.resources.family, billed, devices)
    run_s: float | None = None
    basis = ""
    if steps is not None and rate is not None:
        run_s, basis = steps / rate, f"steps: {steps:g} at {rate:.4g} per s, measured"
    elif spec.simulation is not None:
        run_s, basis = spec.simulation.duration_s, "simulation"
    if spec.time_limit_s and (run_s is None or run_s > spec.time_limit_s):
        run_s, basis = spec.time_limit_s, "time-limit: at most"
    return PlannedCost(
        currency=market.prices.currency,
        micros_per_device_hour=hour,
        micros_per_hour=round(hour * milli / WHOLE_MILLI),
        run_s=run_s,
        run_basis=basis,
        total_micros=None if run_s is None else round(hour * milli / WHOLE_MILLI * run_s / HOUR_S),
        micros_per_step=None if rate is None else hour * milli / WHOLE_MILLI / HOUR_S / rate,
    )


def _billed(job: Job, answer: PlanReply) -> str | None:
    """The price book's name of what it would run on; the first listed type when that is not known."""
    model = answer.nodes[0].model if answer.nodes else next(iter(job.shape.types), None)
    if model is None:
        return None
    return f"{model}:{job.shape.profile}" if job.shape.profile else model


def _right_size(
    state: State, job: Job, answer: PlanReply, market: Market, steps: float | None, admission: AdmissionContext
) -> tuple[RightSize, ...]:
    billed = _billed(job, answer)
    if billed is None:
        return ()
    klass = job.spec.priority_class

    def admits(changed: JobSpec) -> bool:
        return isinstance(evaluate(SubmitJob(client_key=_ME, job=changed), job.team, admission), Admitted)

    return suggest(
        job.spec, market.table, lambda model: market.prices.of(model, klass), kinds_of(state), billed,
        job.shape.memory_mib, steps, admits,
    )  # fmt: skip


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
