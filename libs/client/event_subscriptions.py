"""A connection's subscriptions to its team's events: one per subject, shared by all listeners.

The broker copies an event for each subscription, and disconnects a client that has more subscriptions than it may
(`libs.walls.accounts`). So a process that waits for a thousand jobs has one; each event is decoded once and passed to the
listeners of its job.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from libs.bus.messages import Malformed, decode
from libs.client.errors import Unreachable
from libs.client.sending import denied_when_closed, refuse_unusable
from schemas import subjects
from schemas.ids import job_id as job_id_of
from schemas.jobs import JobEvent, JobRejected, rejection_event


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """A message of the event subjects. `event` is None for a rejection that ends no job; `rejected` is None for all other
    messages; `answers` is the correlation id of the request that a rejection answers, as its header had it."""

    event: JobEvent | None
    rejected: JobRejected | None = None
    answers: str = ""

    @property
    def job_id(self) -> str:
        """The job that the message is about; for a rejection without one, the job that its request would have become."""
        if self.rejected is not None:
            return self.rejected.job_id or job_id_of(self.rejected.team, self.rejected.client_key)
        return self.event.job_id if self.event is not None else ""


Listener = Callable[[ReceivedEvent], None]

_ANSWERS_S = 10
"""The broker must confirm a subscription within this time."""

_JOB = b'"job_id":"'
"""As history writes it. Inside a text of the event each quotation mark would have a backslash before it."""


@dataclass(slots=True)
class _Subscription:
    """One subscription and its listeners: by job, or None for those of all jobs."""

    subscription: Subscription
    listeners: defaultdict[str | None, list[Listener]] = field(default_factory=lambda: defaultdict(list))
    confirmed: bool = False


class EventSubscriptions:
    """The subscriptions of one connection."""

    def __init__(self, nats: Client) -> None:
        self.nats = nats
        self._subscriptions: dict[str, _Subscription] = {}
        self._opening = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def to(
        self, subject: str, job_id: str | None, listener: Listener, *, confirmed: bool = True
    ) -> AsyncGenerator[None, None]:
        """While the block runs, `listener` gets the messages on `subject` about the job (None: all). The subscription is
        confirmed before the block begins, unless `confirmed` is false: then by the first answer of the broker's to what is sent
        within the block, which it reads after the subscription. Raises Unreachable when the broker does not answer."""
        refuse_unusable(self.nats)
        async with self._opening:
            if subject not in self._subscriptions:
                self._subscriptions[subject] = await self._subscribe(subject)
            shared = self._subscriptions[subject]
            shared.listeners[job_id].append(listener)
            try:
                if confirmed and not shared.confirmed:
                    await self._confirm(shared)
            except BaseException:
                await self._leave(subject, shared, job_id, listener)
                raise
        try:
            yield
        finally:
            await self._leave(subject, shared, job_id, listener)

    async def _leave(self, subject: str, shared: _Subscription, job_id: str | None, listener: Listener) -> None:
        shared.listeners[job_id].remove(listener)
        if not shared.listeners[job_id]:
            del shared.listeners[job_id]
        if not shared.listeners and self._subscriptions.get(subject) is shared:
            del self._subscriptions[subject]
            with contextlib.suppress(Exception):  # the connection may be gone already
                await shared.subscription.unsubscribe()

    async def _subscribe(self, subject: str) -> _Subscription:
        async def heard(message: Msg) -> None:
            listeners = self._subscriptions[subject].listeners if subject in self._subscriptions else {}
            about = _job_of(message.data)
            if about and about not in listeners and None not in listeners:
                return  # most events may be about jobs that nobody here waits for
            if (found := read(message)) is None:
                return
            for who in (found.job_id, None):
                for listener in tuple(listeners.get(who, ())):
                    listener(found)

        with denied_when_closed(self.nats):
            return _Subscription(await self.nats.subscribe(subject, cb=heard))

    async def _confirm(self, shared: _Subscription) -> None:
        try:
            await self.nats.flush(_ANSWERS_S)
        except TimeoutError:
            raise Unreachable(
                "events cannot be heard",
                f"NATS does not answer within {_ANSWERS_S} s",
                "check the server, then try again",
            ) from None
        shared.confirmed = True


def _job_of(body: bytes) -> str:
    """The job that an event is about, found without decoding it; "": it must be decoded."""
    _, found, rest = body.partition(_JOB)
    return rest[: rest.find(b'"')].decode(errors="replace") if found else ""


def read(message: Msg) -> ReceivedEvent | None:
    """A message of the event subjects; None for a type that this version does not know."""
    try:
        if subjects.what_of(message.subject) == "rejected":
            envelope, rejected = decode(JobRejected, message.headers, message.data, expected_type=None)
            return ReceivedEvent(rejection_event(rejected), rejected, quote(envelope.correlationid, safe=":-"))
        return ReceivedEvent(decode(JobEvent, message.headers, message.data, expected_type=None)[1])
    except Malformed:
        return None
