"""The client: commands through JetStream, questions by request and reply, events by subscription."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from types import TracebackType
from typing import Self

from nats.aio.client import Client

from libs.bus.connect import Address, BadAddress, BusUnavailable
from libs.bus.connect import connect as connect_bus
from libs.bus.endings import notice
from libs.bus.messages import Outgoing
from libs.client import following, listing, logs, secrets
from libs.client.asking import ask
from libs.client.cancelling import Cancels
from libs.client.errors import ClientError, HasEnded, Invalid, NotFound, Parked, TimedOut, Unreachable
from libs.client.event_subscriptions import EventSubscriptions
from libs.client.own_jobs import OwnJobs, remember
from libs.client.pool_questions import PoolQuestions
from libs.client.sending import RETRY_AFTER_S, command, deliver, store, valid
from libs.client.verdict import Verdict
from libs.client.watching import end_of, events_of
from libs.client.where import Place, find
from schemas import subjects
from schemas.billing import SetQuota
from schemas.explanations import ExplainQuery, Explanation
from schemas.ids import job_id as job_id_of
from schemas.jobs import JobEvent, JobSpec, JobState
from schemas.pool_status import PoolStatus, PoolStatusQuery
from schemas.queries import (
    LOGS_ANSWER_S,
    EventList,
    EventListQuery,
    EventsLost,
    JobDocument,
    JobGet,
    JobList,
    JobListQuery,
    LogPiece,
    LogQuery,
)
from schemas.requests import SubmitJob
from schemas.secrets import SecretInfo, SecretRekeyed

log = logging.getLogger("baton.client")

_ASK_AGAIN_S = 0.02
_JUST_NOW_S = 0.05
_RESTARTS_S = 3.0
"""So long history may be away before who waits for a job is told so: one that is started anew is there sooner."""
_BULK = 500
_AT_ONCE = 256
"""So many submits of a client wait for their answers at once, the others for these. With ten thousand, each of which asks
history again and again, the client read so slowly that the broker ended its connection."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A stored request. `client_key` names the job to its team; the same key again is the same job."""

    job_id: str
    client_key: str
    team: str
    found: JobDocument | None = field(default=None, compare=False, repr=False)
    """The job, where history had it already: a repeat of one that was submitted before, which may have ended. None: it is new,
    or nobody asked."""


async def connect(
    address: Address | str | None = None,
    team: str | None = None,
    *,
    user: str | None = None,
    pool: str | None = None,
    operator: bool = False,
    wait_s: float = 5.0,
) -> "Baton":
    """A client of the Baton that arguments, environment or this machine's instance name (see `libs.client.where`). Logs a
    warning when its credential ends soon.

    Raises:
        Unreachable: nobody answers there within `wait_s`, or the credential is refused.
        Invalid: the team is unknown or ambiguous, or what says where Baton is cannot be.
        NeedsOperator: the team is "operator", and the credential is another's.
    """
    place = find(address, team, user=user, pool=pool, operator=operator)
    replies = subjects.reply_prefix(place.team, place.user)
    try:
        nats = await connect_bus(place.address, name="baton-client", inbox_prefix=replies, wait_s=wait_s)
    except BusUnavailable as e:
        raise Unreachable("Baton cannot be reached", str(e)) from None
    except BadAddress as e:
        raise Invalid("the address of NATS is not valid", str(e)) from None
    if text := notice(place.address.creds, time.time()):
        log.warning("%s", text)
    return Baton(nats, place)


