"""Admission's answer to one submit.

It comes as an event: `queued`, or `rejected` with every reason. Both may be missed or never be sent again (the same
submit repeated is dropped by the broker), so history is asked as well.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus.messages import Malformed, Outgoing, decode
from libs.client.errors import Busy, ClientError, Conflict, Rejected, TimedOut
from schemas import subjects
from schemas.jobs import JobRejected, JobSpec, JobState, Reason
from schemas.queries import JobDocument

_ASK_AGAIN_S = 0.5
_KEY_FIELD = "client_key"

Get = Callable[[], Awaitable[JobDocument]]


class Verdict:
    """Open it before the submit is sent, then await `reached`."""

    def __init__(self, nats: Client, team: str, job_id: str, client_key: str) -> None:
        self._nats, self._team, self._job_id, self._key = nats, team, job_id, client_key
        self._sent: set[str] = set()
        self._said: asyncio.Future[JobRejected | None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> "Verdict":
        wanted = [subjects.event(what, self._team) for what in ("queued", "rejected")]
        self._subscriptions = [await self._nats.subscribe(subject, cb=self._heard) for subject in wanted]
        await self._nats.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._said.cancel()
        for subscription in self._subscriptions:
            with contextlib.suppress(Exception):  # the connection may be gone already
                await subscription.unsubscribe()

    def about(self, message: Outgoing) -> None:
        """Before `message` is sent: an answer to it is one to us."""
        self._sent.add(message.headers["ce-correlationid"])

    async def reached(self, spec: JobSpec, get: Get, *, repeated: bool, timeout_s: float) -> None:
        """Returns when the job is admitted.

        Args:
            spec: what was submitted; a job of that id with another spec is not ours.
            repeated: the broker had the message already, so no new event will come: ask history at once.

        Raises Rejected, Conflict, Busy, or TimedOut.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        other: JobDocument | None = None
        pause = 0.0 if repeated else _ASK_AGAIN_S
        while True:
            await asyncio.wait({self._said}, timeout=pause)
            if self._said.done():
                self._raise_if_rejected(self._said.result())
                return
            with contextlib.suppress(ClientError):  # not projected yet, or history is down: the event may still come
                document = await get()
                if document.spec == spec:
                    _raise_if_ended_rejected(document)
                    return
                other = document
            if loop.time() > deadline:
                break
            pause = _ASK_AGAIN_S
        if other is not None:
            raise Conflict(self._job_id, (_used_key(other),))
        raise TimedOut(
            f"{self._job_id} is stored, but admission has not answered within {timeout_s:g} s",
            "it will be handled when admission runs",
            "follow it with `baton wait`",
        )

    def _raise_if_rejected(self, rejected: JobRejected | None) -> None:
        if rejected is None:
            return
        if rejected.retry_after_s is not None:
            raise Busy("; ".join(reason.problem for reason in rejected.reasons), rejected.retry_after_s)
        if any(reason.field.rpartition(".")[2] == _KEY_FIELD for reason in rejected.reasons):
            raise Conflict(self._job_id, rejected.reasons)
        raise Rejected(self._job_id, rejected.reasons)

    async def _heard(self, message: Msg) -> None:
        if self._said.done():
            return
        if message.subject == subjects.event("queued", self._team):
            if self._job_id.encode() in message.data:
                self._said.set_result(None)
            return
        with contextlib.suppress(Malformed):
            envelope, rejected = decode(JobRejected, message.headers, message.data, expected_type=None)
            # Without a job id the key is another request's, too: only the correlation says whom it answers.
            answers_us = rejected.client_key == self._key and quote(envelope.correlationid, safe=":-") in self._sent
            if rejected.job_id == self._job_id or (not rejected.job_id and answers_us):
                self._said.set_result(rejected)


def _raise_if_ended_rejected(document: JobDocument) -> None:
    if document.state is JobState.REJECTED:
        raise Rejected(document.job_id, (), document.reason or "it was rejected before")


def _used_key(other: JobDocument) -> Reason:
    return Reason(
        field=_KEY_FIELD,
        value=other.client_key[:200],
        problem=f"names another job already: {other.name}, {other.state.value}",
        fix="submit the same body again, or choose another key",
    )
