"""Placement's answers: load the decider, ask the core, return. Nothing here changes anything."""

import gc
from collections import deque
from collections.abc import Callable

from libs.bus.queries import InvalidQuestion, NothingFound
from libs.core.admission.fleet_shape import FleetShape
from libs.core.explain.dry_run import DryRunInputs, dry_run, hide
from libs.core.explain.waiting import explain, queue_view
from libs.core.projections.pool_status import quantiles, status
from libs.core.scheduling.decider import Decider
from libs.core.state.desired import desired
from libs.core.state.fleet import Fleet
from libs.core.state.model import Job, State
from schemas.jobs import Reason
from schemas.ledger import JobGranted, JobQueued, LedgerRecord
from schemas.nodes import DesiredQuery, DesiredReply
from schemas.queries import (
    ExplainQuery,
    Explanation,
    PlanQuery,
    PlanReply,
    PoolStatus,
    PoolStatusQuery,
    QueueList,
    QueueListQuery,
)
from schemas.subjects import OPERATOR

Clock = Callable[[], float]


class Latencies:
    """The last grants' latencies, ms: of jobs that fitted at once (submit stored to grant committed), and of all."""

    def __init__(self, window: int) -> None:
        self.scheduling: deque[float] = deque(maxlen=window)
        self.wait: deque[float] = deque(maxlen=window)

    def observe(self, record: LedgerRecord, decider: Decider, now_us: int) -> list[float]:
        """Takes in a committed record and returns its scheduling latencies, ms.

        `now_us` is this process's clock, compared with the broker's submit times: on one host the same clock.
        """
        new = {e.job_id for e in record.events if type(e) is JobQueued}
        at_once: list[float] = []
        for event in record.events:
            if type(event) is JobGranted and event.attempt == 1:
                job = decider.state.jobs[event.job_id]
                waited_ms = max(0.0, (now_us - job.submitted_us) / 1000)
                self.wait.append(waited_ms)
                if job.id in new:
                    at_once.append(waited_ms)
        self.scheduling.extend(at_once)
        return at_once


def explain_job(decider: Decider, query: ExplainQuery, team: str) -> Explanation:
    return explain(decider.state, _job_of(decider, query.job_id, team), decider.plan, policy=decider.policy)


class DryRunPlanner:
    """Answers dry runs. Keeps the shape of the fleet that admission needs, and updates only the nodes that have changed."""

    def __init__(self, inputs: DryRunInputs) -> None:
        self.inputs = inputs
        self._of: Fleet | None = None
        self._version = -1
        self._told: dict[str, bytes] = {}
        self._shape = FleetShape()

    def __call__(self, decider: Decider, query: PlanQuery, team: str, *, now_us: int, clock: Clock) -> PlanReply:
        """`now_us` is this process's clock; `clock` tells seconds and measures only how long the answer took."""
        began = clock()
        state = decider.state
        gc.disable()  # a full collection meanwhile would take longer than the dry run (130 ms with 5,000 jobs)
        try:
            t_us = max(now_us, state.t_us)
            reply = dry_run(state, query.job, team, t_us, self.inputs, fleet=self._fleet(state), steps=query.steps)
        finally:
            gc.enable()
        return hide(reply, team).model_copy(update={"took_ms": round((clock() - began) * 1000, 3)})

    def _fleet(self, state: State) -> FleetShape:
        fleet = state.fleet
        if self._of is not fleet:  # the ledger was folded again
            self._of, self._version, self._told, self._shape = fleet, -1, {}, FleetShape()
        if self._version != fleet.version:
            for node in fleet.nodes.values():
                if self._told.get(node.name) != node.packed:
                    self._told[node.name] = node.packed
                    self._shape.join(node.inventory)
            self._version = fleet.version
        self._shape.quotas = dict(state.quotas)
        return self._shape


def queue_list(decider: Decider, query: QueueListQuery, team: str) -> QueueList:
    """A team sees its own waiting jobs, the operator all."""
    jobs = queue_view(decider.state, decider.plan, limit=5000, policy=decider.policy)
    mine = [j for j in jobs if team in (OPERATOR, j.team)]
    return QueueList(jobs=tuple(mine[: query.limit]), total=len(mine))


def pool_status(
    decider: Decider, query: PoolStatusQuery, team: str, *, pool: str, ledger_seq: int, latencies: Latencies
) -> PoolStatus:
    return status(
        decider.state, pool, ledger_seq, quantiles(list(latencies.scheduling)), quantiles(list(latencies.wait))
    )


def desired_of(decider: Decider, query: DesiredQuery, asker: str, *, pool: str, ledger_seq: int) -> DesiredReply:
    """The desired state of `asker`, if it is up. A node that is missing in the reply was declared lost, and registers again.

    Raises InvalidQuestion when the question names another node than the subject does."""
    if foreign := [name for name in query.nodes if name != asker]:
        raise InvalidQuestion([_not_its_own(asker, foreign[0])])
    nodes = decider.state.fleet.nodes
    known = [name for name in query.nodes if name in nodes and nodes[name].up]
    return DesiredReply(states=tuple(desired(decider.state, name, pool, ledger_seq) for name in known))


def _not_its_own(asker: str, named: str) -> Reason:
    return Reason(
        field="nodes",
        value=named,
        problem=f"is asked for on the subject of node {asker!r}",
        fix="ask for each node on its own subject",
    )


def _job_of(decider: Decider, job_id: str, team: str) -> Job:
    job = decider.state.jobs.get(job_id)
    if job is None or team not in (OPERATOR, job.team):
        raise NothingFound(f"no job {job_id} is waiting or running; `baton describe {job_id}` shows one that has ended")
    return job
