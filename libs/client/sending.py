"""Sends commands: each is built once and published with one message id until the broker has acknowledged it.

A publish that the credential forbids gets no answer, only an error on the connection; so permission errors are checked beside
the acknowledgement, or a denied submit would look like a dead server.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.errors import ConnectionClosedError
from nats.js.api import PubAck
from nats.js.errors import APIError
from pydantic import BaseModel, ValidationError

from libs.bus.messages import MAX_BYTES, Outgoing, outgoing
from libs.bus.outbox import NotStored, Outbox, SubjectFull, is_full
from libs.bus.table import WAITING_OF_A_SENDER
from libs.client.errors import Busy, Denied, Failed, Invalid, Unreachable
from schemas import subjects
from schemas.base import Strict, sent
from schemas.ids import content_hash
from schemas.reasons import reasons_of

_INBOXES = subjects.INPUT.partition("{")[0]
_LOOK_S = 0.05
RETRY_AFTER_S = 30.0
"""Admission tries again what waits for room at least as often, s."""

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def command(model: Strict, *, subject: str, type: str, team: str, cause: str) -> Outgoing:
    """`model` as a message. Its id follows from `cause` and the body: the broker takes a repeat for the same message,
    and another body under the same key for another one, which admission then refuses aloud.

    Raises Invalid when it is larger than the bus takes.
    """
    try:
        body = sent(model)
    except ValueError as e:  # a lone surrogate: fit for Python, not for UTF-8
        raise Invalid("the request cannot be written as UTF-8", str(e), "remove the character") from None
    if len(body) > MAX_BYTES:
        raise Invalid(
            f"the request is {len(body)} bytes",
            f"at most {MAX_BYTES} are taken",
            "put large data in a file it can read",
        )
    source = f"/baton/client/{team}"
    return outgoing(body, subject=subject, type=type, source=source, cause=f"{cause}:{content_hash(body)}")


async def deliver(nats: Client, items: Sequence[Outgoing], *, give_up_s: float) -> list[bool]:
    """Stores every item, each once, and tells for each whether the broker had it already. Raises as `store`."""
    return [bool(ack.duplicate) for ack in await store(nats, items, give_up_s=give_up_s)]


async def store(nats: Client, items: Sequence[Outgoing], *, give_up_s: float) -> list[PubAck]:
    """Stores every item, each once; the broker's acknowledgements, in their order.

    Raises:
        Denied: the credential does not allow a subject.
        Unreachable: not acknowledged within `give_up_s`; what was stored stays stored, and a repeat is harmless.
        Busy: the stream is full, or for all that time so many requests of this user waited as may.
        Failed: the stream refused it for another reason.
    """
    outbox = Outbox(nats.jetstream(), give_up_s=give_up_s)
    try:
        return await unless_denied(nats, outbox.publish_many(items))
    except SubjectFull as e:
        why = f"a user may have {WAITING_OF_A_SENDER:,} requests waiting, so {len(e.unstored)} of {len(items)} are not stored"
        raise Busy(why, RETRY_AFTER_S) from e
    except NotStored as e:
        raise Unreachable(
            "the request is not stored for certain", str(e), "check the server, then send it again with the same key"
        ) from e
    except APIError as e:
        to_pool = items[0].subject.startswith(_INBOXES)
        if is_full(e):
            full = "the pool's inbox" if to_pool else "the broker's stream of requests"
            raise Busy(f"{full} is full", RETRY_AFTER_S) from e
        stream = "of the pool's inbox" if to_pool else subjects.REQUESTS
        raise Failed("the broker refused the request", str(e), f"an operator should look at the stream {stream}") from e


async def unless_denied(nats: Client, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises Denied as soon as the server reports a permission violation meanwhile, or takes the
    credential no longer: it closes the connection of who was revoked, and refuses each that follows. Raises Invalid as
    `refuse_unusable`."""
    try:
        refuse_unusable(nats)
    except Invalid:
        work.close()
        raise
    before = nats.last_error
    task = asyncio.ensure_future(work)
    task.add_done_callback(_seen)
    try:
        with denied_when_closed(nats):
            while not (await asyncio.wait({task}, timeout=_LOOK_S))[0]:
                if (denied := _denied_since(nats, before)) is not None:
                    raise denied
                if nats.is_closed:  # nats-py lets who asked something wait for its answer
                    raise ConnectionClosedError
            return task.result()
    finally:
        task.cancel()


def _seen(task: asyncio.Future[Any]) -> None:
    """What was cancelled with its caller may fail all the same: nats-py drops a cancel that comes with an answer. Then nobody
    takes what it raised, and asyncio would print it."""
    if not task.cancelled():
        task.exception()


def refuse_unusable(nats: Client) -> None:
    """Raises Invalid where the caller has closed `nats`, or is in another event loop, which never hears what is answered."""
    if getattr(nats, "closing", False):
        raise _closed_by_us()
    if getattr(nats, "loop", None) not in (None, asyncio.get_running_loop()):
        raise Invalid(
            "this client belongs to another event loop",
            "what is answered would never be heard in this one",
            "connect in the event loop that uses it; from another thread use asyncio.run_coroutine_threadsafe",
        )


def _closed_by_us() -> Invalid:
    return Invalid("this client is closed", "", "connect again")


@contextmanager
def denied_when_unanswered(nats: Client) -> Iterator[None]:
    """Raises Denied where the block waited in vain for what the credential forbids: a dead server looks the same otherwise."""
    before = nats.last_error
    try:
        yield
    except TimeoutError:
        if (denied := _denied_since(nats, before)) is not None:
            raise denied from None
        raise


def _denied_since(nats: Client, before: Exception | None) -> Denied | None:
    """The permission violation that the server has reported since `before` was the last error, if it has."""
    error = nats.last_error
    if error is None or error is before or "permissions violation" not in str(error).lower():
        return None
    why = str(error).removeprefix("nats: ")
    return Denied(
        "the credential does not allow this",
        why,
        "a finance credential reads bills, budgets, use and the ledger, and names jobs by their whole ids; ask an operator"
        if f".{subjects.FINANCE}." in why
        else "speak as the team and the user of the credential (BATON_TEAM, BATON_USER; without either it says who you are), "
        "or use an operator's",
    )


@contextmanager
def denied_when_closed(nats: Client) -> Iterator[None]:
    """Raises Denied where the block finds `nats` closed for good: the broker takes its credential no longer. Raises Invalid
    where it was closed on this side."""
    try:
        yield
    except ConnectionClosedError:
        if getattr(nats, "closing", False):
            raise _closed_by_us() from None
        raise Denied(
            "the connection was closed for good",
            str(nats.last_error or "").removeprefix("nats: "),
            "if the credential was revoked, rotated or has ended, ask who gave it to you for the new file",
        ) from None


def valid(model: type[M], **fields: object) -> M:
    """The model of these fields. Raises Invalid naming each that is wrong."""
    try:
        return model(**fields)
    except ValidationError as e:
        reasons = reasons_of(e, model=model)
        why = "; ".join(f"{r.field} = {r.value}: {r.problem}" for r in reasons)
        raise Invalid("the request is not valid", why, reasons=reasons) from None
