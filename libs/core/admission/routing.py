"""Which pool is to have this request? One answer for one request, whatever is asked again.

    route(request, team, pools, recent) -> Routed(pool, verdict)

0. A request that is older than what one of the pools remembers of ended jobs is refused: it may have run there.
1. A pool that has the job already judges alone: to it a repeat is a repeat, and another body is refused. So a job is in
   one pool only, however the pools change between two copies of its submit.
2. Otherwise the pool that the job names judges alone. There being none of that name is an objection.
3. Otherwise every pool judges, and the job goes to one that admits it: of those that have nodes, the one with the most
   devices that could serve its scarcest role (free or not: admission knows what a pool has, not what is free there);
   of equals the one that is listed first. A pool without nodes comes last: there the job waits for the first one.
4. No pool admits it: it is refused with the reasons of the nearest: the one with the fewest; of equals the one whose devices
   meet more of what is asked for, then the one that has more of them, then the first.

Pure. `pools` is in the order of the settings; the caller remembers in `recent` where it sent jobs that the ledgers do not
show yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from libs.core.accelerators.spelling import meant
from libs.core.admission.demand import demand_of
from libs.core.admission.evaluate import AdmissionContext, AdmissionVerdict, NotAdmitted, evaluate
from libs.core.admission.feasible import constraints_met, suitable_devices
from libs.core.admission.refusal import Refusal, RefusalCause, refuse
from schemas.ids import job_id
from schemas.requests import SubmitJob

Pools = Mapping[str, AdmissionContext]


@dataclass(frozen=True, slots=True)
class Routed:
    """`pool` judged, and has the job if it is admitted; "" when no pool could judge."""

    pool: str
    verdict: AdmissionVerdict


def home_of(job: str, pools: Pools, recent: Mapping[str, str]) -> str | None:
    """The pool that has the job, ended or not; None when none has heard of it."""
    if (sent := recent.get(job)) in pools:
        return sent
    return next((name for name, context in pools.items() if context.fleet.taken(job)), None)


def oldest_us(pools: Pools) -> int:
    """Requests that the broker stored before this may have run in a pool that remembers them no more."""
    return max(context.fleet.oldest_us for context in pools.values())


def route(
    request: SubmitJob, team: str, pools: Pools, recent: Mapping[str, str], submitted_us: int | None = None
) -> Routed:
    """Judges a well-formed request of `team`, stored by the broker at `submitted_us`, for one of `pools`, of which there
    is at least one."""
    job = job_id(team, request.client_key)
    home, named = home_of(job, pools, recent), request.job.pool
    if home is None and named is not None and named not in pools:
        return Routed("", NotAdmitted(job, (_no_such_pool(named, pools),)))
    asked = [name for name in (home, named) if name is not None][:1] or list(pools)
    if home is None and submitted_us is not None and submitted_us < oldest_us(pools):
        # Another pool would remember longer, and take a job that has run in this one.
        asked = [max(pools, key=lambda name: pools[name].fleet.oldest_us)]
    verdicts = {name: evaluate(request, team, pools[name], submitted_us) for name in asked}
    admitted = [name for name, verdict in verdicts.items() if not isinstance(verdict, NotAdmitted)]
    if admitted:
        # `max` and `min` take the first of equals.
        best = max(admitted, key=lambda name: _suits(request, pools[name])) if len(admitted) > 1 else admitted[0]
        return Routed(best, verdicts[best])
    nearest = min(verdicts, key=lambda name: (len(_refusals(verdicts[name])), *_lacks(request, pools[name])))
    verdict = verdicts[nearest]
    assert isinstance(verdict, NotAdmitted)
    if len(asked) > 1:
        told = tuple(_of_pool(refusal, nearest, len(asked)) for refusal in verdict.refusals)
        verdict = replace(verdict, refusals=told)
    return Routed(nearest, verdict)


def _suits(request: SubmitJob, context: AdmissionContext) -> tuple[bool, int]:
    """Orders the pools that admit a request: larger is better."""
    fleet = context.fleet
    return not fleet.empty, suitable_devices(request.job, demand_of(request.job), fleet)


def _lacks(request: SubmitJob, context: AdmissionContext) -> tuple[int, int]:
    """Orders the pools that refuse a request for as many reasons: smaller is nearer."""
    job, demand = request.job, demand_of(request.job)
    return -constraints_met(job, demand, context.fleet), -suitable_devices(job, demand, context.fleet)


def _refusals(verdict: AdmissionVerdict) -> tuple[Refusal, ...]:
    return verdict.refusals if isinstance(verdict, NotAdmitted) else ()


def _no_such_pool(named: str, pools: Pools) -> Refusal:
    fix = f"{meant(named, pools)}use one of: {', '.join(pools)}; or name none, and admission chooses"
    return refuse(RefusalCause.POOL, "job.pool", named, "no such pool", fix)


def _of_pool(refusal: Refusal, pool: str, asked: int) -> Refusal:
    """The same objection, saying whose it is."""
    reason = refusal.reason
    problem = f"{reason.problem} (pool {pool}, the nearest of {asked})"
    return Refusal(refusal.why, reason.model_copy(update={"problem": problem}))
