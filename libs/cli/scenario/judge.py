"""Evaluates expectations. Each answer has one sentence about what was seen.

Expectations are about order, causes and states, not seconds, so a machine three times slower gives the same results.
Only `started_within` is about seconds, and holds in virtual time.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from libs.cli.scenario.schema import Expected, Explained, Ordered, PreemptedBy, RefusalExpected
from libs.cli.scenario.seen import ScenarioWatch
from libs.client import Baton
from libs.client.asking import ask
from libs.client.errors import NotFound, Unreachable
from libs.report.facts import AttemptFacts
from schemas.queue_status import QueueShare, QueuesQuery, QueuesReply
from schemas.resources import WHOLE_MILLI

AT_THE_END = frozenset({"never_preempted", "never_above", "started_within"})
"""Expectations over the whole time, evaluated once at the end."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether it holds now; `seen`: the actual state."""

    met: bool
    seen: str


class Judge:
    """Evaluates expectations on one scenario's world. `parents`: queue -> its parent."""

    def __init__(
        self, watched: ScenarioWatch, operator: Baton, teams: dict[str, Baton], parents: dict[str, str]
    ) -> None:
        self._watched, self._operator, self._teams, self.parents = watched, operator, teams, parents

    async def look(self, expected: Expected) -> Judged:
        said: Any = getattr(expected, expected.what)
        answer: Judged = await _LOOKS[expected.what](self, said)
        return answer

    # ------------------------------------------------------------------------------------------------- states and order

    async def _running(self, names: Iterable[str]) -> Judged:
        return self._all(names, "running")

    async def _waiting(self, names: Iterable[str]) -> Judged:
        return self._all(names, "waiting")

    async def _succeeded(self, names: Iterable[str]) -> Judged:
        return self._all(names, "succeeded")

    async def _failed(self, names: Iterable[str]) -> Judged:
        return self._all(names, "failed")

    async def _cancelled(self, names: Iterable[str]) -> Judged:
        return self._all(names, "cancelled")

    def _all(self, names: Iterable[str], state: str) -> Judged:
        seen = {name: self._watched.state(name) for name in names}
        return Judged(all(one == state for one in seen.values()), _sentence(seen))

    async def _started_in_order(self, names: tuple[str, ...]) -> Judged:
        first = {name: self._first(name) for name in names}
        times = [one.granted_us if one is not None else 0 for one in first.values()]
        good = all(times) and all(a < b for a, b in pairwise(times))
        order = sorted((one.granted_us, name) for name, one in first.items() if one is not None)
        missing = [name for name, one in first.items() if one is None]
        text = " then ".join(name for _, name in order) or "none has started"
        return Judged(good, text + (f"; not yet {', '.join(missing)}" if missing and order else ""))

    async def _started_while_running(self, said: Ordered) -> Judged:
        first, other = self._first(said.first), self._watched.job(said.then)
        if first is None or other is None:
            return Judged(False, f"{said.first} {self._watched.state(said.first)}")
        beside = any(
            one.granted_us < first.granted_us and (not one.closed_us or first.granted_us < one.closed_us)
            for one in other.attempts
        )
        return Judged(beside, f"{said.first} started {'while' if beside else 'when not'} {said.then} ran")

    async def _started_within(self, said: dict[str, float]) -> Judged:
        took: dict[str, str] = {}
        good = True
        for name, limit_s in said.items():
            job, first = self._watched.job(name), self._first(name)
            if job is None or first is None:
                good, took[name] = False, self._watched.state(name)
                continue
            waited_s = (first.granted_us - job.submitted_us) / 1e6
            good, took[name] = good and waited_s <= limit_s, f"after {waited_s:.1f} s"
        return Judged(good, _sentence(took))

    def _first(self, name: str) -> AttemptFacts | None:
        job = self._watched.job(name)
        return job.attempts[0] if job is not None and job.attempts else None

    # ------------------------------------------------------------------------------------------------- who gives way

    async def _preempted(self, said: PreemptedBy) -> Judged:
        names, job = self._watched.names, self._watched.job(said.job)
        found: dict[str, str] = {}
        for attempt in job.attempts if job is not None else ():
            if attempt.preempting_us:
                why = self._watched.ledger.reasons.get((attempt.job.id, attempt.beneficiary), "")
                found[names.get(attempt.beneficiary, attempt.beneficiary)] = why
        good = any(said.by in (None, by) and said.because in why for by, why in found.items())
        text = "; ".join(f"{said.job} gave way to {by} ({why})" for by, why in found.items())
        return Judged(good, text or f"{said.job} gave way to nobody, and is {self._watched.state(said.job)}")

    async def _never_preempted(self, names: Iterable[str]) -> Judged:
        gave = {
            name: f"gave way {times} times"
            for name in names
            if (job := self._watched.job(name)) is not None
            and (times := sum(attempt.preempting_us > 0 for attempt in job.attempts))
        }
        return Judged(not gave, _sentence(gave) or "nobody of them gave way")

    async def _resumed(self, names: Iterable[str]) -> Judged:
        seen = {}
        good = True
        for name in names:
            job = self._watched.job(name)
            resumes = [one.resume for one in job.attempts[1:] if one.resume] if job is not None else []
            good = good and bool(resumes)
            seen[name] = f"went on from step {resumes[-1].step}" if resumes else self._watched.state(name)
        return Judged(good, _sentence(seen))

    # ------------------------------------------------------------------------------------------------------- the queues

    async def _holds(self, said: dict[str, int]) -> Judged:
        return await self._queues(said, lambda one: one.held_milli)

    async def _shares(self, said: dict[str, int]) -> Judged:
        return await self._queues(said, lambda one: one.share_milli)

    async def _queues(self, said: dict[str, int], of: Callable[[QueueShare], int]) -> Judged:
        try:
            reply: QueuesReply = await ask(self._operator.nats, "queues.list", self._operator.place, QueuesQuery())
        except Unreachable as e:
            return Judged(False, str(e))
        found = {one.queue.name: of(one) / WHOLE_MILLI for one in reply.shares}
        seen = {name: f"{found.get(name, 0.0):g}" for name in said}
        return Judged(all(found.get(name, 0.0) == amount for name, amount in said.items()), _sentence(seen))

    async def _never_above(self, said: dict[str, int]) -> Judged:
        most = self._watched.held_most(self.parents)
        seen = {name: f"at most {most.get(name, 0) / WHOLE_MILLI:g} at once" for name in said}
        return Judged(all(most.get(name, 0) <= amount * WHOLE_MILLI for name, amount in said.items()), _sentence(seen))

    async def _next(self, name: str) -> Judged:
        try:
            jobs = (await self._operator.queue(1)).jobs
        except Unreachable as e:
            return Judged(False, str(e))
        first = self._watched.names.get(jobs[0].job_id, jobs[0].name) if jobs else "nobody waits"
        return Judged(first == name, f"next is {first}")

    # --------------------------------------------------------------------------------------------------- what was told

    async def _refused(self, said: RefusalExpected) -> Judged:
        reasons = self._watched.refused.get(said.job)
        if reasons is None:
            return Judged(False, f"{said.job} {self._watched.state(said.job)}")
        good = not said.field or any(reason.field == said.field for reason in reasons)
        return Judged(good, "; ".join(f"{one.field}: {one.problem}" for one in reasons))

    async def _boosted(self, names: Iterable[str]) -> Judged:
        watched = self._watched
        seen = {n: "is boosted" if watched.ids[n] in watched.ledger.boosted else "is not boosted" for n in names}
        return Judged(all(one == "is boosted" for one in seen.values()), _sentence(seen))

    async def _explain(self, said: Explained) -> Judged:
        watched, job = self._watched, self._watched.job(said.job)
        if job is None:
            return Judged(False, f"{said.job} {watched.state(said.job)}")
        try:
            found = await self._teams[job.team].explain(job.id)
        except (NotFound, Unreachable) as e:
            return Judged(False, str(e))
        behind = [watched.names.get(one.job_id, one.name) for one in found.behind]
        good = (
            said.reason in ("", found.reason)
            and (said.behind is None or said.behind in behind)
            and said.position in (None, found.position)
            and (said.start_known is None or said.start_known == (found.start is not None))
            and (said.suggests is None or said.suggests == bool(found.suggestion))
        )
        parts = [found.reason, f"position {found.position}", f"behind {', '.join(behind) or 'nobody it may know of'}"]
        parts.append(f"start {'known' if found.start is not None else 'unknown'}")
        return Judged(
            good, ", ".join(parts) + f": {found.text}" + (f" ({found.suggestion})" if found.suggestion else "")
        )

    async def _progress(self, names: Iterable[str]) -> Judged:
        seen, good = {}, True
        for name in names:
            report = self._watched.ledger.progress.get(self._watched.ids[name])
            good = good and report is not None and report.left_s is not None
            seen[name] = (
                "told nothing"
                if report is None
                else f"told step {report.step} of {report.steps}, {report.left_s:g} s left"
            )
        return Judged(good, _sentence(seen))

    async def _promised(self, names: Iterable[str]) -> Judged:
        promises, ids = self._watched.ledger.promises, self._watched.ids
        seen = {n: "was promised a start" if ids[n] in promises else "was promised nothing" for n in names}
        return Judged(all(ids[name] in promises for name in names), _sentence(seen))

    async def _promise_kept(self, names: Iterable[str]) -> Judged:
        seen, good = {}, True
        for name in names:
            promise, job = self._watched.ledger.promises.get(self._watched.ids[name]), self._watched.job(name)
            if promise is None or job is None or len(job.attempts) <= promise.attempt:
                good, seen[name] = False, "was promised nothing" if promise is None else self._watched.state(name)
                continue
            early_s = (promise.first_us - job.attempts[promise.attempt].granted_us) / 1e6
            good = good and early_s >= 0
            seen[name] = f"started {abs(early_s):.1f} s {'before' if early_s >= 0 else 'after'} its first promise"
        return Judged(good, _sentence(seen))


def _sentence(seen: dict[str, str]) -> str:
    return ", ".join(f"{name} {what}" for name, what in seen.items())


_LOOKS: dict[str, Callable[[Judge, Any], Awaitable[Judged]]] = {
    "running": Judge._running,
    "waiting": Judge._waiting,
    "succeeded": Judge._succeeded,
    "failed": Judge._failed,
    "cancelled": Judge._cancelled,
    "started_in_order": Judge._started_in_order,
    "started_while_running": Judge._started_while_running,
    "started_within": Judge._started_within,
    "preempted": Judge._preempted,
    "never_preempted": Judge._never_preempted,
    "resumed": Judge._resumed,
    "refused": Judge._refused,
    "holds": Judge._holds,
    "shares": Judge._shares,
    "never_above": Judge._never_above,
    "next": Judge._next,
    "boosted": Judge._boosted,
    "explain": Judge._explain,
    "progress": Judge._progress,
    "promised": Judge._promised,
    "promise_kept": Judge._promise_kept,
}
