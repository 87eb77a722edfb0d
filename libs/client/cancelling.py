"""Cancels a job. Where no service answers for the job's pool, it waits a moment for the refusal."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from nats.aio.client import Client

from libs.bus.asking import NoAnswer, NobodyAnswers, QueryError
from libs.bus.asking import ask as ask_once
from libs.bus.messages import Outgoing
from libs.client.asking import ask
from libs.client.errors import ClientError, NotCancelled
from libs.client.event_subscriptions import EventSubscriptions, ReceivedEvent
from libs.client.sending import command, deliver, valid
from libs.client.where import Place
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.jobs import Reason
from schemas.pool_status import PoolStatusQuery
from schemas.queries import JobDocument, JobGet
from schemas.requests import CancelJob

_LOOK_S, _REFUSED_S = 2.0, 5.0
"""So long a cancel waits for what says which pool has its job; and for a refusal, where one is likely."""


@dataclass(frozen=True, slots=True)
class Cancels:
    """Those of one client."""

    nats: Client
    place: Place
    subscriptions: EventSubscriptions

    def message(self, team: str, job_id: str, reason: str, pool: str | None = None) -> Outgoing:
        # A new cause each time: cancelling again must reach admission again, e.g. when the job was not known before.
        return command(
            valid(CancelJob, job_id=job_id, reason=reason, pool=pool),
            subject=subjects.cancel(team, self.place.user),
            type="io.baton.job.cancel.v1",
            team=team,
            cause=uuid.uuid4().hex,
        )

    async def send(self, job_id: str, reason: str, pool: str | None, give_up_s: float) -> None:
        """As `Baton.cancel`."""
        team = self.place.team
        if team == subjects.OPERATOR or pool is None:
            try:
                query = valid(JobGet, job_id=job_id)
                found: JobDocument = await ask(self.nats, "job.get", self.place, query, timeout_s=_LOOK_S)
                team, pool = found.team, found.pool
            except ClientError:
                if team == subjects.OPERATOR:
                    raise
        if pool and await self._nobody_answers_for(
            pool
        ):  # only then is it named: an admission of before does not know that
            await self._or_refused(self.message(team, job_id, reason, pool), team, job_id, give_up_s)
        else:
            await deliver(self.nats, [self.message(team, job_id, reason)], give_up_s=give_up_s)

    async def _nobody_answers_for(self, pool: str) -> bool:
        """Whether it may be closed: no process is there that would answer for it. One that is slow is."""
        message, place = BY_TYPE["io.baton.pool.status.query.v1"], self.place
        try:
            await ask_once(
                self.nats, message, PoolStatusQuery(), timeout_s=_LOOK_S, pool=pool, team=place.team, user=place.user
            )
        except NobodyAnswers:
            return True
        except (NoAnswer, QueryError, ValueError):
            pass
        return False

    async def _or_refused(self, message: Outgoing, team: str, job_id: str, give_up_s: float) -> None:
        """Sends it, and waits a moment for a refusal. Raises NotCancelled."""
        refused: asyncio.Future[Sequence[Reason]] = asyncio.get_running_loop().create_future()

        def heard(event: ReceivedEvent) -> None:
            ours = event.answers == message.headers["ce-correlationid"]
            if ours and event.rejected is not None and not refused.done():
                refused.set_result(event.rejected.reasons)

        async with self.subscriptions.to(subjects.events_of(team), None, heard):
            await deliver(self.nats, [message], give_up_s=give_up_s)
            if (await asyncio.wait({refused}, timeout=_REFUSED_S))[0]:
                raise NotCancelled(job_id, refused.result())
