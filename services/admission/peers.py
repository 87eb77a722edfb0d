"""Checks that the admission processes of one broker serve the same pools.

They share one consumer of requests, so any of them may judge a request. If one knew other pools than the next, or another
order of them, a job could be refused for a pool that exists, or be sent to two. So a process asks the running ones before it
takes its first request, and again every half minute, because two may have started at the same time.
"""

import asyncio
import logging
from collections.abc import Sequence

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from pydantic import ValidationError

from libs.bus.asking import NoAnswer, QueryError, ask
from libs.ports.clock import until_turn
from schemas import subjects
from schemas.catalog import BY_TYPE
from schemas.queries import AdmissionPools, AdmissionPoolsQuery

log = logging.getLogger("baton.admission")

ASKED = BY_TYPE["io.baton.admission.pools.query.v1"]
_AGAIN_S = 30.0
_ANSWER_S = 2.0


class OtherPools(RuntimeError):
    """Another admission process judges for other pools; the text says which, and what to do."""


async def check(nats: Client, pools: Sequence[str]) -> None:
    """Raises OtherPools when a process that answers now has other pools, or another order of them. Silence is consent:
    a process that does not answer does not judge either."""
    try:
        told: AdmissionPools = await ask(nats, ASKED, AdmissionPoolsQuery(), timeout_s=_ANSWER_S, service="admission")
    except NoAnswer:
        return
    except (QueryError, ValidationError, NatsError, OSError) as error:
        log.warning("it is not known which pools other admission processes judge for: %r", error)
        return
    if told.pools != tuple(pools):
        raise OtherPools(
            f"this admission process was started for the pools {', '.join(pools)}, and one that runs on the same broker "
            f"judges for {', '.join(told.pools)}: a request would be judged by whichever gets it. Start all with the same "
            "BATON_POOLS, in the same order; to change the list, stop all of them first"
        )


async def answer(nats: Client, pools: Sequence[str]) -> None:
    """Answers other processes from now on, until the connection is closed."""
    mine = AdmissionPools(pools=tuple(pools)).model_dump_json().encode()

    async def told(question: Msg) -> None:
        if question.reply:
            await nats.publish(question.reply, mine)

    await nats.subscribe(subjects.fill(ASKED.subject, service="admission"), cb=told)


async def watch(nats: Client, pools: Sequence[str], every_s: float = _AGAIN_S) -> None:
    """Asks now and then; raises OtherPools when somebody disagrees."""
    while True:
        await asyncio.sleep(until_turn(every_s))
        await check(nats, pools)
