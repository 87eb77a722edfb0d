"""Requests to the service that owns the answer, with errors in the client's own terms."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from nats.aio.client import Client
from nats.errors import Error as NatsError
from pydantic import ValidationError

from libs.bus.asking import INVALID, NOT_FOUND, NoAnswer, NobodyAnswers, QueryError
from libs.bus.asking import ask as ask_once
from libs.client.errors import Failed, Invalid, NotFound, Unreachable
from libs.client.sending import unless_denied
from libs.client.where import Place
from schemas.base import Fact, Strict
from schemas.catalog import BY_TYPE
from schemas.queries import ANSWER_S

_ASK_AGAIN_S = 0.1
_BROKER_ANSWERS_S = 2

_heard: "WeakKeyDictionary[Client, dict[str, int]]" = WeakKeyDictionary()
"""What each connection has been told so far: the newest ledger sequence of each pool. It goes with each question, so that
what another process answers is never of an earlier state."""


async def ask(
    nats: Client,
    what: str,
    place: Place,
    query: Strict | Fact,
    *,
    pool: str = "",
    timeout_s: float = ANSWER_S,
    restarts_s: float = 0.0,
) -> Any:
    """The answer to the question `what`, e.g. "job.get", that `place` asks: of `pool`, or of the pool of `place`. While nobody
    is there to answer it is asked again for `restarts_s`: a service may just be started anew.

    Raises:
        NotFound, Invalid, Failed: the owner says so.
        Denied: the credential does not allow the question.
        Unreachable: nobody answered; the text names the service that should have.
    """
    message = BY_TYPE[f"io.baton.{what}.query.v1"]
    keys = {"pool": pool or place.pool, "team": place.team, "user": place.user}
    heard = _heard.setdefault(nats, {})
    at_least = heard.get(keys["pool"], 0) if "{pool}" in message.subject else 0

    def asked() -> Awaitable[Any]:
        return unless_denied(nats, ask_once(nats, message, query, timeout_s=timeout_s, at_least=at_least, **keys))

    try:
        reply = await _once_somebody_answers(asked, restarts_s)
    except NobodyAnswers as e:
        of_pool = f", and that there is a pool {keys['pool']!r}" if "{pool}" in message.subject else ""
        raise Unreachable(f"no answer to {what}", str(e), f"check that {message.consumers[0]} runs{of_pool}") from None
    except NoAnswer as e:
        if not await _broker_answers(nats):
            raise Unreachable(
                f"no answer to {what}", "NATS does not answer either", "check the server, and the way to it"
            ) from None
        fix = f"ask again; if that does not help, an operator should look at {message.consumers[0]}"
        raise Unreachable(f"no answer to {what}", str(e), fix) from None
    except ValidationError as e:
        raise Failed(
            f"the answer to {what} cannot be read",
            f"{e.error_count()} problems: {e.errors()[0]['msg']}",
            "update the client",
        ) from None
    except QueryError as e:
        if e.status == NOT_FOUND:
            what, _, fix = str(e).partition("; ")  # who answers may know what to do
            raise NotFound(what, fix=fix or "check the id and the team") from None
        if e.status == INVALID:
            raise Invalid(f"the question {what} is not valid", str(e), reasons=e.reasons) from None
        raise Failed(f"{message.consumers[0]} cannot answer {what}", str(e), "see its log, then try again") from None
    if "{pool}" in message.subject:
        heard[keys["pool"]] = max(at_least, heard.get(keys["pool"], 0), getattr(reply, "ledger_seq", 0))
    return reply


async def _broker_answers(nats: Client) -> bool:
    """Whether it is not the broker that stands still, which whoever waits for a service cannot tell from that service."""
    try:
        await nats.flush(_BROKER_ANSWERS_S)
    except (TimeoutError, NatsError):
        return False
    return True


async def _once_somebody_answers(ask: Callable[[], Awaitable[Any]], within_s: float) -> Any:
    """Raises what `ask` raises: NobodyAnswers not before `within_s` have passed."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while True:
        try:
            return await ask()
        except NobodyAnswers:
            if loop.time() >= end:
                raise
        await asyncio.sleep(_ASK_AGAIN_S)
