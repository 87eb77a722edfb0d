"""The answers: take the replica, ask the core, say which record it is of. Nothing here changes anything.

All but `pool_status` may take long, with many jobs or a large fleet: `HeavyQuestions` calls them in a thread, one at a time,
while the replica stands still. What they keep from one question to the next therefore needs no lock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from libs.bus.queries import InvalidQuestion, NothingFound
from libs.core.admission.fleet_shape import FleetShape
from libs.core.explain.budgets import budgets_of
from libs.core.explain.dry_run import DryRunInputs, dry_run
from libs.core.explain.queue_shares import queue_shares
from libs.core.explain.reasons import Reasons
from libs.core.explain.waiting import explain, queue_view, waiting_jobs
from libs.core.projections.pool_status import StatusFigures
from libs.core.scheduling.policy import Policy
from libs.core.state.fleet import Fleet
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas.explanations import ExplainQuery, Explanation, PlanQuery, PlanReply
from schemas.jobs import MOST_STEPS, Reason
from schemas.pool_status import PoolStatus
from schemas.queue_status import BudgetsQuery, BudgetsReply, QueueList, QueueListQuery, QueuesQuery, QueuesReply
from schemas.subjects import FINANCE, OPERATOR
from services.queries.replica import Latencies, Replica

T = TypeVar("T")
MonotonicClock = Callable[[], float]

_SHARE = 20
_QUEUE_VIEW = 5000


class CachedAnswer(Generic[T]):
    """Something made from the state, and made anew when the state has moved; but for twenty times as long as that took
    the last one will do, so that questions cost a twentieth of the time however many come. `clock` is in seconds."""

    def __init__(self, clock: MonotonicClock = time.monotonic) -> None:
        self._clock = clock
        self._made: T | None = None
        self._seq = -1
        self._good_until = 0.0

    def get(self, seq: int, make: Callable[[], T], at_least: int = 0) -> T:
        """`make()` of the state at `seq`, or the last one that is of `at_least` or later."""
        began = self._clock()
        if self._made is None or (self._seq != seq and (began >= self._good_until or self._seq < at_least)):
            self._made = make()
            ended = self._clock()
            self._seq, self._good_until = seq, ended + _SHARE * (ended - began)
        return self._made


@dataclass(frozen=True, slots=True)
class AskedBy:
    """The asker, and the record that the answer is of."""

    team: str
    seq: int


class Answers:
    """Of one pool. `now_us` is the wall clock."""

    def __init__(
        self,
        pool: str,
        inputs: DryRunInputs,
        latencies: Latencies,
        *,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._pool = pool
        self._inputs = inputs
        self._latencies = latencies
        self._now_us = now_us
        self._status: CachedAnswer[_StatusCache] = CachedAnswer()
        self._reasons: Reasons | None = None
        self._reasons_seq = -1
        self._shape = _KeptShape()

    def _policy(self, replica: Replica) -> Policy:
        """That of the pool's cycles, with the order that the ledger has led to."""
        return replace(self._inputs.policy, precedence=replica.decider.turns)

    def pool_status(self, replica: Replica, team: str, seq: int, at_least: int = 0) -> PoolStatus:
        """The pool at a glance, as `team` may see it; quick, and so often asked that it is kept for a moment."""
        make = lambda: _StatusCache(StatusFigures(replica.state, self._pool, seq), self._latencies)  # noqa: E731
        return self._status.get(seq, make, at_least).seen_by(team)

    def explain_job(self, replica: Replica, query: ExplainQuery, asked: AskedBy) -> Explanation:
        """Raises NothingFound for an unknown job, an ended one, and another team's."""
        state = replica.state
        job = job_of(state, query.job_id, asked.team)
        if job is None:
            raise NothingFound(
                f"no job {query.job_id} is waiting or running; `baton describe job {query.job_id}` shows one that has ended",
                asked.seq,
            )
        told = explain(state, job, self._why(replica, asked.seq), seen_by=asked.team)
        return told.model_copy(update={"ledger_seq": asked.seq})

    def queue_list(self, replica: Replica, query: QueueListQuery, asked: AskedBy) -> QueueList:
        """A team sees its own waiting jobs, the operator all."""
        state = replica.state
        jobs = queue_view(state, self._why(replica, asked.seq), query.limit, seen_by=asked.team)
        total = min(_QUEUE_VIEW, waiting_jobs(state, seen_by=asked.team))
        return QueueList(jobs=tuple(jobs), total=total, ledger_seq=asked.seq)

    def queues(self, replica: Replica, query: QueuesQuery, asked: AskedBy) -> QueuesReply:
        """How the pool is shared. A team sees its own queue and those below it, the operator all."""
        promised = {job_id: one.last for job_id, one in replica.decider.turns.book.of.items()}
        reply = queue_shares(
            replica.state, asked.team, {c.name: c.priority for c in self._inputs.classes.values()}, promised
        )
        return reply.model_copy(update={"ledger_seq": asked.seq})

    def budgets(self, replica: Replica, query: BudgetsQuery, asked: AskedBy) -> BudgetsReply:
        """What is spent and held of budgets. A team sees those that count what it spends, the operator and finance all."""
        state, team = replica.state, OPERATOR if asked.team == FINANCE else asked.team
        reply = budgets_of(state, team, replica.now_us(self._now_us()) if state.budgets else 0)
        return reply.model_copy(update={"ledger_seq": asked.seq})

    def plan(self, replica: Replica, query: PlanQuery, asked: AskedBy) -> PlanReply:
        """What would become of a job that is submitted now. Raises InvalidQuestion."""
        if query.steps is not None and not 1 / MOST_STEPS <= query.steps <= MOST_STEPS:
            fix = f"ask for {1 / MOST_STEPS:g} to {MOST_STEPS:g}"
            raise InvalidQuestion(
                [Reason(field="steps", value=f"{query.steps:g}", problem="no job has so many", fix=fix)]
            )
        began = time.perf_counter()
        state, t_us = replica.state, replica.now_us(self._now_us())
        inputs = replace(self._inputs, policy=self._policy(replica))
        reply = dry_run(state, query.job, asked.team, t_us, inputs, fleet=self._shape.of(state), steps=query.steps)
        took_ms = round((time.perf_counter() - began) * 1000, 3)
        return reply.model_copy(update={"took_ms": took_ms, "ledger_seq": asked.seq})

    def _why(self, replica: Replica, seq: int) -> Reasons:
        """Why queues wait, shared by the questions of one state."""
        state = replica.state
        if self._reasons is None or self._reasons.state is not state or self._reasons_seq != seq:
            self._reasons, self._reasons_seq = Reasons(state, self._policy(replica)), seq
        return self._reasons


