"""Exactly one answer per request, whichever process gives it and however often (first writer wins).

Several processes may decide one request: it is redelivered after a crash or a lost acknowledgement, or one decides it out of
order and another in order. They may come to different answers: a limit is at its edge, a file was changed, a node has joined,
a process has another version. So each request has one place in the inbox of its pool: every outcome has the same message id
(`schemas.ids.answer_id`), so the broker stores the first and reports each later one as a duplicate.

    admitted, or a cancel      is itself stored in that place
    rejected                   stores `RefusalTold` (with the answer) there first; the message to the team follows
    dead letter                likewise; the dead letter follows
    busy ("send it again")     takes no place: it decides nothing, and the same key names the same job

A process that finds the place taken reads what is stored there and acts on it: a job that was admitted is not rejected any
more, and a stored rejection is sent to the team (its process may have died before that) and the job is not admitted.

The broker remembers message ids for two minutes. Older answers are known from the streams themselves, which are read whenever a
request is redelivered, and every `LOOK_S` (`services/admission/answered.py`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from nats.js.api import PubAck

from libs.bus import direct
from libs.bus.dead import SEQ, STREAM, dead_letter
from libs.bus.in_progress import StillOwned
from libs.bus.messages import Outgoing, outgoing
from libs.bus.outbox import NotStored
from libs.bus.settle import Received
from libs.ledger.tail import Stored
from schemas import ids, subjects
from schemas.audit import RefusedCommand
from schemas.inbox import JobAdmitted, RefusalTold
from schemas.jobs import JobRejected
from schemas.subjects import REQUESTS
from services.admission.handlers import ORIGIN, REJECTED_TYPE, told
from services.admission.refusing import command_of
from services.admission.undecided import read
from services.admission.window import WindowedOutbox

log = logging.getLogger("baton.admission")

_REFUSED = "io.baton.job.refused.v1"
_ADMITTED = "io.baton.job.admitted.v1"
_TYPE, _CAUSE, _SOURCE = "ce-type", "ce-causationid", "ce-source"
_CORRELATION, _TRACE = "ce-correlationid", "traceparent"


def placed(received: Received, out: list[Outgoing], pool: str, policy: str = "") -> list[Outgoing]:
    """`out`, the outcome of a request, with a message in front that takes the request's place where `out` has none (it ends the
    request, and has no message to a pool). `pool`: the pool, when the answer names none."""
    if not out or any(map(_is_input, out)):
        return out
    team = next((item for item in out if item.headers.get(_TYPE) == REJECTED_TYPE), None)
    answer = JobRejected.model_validate_json(team.payload) if team is not None else None
    command = command_of(received, out, policy)
    if command is None or (answer is not None and answer.retry_after_s is not None):
        return out
    source = team.headers[_SOURCE] if team is not None else f"/baton/{pool}/{ORIGIN}"
    taken = outgoing(
        RefusalTold(command=command, line=False, answer=answer),
        subject=subjects.inbox("job", "refused", _pool_of(source)),
        type=_REFUSED,
        id=ids.answer_id(received.cause, received.time_us),
        source=source,
        cause=received.cause,
        correlation=_said(team.headers, _CORRELATION) if team is not None else "",
        traceparent=_said(team.headers, _TRACE) if team is not None else "",
    )
    return [taken, *out]


@dataclass(slots=True)
class _Places:
    """Places that were taken already: by request, the stored answer; and the requests whose answer could not be read."""

    others: dict[str, Stored] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)


class AnswerOnce(WindowedOutbox):
    """Stores the outcomes of requests: first those that take a place, then the rest for each that got its place. `refused` is
    called for each refusal that took one; `lost` for each job that was admitted here although another process had refused
    it."""

    refused: Callable[[RefusedCommand], None] | None = None
    lost: Callable[[str], None] | None = None

    async def publish_many(
        self, items: Sequence[Outgoing], lanes: Sequence[str] = (), *, held: StillOwned | None = None
    ) -> list[PubAck]:
        """As in every outbox; for an outcome that is dropped because another answer is stored, the acknowledgement of that."""
        first = [i for i, item in enumerate(items) if _is_input(item)]
        rest = [i for i, item in enumerate(items) if not _is_input(item)]
        try:
            acks = await super().publish_many([items[i] for i in first], [lanes[i] for i in first if lanes], held=held)
        except NotStored as e:
            raise type(e)(str(e), sorted([first[i] for i in e.unstored] + rest)) from None
        stored = dict(zip(first, acks, strict=True))
        self._note(items[i] for i in first if not stored[i].duplicate)
        places = await self._places(items, stored)
        told_again = [item for cause, other in places.others.items() for item in await self._again(cause, other)]
        left = [i for i in rest if _goes_on(items[i], places)]
        try:
            later = await super().publish_many([*(items[i] for i in left), *told_again], held=held)
        except NotStored as e:
            raise type(e)(str(e), sorted(set(left) | _of(items, places.others))) from None
        if places.unread:
            raise NotStored("what was answered before could not be read", sorted(_of(items, places.unread)))
        stored |= dict(zip(left, later[: len(left)], strict=True))
        by_cause = {_cause_of(items[i]): ack for i, ack in zip(first, acks, strict=True)}
        return [stored.get(i) or by_cause[_cause_of(item)] for i, item in enumerate(items)]

    async def _places(self, items: Sequence[Outgoing], acks: Mapping[int, PubAck]) -> _Places:
        found = _Places()
        repeated = {i: ack.seq for i, ack in acks.items() if ack.duplicate and _takes_a_place(items[i])}
        by_pool: dict[str, set[int]] = {}
        for i, seq in repeated.items():
            by_pool.setdefault(items[i].subject.rpartition(".")[2], set()).add(seq)
        there = {pool: await read(self.js, pool, seqs) for pool, seqs in by_pool.items()}
        for i, seq in repeated.items():
            mine, cause = items[i], _cause_of(items[i])
            other = there[mine.subject.rpartition(".")[2]].get(seq)
            if other is None:
                found.unread.add(cause)
            elif (_refuses(mine) or _is_refusal(other)) and other.payload != mine.payload:
                found.others[cause] = other
                self._gave_up(mine, other)
        return found

    def _note(self, items: Iterable[Outgoing]) -> None:
        for item in items:
            if self.refused is not None and _refuses(item) and _takes_a_place(item):
                self.refused(RefusalTold.model_validate_json(item.payload).command)

    def _gave_up(self, mine: Outgoing, other: Stored) -> None:
        log.warning("request %s was answered before: %s, not %s", _cause_of(mine), other.subject, mine.subject)
        if mine.headers[_TYPE] == _ADMITTED and self.lost is not None:
            self.lost(JobAdmitted.model_validate_json(mine.payload).job_id)

    async def _again(self, cause: str, other: Stored) -> list[Outgoing]:
        """What follows from the answer that is stored: its process may not have come to it."""
        if not _is_refusal(other):
            return []
        refused = RefusalTold.model_validate_json(other.payload)
        headers = other.headers
        if refused.answer is not None:
            return [
                told(
                    refused.answer,
                    what=refused.command.what,
                    source=headers.get(_SOURCE, ""),
                    cause=cause,
                    correlation=_said(headers, _CORRELATION),
                    traceparent=_said(headers, _TRACE),
                )
            ]
        page = await direct.get(self.js, REQUESTS, ">", {"seq": int(cause.rpartition(":")[2])}, 1)
        request = direct.received_of(page.messages[0]) if page.messages else None
        return [dead_letter(ORIGIN, request, refused.command.reason)] if request and request.cause == cause else []


def _is_input(item: Outgoing) -> bool:
    return subjects.is_input(item.subject)


def _takes_a_place(item: Outgoing) -> bool:
    """No line for the ledger."""
    return item.headers[_TYPE] != _REFUSED or not RefusalTold.model_validate_json(item.payload).line


def _refuses(item: Outgoing) -> bool:
    return item.headers[_TYPE] == _REFUSED


def _is_refusal(stored: Stored) -> bool:
    return stored.headers.get(_TYPE) == _REFUSED


def _goes_on(item: Outgoing, places: _Places) -> bool:
    cause = _cause_of(item)
    return cause not in places.others and cause not in places.unread


def _of(items: Sequence[Outgoing], causes: "Mapping[str, Stored] | set[str]") -> set[int]:
    return {i for i, item in enumerate(items) if _cause_of(item) in causes}


def _cause_of(item: Outgoing) -> str:
    """The request that it follows from."""
    headers = item.headers
    return headers[_CAUSE] if _CAUSE in headers else f"{headers[STREAM]}:{headers[SEQ]}"


def _said(headers: Mapping[str, str], name: str) -> str:
    """An attribute, as `outgoing` takes it."""
    return unquote(headers.get(name, ""))


def _pool_of(source: str) -> str:
    return source.split("/")[2]
