"""When a job would start that cannot start now: a guess, made on one view on which running jobs end in order.

Running jobs are ended in order, and the jobs that wait ahead are placed before the job in question.

- A job with a time limit is guessed to end when half of all jobs of its age would have. That is at the geometric mean of
  its age (at least `LEAST_AGE_S`) and its limit: the median of a run time that is spread evenly over its order of
  magnitude. Timers end when they say. `latest_s` takes each job to its limit.
- A job that says how far it is ends as it says; one without a limit when jobs like it did, once a few have ended.
- A job of which nothing is known never ends here. If only such a job could free the devices, the start is unknown.
- Jobs ahead go first and strictly in order, so backfilling is not counted on. More than `AHEAD` of them are not followed,
  and the start is unknown as well.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from libs.core.explain.ends import ExpectedEnds
from libs.core.explain.reasons import open_view
from libs.core.placement.answer import Placed
from libs.core.placement.context import context_of
from libs.core.placement.find import find
from libs.core.placement.view import Context, View
from libs.core.scheduling import limits
from libs.core.scheduling.order import JobsAhead, in_order
from libs.core.scheduling.policy import Policy
from libs.core.state.job import Job
from libs.core.state.model import State
from schemas.explanations import PlanVerdict
from schemas.resources import WHOLE_MILLI, Claim
from schemas.subjects import OPERATOR

AHEAD = 12
"""Waiting jobs that are followed in the replay: each costs a few searches."""


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """`basis` says what the estimate rests on. Without a place (`placed`) there is no estimate: see `verdict`."""

    verdict: PlanVerdict
    basis: str
    placed: Placed | None = None
    start_s: float | None = None
    """Seconds from now."""
    latest_s: float | None = None
    """Seconds from now, if every running job takes all of its time; None: unknown even so."""


def estimate_start(
    state: State,
    job: Job,
    t_us: int,
    policy: Policy,
    *,
    before: JobsAhead | None = None,
    ends: ExpectedEnds | None = None,
    seen_by: str = OPERATOR,
) -> StartEstimate:
    """When `job`, which waits in `state`, would start, and where. A team is told no number of others' jobs. `before`: of this
    state, time and policy, if the caller has counted by it already; `ends`: likewise."""
    told = seen_by == OPERATOR
    if not _fits_an_empty_pool(state, job, policy):
        return StartEstimate(PlanVerdict.NEVER, "it would not fit on the devices that are up even if all were free")
    before = before or JobsAhead(state, t_us, policy)
    queues = before.by_queue(job)
    many = sum(queues.values()) - before.held(job)
    if many > AHEAD and not told:
        return StartEstimate(PlanVerdict.UNKNOWN, "unknown: too many jobs wait ahead of it")
    ends = ends or ExpectedEnds(state, t_us, policy)
    known, held_by = ends.known, ends.running
    endless = len(held_by) - len(known)
    but = f"; {counted(endless, 'running job')} without a time limit not counted" if endless and told else ""
    if many > AHEAD:
        return StartEstimate(PlanVerdict.UNKNOWN, f"unknown: {many} jobs wait ahead of it{but}")
    waiting = takewhile(lambda other: other.id != job.id, in_order(state, t_us, policy, {**queues, job.queue: 0}))
    ahead = [other for other in waiting if other.id not in state.holds]
    held = _HeldClaims(state, [end.job for end in known])

    def start(ordered: list[tuple[int, Job]]) -> tuple[int, Placed, int] | None:
        replay = _Replay(state, open_view(state, policy.chooser), [ended for _, ended in ordered], held)
        return _start(replay, state, job, ahead, [at_us for at_us, _ in ordered], t_us)

    guess = start([(end.at_us, end.job) for end in sorted(known, key=lambda end: (end.at_us, end.job.id))])
    if guess is None:
        what = "it needs devices of jobs that have no time limit" if endless else "no job that ends makes room for it"
        return StartEstimate(PlanVerdict.UNKNOWN, f"unknown: {what}{but}")
    latest = start([(end.latest_us, end.job) for end in sorted(known, key=lambda end: (end.latest_us, end.job.id))])
    at_us, placed, ended = guess
    return StartEstimate(
        PlanVerdict.LATER,
        f"guess: after {counted(ended, 'running job')} of {len(held_by)} end and {counted(len(ahead), 'job')} ahead start{but}"
        if told
        else "guess: after running jobs end and those ahead of it start",
        placed,
        start_s=round(max(0, at_us - t_us) / 1e6, 3),
        latest_s=None if latest is None else round(max(0, latest[0] - t_us) / 1e6, 3),
    )


def _start(
    replay: "_Replay", state: State, job: Job, ahead: list[Job], times: list[int], t_us: int
) -> tuple[int, Placed, int] | None:
    """(time, place, how many running jobs have ended by then) of `job`'s start; None if the known ends do not suffice.

    Jobs are placed in order, each after the fewest further ends with which it fits. What fits after some ends fits after
    more, so that number is found by bisection. A job ahead that cannot be placed even after all of them is passed by, as
    in a cycle.

    Args:
        times: when each end of `replay` happens, us.
    """
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


def _fits_an_empty_pool(state: State, job: Job, policy: Policy) -> bool:
    """Whether it fits on the devices that are up when all of them are free."""
    fleet = state.fleet
    view = View.of(fleet, policy.chooser)
    view.free_milli[:], view.free_mib[:], view.held[:] = WHOLE_MILLI, fleet.memory_mib, -1
    view.free_cpu[:], view.free_host[:] = fleet.cpu_milli, fleet.host_mib
    return isinstance(find(view, job.shape), Placed)


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

    def __init__(self, state: State, view: View, jobs: list[Job], held: _HeldClaims) -> None:
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
        together = self._state.tree.bounded_with(job.team)
        for ended in self._jobs[:ends] if tally.limited(job.team) else ():
            for part in _open_parts(ended) if ended.team in together else ():
                tally.give_back(ended.team, part)
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


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