class _StatusCache:
    """Status figures of one state, cached per asking team."""

    def __init__(self, glance: StatusFigures, latencies: Latencies) -> None:
        self._glance, self._latencies = glance, latencies
        self._told: dict[str, PoolStatus] = {}

    def seen_by(self, team: str) -> PoolStatus:
        if team not in self._told:
            latency, wait = self._latencies.seen_by(team)
            make = self._glance.of_all if team == OPERATOR else partial(self._glance.of_team, team)
            self._told[team] = make(latency, wait)
        return self._told[team]


class _KeptShape:
    """The shape of the fleet that admission's rules need; only nodes that have changed are looked at again."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._version = -1
        self._told: dict[str, bytes] = {}
        self._shape = FleetShape()

    def of(self, state: State) -> FleetShape:
        fleet = state.fleet
        if self._fleet is not fleet:  # the ledger was folded again
            self._fleet, self._version, self._told, self._shape = fleet, -1, {}, FleetShape()
        if self._version != fleet.version:
            for node in fleet.nodes.values():
                if self._told.get(node.name) != node.packed:
                    self._told[node.name] = node.packed
                    self._shape.join(node.inventory)
            self._version = fleet.version
        self._shape.quotas, self._shape.suspended = dict(state.quotas), dict(state.suspended)
        self._shape.tree = state.tree
        return self._shape


def job_of(state: State, job_id: str, team: str) -> Job | None:
    """The job, if `team` may see it."""
    job = state.jobs.get(job_id)
    return job if job is not None and team in (OPERATOR, job.team) else None
