"""How a pool is shared between its queues now, as people ask it."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from libs.core.accelerators.kinds import GRAINS, grains
from libs.core.explain.user_shares import MOST, user_shares
from libs.core.scheduling.order import kinds_asked
from libs.core.scheduling.queues import divide_tree
from libs.core.state.model import State
from libs.core.state.queue_tree import ROOT
from schemas.jobs import StartPromise
from schemas.queue_status import ExpectedStart, QueueShare, QueuesReply, UserShare
from schemas.queues import Queue
from schemas.resources import ANY_ACCELERATOR
from schemas.subjects import OPERATOR

_NONE: Mapping[str, int] = MappingProxyType({})
_NOBODY: Mapping[str, StartPromise] = MappingProxyType({})


def queue_shares(
    state: State, seen_by: str, classes: Mapping[str, int] = _NONE, promised: Mapping[str, StartPromise] = _NOBODY
) -> QueuesReply:
    """Every queue that `seen_by` may see, and teams without one that hold or want something. Costs a look at each line of
    waiting jobs. `classes`: name -> priority. `promised`: jobs that wait and were told when they start."""
    tree, held = state.tree, state.all_committed()
    jobs: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for key, line in [*state.queues.items(), *state.parked.items()]:
        jobs[key.team] = jobs.get(key.team, 0) + len(line)
        kind = next(iter(kinds_asked(key.shape)), ANY_ACCELERATOR)
        each = grains(ANY_ACCELERATOR, {kind: key.shape.milli * key.shape.devices})
        waiting[key.team] = waiting.get(key.team, 0) + len(line) * each
    teams = {*held, *jobs}
    has = {team: grains(ANY_ACCELERATOR, held.get(team, {})) for team in teams}
    # What a suspended team wants it does not get: the others share it.
    wanted = {team: has[team] + (0 if team in state.suspended else waiting.get(team, 0)) for team in teams}
    operator, all_there_is = seen_by == OPERATOR, grains(ANY_ACCELERATOR, state.fleet.capacity())
    if not operator:  # what others want is not its to know: as if they wanted everything
        wanted = {name: all_there_is for name in tree.queues if name != seen_by} | {seen_by: wanted.get(seen_by, 0)}
    fair = divide_tree(tree, ANY_ACCELERATOR, all_there_is, wanted, unit=GRAINS)
    holds, waits, asks = tree.sums(has), tree.sums(waiting), tree.sums(jobs)
    shown = [
        name
        for name in _in_order(state, {*teams} if operator else {seen_by})
        if operator or name in tree.below(seen_by)
    ]
    lately = {
        team: grains(ANY_ACCELERATOR, kinds) for team, kinds in state.past_use.average(state.used, state.t_us).items()
    }
    recent = tree.sums(lately)
    shares = []
    for name in shown:
        guaranteed = tree[name].guaranteed.get(ANY_ACCELERATOR, 0)
        holds_milli = -(-holds.get(name, 0) // GRAINS)
        queue = tree[name] if name in tree else Queue(name=name)
        if name == seen_by:
            queue = queue.model_copy(update={"parent": ROOT})
        shares.append(
            QueueShare(
                queue=queue,
                applied=name in tree,
                holds=_sum([held[team] for team in held if team in tree.below(name)]),
                held_milli=holds_milli,
                borrowed_milli=max(0, holds_milli - guaranteed),
                share_milli=fair.get(name, 0) // GRAINS if operator or name in tree else 0,
                recent_milli=recent.get(name, 0) // GRAINS,
                boosts_left=_boosts_left(state, name),
                waiting_jobs=asks.get(name, 0),
                waiting_milli=-(-waits.get(name, 0) // GRAINS),
                next_start=_next_start(state, {name, *tree.below(name)}, promised),
                users=_users(state, name, fair.get(tree.line(name)[-1], 0)) if operator or name == seen_by else (),
            )
        )
    return QueuesReply(
        version=tree.version,
        order=tree.order if operator else None,
        half_life_s=tree.half_life_s if operator else None,
        preemption=tree.preemption if operator else None,
        shares=tuple(shares),
        classes=tuple(classes) if operator else (),
        priorities=dict(classes) if operator else {},
        kinds=tuple(sorted(state.fleet.offered())) if operator else (),
        book=state.book.digest if operator and state.book is not None else None,
    )


def _next_start(state: State, teams: Collection[str], promised: Mapping[str, StartPromise]) -> ExpectedStart | None:
    told = [one for job_id, one in promised.items() if job_id in state.jobs and state.jobs[job_id].team in teams]
    first = min(told, key=lambda one: (one.p50_us, one.p90_us), default=None)
    return (
        None if first is None else ExpectedStart(p50_us=first.p50_us, p90_us=first.p90_us, basis="as it was promised")
    )


def _in_order(state: State, teams: Collection[str]) -> list[str]:
    """Each queue right before those below it; then teams that have none."""
    found: list[str] = []
    todo = sorted(state.tree.children(ROOT), reverse=True)
    while todo:
        name = todo.pop()
        found.append(name)
        todo += sorted(state.tree.children(name), reverse=True)
    return found + sorted(team for team in teams if team not in state.tree)


def _users(state: State, team: str, share: int) -> tuple[UserShare, ...]:
    """`share`: of the team's own jobs, grains."""
    return tuple(user_shares(state, team, share // GRAINS)[:MOST])


def _boosts_left(state: State, team: str) -> int:
    budget = state.tree.boost_budget(team)
    return max(0, budget.most - state.boosts_had.within(team, state.t_us, budget.within_s * 1_000_000))


def _sum(held: Collection[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for kinds in held:
        for kind, milli in kinds.items():
            total[kind] = total.get(kind, 0) + milli
    return dict(sorted(total.items()))