class Baton(PoolQuestions):
    """A user's view of Baton, as one of a team. Every method raises `libs.client.errors.ClientError`: what, why, what to
    do."""

    def __init__(self, nats: Client, place: Place) -> None:
        super().__init__(nats, place)
        self.team = place.team
        self._subscriptions = EventSubscriptions(nats)
        self._cancels = Cancels(nats, place, self._subscriptions)
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Jobs of which we have told the end."""
        self._over: OrderedDict[str, JobEvent] = OrderedDict()
        """Ends that were told while their jobs were being submitted, until somebody waits for them."""
        self._own = OwnJobs(nats, place)
        self._submitted = ("", float("-inf"))
        self._submitting = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Safe to repeat."""
        await self.nats.close()

    # ------------------------------------------------------------------------------------------------- asking for work

    async def submit(
        self,
        spec: JobSpec,
        client_key: str | None = None,
        *,
        wait_admitted: bool = True,
        give_up_s: float = 30.0,
        answer_s: float = 10.0,
    ) -> Submitted:
        """Ask for a job to be run. Returns when the request is stored and, unless told otherwise, admitted. May be called many
        times at once: some hundreds are sent, and the others when these are answered; their times count from then on.

        Args:
            client_key: the caller's own name for this job; give one to make a repeat harmless. Random otherwise.
            give_up_s: how long the same message is sent again until it is acknowledged, s.
            answer_s: how long admission's answer is waited for, s.

        Raises:
            Rejected: admission refused it, with every reason; Conflict if the key names another job.
            TimedOut: it is stored, but whether it is admitted is not told yet; Parked where its pool has no room for it now.
            Busy: there is no room for it, and it is not stored.
            Unreachable, Denied, Invalid, Failed: it is not stored for certain. A secret that its team does not have is Invalid.
        """
        key = self.new_key() if client_key is None else client_key
        body, submitted, message = self._request(spec, key)
        async with self._submitting:
            await secrets.check_named(self.nats, self.place, [spec])
            if wait_admitted:
                return replace(
                    submitted, found=await self._until_admitted(body, submitted, message, give_up_s, answer_s)
                )
            await deliver(self.nats, [message], give_up_s=give_up_s)
        return submitted

    async def _until_admitted(
        self, body: SubmitJob, submitted: Submitted, message: Outgoing, give_up_s: float, answer_s: float
    ) -> JobDocument | None:
        """Stores the request, and waits until it is admitted. Returns what history has of the job, if it was asked. Raises as
        `submit`."""
        spec, key = body.job, body.client_key
        pool = spec.pool or self.place.pool
        async with (
            following.Live(self._subscriptions, self.team, submitted.job_id, confirmed=False) as live,
            Verdict(self._subscriptions, body, self.team, submitted.job_id) as verdict,
        ):
            verdict.about(message)
            (repeated,) = await deliver(self.nats, [message], give_up_s=give_up_s)
            known = await self._known(submitted.job_id) if repeated else None
            if repeated and (known is None or not verdict.names(known)):
                # The broker dropped a repeat of something that never became a job: it was rejected, or is just being
                # decided. Another id makes admission answer once more; a repeat of an admitted job is harmless to it.
                *_, again = self._request(spec, key, repeat=uuid.uuid4().hex)
                verdict.about(again)
                await deliver(self.nats, [again], give_up_s=give_up_s)
            try:
                found = await verdict.reached(
                    lambda: self.get(submitted.job_id),
                    lambda: self._own.waits_or_runs(submitted.job_id, key, pool),
                    repeated=repeated,
                    timeout_s=answer_s,
                )
            except TimedOut:
                if busy := await self._busy(pool):
                    raise Parked(submitted.job_id, busy, RETRY_AFTER_S) from None
                raise
        self._submitted = submitted.job_id, time.monotonic()
        self._own.add(submitted.job_id)
        if live.ended.done():
            remember(self._over, submitted.job_id, live.ended.result())
        return found

    def new_key(self) -> str:
        """A client key that names no job yet."""
        return self._own.new_key()

    async def _busy(self, pool: str) -> str:
        """Why the pool takes no submits now; "" when it does, or nobody says."""
        try:
            status: PoolStatus = await ask(self.nats, "pool.status", self.place, PoolStatusQuery(), pool=pool)
        except ClientError:
            return ""
        return f"pool {pool} takes no submits: {status.busy}" if status.busy else ""

    async def submit_many(
        self, specs: Iterable[JobSpec | tuple[str, JobSpec]], *, give_up_s: float = 60.0
    ) -> list[Submitted]:
        """Store many requests, pipelined; admission's answers come as events. An item may carry its client key.

        Raises: as `submit`, without Rejected. Requests before the one that failed may be stored.
        """
        done: list[Submitted] = []
        items = iter(specs)
        while batch := list(islice(items, _BULK)):
            keyed = [item if isinstance(item, tuple) else (uuid.uuid4().hex, item) for item in batch]
            requests = [self._request(spec, key) for key, spec in keyed]
            await deliver(self.nats, [message for *_, message in requests], give_up_s=give_up_s)
            done += [submitted for _, submitted, _ in requests]
        return done

    async def cancel(
        self, job_id: str, reason: str = "cancelled by its team", *, pool: str | None = None, give_up_s: float = 30.0
    ) -> None:
        """Ask for a job to be ended. Returns when the request is stored; its event `cancelled` says that it is done.

        The operator may cancel any team's job, as that team.

        Args:
            pool: which has the job, if that is known already; else history is asked. "": it is not known, and nobody is asked
                where it is a team that cancels.

        Raises NotCancelled when that pool is closed.
        """
        await self._cancels.send(job_id, reason, pool, give_up_s)

    async def cancel_many(self, jobs: Sequence[str], reason: str, *, give_up_s: float = 60.0) -> None:
        """As `cancel` of each, pipelined. They are jobs of this team, in pools that are in use."""
        for start in range(0, len(jobs), _BULK):
            some = [self._cancels.message(self.team, job, reason) for job in jobs[start : start + _BULK]]
            await deliver(self.nats, some, give_up_s=give_up_s)

    async def set_quota(
        self,
        team: str,
        limit_milli: int | None,
        by_type: Mapping[str, int] | None = None,
        *,
        reason: str = "",
        pool: str = "",
        give_up_s: float = 30.0,
    ) -> str:
        """Operators only: from now on these are all limits of `team` in the pool. Returns when the command is stored: what the
        ledger calls it, as the `cause` of the limits or of its refusal.

        Args:
            team: whose.
            limit_milli: accelerators of any type that it may hold at once, in thousandths; None: no such limit.
            by_type: besides, by device type (`H100`) or type and MIG profile (`H100:1g.10gb`), thousandths of what the key
                names.
            reason: why; it is written into the ledger. A service of 0.1.0 refuses a command that has one.
            pool: in which; ours unless named.
            give_up_s: how long to try.
        """
        message = command(
            valid(SetQuota, team=team, limit_milli=limit_milli, by_type=dict(by_type or {}), reason=reason),
            subject=subjects.set_quota(pool or self.place.pool, self.place.user),
            type="io.baton.quota.set.v1",
            team=subjects.OPERATOR,
            cause=uuid.uuid4().hex,
        )
        (ack,) = await store(self.nats, [message], give_up_s=give_up_s)
        return f"{ack.stream}:{ack.seq}"

    # ------------------------------------------------------------------------------------------------------- following

    async def watch(self, job_id: str) -> AsyncGenerator[JobEvent, None]:
        """A job's events from its first to its terminal one, each once, no gap.

        Raises:
            NotFound: history has neither the job nor an event of it, and none comes within 10 s.
            Unreachable: history does not answer at the start.
        """
        valid(JobGet, job_id=job_id)
        async with (
            following.Live(self._subscriptions, self.team, job_id) as live,
            contextlib.aclosing(events_of(live, job_id, self._event_page, self._known)) as events,
        ):
            async for event in events:
                yield event

    async def wait(self, job_id: str, timeout_s: float | None = None) -> JobEvent:
        """The job's terminal event, as soon as it is told live. History may have it a moment later; `get` waits for that.

        Of a job that `submit` has returned, a history that does not answer at the start is waited for.

        Raises TimedOut after `timeout_s`; otherwise as `watch`.
        """
        valid(JobGet, job_id=job_id)
        event = self._over.pop(job_id, None)
        try:
            if event is None:
                async with asyncio.timeout(timeout_s), following.Live(self._subscriptions, self.team, job_id) as live:
                    job, at = self._submitted
                    just_now = job == job_id and time.monotonic() - at < _JUST_NOW_S
                    event = await end_of(
                        live, job_id, self._event_page, self._known, just_submitted=just_now,
                        exists=job_id in self._own,
                    )  # fmt: skip
        except TimeoutError:
            raise TimedOut(
                f"{job_id} has not ended within {timeout_s:g} s", fix="see `baton explain` for why"
            ) from None
        remember(self._ended, job_id, None)
        return event

    async def events(
        self,
        after_us: int | None = None,
        *,
        after: Mapping[str, int] | None = None,
        on_lost: Callable[[EventsLost], None] | None = None,
    ) -> AsyncGenerator[JobEvent, None]:
        """The team's events (the operator: everybody's), then live, for ever, each once.

        Args:
            after_us: they begin after this time, microseconds since 1970 by the ledger's clock; 0: with the first that history
                has; None: now, by this machine's clock.
            after: in place of a time, by pool: they begin after the event of this `number`, the last that was handled.
            on_lost: History keeps a bounded number of each team's events: this hears of those that were dropped meanwhile;
                without it they are logged.

        Raises Invalid when both are given, or the operator gives numbers: each team has its own.
        """
        if after is not None and (after_us is not None or self.team == subjects.OPERATOR):
            raise Invalid(
                "events begin after a time or after numbers, and the operator's after a time",
                "numbers are a team's own",
                "give after_us alone, or speak as a team",
            )
        start = time.time_ns() // 1000 if after_us is None and after is None else after_us
        async with following.Live(self._subscriptions, self.team) as live:

            async def ask_history(position: int | None, limit: int, seen: Mapping[str, int]) -> EventList:
                # The operator's events are of all teams, each with numbers of its own.
                return await self._event_page(position, limit, None, seen if self.team != subjects.OPERATOR else None)

            found = following.follow(live, ask_history, after_us=start, seen=after, on_lost=on_lost)
            async with contextlib.aclosing(found) as events:
                async for event in events:
                    yield event

    async def logs(
        self, job_id: str, rank: int = 0, *, attempt: int = 0, follow: bool = False, every: bool = False
    ) -> AsyncGenerator[LogPiece, None]:
        """What a rank wrote, of the latest attempt unless named; with `follow` until the job ends, and with `every` from its
        first attempt on. See libs.client.logs."""

        async def read(query: LogQuery) -> LogPiece:
            piece: LogPiece = await ask(
                self.nats, "log.read", self.place, query, timeout_s=LOGS_ANSWER_S, restarts_s=_RESTARTS_S
            )
            return piece

        async def get() -> JobDocument:
            return await self.get(job_id)

        found = logs.pieces(read, get, job_id, rank=rank, attempt=attempt, follow=follow, every=every)
        async with contextlib.aclosing(found) as pieces:
            async for piece in pieces:
                yield piece

    # --------------------------------------------------------------------------------------------------------- asking

    async def get(self, job_id: str) -> JobDocument:
        """A job with its attempts. Of one that `wait` has seen the end of, its end is in it; for one that `submit` has just
        returned history is waited for."""
        deadline = time.monotonic() + following.HISTORY_LAGS_S
        while self._knows_more_of(job_id) and time.monotonic() < deadline:
            with contextlib.suppress(NotFound):
                document = await self._document(job_id)
                if document.state.terminal or job_id not in self._ended:
                    return document
            await asyncio.sleep(_ASK_AGAIN_S)
        return await self._document(job_id)

    def _knows_more_of(self, job_id: str) -> bool:
        """Whether we have heard what history may not have read yet."""
        job, at = self._submitted
        return job_id in self._ended or (job == job_id and time.monotonic() - at < following.HISTORY_LAGS_S)

    async def _document(self, job_id: str) -> JobDocument:
        query = valid(JobGet, job_id=job_id)
        document: JobDocument = await ask(self.nats, "job.get", self.place, query, restarts_s=_RESTARTS_S)
        return document

    async def list(
        self, states: Sequence[JobState] = (), name: str = "", limit: int = 100, before_us: int | None = None
    ) -> tuple[JobDocument, ...]:
        """Jobs, newest first: asks as often as it takes. Raises Failed when an answer holds not all of one microsecond."""
        return tuple([job async for page in self.pages(states, name, limit, before_us) for job in page])

    def pages(
        self, states: Sequence[JobState] = (), name: str = "", limit: float = inf, before_us: int | None = None
    ) -> AsyncIterator[Sequence[JobDocument]]:
        """As `list`, an answer at a time."""
        most = int(min(limit, listing.MOST))
        query = valid(JobListQuery, states=tuple(states), name=name, limit=most, before_us=before_us)

        async def asked(limit: int, before_us: int | None) -> Sequence[JobDocument]:
            page = query.model_copy(update={"limit": limit, "before_us": before_us})
            reply: JobList = await ask(self.nats, "job.list", self.place, page)
            return reply.jobs

        return listing.pages(asked, before_us=before_us, limit=limit)

    async def explain(self, job_id: str) -> Explanation:
        """Why a job is where it is, and the smallest change that would let it run. Our pool is asked first; of a job that
        it does not know, the pool that history says has it.

        Raises HasEnded for a job that has, NotFound for one that nobody knows."""
        query = valid(ExplainQuery, job_id=job_id)
        try:
            reply: Explanation = await ask(self.nats, "job.explain", self.place, query)
        except (NotFound, Unreachable) as unknown:
            try:
                document = await self.get(job_id)
            except ClientError as error:
                if isinstance(error, NotFound) and isinstance(unknown, NotFound):
                    why = "it neither waits nor runs, nor does history have it; another team's looks the same"
                    raise NotFound(f"no job {job_id} is known", why, "check the id and the team") from None
                raise unknown from None
            if document.state.terminal:
                raise HasEnded(document) from None
            if document.pool in ("", self.place.pool):
                raise
            reply = await ask(self.nats, "job.explain", self.place, query, pool=document.pool)
        return reply

    # -------------------------------------------------------------------------------------------------------- secrets

    async def set_secret(self, name: str, value: bytes) -> SecretInfo:
        """Jobs that start from now on get this value where they name the secret. It leaves this process sealed."""
        return await secrets.set_secret(self.nats, self.place, name, value)

    async def secrets(self, team: str | None = None) -> tuple[SecretInfo, ...]:
        """The team's secrets, without values; nobody can ask for these. `team`: operators only."""
        return (await secrets.list_secrets(self.nats, self.place, team)).secrets

    async def remove_secret(self, name: str | None, team: str | None = None) -> tuple[str, ...]:
        """What is gone now. Operators name the team, and without a name all of its secrets go. Raises NotFound."""
        return await secrets.remove_secrets(self.nats, self.place, name, team)

    async def rekey_secrets(self) -> SecretRekeyed:
        """Operators only: vault makes a new master key and stores every value anew under it."""
        return await secrets.rekey(self.nats, self.place)

    # ------------------------------------------------------------------------------------------------------- internals

    def _request(self, spec: JobSpec, key: str, repeat: str = "") -> tuple[SubmitJob, Submitted, Outgoing]:
        if self.team == subjects.OPERATOR:
            raise Invalid("the operator has no jobs", fix="submit as a team: set BATON_TEAM, or use --team")
        body = valid(SubmitJob, client_key=key, job=spec)
        submitted = Submitted(job_id_of(self.team, key), key, self.team)
        subject = subjects.submit(self.team, self.place.user)
        message = command(
            body, subject=subject, type="io.baton.job.submit.v1", team=self.team, cause=submitted.job_id + repeat
        )
        return body, submitted, message

    async def _event_page(
        self, after_us: int | None, limit: int, job_id: str | None, seen: Mapping[str, int] | None = None
    ) -> EventList:
        query = EventListQuery(job_id=job_id, after_us=after_us, limit=limit, seen=dict(seen) if seen else None)
        try:
            reply: EventList = await ask(self.nats, "event.list", self.place, query, restarts_s=_RESTARTS_S)
        except NotFound:
            return EventList(events=())
        return reply

    async def _known(self, job_id: str) -> JobDocument | None:
        try:
            return await self._document(job_id)
        except NotFound:
            return None
