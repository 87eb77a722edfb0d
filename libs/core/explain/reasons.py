"""Why queues wait in one committed state: what a cycle finds there, worked out for the queues that are asked for.

A cycle was run when the state was committed, so nothing that waits in it fits, and what a queue meets depends on no other
queue but those of the few gangs that keep devices. Those are found once; then each queue costs one search, and queues of
one shape that meet the same share it. (After a cycle that stopped at its bound some that waits would fit; such a queue has
no reason, and the others may get another one with the next record.)
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from libs.core.explain.ends import ExpectedEnds
from libs.core.placement.answer import Blocked, Placed
from libs.core.placement.context import context_of, release_host_resources_of, reserve_host_resources
from libs.core.placement.find import find
from libs.core.placement.throughput import Chooser
from libs.core.placement.view import NOBODY, View
from libs.core.scheduling.limits import Tally
from libs.core.scheduling.order import JobRank, Shares, front, rank
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.reservation import KeptRows, keep_ahead, kept
from libs.core.state.holds import hold_code
from libs.core.state.job import Job, QueueKey
from libs.core.state.model import State
from libs.core.state.team_claims import longest_us

_MINUTE_S = 60
_MINUTE_US = _MINUTE_S * 1_000_000
_SUBMIT_US = _MINUTE_US
"""People take that long to submit a job with another limit."""


class Reasons:
    """Of `state` at `t_us` (its own time without one), which must not change meanwhile. Questions of one state share it."""

    def __init__(self, state: State, policy: Policy = Policy(), t_us: int | None = None) -> None:
        self.state, self.policy = state, policy
        self.t_us = state.t_us if t_us is None else t_us
        self.tally = Tally(state)
        self.ends = ExpectedEnds(state, self.t_us, policy)
        self._found: dict[QueueKey, Blocked | None] = {}
        self._searched: dict[Any, Placed | Blocked] = {}
        self._shares = Shares(state, policy)

    def of(self, key: QueueKey) -> Blocked | None:
        """Why the queue waits; None when its next job fits."""
        if key not in self._found:
            self._found[key] = self._outcome(key)
        return self._found[key]

    def view_of(self, job: Job) -> View:
        """What is free for a waiting job: without what gangs ahead of it keep."""
        return self._view(self.rank_of(job), job)

    def rank_of(self, job: Job) -> JobRank:
        """Where it comes in the order, while nothing is granted."""
        return rank(job, self._shares, self.t_us, self.policy)

    def limit_in_time_s(self, job: Job) -> int:
        """The longest time limit, in whole minutes, with which a waiting job would run now on what is kept for gangs ahead of
        it, s; 0: none would do."""
        request, here = self.tally.room(job).request, self.rank_of(job)
        if request is None or not any(one.closed_to(here, job, self.t_us) for one in self.kept):
            return 0
        rest_us = longest_us(job.spec.model_copy(update={"time_limit_s": _MINUTE_S})) - _MINUTE_US
        for until_us in sorted({one.kept.until_us for one in self.kept}, reverse=True):
            minutes = (until_us - self.t_us - rest_us - _SUBMIT_US) // _MINUTE_US
            if minutes < 1:
                break
            shorter = job.but(spec=job.spec.model_copy(update={"time_limit_s": float(minutes * _MINUTE_S)}))
            context = context_of(self.state, job, self.t_us)
            if isinstance(find(self._view(here, shorter), request, NOBODY, context), Placed):
                return int(minutes) * _MINUTE_S
        return 0

    @cached_property
    def kept(self) -> list[KeptRows]:
        """What gangs keep, in order."""
        return kept(self._open.copy(), self.state, self.t_us, self.policy, self.state.queues)

    @cached_property
    def _open(self) -> View:
        return open_view(self.state, self.policy.chooser)

    def _view(self, here: JobRank, job: Job) -> View:
        view = replace(self._open, blocked=np.zeros(len(self._open.blocked), dtype=np.bool_))
        keep_ahead(view, here, job, self.t_us, self.kept, held=job.id in self.state.holds)
        return view

    def _outcome(self, key: QueueKey) -> Blocked | None:
        """Of the last job of the queue that a cycle looks at: those for which devices are held are passed by."""
        reach: JobRank | None = None
        outcome: Placed | Blocked | None = None
        for job in front(self.state, key, self.policy):
            here = self.rank_of(job)
            reach = here if reach is None or here > reach else reach
            outcome = self._search(job, reach)
        return outcome if isinstance(outcome, Blocked) else None

    def _search(self, job: Job, reach: JobRank) -> Placed | Blocked:
        room = self.tally.room(job)
        request = room.request
        if request is None:
            return room.outcome
        context = context_of(self.state, job, self.t_us)
        if job.id in self.state.holds:
            view = self._view(reach, job).copy()
            release_host_resources_of(self.state, view, job.id)
            return find(view, request, hold_code(self.state, job.id), context)
        waits = bool(request.widen_us) or any(role.widen_us for role in request.roles)
        ahead = tuple(n for n, one in enumerate(self.kept) if one.closed_to(reach, job, self.t_us))
        asked = (request, ahead, context if waits else replace(context, waited_us=0))
        found = self._searched.get(asked)
        if found is None:
            found = self._searched[asked] = find(self._view(reach, job), request, NOBODY, context)
        return found


def open_view(state: State, chooser: Chooser | None) -> View:
    """What is free, without the processors and host memory that the beneficiaries of preemptions will need."""
    view = View.of(state.fleet, chooser)
    reserve_host_resources(state, view)
    return view
