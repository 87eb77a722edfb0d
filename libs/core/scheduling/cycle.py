"""One scheduling cycle: the next job, whether it fits, and which devices are reserved for it.

The naive cycle tries every waiting job in order on the free devices. This one costs less and is fairer:

1. A job that does not fit blocks its own queue only. So a cycle costs one search per queue and one per grant, not one per
   job. `order` says which job comes first.
2. A cycle looks only at the queues that a change since the last cycle may have helped. `backlog` knows which.
3. A job that has waited long reserves devices against the jobs behind it (`reservation`), so that it cannot starve.

Priority is strict: a lower class gets only what the higher classes leave.
"""

from dataclasses import dataclass, field, replace

from libs.core.placement.answer import Blocked, Placed
from libs.core.placement.context import (
    SpreadKey,
    context_of,
    nodes_kept_away,
    release_host_resources_of,
    reserve_host_resources,
    reserve_host_resources_of,
    spread_key,
)
from libs.core.placement.find import find
from libs.core.placement.granted import claims_of, span_of_gang
from libs.core.placement.search.gang import SEARCH_BUDGET
from libs.core.placement.view import NOBODY, Context, SearchBudget, View
from libs.core.scheduling.backlog import Backlog
from libs.core.scheduling.limits import OVER_BUDGET, Tally
from libs.core.scheduling.order import Order
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.reservation import Reservations
from libs.core.state.holds import hold_code
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State
from libs.core.state.shape import Shape
from schemas.resources import Claim, Span


@dataclass(frozen=True, slots=True)
class Grant:
    job: Job
    claims: tuple[Claim, ...]
    span: Span | None = None
    """Of a gang: how close together it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cycle decided: grants in order, and for each queue that waits, why."""

    grants: list[Grant] = field(default_factory=list)
    waiting: dict[QueueKey, Blocked] = field(default_factory=dict)
    complete: bool = True
    """False: it stopped at `Policy.claims_per_cycle`, and more may fit. The next cycle goes on from there."""


class CannotBePlanned(RuntimeError):
    """A fault met while one job was planned for: that job's `job_id`. The cause is the error itself."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def plan(state: State, t_us: int, policy: Policy = Policy(), backlog: Backlog | None = None) -> Plan:
    """Grants for the jobs that fit now. Changes nothing but the `backlog`; without one it looks at everything.

    Raises CannotBePlanned for an error that is met at one job; the backlog is of no use then."""
    backlog = backlog if backlog is not None else Backlog()
    queues = backlog.to_consider(state, t_us, policy)
    if not queues:
        return Plan(waiting=dict(backlog.waiting))
    view = View.of(state.fleet, policy.chooser)
    reserve_host_resources(state, view)
    order, tally = Order(state, t_us, policy, queues), Tally(state, t_us)
    reservations = Reservations(state, view, t_us, policy, backlog.reserved)
    peers: dict[SpreadKey, set[int]] = {}
    search_budgets: dict[str, SearchBudget] = {}
    grants: list[Grant] = []
    claims, keeping, complete = 0, 0, True
    job: Job | None = None
    try:
        while True:
            job = None  # whatever goes wrong from here on is no job's fault, until it is one's turn
            job = order.next()
            if job is None:
                break
            held = job.id in state.holds
            room = tally.room(job)
            request = room.request
            outcome: Placed | Blocked = room.outcome
            if request is not None:
                known = backlog.outcome(job)
                if known is None:
                    context = context_of(state, job, t_us, peers)
                    if request.roles:
                        context = replace(
                            context, search_budget=search_budgets.setdefault(job.team, SearchBudget(SEARCH_BUDGET))
                        )
                    reservations.show_to(job)
                outcome = known or _search(state, view, job, request, context)
            if isinstance(outcome, Placed) and tally.uncovered(job, outcome.rows.tolist()) is not None:
                outcome = OVER_BUDGET
            if isinstance(outcome, Blocked):
                backlog.blocked(job, request, outcome, t_us, policy, held=held, behind=keeping)
                order.add(backlog.opened(view, reservations.keep(job, request)))
                keeping += job.id in backlog.reserved
                if held:  # it waits for the devices that are held for it: the next of its queue may still fit elsewhere
                    order.passed(job)
                continue
            claims += len(outcome.rows)
            if grants and claims > policy.claims_per_cycle:
                complete = False
                break
            grants.append(Grant(job, claims_of(view, job.shape, outcome), span_of_gang(view, job.shape, outcome)))
            view.take(outcome.rows, job.shape, outcome.roles)
            rows = outcome.rows.tolist()
            order.granted(job, rows)
            tally.take(job, rows)
            if job.shape.spread[0]:
                nodes = state.fleet.node[outcome.rows].tolist()
                peers.setdefault(spread_key(job), set()).update(nodes_kept_away(state.fleet, job, nodes))
            if held and _release_rest(state, view, job):  # devices are open again, also to jobs that were tried before
                backlog.restart(state)
                reservations.restart()
                keeping = 0
                order.restart()
            else:
                order.add(backlog.opened(view, reservations.end(job.id)))
    except Exception as fault:
        if job is None:
            raise
        raise CannotBePlanned(job.id) from fault
    backlog.finish(complete, granted=bool(grants))
    return Plan(grants, dict(backlog.waiting), complete)


def _search(state: State, view: View, job: Job, request: Shape, context: Context) -> Placed | Blocked:
    """Where the job fits. Devices that are held for it, and what they need of their nodes, are open to it."""
    if job.id not in state.holds:
        return find(view, request, NOBODY, context)
    release_host_resources_of(state, view, job.id)
    outcome = find(view, request, hold_code(state, job.id), context)
    if isinstance(outcome, Blocked):
        reserve_host_resources_of(state, view, job.id)
    return outcome


def _release_rest(state: State, view: View, job: Job) -> bool:
    """Opens the held devices that a granted job did not take. Returns whether there are any."""
    rest = view.held == hold_code(state, job.id)
    view.held[rest] = NOBODY
    # For a nested gang, every held device set aside what the most demanding role needs: a smaller role leaves some of it. Who
    # gets a share leaves the rest of its device.
    return bool(rest.any()) or bool(job.shape.roles) or not job.shape.whole
