"""Admission, history and an agent as a client sees them: a few lines each, behind the real `serve` and real subjects."""

import asyncio
import time
from itertools import accumulate
from math import inf
from types import TracebackType
from typing import Self

from nats.aio.msg import Msg

from libs.adapters.mongo.store import MAX_REPLY_BYTES
from libs.bus.broker import make_broker
from libs.bus.connect import Address, connect
from libs.bus.messages import Malformed, decode_bare, outgoing
from libs.bus.queries import AskAgain, NothingFound, serve
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.explanations import ExplainQuery, Explanation
from schemas.ids import content_hash
from schemas.ids import job_id as job_id_of
from schemas.jobs import JobEvent, JobLimits, JobRejected, JobState, Reason
from schemas.queries import (
    AttemptDocument,
    EventList,
    EventListQuery,
    JobDocument,
    JobGet,
    JobList,
    JobListQuery,
    LogPiece,
    LogQuery,
)
from schemas.requests import CancelJob, SubmitJob

STATES = {"granted": "granted", "running": "running", "preempting": "preempting", "requeued": "queued"}


class Fakes:
    """A job called `refuse` is rejected; one called `over` has ended before its client hears that it was queued, and history
    never says so; any other is queued, with the limits of a class, and goes on when a test says so
    (`happens`). `hashes`: documents say which body was submitted; older ones did not."""

    def __init__(self, url: Address) -> None:
        self._url = url
        self.submits: list[tuple[str, dict[str, str], SubmitJob]] = []
        self.jobs: dict[str, JobDocument] = {}
        self.told: dict[str, list[JobEvent]] = {}
        self.logs: dict[tuple[str, int, int], str] = {}
        self.ended: set[tuple[str, int]] = set()
        self.hashes = True
        self.bodies: dict[str, SubmitJob] = {}
        self.silent = False  # admission does not answer
        self.unread = 0  # so many questions for a job find that history has not read of it yet
        self.unlisted = 0  # so many lists lack what history has not read yet
        self.questions = 0  # about events
        self.lacking = 0  # so many questions for a job, or for its output, find history's store away
        self.unanswered = (
            False  # history is frozen: it hears what is asked and says nothing, and queries knows what it would
        )
        self.time_limit_s = 0.0  # of jobs that say none
        self._clock = time.time_ns() // 1000

    async def __aenter__(self) -> Self:
        self.nats = await connect(self._url, name="fakes")
        self._subscription = await self.nats.subscribe(
            subjects.anyone(subjects.COMMAND, entity="job"), cb=self._command
        )
        self._broker = make_broker(self._url, "fakes")
        for what, answer in (
            ("job.get", self._get),
            ("job.list", self._list),
            ("job.explain", self._explain),
            ("event.list", self._events),
            ("log.read", self._read),
        ):
            message = BY_TYPE[f"io.baton.{what}.query.v1"]
            pool = "main" if "{pool}" in message.subject else ""
            serve(self._broker, message, answer, queue=what, pool=pool)
        await self._broker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._broker.stop()
        await self.nats.close()

    async def happens(
        self,
        job_id: str,
        what: str,
        *,
        live: bool = True,
        recorded: bool = True,
        attempt: int = 1,
        exit_code: int | None = None,
        category: str = "",
    ) -> None:
        """Something happens to a job. `live=False`: the event is lost on its way; `recorded=False`: history lags. `category`:
        of the attempt that ended."""
        job = self.jobs[job_id]
        self._clock += 1000
        state = JobState(STATES.get(what, what))
        event = JobEvent(
            job_id=job_id, team=job.team, name=job.name, what=what, state=state, attempt=attempt, at_us=self._clock,
            exit_code=exit_code,
        )  # fmt: skip
        attempts = job.attempts
        if category:
            ended = AttemptDocument(attempt=attempt, granted_us=self._clock, nodes=("n1",), category=category)
            attempts = (*attempts[:-1], ended)
        self.jobs[job_id] = job.model_copy(update={"state": state, "attempts": attempts})
        if recorded:
            self.told.setdefault(job_id, []).append(event)
        if live:
            await self.tell(event)

    async def tell(self, event: JobEvent) -> None:
        """Live."""
        cause = f"{event.job_id}{event.at_us}"
        await self._publish(event, subjects.event(event.what, event.team), f"io.baton.job.{event.what}.v1", cause)

    async def starts(self, job_id: str, attempt: int, output: str) -> None:
        """An attempt begins and writes."""
        job = self.jobs[job_id]
        attempts = (*job.attempts, AttemptDocument(attempt=attempt, granted_us=self._clock, nodes=("n1",)))
        self.jobs[job_id] = job.model_copy(update={"attempts": attempts})
        self.logs[job_id, attempt, 0] = output
        await self.happens(job_id, "running", attempt=attempt)

    def _explain(self, query: ExplainQuery, team: str) -> Explanation:
        if (job := self.jobs.get(query.job_id)) is None or not self.unanswered:
            raise NothingFound(f"no job {query.job_id} is waiting or running")
        return Explanation(job_id=job.job_id, state=job.state, reason="next", text="")

    async def _command(self, message: Msg) -> None:
        asked = subjects.read(subjects.COMMAND, message.subject)
        team = asked["team"]
        try:
            if asked["what"] == "cancel":
                _, cancel = decode_bare(CancelJob, message.subject, message.headers, message.data)
                await self.happens(cancel.job_id, "cancelled")
                return
            _, submit = decode_bare(SubmitJob, message.subject, message.headers, message.data)
        except (Malformed, KeyError):
            return
        self.submits.append((team, dict(message.headers or {}), submit))
        if not self.silent:
            await self._admit(team, submit, (message.headers or {}).get("ce-correlationid", ""))

    async def _admit(self, team: str, submit: SubmitJob, correlation: str) -> None:
        job_id = job_id_of(team, submit.client_key)
        known = self.bodies.get(job_id)
        if known == submit:
            return
        if known is not None:
            await self._reject(team, submit, "client_key", "names another job", correlation, job_id="")
        elif submit.job.name == "refuse":
            await self._reject(team, submit, "job.resources.types", "no such device", correlation, job_id=job_id)
        else:
            self.bodies[job_id] = submit
            made = _document(job_id, team, submit, self._clock, hashed=self.hashes)
            if not made.spec.time_limit_s:
                made = made.model_copy(
                    update={"spec": made.spec.model_copy(update={"time_limit_s": self.time_limit_s})}
                )
            self.jobs[job_id] = made
            if submit.job.name == "over":
                await self.happens(job_id, "succeeded", recorded=False)
            await self.happens(job_id, "queued", attempt=0, live=not self.unanswered)

    async def _reject(
        self, team: str, submit: SubmitJob, field: str, problem: str, correlation: str, *, job_id: str
    ) -> None:
        rejected = JobRejected(
            job_id=job_id,
            team=team,
            client_key=submit.client_key,
            reasons=(Reason(field=field, value="B200", problem=problem, fix="ask for another"),),
            at_us=self._clock,
        )
        subject = subjects.event("rejected", team)
        cause = f"{submit.client_key}{len(self.submits)}"
        await self._publish(rejected, subject, "io.baton.job.rejected.v1", cause, correlation)

    async def _publish(
        self, model: JobEvent | JobRejected, subject: str, type_: str, cause: str, correlation: str = ""
    ) -> None:
        message = outgoing(
            model, subject=subject, type=type_, source="/baton/main/fakes", cause=cause, correlation=correlation
        )
        await self.nats.publish(message.subject, message.payload, headers=message.headers)
        await self.nats.flush()

    def _get(self, query: JobGet, team: str) -> JobDocument | None:
        if self.unanswered:
            return None
        self._lacks()
        self.unread, unread = max(0, self.unread - 1), self.unread
        job = self.jobs.get(query.job_id) if not unread else None
        if job is None or team not in (job.team, subjects.OPERATOR):
            raise NothingFound(f"no job {query.job_id}; `baton get jobs` lists them")
        return job

    def _list(self, query: JobListQuery, team: str) -> JobList:
        if self.unlisted:
            self.unlisted -= 1
            return JobList(jobs=())
        before = inf if query.before_us is None else query.before_us
        mine = [
            job
            for job in reversed(self.jobs.values())
            if team in (job.team, subjects.OPERATOR)
            and job.submitted_us < before
            and (not query.name or job.name == query.name)
            and (not query.states or job.state in query.states)
        ]
        mine.sort(key=lambda job: job.submitted_us, reverse=True)
        return JobList(jobs=tuple(mine[: query.limit]))

    def _events(self, query: EventListQuery, team: str) -> EventList | None:
        self.questions += 1
        if self.unanswered:
            return None
        after = query.after_us or 0
        jobs = [query.job_id] if query.job_id else list(self.told)
        events = [e for job in jobs for e in self.told.get(job, []) if e.at_us > after and team in (e.team, "operator")]
        found = sorted(events, key=lambda e: e.at_us)[: query.limit]
        sizes = accumulate(len(e.model_dump_json()) + 1 for e in found)
        fitting = max(1, sum(size <= MAX_REPLY_BYTES for size in sizes))
        return EventList(events=tuple(found[:fitting]), more=fitting < len(found))

    def _lacks(self) -> None:
        if self.lacking:
            self.lacking -= 1
            raise AskAgain("MongoDB, which keeps jobs' documents, does not answer history: ask again")

    def _read(self, query: LogQuery, team: str) -> LogPiece | None:
        self._lacks()
        text = self.logs.get((query.job_id, query.attempt, query.rank))
        if text is None and query.rank >= self.jobs[query.job_id].devices:
            raise NothingFound(f"{query.job_id} has no rank {query.rank}")
        if text is None:
            return None
        piece = text[query.offset : query.offset + query.limit]
        return LogPiece(
            job_id=query.job_id,
            attempt=query.attempt,
            rank=query.rank,
            text=piece,
            next_offset=query.offset + len(piece),
            ended=(query.job_id, query.attempt) in self.ended,
        )


def _document(job_id: str, team: str, submit: SubmitJob, at_us: int, *, hashed: bool) -> JobDocument:
    key, spec = submit.client_key, submit.job.model_copy(update={"limits": JobLimits(processes=64)})
    return JobDocument(
        job_id=job_id,
        team=team,
        name=spec.name,
        client_key=key,
        priority_class=spec.priority_class,
        priority=100,
        state=JobState.QUEUED,
        devices=spec.resources.devices,
        submitted_us=at_us,
        queued_us=at_us,
        spec=spec,
        spec_hash=content_hash(submit.model_dump_json().encode()) if hashed else "",
        seq=1,
    )


async def until(condition: object, deadline_s: float = 20.0) -> None:
    """Wait for a condition; the deadline only ends a hung test."""
    assert callable(condition)
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)
