"""Admission's answer to one submit.

It comes as an event: `queued`, or `rejected` with every reason. Both may be missed or never be sent again (the same
submit repeated is dropped by the broker), so history is asked as well.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from libs.bus.cancel import cancel
from libs.bus.messages import Outgoing
from libs.client.errors import Busy, ClientError, Conflict, Failed, Rejected, TimedOut, Unreachable
from libs.client.event_subscriptions import EventSubscriptions, ReceivedEvent
from schemas import subjects
from schemas.jobs import JobRejected, JobSpec, JobState, Reason
from schemas.queries import JobDocument
from schemas.requests import SubmitJob

_ASK_AGAIN_S = 0.5
_SILENT_S = 1.0
"""History is asked so long before somebody else is asked as well."""
_KEY_FIELD = "client_key"
_FILLED_IN: Final[dict[str, Any]] = {
    "limits": True,
    "resources": {"memory_mib": True, "roles": {"__all__": {"memory_mib"}}},
}
"""The fields of a spec that admission may fill in."""

_UNDECIDED = "history answers, and has nothing of it: admission or placement is away, or has much to do"

Get = Callable[[], Awaitable[JobDocument]]
Known = Callable[[], Awaitable[bool]]


class Verdict:
    """Open it before the submit is sent, whose acknowledgement says that this is heard; then await `reached`."""

    def __init__(self, subscriptions: EventSubscriptions, submit: SubmitJob, team: str, job_id: str) -> None:
        self._submit, self._job_id = submit, job_id
        self._sent: set[str] = set()
        self._said: asyncio.Future[JobRejected | None] = asyncio.get_running_loop().create_future()
        self._listening = subscriptions.to(subjects.events_of(team), job_id, self._heard, confirmed=False)

    async def __aenter__(self) -> "Verdict":
        await self._listening.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._said.cancel()
        await self._listening.__aexit__(*error)

    def about(self, message: Outgoing) -> None:
        """Before `message` is sent: an answer to it is one to us."""
        self._sent.add(message.headers["ce-correlationid"])

    def names(self, document: JobDocument) -> bool:
        """Whether it is the job of what we submit. Its own spec may say more: admission fills in what a model needs, and the
        limits of a class."""
        if document.spec_hash:
            return document.spec_hash in self._submit.spec_hashes()
        return _alike(document.spec, self._submit.job)

    async def reached(self, get: Get, known: Known, *, repeated: bool, timeout_s: float) -> JobDocument | None:
        """Returns when the job is admitted: the job, if it was history that said so.

        Args:
            get: asks history for the job of that id; one that was submitted with another body is not ours.
            known: asked while history is silent: whether the job is known to be admitted all the same.
            repeated: the broker had the message already, so no new event will come: ask history at once.

        Raises Rejected, Conflict, Busy, or TimedOut.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        other: JobDocument | None = None
        unheard: ClientError | None = None
        pause = 0.0 if repeated else _ASK_AGAIN_S
        while True:
            await asyncio.wait({self._said}, timeout=pause)
            if self._said.done():
                self._raise_if_rejected(self._said.result())
                return None
            unheard = None
            asked = asyncio.ensure_future(get())
            try:
                while not await self._answered(asked):
                    if await known():
                        return None
                if self._said.done():
                    continue
                document = asked.result()
                if self.names(document):
                    _raise_if_ended_rejected(document)
                    return document
                other = document
            except ClientError as e:  # not projected yet, or history is down: the event may still come
                unheard = e
                if isinstance(e, Unreachable) and await known():
                    return None
            finally:
                await cancel(asked)
            if loop.time() > deadline:
                break
            pause = _ASK_AGAIN_S
        if other is not None:
            raise Conflict(self._job_id, (_used_key(other),))
        raise TimedOut(
            f"{self._job_id} is stored, but whether it is admitted was not told within {timeout_s:g} s",
            f"{unheard.what}: history is who tells it" if isinstance(unheard, Unreachable | Failed) else _UNDECIDED,
            "follow it with `baton wait`",
        )

    async def _answered(self, asked: asyncio.Future[JobDocument]) -> bool:
        """Whether history, or admission, says something before it seems to be silent."""
        either: set[asyncio.Future[Any]] = {asked, self._said}
        return bool((await asyncio.wait(either, timeout=_SILENT_S, return_when=asyncio.FIRST_COMPLETED))[0])

    def _raise_if_rejected(self, rejected: JobRejected | None) -> None:
        if rejected is None:
            return
        if rejected.retry_after_s is not None:
            raise Busy("; ".join(reason.problem for reason in rejected.reasons), rejected.retry_after_s)
        if any(reason.field.rpartition(".")[2] == _KEY_FIELD for reason in rejected.reasons):
            raise Conflict(self._job_id, rejected.reasons)
        raise Rejected(self._job_id, rejected.reasons)

    def _heard(self, heard: ReceivedEvent) -> None:
        if self._said.done():
            return
        rejected = heard.rejected
        if rejected is None:
            if heard.event is not None and heard.event.what == "queued":
                self._said.set_result(None)
        # Without a job id the key is another request's, too: only the correlation says whom it answers.
        elif rejected.job_id or (rejected.client_key == self._submit.client_key and heard.answers in self._sent):
            self._said.set_result(rejected)


def _alike(accepted: JobSpec, sent: JobSpec) -> bool:
    """Of a job whose document is older than `spec_hash`: what admission leaves as it was sent is the same."""
    return accepted.model_dump(exclude=_FILLED_IN) == sent.model_dump(exclude=_FILLED_IN)


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
